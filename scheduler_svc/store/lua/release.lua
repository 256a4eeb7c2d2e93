-- The owner lets its lease end now. Epoch and commits stay: they are the fence.
--
-- KEYS[1] meta (hash)
-- ARGV[1] epoch   ARGV[2] leader_id
--
-- Returns 1, or 0 when the caller is not the owner.

local stored = redis.call('HMGET', KEYS[1], 'epoch', 'leader_id')
if stored[1] ~= ARGV[1] or stored[2] ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'lease_until_ms', '0')
return 1
