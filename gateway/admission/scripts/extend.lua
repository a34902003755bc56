-- Hold as many more output tokens as every scope has left.
-- ARGV: request id, wanted output tokens in all. Answer: {allowance, '' or why it is less than wanted: budget, rate, lost, revoked, ms to wait or ''}
local request, wanted = ARGV[1], tonumber(ARGV[2])
local hold = hash(hold_name(request))
-- Closed until the counters are right again: the stream pauses.
if redis.call('EXISTS', READY) == 0 then return {tonumber(hold.allowance) or 0, 'rate', 1000} end
if hold.state ~= 'held' and hold.state ~= 'claimed' then return {0, 'lost', ''} end
local refusal = identify(hold.digest)
if refusal and refusal[1] ~= 'unavailable' then return {tonumber(hold.allowance), 'revoked', ''} end
local allowance = tonumber(hold.allowance)
local missing = math.min(wanted, tonumber(hold.most)) - allowance
if missing <= 0 then return {allowance, '', ''} end

local by_budget, by_rate, wait = missing, missing, 0
local projected = {key = 'lockgate:key:' .. hold.digest, project = 'lockgate:project:' .. hold.project, tenant = 'lockgate:tenant:' .. hold.tenant}
local states, rates = {}, {}
for _, scope in ipairs(SCOPES) do
  local state = read_scope(scope, hold[scope], hold)
  local limits = redis.call('HMGET', projected[scope], 'tokens_per_day', 'tokens_per_month', 'tokens_per_minute')
  for i, kind in ipairs(PERIODS) do
    local budget = tonumber(limits[i])
    if budget then by_budget = math.min(by_budget, budget - captured(state, kind) - held(state, kind)) end
  end
  local rate = per_minute(limits[3])
  if rate then
    local free = left(state, 'tokens', rate)
    if free < missing then
      by_rate = math.min(by_rate, free)
      -- Worth asking again once a sixteenth of the minute's tokens has come back, or all that is missing: not for a single one.
      local enough = math.min(missing, math.max(free, 0) + math.max(math.floor(rate / 16), 1))
      wait = math.max(wait, rate < 1 and MINUTE_MS or wait_ms(state, 'tokens', rate, math.min(enough, rate)))
    end
  end
  states[scope], rates[scope] = state, rate
end

local more = math.max(math.min(by_budget, by_rate), 0)
if more > 0 then
  local changed = {'allowance', allowance + more, 'held', tonumber(hold.held) + more}
  for _, scope in ipairs(SCOPES) do
    local state = states[scope]
    add_to_budgets(state, more, 0)
    if rates[scope] then
      changed[#changed + 1] = 'rated:' .. scope
      changed[#changed + 1] = charge(state, 'tokens', rates[scope], more, hold['rated:' .. scope])
    end
    save(state)
  end
  redis.call('HSET', hold_name(request), unpack(changed))
end
if more == missing then return {allowance + more, '', ''} end
if by_budget <= by_rate then return {allowance + more, 'budget', ''} end
return {allowance + more, 'rate', wait}
