-- Let a call in at all three scopes and hold its tokens, or say why not and leave everything as it was.
-- ARGV: digest, request, model, prompt tokens, least and most output tokens to hold, lease in ms, ms after which a lapsed claim is charged
-- Answer: {'granted', output tokens held, day, generation, rates (6), caller (11)}
--         {'refused', code, limit, scope, limit's value, ms to wait or -1, rates (6, or none)}

local digest, request, model = ARGV[1], ARGV[2], ARGV[3]
local prompt, least, most = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local ttl_ms, abandon_ms = tonumber(ARGV[7]), tonumber(ARGV[8])

local function answer(list, ...)
    for _, more in ipairs({...}) do
        for _, value in ipairs(more) do list[#list + 1] = value end
    end
    return list
end

local generation = redis.call('HGET', READY, 'generation')
if not generation then return {'refused', 'unavailable', '', '', -1, -1} end
local now = now_ms()
local code, scope, who = identify(digest, now)
if code then return {'refused', code, '', scope, -1, -1} end
for i, names in ipairs(who.models) do
    if names ~= '' and not string.find(names, '\n' .. model .. '\n', 1, true) then
        return {'refused', 'model_not_allowed', '', SCOPES[i], -1, -1}
    end
end
if not find_day(who, now) then return {'refused', 'unavailable', '', 'tenant', -1, -1} end
lapse(HOLDS, now, 100, abandon_ms)

local known = read_hold(request)
local day, month = who.day, month_of(who.day)
local need, grant = prompt + least, prompt + most
local scopes, worst = {}, nil

local function refuse(reason, limit, i, wait_ms)
    local never = reason == 'request_too_large'
    if worst and (worst.never or (not never and worst.wait_ms >= wait_ms)) then return end
    worst = {code = reason, limit = limit, i = i, wait_ms = wait_ms, never = never}
end

for i, name in ipairs(SCOPES) do
    local id, limits = who.ids[i], who.limits[i]
    local key = scope_key(name, id)
    local v = redis.call('HMGET', key, 'rpm_level', 'rpm_at', 'tpm_level', 'tpm_at', 'captured:' .. day, 'held:' .. day,
        'captured:' .. month, 'held:' .. month)
    local state = {key = key, inflight = inflight_key(name, id), rpm_level = 0, tpm_level = 0, new_day = not v[6], rated = ''}
    scopes[i] = state

    local rpm = limits.requests_per_minute
    if rpm then
        state.rpm_level = drained(v[1], v[2], rpm, now)
        if rpm == 0 then refuse('request_too_large', 'requests_per_minute', i, 0)
        elseif rate_left(state.rpm_level, rpm) < 1 then
            refuse('rate_limit_exceeded', 'requests_per_minute', i, rate_wait_ms(state.rpm_level, rpm, 1))
        end
    end
    local tpm = limits.tokens_per_minute
    if tpm then
        state.tpm_level = drained(v[3], v[4], tpm, now)
        local left = rate_left(state.tpm_level, tpm)
        if need > tpm then refuse('request_too_large', 'tokens_per_minute', i, 0)
        elseif left < need then refuse('rate_limit_exceeded', 'tokens_per_minute', i, rate_wait_ms(state.tpm_level, tpm, need))
        else grant = math.min(grant, left) end
    end
    local in_flight = limits.in_flight
    if in_flight then
        if in_flight == 0 then refuse('request_too_large', 'in_flight', i, 0)
        else
            while lapse(state.inflight, now, 100, abandon_ms) == 100 do end
            if redis.call('ZCARD', state.inflight) >= in_flight then refuse('concurrency_limit_exceeded', 'in_flight', i, 1000) end
        end
    end
    -- Leases that lapsed just now have given tokens back.
    if in_flight then
        local fresh = redis.call('HMGET', key, 'captured:' .. day, 'held:' .. day, 'captured:' .. month, 'held:' .. month)
        v[5], v[6], v[7], v[8] = fresh[1], fresh[2], fresh[3], fresh[4]
    end
    local periods = {
        {'tokens_per_day', (tonumber(v[5]) or 0) + (tonumber(v[6]) or 0), who.day_end},
        {'tokens_per_month', (tonumber(v[7]) or 0) + (tonumber(v[8]) or 0), who.month_end},
    }
    for _, period in ipairs(periods) do
        local limit = limits[period[1]]
        if limit then
            local left = limit - period[2]
            if need > limit then refuse('request_too_large', period[1], i, 0)
            elseif left < need then refuse('insufficient_quota', period[1], i, period[3] - now)
            else grant = math.min(grant, left) end
        end
    end
end

local rates = limit_state(who.limits[1], scopes[1].rpm_level, scopes[1].tpm_level)

if known then
    -- The same call again, because its answer got lost.
    if known.state ~= 'held' or known.digest ~= digest then return {'refused', 'duplicate', '', '', -1, -1} end
    return answer({'granted', known.output, known.day, generation}, rates, caller_fields(who))
end
if worst then
    local value = who.limits[worst.i][worst.limit]
    return answer({'refused', worst.code, worst.limit, SCOPES[worst.i], value, worst.never and -1 or worst.wait_ms}, rates)
end

local ends_at, rated = now + ttl_ms, ''
for i, state in ipairs(scopes) do
    local limits = who.limits[i]
    if state.new_day then
        for _, field in ipairs(redis.call('HKEYS', state.key)) do
            local kind, period = string.match(field, '^(%a+):(.+)$')
            if kind == 'captured' and period < month and (tonumber(redis.call('HGET', state.key, 'held:' .. period)) or 0) == 0 then
                redis.call('HDEL', state.key, field, 'held:' .. period)
            end
        end
    end
    redis.call('HINCRBY', state.key, 'held:' .. day, grant)
    redis.call('HINCRBY', state.key, 'held:' .. month, grant)
    if limits.requests_per_minute then
        state.rpm_level = state.rpm_level + MINUTE
        redis.call('HSET', state.key, 'rpm_level', state.rpm_level, 'rpm_at', now)
    end
    if limits.tokens_per_minute then
        state.tpm_level = state.tpm_level + grant * MINUTE
        redis.call('HSET', state.key, 'tpm_level', state.tpm_level, 'tpm_at', now)
    end
    rated = rated .. (limits.requests_per_minute and '1' or '0') .. (limits.tokens_per_minute and '1' or '0')
    redis.call('ZADD', state.inflight, ends_at, request)
end
redis.call('ZADD', HOLDS, ends_at, request)
redis.call('HSET', 'lockgate:hold:' .. request, 'state', 'held', 'digest', digest, 'key', who.ids[1], 'project', who.ids[2], 'tenant',
    who.ids[3], 'day', day, 'prompt', prompt, 'output', grant - prompt, 'rated', rated, 'generation', generation)
rates = limit_state(who.limits[1], scopes[1].rpm_level, scopes[1].tpm_level)
return answer({'granted', grant - prompt, day, generation}, rates, caller_fields(who))
