-- Webhook deliveries that are pending.

local PAGE = 100
-- How many due deliveries one call looks at: other clients of this Redis wait for it.
local MAX_SCANNED = 1000

-- Returns the ids of due deliveries, but of none to the endpoints that are left out, and where to go
-- on if there may be more: false at the end.
local function find_due(by, at)
  local left_out, found = {}, {}
  for _, endpoint in ipairs(by.leave_out) do
    left_out[endpoint] = true
  end
  local due = call('ZCOUNT', single('webhook_deliveries'), '-inf', at)
  local stop = math.min(due, by.first + MAX_SCANNED)
  for first = by.first, stop - 1, PAGE do
    local last = math.min(first + PAGE, stop) - 1
    for _, id in ipairs(call('ZRANGE', single('webhook_deliveries'), first, last)) do
      if #found == by.limit then
        return found, false
      end
      if not left_out[call('HGET', key('webhook_delivery', id), 'endpoint')] then
        found[#found + 1] = id
      end
    end
  end
  -- Those that were found leave their places: they are due later.
  return found, stop < due and stop - #found
end

function operation.claim_deliveries(by)
  local at = now()
  local found = {}
  local ids, rest = find_due(by, at)
  for place, id in ipairs(ids) do
    local delivery = key('webhook_delivery', id)
    local is = call('HMGET', delivery, 'tenant', 'endpoint', 'body', 'attempts')
    call('HINCRBY', delivery, 'attempts', 1)
    -- In the same order.
    call('ZADD', single('webhook_deliveries'), at + microseconds(by.claim_s) + place, id)
    found[place] = {id, is[1], is[2], is[3], tonumber(is[4])}
  end
  return {found, rest}
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
