-- API keys, by id and by hash.

function operation.add_key(new)
  local keys, hashes = single('api_keys'), single('api_key_hashes')
  if call('HEXISTS', keys, new.id) == 1 or call('HEXISTS', hashes, new.hash) == 1 then
    return {'taken'}
  end
  call('HSET', keys, new.id, new.body)
  call('HSET', hashes, new.hash, new.id)
  call('ZADD', single('api_key_order'), call('INCR', single('api_key_count')), new.id)
  return {'ok'}
end

function operation.keys()
  local found = {}
  for place, id in ipairs(call('ZRANGE', single('api_key_order'), 0, -1)) do
    found[place] = call('HGET', single('api_keys'), id)
  end
  return found
end

function operation.key(of)
  local id = call('HGET', single('api_key_hashes'), of.hash)
  return {id and call('HGET', single('api_keys'), id) or ''}
end

function operation.get_key(one)
  return {call('HGET', single('api_keys'), one.id) or ''}
end

-- Returns 0 if the key is gone, or is not `before` any more.
function operation.update_key(one)
  if call('HGET', single('api_keys'), one.id) ~= one.before then
    return {0}
  end
  call('HSET', single('api_keys'), one.id, one.body)
  return {1}
end

function operation.revoke_key(one)
  for _, hash in ipairs(call('HKEYS', single('api_key_hashes'))) do
    if call('HGET', single('api_key_hashes'), hash) == one.id then
      call('HDEL', single('api_key_hashes'), hash)
    end
  end
  call('ZREM', single('api_key_order'), one.id)
  return {call('HDEL', single('api_keys'), one.id)}
end
