-- Shared by all scripts of admission: put in front of each before it is loaded.
--
-- Times come from Redis alone. Microseconds stay far below 2^53, so a Lua number holds them exactly.
-- A scope is "key", "project" or "tenant"; its hash lockgate:<scope>:<id> is the projection of Postgres (gateway/admission/projection.py).

local MINUTE_US = 60000000
local HOLDS = 'lockgate:holds'

local time = redis.call('TIME')
local now_s = tonumber(time[1])
local now_us = now_s * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)

local function text(number)
  return string.format('%.0f', number)
end

local function hash(name)
  local flat = redis.call('HGETALL', name)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

-- The theoretical arrival time of a scope's rate (GCRA): how far ahead of now its past calls have pushed it.
local function ahead_us(name)
  local arrival = tonumber(redis.call('GET', name) or '0')
  return math.max(arrival - now_us, 0)
end

local function push_arrival(name, by_us)
  local arrival = math.max(tonumber(redis.call('GET', name) or '0'), now_us) + by_us
  if arrival <= now_us then
    redis.call('DEL', name)
  else
    redis.call('SET', name, text(arrival), 'PX', text(math.ceil((arrival - now_us) / 1000) + 1000))
  end
end

local function rate_name(kind, scope, id) return 'lockgate:rate:' .. kind .. ':' .. scope .. ':' .. id end
local function inflight_name(scope, id) return 'lockgate:inflight:' .. scope .. ':' .. id end
local function budget_name(scope, id, kind, start) return 'lockgate:budget:' .. scope .. ':' .. id .. ':' .. kind .. ':' .. start end
local function hold_name(request) return 'lockgate:hold:' .. request end

local SCOPES = {'key', 'project', 'tenant'}
local PERIODS = {'day', 'month'}
-- A period's counters are kept for so long after they were last touched: longer than any period, so that reconcile can read them.
local BUDGET_TTL_MS = 40 * 24 * 3600 * 1000

local function budget_add(hold, field, tokens)
  if tokens == 0 then return end
  for _, scope in ipairs(SCOPES) do
    for _, kind in ipairs(PERIODS) do
      local name = budget_name(scope, hold[scope], kind, hold[kind])
      redis.call('HINCRBY', name, field, text(tokens))
      redis.call('PEXPIRE', name, BUDGET_TTL_MS)
    end
  end
end

-- Tokens per minute are charged where the scope had a limit when the request was admitted: the hold remembers microseconds per token.
local function token_rate_add(hold, tokens)
  if tokens == 0 then return end
  for _, scope in ipairs(SCOPES) do
    local each_us = tonumber(hold['us_' .. scope] or '0')
    if each_us > 0 then push_arrival(rate_name('tokens', scope, hold[scope]), tokens * each_us) end
  end
end

local function leave(request, hold)
  redis.call('ZREM', HOLDS, request)
  for _, scope in ipairs(SCOPES) do redis.call('ZREM', inflight_name(scope, hold[scope]), request) end
end

-- Undo an admission: nothing was computed, so nothing stays charged, the call itself included.
local function undo(request, hold)
  leave(request, hold)
  local held = tonumber(hold.held)
  budget_add(hold, 'held', -held)
  token_rate_add(hold, -held)
  for _, scope in ipairs(SCOPES) do
    local each_us = tonumber(hold['call_us_' .. scope] or '0')
    if each_us > 0 then push_arrival(rate_name('requests', scope, hold[scope]), -each_us) end
  end
  redis.call('DEL', hold_name(request))
end

-- Charge what was computed and give back the rest. Totals only grow: a later, larger one posts the difference.
local function capture(request, hold, total, ttl_ms)
  local before = tonumber(hold.captured)
  local held = tonumber(hold.held)
  leave(request, hold)
  budget_add(hold, 'held', -held)
  if total > before then
    budget_add(hold, 'captured', total - before)
  end
  token_rate_add(hold, math.max(total, before) - before - held)
  redis.call('HSET', hold_name(request), 'state', 'settled', 'held', '0', 'captured', text(math.max(total, before)))
  if ttl_ms then redis.call('PEXPIRE', hold_name(request), ttl_ms) else redis.call('PERSIST', hold_name(request)) end
  return held > 0 or total > before
end
