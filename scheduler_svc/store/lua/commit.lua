-- Extends the chain of commits by one link, applies its operations and renews the lease.
--
-- KEYS[1]  meta (hash)
-- KEYS[2…] every row that the operations touch, in their order
-- ARGV[1]  epoch          ARGV[2] leader_id      ARGV[3] scheduler_id   ARGV[4] address
-- ARGV[5]  this commit    ARGV[6] its predecessor ("" = none), both as epoch:seq:leader_id
-- ARGV[7]  lease_ttl_ms   ARGV[8] now_unix_ms    ARGV[9] config_digest  ARGV[10] namespace
-- ARGV[11] operations: msgpack of {groups, arguments}. Four entries of `groups` are a command, the
--          index of its first key, for how many keys in a row, and the number of arguments of each;
--          `arguments` are those of all commands, one after another
-- ARGV[12] schema_version; it is part of what config_digest is made of, so both change together
--
-- Returns {outcome, epoch, leader_id, scheduler_id, address, last commit}, as meta is afterwards;
--          outcome: applied | duplicate | fenced | lost. Fenced and lost change nothing.
--
-- A script is no transaction: what it wrote before an error stays. So the arguments are checked
-- before the first write, every operation is absolute, and the commit is written as `begun` first
-- and as `done` last: sent again it repairs itself, and a reader in between sees begun ~= done.
-- (The type of a string's key is not checked: 256 TYPE cost a quarter of a commit's time. A wrong
-- one is an error half-way, which shows as begun ~= done.)

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

local TYPE = {HSET = 'hash', HDEL = 'hash', ZADD = 'zset', ZREM = 'zset'}
local WIDTH = {HSET = 2, ZADD = 2, HDEL = 1, ZREM = 1}  -- the arguments are a multiple of this

local call = redis.call
local unpacked = cmsgpack.unpack(ARGV[11])
local groups, arguments = unpacked[1], unpacked[2]
local type_of = {}  -- of each key's name, at that point of the operations

local function are_numbers(first, last)
  for i = first, last, 2 do
    if type(arguments[i]) ~= 'number' then return false end
  end
  return true
end

-- What is wrong with the group at `i`, whose arguments are first…last; nil: nothing.
local function fault_of(i, first, last)
  local command, key, num_keys, count = groups[i], groups[i + 1], groups[i + 2], groups[i + 3]
  if not (KEYS[key] and key > 1 and KEYS[key + num_keys - 1]) or last > #arguments then
    return 'has too few keys or arguments'
  end
  if command == 'SETRANGE' then
    return (count ~= 2 or not are_numbers(first, last)) and 'needs an offset and bytes' or nil
  end
  local name = KEYS[key]
  if command == 'UNLINK' then
    type_of[name] = 'none'
    return (count ~= 0 or num_keys ~= 1) and 'takes one key' or nil
  end
  local width, wanted = WIDTH[command], TYPE[command]
  if not width then return 'is not a command of ours' end
  if num_keys ~= 1 or count < 1 or count % width ~= 0 then return 'has odd arguments' end
  if command == 'ZADD' and not are_numbers(first, last) then return 'needs ranks' end
  local found = type_of[name] or call('TYPE', name).ok
  type_of[name] = found == 'none' and wanted or found
  return type_of[name] ~= wanted and 'of a key that is another type' or nil
end

local at = 1
for i = 1, #groups, 4 do
  local last = at + groups[i + 2] * groups[i + 3] - 1
  local fault = fault_of(i, at, last)
  if fault then
    return redis.error_reply('SEGUE ' .. groups[i] .. ' ' .. tostring(KEYS[groups[i + 1]]) .. ' '
      .. fault)
  end
  at = last + 1
end
if at ~= #arguments + 1 then
  return redis.error_reply('SEGUE more arguments than the commands take')
end

if #groups > 0 then
  call('HSET', meta, 'begun', this)
end
at = 1
for i = 1, #groups, 4 do
  local command, key, count = groups[i], groups[i + 1], groups[i + 3]
  for index = key, key + groups[i + 2] - 1 do
    call(command, KEYS[index], unpack(arguments, at, at + count - 1))
    at = at + count
  end
end

if stored_epoch < epoch or stored[2] ~= leader_id then
  -- Redis has lost our acquisition and nothing else.
  redis.call('HSET', meta, 'epoch', ARGV[1], 'leader_id', leader_id, 'scheduler_id', ARGV[3],
    'address', ARGV[4])
  stored[1], stored[2], stored[3], stored[4] = ARGV[1], leader_id, ARGV[3], ARGV[4]
end
if stored[7] ~= ARGV[9] then
  redis.call('HSET', meta, 'config_digest', ARGV[9], 'schema_version', ARGV[12])
end
last = this
redis.call('HSET', meta, 'begun', this, 'lease_until_ms', lease_until_ms,
  'now_unix_ms', ARGV[8], 'done', this)
return answer('applied')
