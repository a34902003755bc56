-- What Postgres no longer has is no longer projected, unless it was projected after we looked. ARGV: version, hashes …
local forgotten = 0
for i = 2, #ARGV do
  if tonumber(redis.call('HGET', ARGV[i], 'version') or '-1') < tonumber(ARGV[1]) then forgotten = forgotten + redis.call('DEL', ARGV[i]) end
end
return forgotten
