-- Runs, their owners and their logs.

function operation.beat(one)
  call('ZADD', single('servers'), now() + microseconds(one.ttl_s), one.owner)
  return {'ok'}
end

function operation.count_waiting()
  return {call('ZCARD', key('runs_of', ''))}
end

function operation.leave(one)
  if call('EXISTS', key('runs_of', one.owner)) == 1 then
    call('ZADD', single('servers'), 0, one.owner)
  else
    call('ZREM', single('servers'), one.owner)
  end
  return {'ok'}
end

local function hand_over(ref, owner)
  local response = key('response', ref)
  disown(ref)
  own(ref, owner)
  local epoch = call('HINCRBY', response, 'epoch', 1)
  local found = read_response(ref)
  return {ref, epoch, found[1], found[2], call('HGET', response, 'job')}
end

-- Returns pairs of number and ref, oldest first, except for runs of the asker. Removes dead owners
-- without runs.
local function without_owner(asker, limit, waiting)
  local found = {}
  local function gather(from, most, owner)
    local refs = call('ZRANGE', from, 0, most, 'WITHSCORES')
    for place = 1, #refs, 2 do
      if call('HGET', key('response', refs[place]), 'owner') == owner then
        found[#found + 1] = {tonumber(refs[place + 1]), refs[place]}
      end
    end
    return #refs > 0
  end
  if waiting then
    for _, tenant in ipairs(call('SMEMBERS', single('waiting_tenants'))) do
      gather(key('waiting_runs', tenant), limit - 1, '')
    end
  end
  for _, dead in ipairs(call('ZRANGEBYSCORE', single('servers'), '-inf', now())) do
    if dead ~= asker and not gather(key('runs_of', dead), -1, dead) then
      call('ZREM', single('servers'), dead)
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  return found
end

-- In each round, each tenant gets its oldest run.
local function in_turns(runs, held, per_tenant)
  local turns, rounds = {}, {}
  for place, run in ipairs(runs) do
    local tenant = split(run[2])
    rounds[tenant] = (rounds[tenant] or held[tenant .. ':'] or 0) + 1
    if rounds[tenant] <= per_tenant then
      turns[#turns + 1] = {rounds[tenant], place, run}
    end
  end
  table.sort(turns, function(one, other)
    return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
  end)
  return turns
end

function operation.lease_runs(by)
  if by.limit < 1 then
    return {}
  end
  local chosen, leased = {}, {}
  local turns = in_turns(without_owner(by.owner, by.limit, by.waiting), by.held, by.per_tenant)
  for place = 1, math.min(by.limit, #turns) do
    chosen[place] = turns[place]
  end
  table.sort(chosen, function(one, other) return one[2] < other[2] end)
  for place, turn in ipairs(chosen) do
    leased[place] = hand_over(turn[3][2], by.owner)
  end
  return leased
end

function operation.take_over(one)
  if not is_there(one.ref) then
    return {'missing'}
  end
  if not RUNNING[call('HGET', key('response', one.ref), 'status')] then
    return {'over'}
  end
  return {'ok', hand_over(one.ref, one.owner)}
end

function operation.give_back(lease)
  if is_void(lease) then
    return {'void'}
  end
  disown(lease.ref)
  own(lease.ref, '')
  return {'ok'}
end

function operation.held_leases(by)
  local leases = {}
  for place, ref in ipairs(call('ZRANGE', key('runs_of', by.owner), 0, -1)) do
    leases[place] = {ref, tonumber(call('HGET', key('response', ref), 'epoch'))}
  end
  return leases
end

function operation.append(more)
  if is_void(more) then
    return {'void'}
  end
  local verdict = judge(more.ref, more.events)
  if verdict == 'gap' then
    return {'gap'}
  end
  if verdict == 'next' then
    log(more.ref, more.events)
    notify(more.ref)
  end
  return {'ok'}
end

local AT_ONCE = 4  -- entries per read; each may be large

-- Returns each chunk as its first number, the number after its last, and its body.
function operation.events(of)
  local is = call('HMGET', key('response', of.ref), 'next', 'status')
  if not is[1] then
    return {'missing'}
  end
  local found, bytes, reached = {}, 0, of.after + 1
  while bytes < of.bytes do
    local entries = call('XRANGE', key('log', of.ref), entry_id(reached + 1), '+', 'COUNT', AT_ONCE)
    for _, entry in ipairs(entries) do
      local fields = entry[2]
      reached = tonumber(string.match(entry[1], '^%d+'))
      found[#found + 1] = {tonumber(fields[2]), reached, fields[4]}
      bytes = bytes + #fields[4]
    end
    if #entries < AT_ONCE then
      break
    end
  end
  return {'ok', found, not RUNNING[is[2]] and reached >= tonumber(is[1]) and 1 or 0}
end

function operation.has_new_events(of)
  local is = call('HMGET', key('response', of.ref), 'next', 'status')
  local may_come = is[1] and RUNNING[is[2]] and tonumber(is[1]) <= of.after + 1
  return {may_come and 0 or 1}
end
