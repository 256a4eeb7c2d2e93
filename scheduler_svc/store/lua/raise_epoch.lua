-- The owner takes a higher epoch, because a peer has seen a higher one (PROTOCOL.md H11).
--
-- KEYS[1] meta (hash)
-- ARGV[1] epoch of the caller   ARGV[2] its leader_id   ARGV[3] the new epoch must be above this
--
-- Returns the epoch, or nil when the caller does not own the store any more. Repeated, it returns
-- the epoch that the first try has taken.

local floor = math.max(tonumber(ARGV[1]), tonumber(ARGV[3]))
local stored = redis.call('HMGET', KEYS[1], 'epoch', 'leader_id')
if stored[2] ~= ARGV[2] then
  return false
end
local epoch = tonumber(stored[1])
if epoch <= floor then
  epoch = floor + 1
  redis.call('HSET', KEYS[1], 'epoch', string.format('%.0f', epoch))
end
return string.format('%.0f', epoch)
