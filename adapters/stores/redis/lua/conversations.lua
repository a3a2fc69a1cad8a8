-- Conversations: their items by place, and the response that has claimed each.

local function exists(ref)
  return call('EXISTS', key('conversation', ref)) == 1
end

-- A claim is valid while its owner is alive, or its response is unfinished.
local function is_claimed(ref)
  local is = call('HMGET', key('conversation', ref), 'claimed_by', 'claim_owner')
  if not is[1] then
    return false
  end
  local response = key('response', split(ref) .. ':' .. is[1])
  return is_alive(is[2]) or RUNNING[call('HGET', response, 'status')] or false
end

local function add(ref, items)
  append_numbers(ref, add_items(split(ref), items), #items)
end

function operation.create_conversation(new)
  if exists(new.ref) then
    return {'taken'}
  end
  call('HSET', key('conversation', new.ref),
    'created_at', new.created_at, 'metadata', new.metadata, 'next_place', 0)
  number_conversation(new.ref)
  add(new.ref, new.items)
  return {'ok'}
end

function operation.conversation(one)
  local is = call('HMGET', key('conversation', one.ref), 'created_at', 'metadata')
  return is[1] and {'ok', is} or {'missing'}
end

function operation.update_conversation(one)
  if not exists(one.ref) then
    return {'missing'}
  end
  call('HSET', key('conversation', one.ref), 'metadata', one.metadata)
  return {'ok', call('HGET', key('conversation', one.ref), 'created_at')}
end

function operation.delete_conversation(one)
  if not exists(one.ref) then
    return {'missing'}
  end
  local tenant = split(one.ref)
  for _, number in ipairs(call('ZRANGE', key('places', one.ref), 0, -1)) do
    drop_item(tenant, number)
  end
  call('DEL', key('conversation', one.ref), key('places', one.ref))
  unlist('conversation', one.ref)
  return {'ok'}
end

function operation.conversation_items(one)
  if not exists(one.ref) then
    return {'missing'}
  end
  local all = {places = key('places', one.ref), first = 0, last = '+inf'}
  return read_page(split(one.ref), {all}, one)
end

function operation.conversation_item(one)
  local tenant = split(one.ref)
  local all = {places = key('places', one.ref), first = 0, last = '+inf'}
  local place = find_in_range(all, key('ids', tenant .. ':' .. one.item_id), true)
  if not place then
    return {exists(one.ref) and 'no item' or 'missing'}
  end
  local found = {}
  read_item(tenant, call('ZRANGEBYSCORE', all.places, place, place)[1], found)
  return {'ok', found}
end

function operation.add_items(more)
  if not exists(more.ref) then
    return {'missing'}
  end
  if is_claimed(more.ref) then
    return {'locked'}
  end
  add(more.ref, more.items)
  return {'ok'}
end

function operation.remove_item(one)
  local tenant = split(one.ref)
  local places = key('places', one.ref)
  local removed = 0
  for _, number in ipairs(call('ZRANGE', key('ids', tenant .. ':' .. one.item_id), 0, -1)) do
    if call('ZREM', places, number) == 1 then
      drop_item(tenant, number)
      removed = removed + 1
    end
  end
  if removed > 0 then
    return {'ok'}
  end
  return {exists(one.ref) and 'no item' or 'missing'}
end

function operation.claim(one)
  if not exists(one.ref) then
    return {'missing'}
  end
  if is_claimed(one.ref) then
    return {'locked'}
  end
  call('HSET', key('conversation', one.ref), 'claimed_by', one.response_id, 'claim_owner', one.owner)
  return {'ok'}
end

function operation.release(one)
  if holds(one.ref, one.response_id) then
    add(one.ref, one.items)
    free(one.ref)
  end
  return {'ok'}
end
