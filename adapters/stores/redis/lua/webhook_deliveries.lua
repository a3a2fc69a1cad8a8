-- Webhook deliveries that are pending.

function operation.claim_deliveries(by)
  local at = now()
  local found = {}
  local due = call('ZRANGEBYSCORE', single('webhook_deliveries'), '-inf', at, 'LIMIT', 0, by.limit)
  for place, id in ipairs(due) do
    local delivery = key('webhook_delivery', id)
    local is = call('HMGET', delivery, 'tenant', 'endpoint', 'body', 'attempts')
    call('HINCRBY', delivery, 'attempts', 1)
    -- In the same order.
    call('ZADD', single('webhook_deliveries'), at + microseconds(by.claim_s) + place, id)
    found[place] = {id, is[1], is[2], is[3], tonumber(is[4])}
  end
  return found
end

function operation.delay_delivery(one)
  call('ZADD', single('webhook_deliveries'), 'XX', now() + microseconds(one.seconds), one.id)
  return {'ok'}
end

function operation.delete_delivery(one)
  call('ZREM', single('webhook_deliveries'), one.id)
  call('DEL', key('webhook_delivery', one.id))
  return {'ok'}
end
