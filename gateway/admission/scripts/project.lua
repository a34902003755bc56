-- ARGV: hash name, version, then field, value, …  A projection never replaces a newer one.
local version = tonumber(ARGV[2])
if tonumber(redis.call('HGET', ARGV[1], 'version') or '-1') > version then return 0 end
redis.call('DEL', ARGV[1])
redis.call('HSET', ARGV[1], 'version', ARGV[2], unpack(ARGV, 3))
return 1
