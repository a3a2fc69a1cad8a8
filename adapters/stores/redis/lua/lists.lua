-- Pages of a tenant's responses and conversations, by their numbers.

local function number_after(of, kind)
  if not of.after then
    return of.descending and '+inf' or '-inf'
  end
  local number = call('HGET', key(kind, of.tenant .. ':' .. of.after), 'number')
  return number and '(' .. number
end

local function ids_after(index, after, of)
  if of.descending then
    return call('ZREVRANGEBYSCORE', index, after, '-inf', 'LIMIT', 0, of.limit)
  end
  return call('ZRANGEBYSCORE', index, after, '+inf', 'LIMIT', 0, of.limit)
end

-- A body that is longer than `max_bytes` is empty here: `response_body` reads it.
function operation.list_responses(of)
  local after = number_after(of, 'response')
  if not after then
    return {'missing'}
  end
  local found = {}
  for _, id in ipairs(ids_after(key('responses_of', of.tenant), after, of)) do
    local response = key('response', of.tenant .. ':' .. id)
    found[#found + 1] = id
    local is_long = call('HSTRLEN', response, 'body') > of.max_bytes
    found[#found + 1] = is_long and '' or call('HGET', response, 'body')
  end
  return {'ok', found}
end

function operation.response_body(one)
  return {call('HGET', key('response', one.ref), 'body')}
end

function operation.list_conversations(of)
  local after = number_after(of, 'conversation')
  if not after then
    return {'missing'}
  end
  local found = {}
  for _, id in ipairs(ids_after(key('conversations_of', of.tenant), after, of)) do
    local is = call('HMGET', key('conversation', of.tenant .. ':' .. id), 'created_at', 'metadata')
    found[#found + 1] = {id, is[1], is[2]}
  end
  return {'ok', found}
end
