-- What every script of admission stands on: a scope's counters, and the ends that a hold can come to.
--
-- lockgate:ready                   hash  generation, run_id. Missing: what is here can't be trusted, admission is closed.
-- lockgate:hold:{request}          hash  state held | claimed | settled, and what is held or was charged for whom
-- lockgate:holds                   zset  every hold that isn't settled, by the time its lease ends (ms)
-- lockgate:settled                 zset  settled holds that the ledger hasn't confirmed, by the time they were settled (ms)
-- lockgate:inflight:{scope}:{id}   zset  requests in flight, by the time their lease ends (ms)
-- lockgate:scope:{scope}:{id}      hash  captured:{period}, held:{period} in tokens (a period is 2026-12-01 or 2026-12);
--                                        rpm_level, tpm_level as of rpm_at, tpm_at (ms), in units of 1/60000 request or token
--
-- Rates are GCRA in its leaky-bucket form: a level rises with what is debited and drains by `limit` a minute, up to `limit` fits.

local READY = 'lockgate:ready'
local HOLDS = 'lockgate:holds'
local SETTLED = 'lockgate:settled'
local SCOPES = {'key', 'project', 'tenant'}
local MINUTE = 60000
local MOST_RATE = 100000000000  -- beyond it levels would lose exactness in doubles; no engine gets there
local UNCONFIRMED_S = 604800  -- an event that comes later than this has lost its hold

local function now_ms()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function scope_key(scope, id) return 'lockgate:scope:' .. scope .. ':' .. id end
local function inflight_key(scope, id) return 'lockgate:inflight:' .. scope .. ':' .. id end
local function month_of(day) return string.sub(day, 1, 7) end

-- What a bucket holds now, and how much more fits.
local function drained(level, at, limit, now)
    level = tonumber(level) or 0
    if level > 0 then level = math.max(0, level - math.max(0, now - (tonumber(at) or now)) * limit) end
    return level
end
local function rate_left(level, limit) return math.floor((limit * MINUTE - level) / MINUTE) end
local function rate_wait_ms(level, limit, amount) return math.max(1, math.ceil((level + (amount - limit) * MINUTE) / limit)) end

local function read_hold(request)
    local v = redis.call('HMGET', 'lockgate:hold:' .. request, 'state', 'key', 'project', 'tenant', 'day', 'prompt', 'output', 'rated',
        'digest', 'abandon_at', 'charged', 'generation')
    if not v[1] then return nil end
    return {
        request = request, state = v[1], ids = {v[2], v[3], v[4]}, day = v[5], tokens = tonumber(v[6]) + tonumber(v[7]),
        prompt = tonumber(v[6]), output = tonumber(v[7]), rated = v[8], digest = v[9], abandon_at = tonumber(v[10]),
        charged = tonumber(v[11]), generation = v[12],
    }
end

local function lower_level(key, field, amount)
    if amount > 0 and redis.call('HINCRBY', key, field, -amount * MINUTE) < 0 then redis.call('HSET', key, field, 0) end
end

-- `rated` says what was debited of rates: two characters a scope, requests then tokens, 1 for debited.
local function is_rated(hold, i, kind) return string.sub(hold.rated, 2 * i + kind - 2, 2 * i + kind - 2) == '1' end

local function free_slot(hold)
    for i, scope in ipairs(SCOPES) do redis.call('ZREM', inflight_key(scope, hold.ids[i]), hold.request) end
end

local function add_captured(ids, day, amount)
    for i, scope in ipairs(SCOPES) do
        local key = scope_key(scope, ids[i])
        redis.call('HINCRBY', key, 'captured:' .. day, amount)
        redis.call('HINCRBY', key, 'captured:' .. month_of(day), amount)
    end
end

-- Turn what is held into what is charged, give back the rest and the slot.
local function capture(hold, charge, now)
    local month = month_of(hold.day)
    for i, scope in ipairs(SCOPES) do
        local key = scope_key(scope, hold.ids[i])
        redis.call('HINCRBY', key, 'held:' .. hold.day, -hold.tokens)
        redis.call('HINCRBY', key, 'held:' .. month, -hold.tokens)
        if is_rated(hold, i, 2) then lower_level(key, 'tpm_level', hold.tokens - charge) end
    end
    add_captured(hold.ids, hold.day, charge)
    free_slot(hold)
    redis.call('ZREM', HOLDS, hold.request)
    redis.call('ZADD', SETTLED, now, hold.request)
    redis.call('HSET', 'lockgate:hold:' .. hold.request, 'state', 'settled', 'charged', charge)
    redis.call('EXPIRE', 'lockgate:hold:' .. hold.request, UNCONFIRMED_S)
end

-- Undo an admission: nothing was computed, so nothing is debited, the request neither.
local function give_back(hold)
    local month = month_of(hold.day)
    for i, scope in ipairs(SCOPES) do
        local key = scope_key(scope, hold.ids[i])
        redis.call('HINCRBY', key, 'held:' .. hold.day, -hold.tokens)
        redis.call('HINCRBY', key, 'held:' .. month, -hold.tokens)
        if is_rated(hold, i, 1) then lower_level(key, 'rpm_level', 1) end
        if is_rated(hold, i, 2) then lower_level(key, 'tpm_level', hold.tokens) end
    end
    free_slot(hold)
    redis.call('ZREM', HOLDS, hold.request)
    redis.call('DEL', 'lockgate:hold:' .. hold.request)
end

-- Deal with the leases that have ended in one of the sorted sets. Never claimed: all is given back. Claimed: the slot is free at once,
-- the tokens stay held for the worker's own count, which comes from its journal; if it hasn't come after `abandon_ms`, they are charged.
local function lapse(zset, now, count, abandon_ms)
    local due = redis.call('ZRANGEBYSCORE', zset, '-inf', now, 'LIMIT', 0, count)
    for _, request in ipairs(due) do
        local hold = read_hold(request)
        if not hold or hold.state == 'settled' then
            redis.call('ZREM', zset, request)
        elseif hold.state == 'held' then
            give_back(hold)
        else
            local ends_at = tonumber(redis.call('ZSCORE', HOLDS, request) or 0)
            if hold.abandon_at and ends_at == hold.abandon_at then
                capture(hold, hold.tokens, now)
            else
                free_slot(hold)
                redis.call('ZREM', zset, request)
                redis.call('ZADD', HOLDS, now + abandon_ms, request)
                redis.call('HSET', 'lockgate:hold:' .. request, 'abandon_at', now + abandon_ms)
            end
        end
    end
    return #due
end
