-- Shared by all scripts of admission, put in front of each: the names of things in Redis, and the counters of one scope.
--
-- lockgate:ready                  the run id of the server whose counters are right; absent: admission is closed
-- lockgate:key:{digest}           hash, projection of Postgres (gateway/admission/projection.py); so are lockgate:project:{id}, lockgate:tenant:{id}
-- lockgate:scope:{scope}:{id}     hash of counters; a scope is "key", "project" or "tenant":
--     captured:{kind}:{start}     tokens charged in a day or month, which is known by the Unix second that it starts at
--     held:{kind}:{start}         tokens held for requests that run
--     requests, tokens            levels of the minute's rates as they were at requests_at, tokens_at (ms)
-- lockgate:inflight:{scope}:{id}  sorted set: requests, by the time that their lease ends (ms)
-- lockgate:hold:{request}         hash: what is held for a request, and for whom (holds.lua)
-- lockgate:holds                  sorted set: every hold that isn't settled, by the time that its lease ends (ms)
-- lockgate:orphans                sorted set: claimed holds whose lease has ended, by the time that we give up on their worker (ms)
-- lockgate:unbooked               sorted set: settled holds that aren't in the ledger yet, by the time that they were settled (ms)
--
-- Times come from Redis alone. All numbers are whole and below 2^53, so that Lua's doubles hold them exactly.

local READY, HOLDS, ORPHANS, UNBOOKED = 'lockgate:ready', 'lockgate:holds', 'lockgate:orphans', 'lockgate:unbooked'
local REBUILT_THROUGH = 'lockgate:rebuilt_through'
local SCOPES = {'key', 'project', 'tenant'}
local PERIODS = {'day', 'month'}
local MINUTE_MS = 60000
local MOST_PER_MINUTE = 100000000000 -- a full bucket of more wouldn't be a whole number any more
local IDLE_SCOPE_MS = 62 * 24 * 3600 * 1000

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_s = math.floor(now_ms / 1000)

local function scope_name(scope, id) return 'lockgate:scope:' .. scope .. ':' .. id end
local function inflight_name(scope, id) return 'lockgate:inflight:' .. scope .. ':' .. id end
local function hold_name(request) return 'lockgate:hold:' .. request end

local function hash(name)
  local flat = redis.call('HGETALL', name)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

-- One scope's counters in the periods that start at `starts.day` and `starts.month`. Change them, then `save`.
local function read_scope(scope, id, starts)
  local state = {
    name = scope_name(scope, id),
    captured = {day = 'captured:day:' .. starts.day, month = 'captured:month:' .. starts.month},
    held = {day = 'held:day:' .. starts.day, month = 'held:month:' .. starts.month},
  }
  local fields = {
    'requests', 'requests_at', 'tokens', 'tokens_at', state.captured.day, state.captured.month, state.held.day, state.held.month
  }
  local values = redis.call('HMGET', state.name, unpack(fields))
  state.fields, state.values = fields, {}
  for i, field in ipairs(fields) do state.values[field] = tonumber(values[i]) end
  return state
end

local function save(state)
  local flat = {}
  for _, field in ipairs(state.fields) do
    if state.values[field] then
      flat[#flat + 1] = field
      flat[#flat + 1] = state.values[field]
    end
  end
  redis.call('HSET', state.name, unpack(flat))
end

-- Budgets ---------------------------------------------------------------------------------------------------------------------------

local function captured(state, kind) return state.values[state.captured[kind]] or 0 end
local function held(state, kind) return state.values[state.held[kind]] or 0 end

local function add_to_budgets(state, more_held, more_captured)
  for _, kind in ipairs(PERIODS) do
    state.values[state.held[kind]] = held(state, kind) + more_held
    state.values[state.captured[kind]] = captured(state, kind) + more_captured
  end
end

-- Forget periods that ended before the running month. Called once a day and scope.
local function sweep(state, month_start)
  for _, field in ipairs(redis.call('HKEYS', state.name)) do
    local kind, start = string.match(field, '^captured:(%a+):(%d+)$')
    if kind and tonumber(start) < month_start then
      local held_field = 'held:' .. kind .. ':' .. start
      if (tonumber(redis.call('HGET', state.name, held_field)) or 0) == 0 then redis.call('HDEL', state.name, field, held_field) end
    end
  end
  redis.call('PEXPIRE', state.name, IDLE_SCOPE_MS)
end

-- Rates: GCRA as a leaky bucket ---------------------------------------------------------------------------------------------------------
-- A level rises with what is taken and drains by the limit each minute; what fits up to the limit may pass. One request or token is
-- 60000 units, so a millisecond drains exactly `limit` of them.

local function per_minute(limit)
  local number = tonumber(limit)
  return number and math.min(number, MOST_PER_MINUTE)
end

local function level(state, bucket, limit)
  local full = limit * MINUTE_MS -- after a limit was lowered nobody waits for more than a minute
  -- The distance, so that a clock that was set back locks nobody out.
  local drained = math.abs(now_ms - (state.values[bucket .. '_at'] or now_ms)) * limit
  return math.max(math.min(state.values[bucket] or 0, full) - drained, 0)
end

local function left(state, bucket, limit) return math.floor((limit * MINUTE_MS - level(state, bucket, limit)) / MINUTE_MS) end

-- After exactly so long, `amount` fits.
local function wait_ms(state, bucket, limit, amount)
  return math.max(math.ceil((level(state, bucket, limit) - (limit - amount) * MINUTE_MS) / limit), 1)
end

-- Take `amount`. Returns what `refund` must know; `before` is the receipt of an earlier charge for the same request.
local function charge(state, bucket, limit, amount, before)
  local after = level(state, bucket, limit) + amount * MINUTE_MS
  state.values[bucket], state.values[bucket .. '_at'] = after, now_ms
  local already = before and tonumber(string.match(before, '^%d+')) or 0
  return string.format('%.0f %.0f %.0f %.0f', already + amount, limit, after, now_ms)
end

-- Let only `amount` of a charge count. What has drained since it was charged is gone: giving it back would let more pass than the limit.
-- Returns the receipt from now on.
local function refund(state, bucket, receipt, amount)
  local charged, limit, after, at = string.match(receipt, '^(%d+) (%d+) (%d+) (%d+)$')
  local back = math.max(charged - amount, 0) * MINUTE_MS
  local undrained = math.max(after - math.abs(now_ms - at) * limit, 0)
  state.values[bucket] = math.max((state.values[bucket] or 0) - math.min(back, undrained), 0)
  return string.format('%.0f %s %s %s', math.min(charged, amount), limit, after, at)
end
