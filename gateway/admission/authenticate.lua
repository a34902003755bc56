-- Who a key belongs to. ARGV: digest. Answer: {'', caller (11)} or {code, scope}

if not redis.call('HGET', READY, 'generation') then return {'unavailable', ''} end
local code, scope, who = identify(ARGV[1], now_ms())
if code then return {code, scope} end
local fields = caller_fields(who)
table.insert(fields, 1, '')
return fields
