-- The response that each Idempotency-Key is reserved for. A `taken` is `TENANT:KEY`.

local function stands(taken, ref, owner)
  if tonumber(call('ZSCORE', single('repeats'), taken) or 0) <= now() then
    return false
  end
  return is_there(ref) or is_alive(owner)
end

function operation.reserve(new)
  local repeated = key('repeat', new.taken)
  local is = call('HMGET', repeated, 'ref', 'fingerprint', 'owner')
  if is[1] and stands(new.taken, is[1], is[3]) then
    return {is[1], is[2], is_there(is[1]) and 1 or 0}
  end
  if is[1] then
    drop_repeat(new.taken)
  end
  call('HSET', repeated, 'ref', new.ref, 'fingerprint', new.fingerprint, 'owner', new.owner)
  call('SET', key('reserved', new.ref), new.taken)
  call('ZADD', single('repeats'), microseconds(new.expires_at), new.taken)
  return {new.ref, new.fingerprint, is_there(new.ref) and 1 or 0}
end

function operation.unreserve(one)
  if not is_there(one.ref) and call('HGET', key('repeat', one.taken), 'ref') == one.ref then
    drop_repeat(one.taken)
  end
  return {'ok'}
end
