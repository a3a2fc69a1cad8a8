-- The response that each Idempotency-Key is reserved for. A `key_ref` is `TENANT:KEY`.

local function is_reserved(key_ref, ref, owner)
  if tonumber(call('ZSCORE', single('idempotency_keys'), key_ref) or 0) <= now() then
    return false
  end
  return is_there(ref) or is_alive(owner)
end

function operation.reserve(new)
  local reservation = key('idempotency_key', new.key_ref)
  local is = call('HMGET', reservation, 'ref', 'fingerprint', 'owner')
  if is[1] and is_reserved(new.key_ref, is[1], is[3]) then
    return {is[1], is[2], is_there(is[1]) and 1 or 0}
  end
  if is[1] then
    drop_idempotency_key(new.key_ref)
  end
  call('HSET', reservation, 'ref', new.ref, 'fingerprint', new.fingerprint, 'owner', new.owner)
  call('SET', key('idempotency_key_of', new.ref), new.key_ref)
  call('ZADD', single('idempotency_keys'), microseconds(new.expires_at), new.key_ref)
  return {new.ref, new.fingerprint, is_there(new.ref) and 1 or 0}
end

function operation.unreserve(one)
  local holder = call('HGET', key('idempotency_key', one.key_ref), 'ref')
  if not is_there(one.ref) and holder == one.ref then
    drop_idempotency_key(one.key_ref)
  end
  return {'ok'}
end
