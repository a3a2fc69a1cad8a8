-- The keys in Redis, and functions that several operations share. Each script consists of this text,
-- one of the other files here, and a call of the operation that ARGV names.
--
-- A `ref` is `TENANT:ID`; the tenant is URL-quoted, so it has no colon. Times are in microseconds by
-- the clock of Redis, which is the same for all servers.
--
--   response:REF      hash    status epoch owner number parent children conversation
--                             context_end expires_at size; body, job and trace, until it is deleted;
--                             input, inputs, output, outputs: first number and count of its items;
--                             next, log_size: the log's next number and bytes, if there is a log
--   item:TENANT:N     hash    id, body, holders (its response and its conversation: 1 or 2)
--   ids:TENANT:ID     sorted  numbers of the items of this id
--   log:REF           stream  an entry (first, body) a chunk; its id is the number after its last
--   conversation:REF  hash    number created_at metadata next_place claimed_by claim_owner
--   responses_of:TENANT, conversations_of:TENANT
--                     sorted  ids by `number`
--   places:REF        sorted  numbers of a conversation's items, by place
--   runs_of:OWNER     sorted  refs of its unfinished responses by `number`; those that wait: no name
--   waiting_tenants   set     tenants with runs that wait
--   waiting_runs:TENANT
--                     sorted  refs of its responses that wait by `number`
--   servers           sorted  owners by when they expire
--   expiring_responses, finished_logs
--                     sorted  refs by when the response expires, and by when its run ended
--   idempotency_key:TENANT:KEY
--                     hash    ref fingerprint owner
--   idempotency_key_of:REF
--                     string  the key, as TENANT:KEY, that is reserved for this response
--   idempotency_keys  sorted  keys by when they expire
--   webhook_delivery:ID
--                     hash    tenant endpoint body attempts
--   webhook_deliveries
--                     sorted  deliveries by when they are due
--   storage_usage:TENANT
--                     hash    responses bytes waiting
--   api_keys, api_key_hashes, api_key_order
--   counter:KEY:NAME:START  string  what an API key used in a window; it expires
--   slots:KEY         hash    the owner of each run of an API key, by ref
--   shared_values     hash    values that all servers share, by name
--   schema_version    string  the version of these names: see upgrade.lua

local call = redis.call
local operation = {}
local RUNNING = {queued = true, in_progress = true}

local function key(kind, rest)
  return KEYS[1] .. kind .. ':' .. rest
end

local function single(name)
  return KEYS[1] .. name
end

local function now()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function list(kind, ref)
  local tenant, id = string.match(ref, '^([^:]*):(.*)$')
  call('ZADD', key(kind .. 's_of', tenant), call('HGET', key(kind, ref), 'number'), id)
end

local function unlist(kind, ref)
  local tenant, id = string.match(ref, '^([^:]*):(.*)$')
  call('ZREM', key(kind .. 's_of', tenant), id)
end

local function number_conversation(ref)
  call('HSETNX', key('conversation', ref), 'number', call('INCR', single('conversations')))
  list('conversation', ref)
end

local function microseconds(seconds)
  return math.floor(seconds * 1000000)
end

local function split(ref)
  return string.match(ref, '^([^:]*):(.*)$')
end

local function count(tenant, what, by)
  if by ~= 0 then
    call('HINCRBY', key('storage_usage', tenant), what, by)
  end
end

-- Items -------------------------------------------------------------------------------------------

-- Items of one call have consecutive numbers, so a first number and a count identify them all.
local function add_items(tenant, items)
  if #items == 0 then
    return 0
  end
  local first = call('INCRBY', single('items'), #items) - #items + 1
  local bytes = 0
  for place, item in ipairs(items) do
    local number = first + place - 1
    call('HSET', key('item', tenant .. ':' .. number),
      'id', item.id, 'body', item.body, 'holders', 1)
    if item.id ~= '' then
      call('ZADD', key('ids', tenant .. ':' .. item.id), number, number)
    end
    bytes = bytes + #item.body
  end
  count(tenant, 'bytes', bytes)
  return first
end

-- Deletes an item once neither a response nor a conversation holds it.
local function drop_item(tenant, number)
  local item = key('item', tenant .. ':' .. number)
  if call('HINCRBY', item, 'holders', -1) > 0 then
    return
  end
  count(tenant, 'bytes', -call('HSTRLEN', item, 'body'))
  call('ZREM', key('ids', tenant .. ':' .. call('HGET', item, 'id')), number)
  call('DEL', item)
end

local function drop_items(tenant, first, items)
  for number = first, first + items - 1 do
    drop_item(tenant, number)
  end
end

local function read_item(tenant, number, into)
  local item = call('HMGET', key('item', tenant .. ':' .. number), 'id', 'body')
  into[#into + 1] = item[1]
  into[#into + 1] = item[2]
  return #item[2]
end

-- Whether a page has more than `max_bytes` before its last item, which has just been read.
local function is_full(page, size)
  local before = page.size or 0
  page.size = before + size
  return page.max_bytes and before > page.max_bytes
end

local function read_items(tenant, first, items, into)
  first = tonumber(first)
  for number = first, first + tonumber(items) - 1 do
    read_item(tenant, number, into)
  end
  return into
end

-- A range is the items of a conversation, by place, or of one call of add_items, by number: those from
-- `first` to `last`. `places` is the key of a conversation's.
local function own_range(first, items)
  return {first = tonumber(first), last = tonumber(first) + tonumber(items) - 1}
end

local function read_from_places(tenant, range, page, into)
  local limit, descending, count, last = page.left, page.descending, 0, nil
  local found = descending
    and call('ZREVRANGEBYSCORE', range.places, range.last, range.first, 'LIMIT', 0, limit)
    or call('ZRANGEBYSCORE', range.places, range.first, range.last, 'LIMIT', 0, limit)
  for _, number in ipairs(found) do
    count, last = count + 1, number
    if is_full(page, read_item(tenant, number, into)) then
      page.left = count
      break
    end
  end
  return count, last and tonumber(call('ZSCORE', range.places, last))
end

local function read_from_own(tenant, range, page, into)
  local most = math.max(math.min(page.left, range.last - range.first + 1), 0)
  local first = page.descending and range.last or range.first
  local step = page.descending and -1 or 1
  for count = 1, most do
    local number = first + step * (count - 1)
    if is_full(page, read_item(tenant, number, into)) then
      page.left = count
      return count, number
    end
  end
  return most, first + step * (most - 1)
end

-- The place of the first item with this id, in the order of reading.
local function find_in_range(range, ids, descending)
  if not range.places then
    return descending and call('ZREVRANGEBYSCORE', ids, range.last, range.first, 'LIMIT', 0, 1)[1]
      or call('ZRANGEBYSCORE', ids, range.first, range.last, 'LIMIT', 0, 1)[1]
  end
  local found
  for _, number in ipairs(call('ZRANGE', ids, 0, -1)) do
    local place = tonumber(call('ZSCORE', range.places, number) or -1)
    if place >= 0 and (range.last == '+inf' or place <= range.last)
        and (not found or descending == (place > found)) then
      found = place
    end
  end
  return found
end

-- Reads up to `limit` items of ranges, oldest first unless `descending`, or fewer if they have more
-- than `max_bytes`. The page begins after the item with the id `after`, or where an earlier one has
-- ended. Returns where this one has ended, or false if nothing comes after it.
local function read_page(tenant, ranges, page)
  local descending = page.descending
  local first = descending and #ranges or 1
  local last = descending and 1 or #ranges
  local step = descending and -1 or 1
  local place = false
  if page.from then
    first, place = page.from[1], page.from[2]
  elseif page.after then
    local ids = key('ids', tenant .. ':' .. page.after)
    while not place do
      if not ranges[first] then
        return {'no item'}
      end
      place = find_in_range(ranges[first], ids, descending)
      first = place and first or first + step
    end
  end
  if place then
    ranges[first][descending and 'last' or 'first'] = place + step
  end
  local found = {}
  page.left = page.limit
  for index = first, last, step do
    local range = ranges[index]
    local read = range.places and read_from_places or read_from_own
    local count, ended = read(tenant, range, page, found)
    page.left = page.left - count
    if page.left == 0 then
      return {'ok', found, {index, ended}}
    end
  end
  return {'ok', found, false}
end

-- Conversations -----------------------------------------------------------------------------------

local function append_numbers(conversation, first, items)
  if items == 0 then
    return
  end
  local place = call('HINCRBY', key('conversation', conversation), 'next_place', items) - items
  for number = first, first + items - 1 do
    call('ZADD', key('places', conversation), place, number)
    place = place + 1
  end
end

local function holds(conversation, response_id)
  return call('HGET', key('conversation', conversation), 'claimed_by') == response_id
end

local function free(conversation)
  call('HDEL', key('conversation', conversation), 'claimed_by', 'claim_owner')
end

-- Owners ------------------------------------------------------------------------------------------

local function is_alive(owner)
  local until_time = call('ZSCORE', single('servers'), owner)
  return until_time and tonumber(until_time) > now()
end

local function index_waiting(ref)
  local tenant = split(ref)
  call('SADD', single('waiting_tenants'), tenant)
  call('ZADD', key('waiting_runs', tenant), call('HGET', key('response', ref), 'number'), ref)
end

local function own(ref, owner)
  local response = key('response', ref)
  call('HSET', response, 'owner', owner)
  call('ZADD', key('runs_of', owner), call('HGET', response, 'number'), ref)
  if owner == '' then
    index_waiting(ref)
    count(split(ref), 'waiting', 1)
  else
    call('ZADD', single('servers'), 'NX', 0, owner)  -- so that `lease_runs` finds it
  end
end

local function disown(ref)
  local owner = call('HGET', key('response', ref), 'owner')
  if owner and call('ZREM', key('runs_of', owner), ref) == 1 and owner == '' then
    local tenant = split(ref)
    count(tenant, 'waiting', -1)
    call('ZREM', key('waiting_runs', tenant), ref)
    if call('EXISTS', key('waiting_runs', tenant)) == 0 then
      call('SREM', single('waiting_tenants'), tenant)
    end
  end
end

-- The fence: no operation writes to a run under a lease that is void.
local function is_void(lease)
  local is = call('HMGET', key('response', lease.ref), 'status', 'epoch', 'owner')
  return not (RUNNING[is[1]] and tonumber(is[2]) == lease.epoch and is[3] ~= '')
end

-- Logs --------------------------------------------------------------------------------------------

local function entry_id(number)
  return string.format('%.0f-0', number)
end

-- Returns 'next' for a chunk that continues the log, 'again' for one that is in it, else 'gap'.
local function judge(ref, chunk)
  local next = tonumber(call('HGET', key('response', ref), 'next') or -1)
  if chunk.first == next then
    return 'next'
  end
  local id = entry_id(chunk.first + chunk.count)
  local there = call('XRANGE', key('log', ref), id, id)[1]
  local fields = there and there[2]
  local same = fields and tonumber(fields[2]) == chunk.first and fields[4] == chunk.body
  return same and 'again' or 'gap'
end

local function log(ref, chunk)
  local next = chunk.first + chunk.count
  local response = key('response', ref)
  call('XADD', key('log', ref), entry_id(next), 'first', chunk.first, 'body', chunk.body)
  call('HSET', response, 'next', next)
  call('HINCRBY', response, 'log_size', #chunk.body)
  count(split(ref), 'bytes', #chunk.body)
end

local function notify(ref)
  call('PUBLISH', key('new_events', ref), '')
end

local function drop_log(ref)
  local response = key('response', ref)
  count(split(ref), 'bytes', -tonumber(call('HGET', response, 'log_size') or 0))
  call('HDEL', response, 'next', 'log_size')
  call('DEL', key('log', ref))
  call('ZREM', single('finished_logs'), ref)
  notify(ref)
end

-- Responses ---------------------------------------------------------------------------------------

local function is_there(ref)
  return call('HEXISTS', key('response', ref), 'body') == 1
end

local function read_response(ref)
  local is = call('HMGET', key('response', ref), 'body', 'output', 'outputs')
  local found = {}
  read_items(split(ref), is[2], is[3], found)
  return {is[1], found}
end

-- `size` is the number of bytes from clients in the hash itself.
local function set_size(ref, size)
  local response = key('response', ref)
  local before = tonumber(call('HGET', response, 'size') or 0)
  call('HSET', response, 'size', size)
  count(split(ref), 'bytes', size - before)
end

local function drop_idempotency_key(key_ref)
  local reservation = key('idempotency_key', key_ref)
  call('DEL', reservation, key('idempotency_key_of', call('HGET', reservation, 'ref') or ''))
  call('ZREM', single('idempotency_keys'), key_ref)
end

-- Deletes a response, and its deleted ancestors, that no response continues, with their items.
local function purge(ref)
  local tenant = split(ref)
  while ref do
    local response = key('response', ref)
    local is = call('HMGET', response,
      'body', 'children', 'parent', 'input', 'inputs', 'output', 'outputs')
    if is[1] or tonumber(is[2]) > 0 then
      return
    end
    drop_items(tenant, tonumber(is[4]), tonumber(is[5]))
    drop_items(tenant, tonumber(is[6]), tonumber(is[7]))
    call('DEL', response)
    ref = is[3] and tenant .. ':' .. is[3]
    if ref then
      call('HINCRBY', key('response', ref), 'children', -1)
    end
  end
end

local function delete_response(ref)
  local tenant, id = split(ref)
  local response = key('response', ref)
  local conversation = call('HGET', response, 'conversation')
  if conversation and holds(tenant .. ':' .. conversation, id) then
    free(tenant .. ':' .. conversation)
  end
  local key_ref = call('GET', key('idempotency_key_of', ref))
  if key_ref then
    drop_idempotency_key(key_ref)
  end
  disown(ref)
  drop_log(ref)
  set_size(ref, 0)
  call('HDEL', response, 'body', 'job', 'trace', 'status', 'owner')
  call('ZREM', single('expiring_responses'), ref)
  unlist('response', ref)
  count(tenant, 'responses', -1)
  purge(ref)
end
