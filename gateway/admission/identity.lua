-- Who a key belongs to, as projection.py wrote it down.
--
-- lockgate:key:{digest}    hash  id, project, tenant, state, expires_at (ms or empty), models, the five limits, version
-- lockgate:project:{id}    hash  state, models, the five limits, version
-- lockgate:tenant:{id}     hash  state, models, the five limits, weight, tier, policy, trust_group, cache_epoch, days, version
--
-- `models`: names, each between newlines; empty for all. `days`: start of each of the tenant's days (ms) and its date, in turn.

local LIMITS = {'requests_per_minute', 'tokens_per_minute', 'in_flight', 'tokens_per_day', 'tokens_per_month'}

local function limits_of(values, from)
    local limits = {}
    for i, name in ipairs(LIMITS) do limits[name] = tonumber(values[from + i - 1]) end
    if limits.requests_per_minute then limits.requests_per_minute = math.min(limits.requests_per_minute, MOST_RATE) end
    if limits.tokens_per_minute then limits.tokens_per_minute = math.min(limits.tokens_per_minute, MOST_RATE) end
    return limits
end

local function read_key(digest)
    return redis.call('HMGET', 'lockgate:key:' .. digest, 'id', 'project', 'tenant', 'state', 'expires_at', 'models', LIMITS[1], LIMITS[2],
        LIMITS[3], LIMITS[4], LIMITS[5])
end
local function read_project(id)
    return redis.call('HMGET', 'lockgate:project:' .. id, 'state', 'models', LIMITS[1], LIMITS[2], LIMITS[3], LIMITS[4], LIMITS[5])
end
local function read_tenant(id)
    return redis.call('HMGET', 'lockgate:tenant:' .. id, 'state', 'models', LIMITS[1], LIMITS[2], LIMITS[3], LIMITS[4], LIMITS[5], 'weight',
        'tier', 'policy', 'trust_group', 'cache_epoch', 'day', 'day_end', 'month_end')
end

-- The limits of the three scopes, or nil where the key isn't known.
local function limits_by_scope(key, project, tenant) return {limits_of(key, 7), limits_of(project, 3), limits_of(tenant, 3)} end

-- nil and who it is, or the refusal's code and scope.
local function identify(digest, now)
    local key = read_key(digest)
    if not key[1] or key[4] ~= 'active' then return 'invalid_api_key', 'key' end
    if key[5] ~= '' and tonumber(key[5]) <= now then return 'invalid_api_key', 'key' end
    local project, tenant = read_project(key[2]), read_tenant(key[3])
    if not project[1] or not tenant[1] then return 'unavailable', 'project' end
    if tenant[1] ~= 'active' then return 'suspended', 'tenant' end
    if project[1] ~= 'active' then return 'suspended', 'project' end
    return nil, nil, {
        ids = {key[1], key[2], key[3]},
        models = {key[6], project[2], tenant[2]},
        limits = limits_by_scope(key, project, tenant),
        engine = {tenant[8], tenant[9], tenant[10], tenant[11], tenant[12]},
        day = tenant[13], day_end = tonumber(tenant[14]), month_end = tonumber(tenant[15]),
    }
end

-- What Python makes a Caller of.
local function caller_fields(who)
    local fields = {}
    for _, group in ipairs({who.ids, who.models, who.engine}) do
        for _, value in ipairs(group) do fields[#fields + 1] = value end
    end
    return fields
end

-- Which of its tenant's days it is. The answer is kept beside the list until that day ends. False: the list has run out.
local function find_day(who, now)
    if who.day and who.day_end and now < who.day_end then return true end
    local key = 'lockgate:tenant:' .. who.ids[3]
    local day, day_end, month_end
    for start, date in string.gmatch(redis.call('HGET', key, 'days') or '', '(%d+) (%S+)') do
        start = tonumber(start)
        if start <= now then
            day = date
        elseif day then
            day_end = day_end or start
            if month_of(date) ~= month_of(day) then
                month_end = start
                break
            end
        end
    end
    if not month_end then return false end
    who.day, who.day_end, who.month_end = day, day_end, month_end
    redis.call('HSET', key, 'day', day, 'day_end', day_end, 'month_end', month_end)
    return true
end

-- The key's own rates, for the x-ratelimit headers: limit, left and ms until all is back, of requests and of tokens; -1 for none.
local function limit_state(limits, rpm_level, tpm_level)
    local state = {-1, -1, -1, -1, -1, -1}
    local rpm, tpm = limits.requests_per_minute, limits.tokens_per_minute
    if rpm then state[1], state[2], state[3] = rpm, rate_left(rpm_level, rpm), rpm > 0 and math.ceil(rpm_level / rpm) or 0 end
    if tpm then state[4], state[5], state[6] = tpm, rate_left(tpm_level, tpm), tpm > 0 and math.ceil(tpm_level / tpm) or 0 end
    return state
end
