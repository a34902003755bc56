-- Hold more output tokens for a request, or as many as are left.
-- ARGV: request, output tokens wanted in all
-- Answer: {output tokens held, 'budget' | 'rate' | '' | 'unavailable' | 'gone', ms to wait or -1}

local hold = read_hold(ARGV[1])
if not redis.call('HGET', READY, 'generation') then return {hold and hold.output or 0, 'unavailable', 1000} end
if not hold or hold.state == 'settled' then return {0, 'gone', -1} end
local missing = tonumber(ARGV[2]) - hold.output
if missing <= 0 then return {hold.output, '', -1} end

local now, month = now_ms(), month_of(hold.day)
local all_limits = limits_by_scope(read_key(hold.digest), read_project(hold.ids[2]), read_tenant(hold.ids[3]))
local levels, by_budget, by_rate = {}, missing, missing
for i, scope in ipairs(SCOPES) do
    local limits = all_limits[i]
    local v = redis.call('HMGET', scope_key(scope, hold.ids[i]), 'tpm_level', 'tpm_at', 'captured:' .. hold.day, 'held:' .. hold.day,
        'captured:' .. month, 'held:' .. month)
    if limits.tokens_per_day then
        by_budget = math.min(by_budget, limits.tokens_per_day - (tonumber(v[3]) or 0) - (tonumber(v[4]) or 0))
    end
    if limits.tokens_per_month then
        by_budget = math.min(by_budget, limits.tokens_per_month - (tonumber(v[5]) or 0) - (tonumber(v[6]) or 0))
    end
    if limits.tokens_per_minute then
        levels[i] = drained(v[1], v[2], limits.tokens_per_minute, now)
        by_rate = math.min(by_rate, rate_left(levels[i], limits.tokens_per_minute))
    end
end
by_budget, by_rate = math.max(0, by_budget), math.max(0, by_rate)
local more = math.min(by_budget, by_rate)

if more > 0 then
    local rated = ''
    for i, scope in ipairs(SCOPES) do
        local key = scope_key(scope, hold.ids[i])
        redis.call('HINCRBY', key, 'held:' .. hold.day, more)
        redis.call('HINCRBY', key, 'held:' .. month, more)
        if levels[i] then
            levels[i] = levels[i] + more * MINUTE
            redis.call('HSET', key, 'tpm_level', levels[i], 'tpm_at', now)
        end
        rated = rated .. (is_rated(hold, i, 1) and '1' or '0') .. ((levels[i] and is_rated(hold, i, 2)) and '1' or '0')
    end
    redis.call('HSET', 'lockgate:hold:' .. hold.request, 'output', hold.output + more, 'rated', rated)
end
if more == missing then return {hold.output + more, '', -1} end
if by_budget <= by_rate then return {hold.output + more, 'budget', -1} end

-- A minute's rate. Wait for enough to go on with: the rest, or a sixteenth of the limit.
local wait_ms = 1
for i, level in pairs(levels) do
    local limit = all_limits[i].tokens_per_minute
    if limit == 0 then wait_ms = MINUTE
    else
        local enough = math.min(missing - more, math.max(1, math.floor(limit / 16)))
        wait_ms = math.max(wait_ms, rate_wait_ms(level, limit, enough))
    end
end
return {hold.output + more, 'rate', wait_ms}
