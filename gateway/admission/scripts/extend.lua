-- ARGV: request id, wanted output tokens in all. Holds as many more as every scope has left.
local request, wanted = ARGV[1], tonumber(ARGV[2])
local hold = hash(hold_name(request))
if hold.state ~= 'held' and hold.state ~= 'claimed' then return {'0', 'budget', ''} end
local allowance = tonumber(hold.allowance)
local more = math.min(wanted, tonumber(hold.most)) - allowance
if more <= 0 then return {text(allowance), '', ''} end

local ended, wait_us = '', 0
local function bound(free, why)
  free = math.max(free, 0)
  if free < more then
    more = free
    ended = why
  end
end
local scope_name = {key = 'lockgate:key:' .. hold.digest, project = 'lockgate:project:' .. hold.project, tenant = 'lockgate:tenant:' .. hold.tenant}
for _, scope in ipairs(SCOPES) do
  local limits = redis.call('HMGET', scope_name[scope], 'tokens_per_minute', 'tokens_per_day', 'tokens_per_month')
  local rate = tonumber(limits[1] or '')
  if rate and rate > 0 and tonumber(hold['us_' .. scope] or '0') > 0 then
    local each = MINUTE_US / rate
    local free = math.floor((MINUTE_US - ahead_us(rate_name('tokens', scope, hold[scope]))) / each + 0.0001)
    if free < more then
      -- Worth asking again once a few tokens have dripped in, not for a single one.
      wait_us = math.max(wait_us, (math.min(more, 16) - math.max(free, 0)) * each)
    end
    bound(free, 'rate')
  end
  for i, kind in ipairs(PERIODS) do
    local limit = tonumber(limits[i + 1] or '')
    if limit then
      local counted = redis.call('HMGET', budget_name(scope, hold[scope], kind, hold[kind]), 'captured', 'held')
      bound(limit - tonumber(counted[1] or '0') - tonumber(counted[2] or '0'), 'budget')
    end
  end
end
if more > 0 then
  token_rate_add(hold, more)
  budget_add(hold, 'held', more)
  redis.call('HSET', hold_name(request), 'allowance', text(allowance + more), 'held', text(tonumber(hold.held) + more))
end
return {text(allowance + more), ended, ended == 'rate' and tostring(math.max(wait_us, 50000) / 1000000) or ''}
