-- What API keys use.

local function counter_key(key_id, charge)
  return key('counter', string.format('%s:%s:%.0f', key_id, charge.name, charge.start))
end

local function count_of(key_id, charge)
  return tonumber(call('GET', counter_key(key_id, charge)) or 0)
end

-- A number as text: Redis cuts the fraction off numbers, and larger ones would lose digits.
local function as_text(number)
  return string.format('%.0f', number)
end

local function add(key_id, charges)
  for _, charge in ipairs(charges) do
    if charge.amount ~= 0 then
      local counter = counter_key(key_id, charge)
      call('SET', counter, as_text(math.max(count_of(key_id, charge) + charge.amount, 0)))
      call('EXPIREAT', counter, as_text(charge.expires_at))
    end
  end
end

-- The slot of a stored response is taken while that is unfinished, any other while its owner lives.
local function free_slots(slots)
  local taken = call('HGETALL', slots)
  for place = 1, #taken, 2 do
    local ref, owner = taken[place], taken[place + 1]
    local is_taken
    if is_there(ref) then
      is_taken = RUNNING[call('HGET', key('response', ref), 'status')]
    else
      is_taken = is_alive(owner)
    end
    if not is_taken then
      call('HDEL', slots, ref)
    end
  end
end

function operation.reserve_usage(of)
  local slots = key('slots', of.key_id)
  free_slots(slots)
  local accepted = true
  for _, charge in ipairs(of.charges) do
    local count = count_of(of.key_id, charge) + charge.amount
    if charge.amount ~= 0 and charge.limit and count > charge.limit then
      accepted = false
    end
  end
  local slot = of.slot
  if slot and slot.limit and call('HEXISTS', slots, slot.ref) == 0 then
    accepted = accepted and call('HLEN', slots) < slot.limit
  end
  if accepted then
    add(of.key_id, of.charges)
    if slot then
      call('HSETNX', slots, slot.ref, slot.owner)
    end
  end
  local counts = {}
  for place, charge in ipairs(of.charges) do
    counts[place] = as_text(count_of(of.key_id, charge))
  end
  return {accepted and 1 or 0, counts, call('HLEN', slots)}
end

function operation.settle_usage(of)
  if call('HDEL', key('slots', of.key_id), of.ref) == 0 then
    return {0}
  end
  add(of.key_id, of.charges)
  return {1}
end
