-- The key's own rates as of now. ARGV: digest. Answer: rates (6)

local key = read_key(ARGV[1])
if not key[1] then return limit_state({}, 0, 0) end
local limits, now = limits_of(key, 7), now_ms()
local v = redis.call('HMGET', scope_key('key', key[1]), 'rpm_level', 'rpm_at', 'tpm_level', 'tpm_at')
local rpm, tpm = limits.requests_per_minute, limits.tokens_per_minute
return limit_state(limits, rpm and drained(v[1], v[2], rpm, now) or 0, tpm and drained(v[3], v[4], tpm, now) or 0)
