-- Webhook deliveries that are pending.

function operation.due(by)
  local at = now()
  local found = {}
  local due = call('ZRANGEBYSCORE', single('due'), '-inf', at, 'LIMIT', 0, by.limit)
  for place, id in ipairs(due) do
    local notice = key('notice', id)
    local is = call('HMGET', notice, 'tenant', 'endpoint', 'body', 'attempts')
    call('HINCRBY', notice, 'attempts', 1)
    call('ZADD', single('due'), at + microseconds(by.hold_s) + place, id)  -- in the same order
    found[place] = {id, is[1], is[2], is[3], tonumber(is[4])}
  end
  return found
end

function operation.delay(one)
  call('ZADD', single('due'), 'XX', now() + microseconds(one.seconds), one.id)
  return {'ok'}
end

function operation.remove(one)
  call('ZREM', single('due'), one.id)
  call('DEL', key('notice', one.id))
  return {'ok'}
end
