-- ARGV: request id, total tokens to charge, "gateway" or "ledger", and from the ledger: key, project, tenant, day, month, row id.
-- Idempotent: totals are cumulative. The ledger settles last; from then on the hold's record is only kept for late repeats.
local request, total, by = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local LATE_MS = 600000
local hold = hash(hold_name(request))
if hold.state == nil then
  if by ~= 'ledger' then return 0 end
  -- Redis lost the hold. What a rebuild counted out of the ledger is counted already; any later row isn't.
  if tonumber(ARGV[9]) <= tonumber(redis.call('GET', 'lockgate:rebuilt_through') or '0') then return 0 end
  hold = {key = ARGV[4], project = ARGV[5], tenant = ARGV[6], day = ARGV[7], month = ARGV[8], held = '0', captured = '0'}
  capture(request, hold, total, LATE_MS)
  return 1
end
redis.call('ZREM', 'lockgate:orphans', request)
local changed = capture(request, hold, total, by == 'ledger' and LATE_MS or nil)
return changed and 1 or 0
