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

local function own_items(prefix, response)
  local is = call('HMGET', response, 'input', 'inputs', 'output', 'outputs')
  local found = {}
  for range = 1, 3, 2 do
    local first = tonumber(is[range])
    for number = first, first + tonumber(is[range + 1]) - 1 do
      found[#found + 1] = call('HGET', prefix .. number, 'body')
    end
  end
  return found
end

local function without(text, part)
  local from, to = string.find(text, part, 1, true)
  while from do
    text = string.sub(text, 1, from - 1) .. string.sub(text, to + 1)
    from, to = string.find(text, part, from, true)
  end
  return text
end

-- Whether one of the items has a spelling of the piece. `lower` remembers them in lower case.
local function has_piece(items, lower, piece, max_bytes)
  for place, item in ipairs(items) do
    if #item <= max_bytes then
      lower[place] = lower[place] or string.lower(item)
      local text = lower[place]
      for _, each in ipairs(piece.frame) do
        text = without(text, each)
      end
      for _, spelling in ipairs(piece.spellings) do
        if string.find(text, spelling, 1, true) then
          return true
        end
      end
    end
  end
  return false
end

local function has_pieces(items, pieces, max_bytes)
  local lower = {}
  for _, piece in ipairs(pieces) do
    if not has_piece(items, lower, piece, max_bytes) then
      return false
    end
  end
  return true
end

-- Reads `portion` responses, or fewer if they have more than `portion_bytes`, and stops after `limit`
-- that have a piece of each word in an item. Items of more than `max_bytes` are not searched.
function operation.search_responses(of)
  local after = number_after(of, 'response')
  if not after then
    return {'missing'}
  end
  local limit = of.limit
  of.limit = of.portion
  local ids = ids_after(key('responses_of', of.tenant), after, of)
  local responses, prefix = key('response', of.tenant .. ':'), key('item', of.tenant .. ':')
  local found, searched, bytes = {}, 0, 0
  while searched < #ids and #found < limit and bytes <= of.portion_bytes do
    searched = searched + 1
    local response = responses .. ids[searched]
    local items = own_items(prefix, response)
    for _, item in ipairs(items) do
      bytes = bytes + #item
    end
    if has_pieces(items, of.pieces, of.max_bytes) then
      found[#found + 1] = {call('HGET', response, 'body'), items}
    end
  end
  local is_last = searched == #ids and #ids < of.portion
  return {'ok', found, searched, ids[searched] or '', is_last and 1 or 0}
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
