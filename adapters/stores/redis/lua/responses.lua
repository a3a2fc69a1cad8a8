-- Responses: creating, finishing, reading, deleting and sweeping them.

local function expire(ref)
  local expires_at = call('HGET', key('response', ref), 'expires_at')
  if expires_at then
    call('ZADD', single('expiring_responses'), expires_at, ref)
  end
end

function operation.create(new)
  local response = key('response', new.ref)
  if new.key and call('HGET', key('idempotency_key', new.key), 'ref') ~= new.ref then
    return {'no key'}
  end
  if call('EXISTS', response) == 1 then
    return {'taken'}
  end
  local tenant = split(new.ref)
  -- An unknown or deleted parent, or one of another tenant, is ignored. So is the response itself,
  -- which does not exist yet, so that every chain ends.
  local parent = new.parent and tenant .. ':' .. new.parent
  parent = parent and is_there(parent) and parent
  local conversation = new.conversation and tenant .. ':' .. new.conversation
  call('HSET', response,
    'number', call('INCR', single('responses')),
    'status', new.status, 'body', new.body, 'epoch', new.epoch, 'children', 0,
    'input', add_items(tenant, new.input), 'inputs', #new.input,
    'output', add_items(tenant, new.output), 'outputs', #new.output)
  list('response', new.ref)
  if parent then
    call('HSET', response, 'parent', new.parent)
    call('HINCRBY', key('response', parent), 'children', 1)
  end
  local context_end = conversation and call('HGET', key('conversation', conversation), 'next_place')
  if context_end then
    call('HSET', response, 'conversation', new.conversation, 'context_end', context_end)
  end
  if new.job then
    call('HSET', response, 'job', new.job)
  end
  if new.expires_at and not new.conversation then
    call('HSET', response, 'expires_at', microseconds(new.expires_at))
  end
  set_size(new.ref, #new.body + #(new.job or ''))
  count(tenant, 'responses', 1)
  if RUNNING[new.status] then
    own(new.ref, new.owner)
  else
    expire(new.ref)
  end
  if new.events then
    call('HSET', response, 'next', new.events.first)
    log(new.ref, new.events)
  end
  return {'ok'}
end

local function leave_items(ref, conversation)
  local tenant = split(ref)
  local is = call('HMGET', key('response', ref), 'input', 'inputs', 'output', 'outputs')
  for range = 1, 3, 2 do
    local first, items = tonumber(is[range]), tonumber(is[range + 1])
    for number = first, first + items - 1 do
      call('HINCRBY', key('item', tenant .. ':' .. number), 'holders', 1)
    end
    append_numbers(conversation, first, items)
  end
end

local function replace_output(ref, output)
  local tenant = split(ref)
  local response = key('response', ref)
  local is = call('HMGET', response, 'output', 'outputs')
  drop_items(tenant, tonumber(is[1]), tonumber(is[2]))
  call('HSET', response, 'output', add_items(tenant, output), 'outputs', #output)
end

local function add_deliveries(deliveries, at)
  for place, delivery in ipairs(deliveries) do
    call('HSET', key('webhook_delivery', delivery.id), 'tenant', delivery.tenant,
      'endpoint', delivery.endpoint, 'body', delivery.body, 'attempts', delivery.attempts)
    call('ZADD', single('webhook_deliveries'), at + place, delivery.id)
  end
end

function operation.finish(last)
  local ref = last.ref
  if is_void(last) then
    return {'void'}
  end
  local verdict = last.events and judge(ref, last.events)
  if verdict == 'gap' then
    return {'gap'}
  end
  local tenant, id = split(ref)
  local response = key('response', ref)
  local at = now()
  disown(ref)
  replace_output(ref, last.output)
  call('HSET', response, 'status', last.status, 'body', last.body)
  call('HDEL', response, 'job', 'owner')
  set_size(ref, #last.body + call('HSTRLEN', response, 'trace'))
  if verdict == 'next' then
    log(ref, last.events)
  end
  if call('HEXISTS', response, 'next') == 1 then
    call('ZADD', single('finished_logs'), at, ref)
  end
  expire(ref)
  local conversation = call('HGET', response, 'conversation')
  conversation = conversation and tenant .. ':' .. conversation
  if conversation and holds(conversation, id) then
    free(conversation)
    if last.leaves_items then
      leave_items(ref, conversation)
    end
  end
  add_deliveries(last.deliveries, at)
  notify(ref)
  return {'ok'}
end

function operation.get(one)
  return is_there(one.ref) and {'ok', read_response(one.ref)} or {'missing'}
end

local function chain(ref)
  local tenant = split(ref)
  local links = {}
  while ref do
    local link = call('HMGET', key('response', ref),
      'parent', 'conversation', 'context_end', 'input', 'inputs', 'output', 'outputs')
    links[#links + 1] = link
    ref = link[1] and tenant .. ':' .. link[1]
  end
  return links
end

-- Includes the items that the conversation had at the creation of the response and still has.
function operation.read_chain(of)
  if not is_there(of.ref) then
    return {'missing'}
  end
  local tenant = split(of.ref)
  local links = chain(of.ref)
  local ranges = {}
  for depth = #links, 1, -1 do
    local link = links[depth]
    if link[2] then
      local places = key('places', tenant .. ':' .. link[2])
      ranges[#ranges + 1] = {places = places, first = 0, last = tonumber(link[3]) - 1}
    end
    ranges[#ranges + 1] = own_range(link[4], link[5])
    if depth > 1 or of.output then
      ranges[#ranges + 1] = own_range(link[6], link[7])
    end
  end
  return read_page(tenant, ranges, of)
end

function operation.read_item(one)
  local newest = call('ZREVRANGE', key('ids', one.ref), 0, 0)[1]
  if not newest then
    return {'missing'}
  end
  return {'ok', call('HGET', key('item', split(one.ref) .. ':' .. newest), 'body')}
end

function operation.delete(one)
  if not is_there(one.ref) then
    return {'missing'}
  end
  delete_response(one.ref)
  return {'ok'}
end

function operation.storage_usage(of)
  return call('HMGET', key('storage_usage', of.tenant), 'responses', 'bytes', 'waiting')
end

-- Returns the number of deletions: fewer than `limit` if nothing is left to delete.
function operation.sweep(past)
  local at = now()
  local gone = 0
  local function due(set, time)
    local found = call('ZRANGEBYSCORE', single(set), '-inf', time, 'LIMIT', 0, past.limit - gone)
    gone = gone + #found
    return ipairs(found)
  end
  for _, ref in due('expiring_responses', at) do
    delete_response(ref)
  end
  for _, ref in due('finished_logs', at - microseconds(past.keep_events_s)) do
    drop_log(ref)
  end
  for _, key_ref in due('idempotency_keys', at) do
    drop_idempotency_key(key_ref)
  end
  return {gone}
end
