-- Extends the chain of commits by one link, applies its operations and renews the lease.
--
-- KEYS[1]  meta (hash)
-- KEYS[2…] every row that the operations touch
-- ARGV[1]  epoch          ARGV[2] leader_id      ARGV[3] scheduler_id   ARGV[4] address
-- ARGV[5]  this commit    ARGV[6] its predecessor ("" = none), both as epoch:seq:leader_id
-- ARGV[7]  lease_ttl_ms   ARGV[8] now_unix_ms    ARGV[9] config_digest  ARGV[10] namespace
-- ARGV[11] operations: msgpack array of [command, index into KEYS, arguments…]
--
-- Returns {outcome, epoch, leader_id, scheduler_id, address, last commit}, as meta is afterwards;
--          outcome: applied | duplicate | fenced | lost. Fenced and lost change nothing.
--
-- A script is no transaction: what it wrote before an error stays. So the arguments are checked
-- before the first write, every operation is absolute, and the commit is written as `begun` first
-- and as `done` last: sent again it repairs itself, and a reader in between sees begun ~= done.

local meta = KEYS[1]
local epoch, leader_id = tonumber(ARGV[1]), ARGV[2]
local this, previous = ARGV[5], ARGV[6]

local now = redis.call('TIME')
local lease_until_ms =
  string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + tonumber(ARGV[7]))

local stored = redis.call('HMGET', meta, 'epoch', 'leader_id', 'scheduler_id', 'address', 'done',
  'namespace', 'config_digest')
local stored_epoch, last = tonumber(stored[1]), stored[5] or ''

local function answer(outcome)
  return {outcome, stored[1] or '0', stored[2] or '', stored[3] or '', stored[4] or '', last}
end

if not stored_epoch then
  return answer('lost')
end
if stored_epoch > epoch or (stored_epoch == epoch and stored[2] ~= leader_id) then
  return answer('fenced')
end
if last == this then
  -- Written again, so that a WAIT behind this script covers the first try too.
  redis.call('HSET', meta, 'lease_until_ms', lease_until_ms)
  return answer('duplicate')
end
if last ~= previous then
  return answer('lost')
end
if stored[6] ~= ARGV[10] then
  return redis.error_reply('SEGUE namespace is ' .. tostring(stored[6]) .. ', not ' .. ARGV[10])
end

-- How many arguments follow the key: a multiple of this.
local GROUP = {HSET = 2, ZADD = 2, SETRANGE = 2, HDEL = 1, ZREM = 1, UNLINK = 1}

local function is_key(index)
  return type(index) == 'number' and index > 1 and KEYS[index] ~= nil
end

local function has_numbers(operation, step)
  for i = 3, #operation, step do
    if type(operation[i]) ~= 'number' then return false end
  end
  return true
end

local function is_sound(operation)
  local group = GROUP[operation[1]]
  if not group or not is_key(operation[2]) then return false end
  local count = #operation - 2
  if count < 1 or count % group ~= 0 then return false end
  for i = 3, #operation do
    local kind = type(operation[i])
    if kind ~= 'string' and kind ~= 'number' then return false end
  end
  if operation[1] == 'ZADD' then return has_numbers(operation, 2) end
  if operation[1] == 'SETRANGE' then return count == 2 and has_numbers(operation, 2) end
  return operation[1] ~= 'UNLINK' or (count == 1 and operation[3] == 0)
end

local TYPE = {HSET = 'hash', HDEL = 'hash', ZADD = 'zset', ZREM = 'zset', SETRANGE = 'string'}
local type_of = {}  -- of each key, at that point of the operations

local function fits_its_key(operation)
  local index, wanted = operation[2], TYPE[operation[1]]
  if not wanted then
    type_of[index] = 'none'
    return true
  end
  local found = type_of[index] or redis.call('TYPE', KEYS[index]).ok
  type_of[index] = found == 'none' and wanted or found
  return type_of[index] == wanted
end

local operations = cmsgpack.unpack(ARGV[11])
for i = 1, #operations do
  if not is_sound(operations[i]) then
    return redis.error_reply('SEGUE operation ' .. i .. ' is malformed')
  end
  if not fits_its_key(operations[i]) then
    return redis.error_reply('SEGUE ' .. operations[i][1] .. ' of ' .. KEYS[operations[i][2]]
      .. ', which is another type')
  end
end

if #operations > 0 then
  redis.call('HSET', meta, 'begun', this)
end
for i = 1, #operations do
  local operation = operations[i]
  local key = KEYS[operation[2]]
  if operation[1] == 'UNLINK' then
    redis.call('UNLINK', key)
  else
    redis.call(operation[1], key, unpack(operation, 3))
  end
end

if stored_epoch < epoch or stored[2] ~= leader_id then
  -- Redis has lost our acquisition and nothing else.
  redis.call('HSET', meta, 'epoch', ARGV[1], 'leader_id', leader_id, 'scheduler_id', ARGV[3],
    'address', ARGV[4])
  stored[1], stored[2], stored[3], stored[4] = ARGV[1], leader_id, ARGV[3], ARGV[4]
end
if stored[7] ~= ARGV[9] then
  redis.call('HSET', meta, 'config_digest', ARGV[9])
end
last = this
redis.call('HSET', meta, 'begun', this, 'lease_until_ms', lease_until_ms,
  'now_unix_ms', ARGV[8], 'done', this)
return answer('applied')
