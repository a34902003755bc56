-- Everything that counts, as of one moment, as JSON: for `manage.py reconcile`. ARGV: stream, dead letters.
local function all(pattern, read)
  local found = {}
  for _, name in ipairs(redis.call('KEYS', pattern)) do found[name] = read(name) end
  return found
end
local function members(name) return redis.call('ZRANGE', name, 0, -1) end
return cjson.encode({
  ready = redis.call('EXISTS', READY) == 1,
  scopes = all('lockgate:scope:*', hash),
  holds = all(hold_name('*'), hash),
  inflight = all('lockgate:inflight:*', members),
  leases = members(HOLDS),
  orphans = members(ORPHANS),
  stream = redis.call('XLEN', ARGV[1]),
  dead = redis.call('XLEN', ARGV[2]),
})
