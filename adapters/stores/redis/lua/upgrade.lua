-- Brings what an older version has written to the names of this one.
--
-- The first step renames what is one key, the second all others, in portions; the last sets the
-- version. Any of them may be repeated: a server that is killed, or another that starts at the same
-- time, loses nothing. No server works with the store before the last step.

local SINGLE = {
  agreed = 'shared_values', repeats = 'idempotency_keys', due = 'webhook_deliveries',
  ended = 'finished_logs', expiring = 'expiring_responses', owners = 'servers',
}
local KINDS = {
  ['repeat'] = 'idempotency_key', reserved = 'idempotency_key_of', notice = 'webhook_delivery',
  use = 'storage_usage',
}
local FIELDS = {
  response = {given = 'context_end'},
  conversation = {held_by = 'claimed_by', held_owner = 'claim_owner'},
}

local function rename(old, new)
  if call('EXISTS', old) == 1 then
    call('RENAMENX', old, new)
  end
end

local function rename_field(hash, old, new)
  local value = call('HGET', hash, old)
  if value then
    call('HSET', hash, new, value)
    call('HDEL', hash, old)
  end
end

local function type_of(name)
  return call('TYPE', single(name)).ok
end

-- Servers of older versions read `listed` when they start and write `owners` with each heartbeat.
-- As each has another type now, they refuse to start, and stop.
local function keep_older_servers_out()
  call('SET', single('owners'), '')
  call('DEL', single('listed'))
  call('HSET', single('listed'), 'by', 'a newer version')
end

local function index_waiting_runs()
  for _, tenant in ipairs(call('SMEMBERS', single('waiting'))) do
    call('DEL', key('waiting', tenant))
  end
  call('DEL', single('waiting'))
  for _, ref in ipairs(call('ZRANGE', key('runs_of', ''), 0, -1)) do
    index_waiting(ref)
  end
end

-- Returns 'done' if nothing is to do, 'in use' while servers of an older version are alive.
function operation.start_upgrade(to)
  local version = tonumber(call('GET', single('schema_version')) or 0)
  if version >= to.version then
    return {version == to.version and 'done' or 'newer'}
  end
  if type_of('owners') == 'zset' then
    if call('ZCOUNT', single('owners'), now(), '+inf') > 0 then
      return {'in use'}
    end
    for _, owner in ipairs(call('ZRANGE', single('owners'), 0, -1)) do
      rename(key('owned', owner), key('runs_of', owner))
    end
  end
  rename(key('owned', ''), key('runs_of', ''))
  for old, new in pairs(SINGLE) do
    if old ~= 'owners' or type_of(old) == 'zset' then
      rename(single(old), single(new))
    end
  end
  index_waiting_runs()
  keep_older_servers_out()
  return {'started'}
end

-- Renames keys as `{kind, rest}`, and lists responses: the oldest versions kept no lists.
function operation.rename_keys(these)
  for _, one in ipairs(these.keys) do
    local kind, rest = one[1], one[2]
    if KINDS[kind] then
      rename(key(kind, rest), key(KINDS[kind], rest))
    end
    for old, new in pairs(FIELDS[kind] or {}) do
      rename_field(key(kind, rest), old, new)
    end
    if kind == 'response' and is_there(rest) then
      list('response', rest)
    end
  end
  return {'ok'}
end

-- Lists conversations, in this order if they have no number yet.
function operation.list_conversations_in_order(these)
  for _, ref in ipairs(these.refs) do
    if call('EXISTS', key('conversation', ref)) == 1 then
      number_conversation(ref)
    end
  end
  return {'ok'}
end

function operation.end_upgrade(to)
  call('SET', single('schema_version'), to.version)
  return {'ok'}
end
