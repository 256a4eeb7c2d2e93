-- Takes the lease if it is free, has ended by this server's clock, or is the candidate's own.
--
-- KEYS[1] meta (hash)
-- ARGV[1] scheduler_id   ARGV[2] leader_id (drawn for this acquisition)   ARGV[3] address
-- ARGV[4] lease_ttl_ms   ARGV[5] the new epoch must be above this
-- ARGV[6] schema_version and ARGV[7] namespace, for a deployment that has none yet
-- ARGV[8] the oldest schema version that the candidate reads; ARGV[6] is the newest
--
-- Returns {'acquired', epoch, last commit ("" = none), namespace}
--      or {'held', scheduler_id, address, epoch, leader_id, milliseconds until the lease ends}
--      or {'unreadable', schema_version}: nothing has been changed
--
-- Repeated with the same leader_id it is the same acquisition and keeps its epoch.

local meta = KEYS[1]
local scheduler_id, leader_id = ARGV[1], ARGV[2]
local ttl_ms, above = tonumber(ARGV[4]), tonumber(ARGV[5])
if not ttl_ms or not above then
  return redis.error_reply('SEGUE lease_ttl_ms and above must be numbers')
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local stored = redis.call('HMGET', meta, 'epoch', 'leader_id', 'scheduler_id', 'address',
  'lease_until_ms', 'done', 'namespace', 'schema_version')
local stored_epoch, lease_until_ms = tonumber(stored[1] or 0), tonumber(stored[5] or 0)
local done, namespace = stored[6] or '', stored[7] or ARGV[7]

if lease_until_ms > now_ms and stored[3] ~= scheduler_id then
  return {'held', stored[3], stored[4], stored[1], stored[2],
    string.format('%.0f', lease_until_ms - now_ms)}
end

local schema_version = tonumber(stored[8])
if schema_version and (schema_version > tonumber(ARGV[6]) or schema_version < tonumber(ARGV[8])) then
  return {'unreadable', stored[8]}
end

local epoch = stored_epoch
if stored[2] ~= leader_id or stored_epoch <= above then
  epoch = math.max(stored_epoch, above) + 1
end

if not stored[7] then
  redis.call('HSET', meta, 'schema_version', ARGV[6], 'namespace', namespace)
end
redis.call('HSET', meta,
  'epoch', string.format('%.0f', epoch), 'leader_id', leader_id,
  'scheduler_id', scheduler_id, 'address', ARGV[3],
  'lease_until_ms', string.format('%.0f', now_ms + ttl_ms))
return {'acquired', string.format('%.0f', epoch), done, namespace}
