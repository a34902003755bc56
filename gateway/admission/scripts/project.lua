-- A projection never replaces one that was read later. ARGV: hash, version, then field, value, …
if tonumber(redis.call('HGET', ARGV[1], 'version') or '-1') > tonumber(ARGV[2]) then return 0 end
redis.call('DEL', ARGV[1])
redis.call('HSET', ARGV[1], 'version', ARGV[2], unpack(ARGV, 3))
return 1
