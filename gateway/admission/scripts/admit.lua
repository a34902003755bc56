-- Every limit of every scope, or nothing: all checks come first, and only then is anything written.
-- ARGV: digest, request id, model, prompt tokens, most output tokens, tranche, lease in ms, silent bound in ms.
-- Answer: {'granted', output, day, month, caller (9), rates (6)} or {code, scope, limit, its value, ms to wait or '', rates (6)}
local digest, request, model = ARGV[1], ARGV[2], ARGV[3]
local prompt, most, tranche, lease_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local refusal, caller = identify(digest)
if refusal then return refusal end
for _, scope in ipairs(SCOPES) do
  local allowed = caller.facts[scope].models
  if allowed ~= '' and string.find(allowed, '\n' .. model .. '\n', 1, true) == nil then return {'model_not_allowed', scope} end
end

-- A few of whatever has expired, and all that still stands in this caller's way.
reap(HOLDS, 8, tonumber(ARGV[8]))
for _, scope in ipairs(SCOPES) do
  while reap(inflight_name(scope, caller.ids[scope]), 100, tonumber(ARGV[8])) > 0 do end
end

local starts, following_ms = {}, {}
for _, kind in ipairs(PERIODS) do
  starts[kind], following_ms[kind] = period(caller.facts.tenant, kind)
  if starts[kind] == nil then return {'unavailable'} end
end
local states = {}
for _, scope in ipairs(SCOPES) do states[scope] = read_scope(scope, caller.ids[scope], starts) end

local known = hash(hold_name(request))
if known.state == 'held' and known.digest == digest then
  return granted(caller, known.allowance, known, states.key) -- the same call again: its answer got lost
elseif known.state then
  return {'duplicate'}
end

local output = math.min(tranche, most)
local need = prompt + math.min(1, most)
local worst

-- Of several reasons the one that lasts longest is the honest one. What no waiting mends comes before all.
local function refuse(code, scope, limit, wait)
  if worst == nil or (wait == nil and worst.wait) or (wait and worst.wait and wait > worst.wait) then
    worst = {code = code, scope = scope, limit = limit, value = caller.facts[scope][limit], wait = wait}
  end
end

for _, scope in ipairs(SCOPES) do
  local limits, state = caller.facts[scope], states[scope]

  local requests = per_minute(limits.requests_per_minute)
  if requests then
    if requests < 1 then
      refuse('request_too_large', scope, 'requests_per_minute')
    elseif left(state, 'requests', requests) < 1 then
      refuse('rate_limit_exceeded', scope, 'requests_per_minute', wait_ms(state, 'requests', requests, 1))
    end
  end

  local tokens = per_minute(limits.tokens_per_minute)
  if tokens then
    local free = left(state, 'tokens', tokens)
    if need > tokens then
      refuse('request_too_large', scope, 'tokens_per_minute')
    elseif need > free then
      refuse('rate_limit_exceeded', scope, 'tokens_per_minute', wait_ms(state, 'tokens', tokens, need))
    end
    output = math.min(output, free - prompt)
  end

  local in_flight = tonumber(limits.in_flight)
  if in_flight then
    if in_flight < 1 then
      refuse('request_too_large', scope, 'in_flight')
    elseif redis.call('ZCARD', inflight_name(scope, caller.ids[scope])) >= in_flight then
      -- Nobody knows when one ends; a second is when asking again is worth it.
      refuse('concurrency_limit_exceeded', scope, 'in_flight', 1000)
    end
  end

  for _, kind in ipairs(PERIODS) do
    local field = 'tokens_per_' .. kind
    local budget = tonumber(limits[field])
    if budget then
      local free = budget - captured(state, kind) - held(state, kind)
      if need > budget then
        refuse('request_too_large', scope, field)
      elseif need > budget - captured(state, kind) then
        refuse('insufficient_quota', scope, field, following_ms[kind] - now_ms)
      elseif need > free then
        -- The rest is held by requests that run, and some of it may come back.
        refuse('concurrency_limit_exceeded', scope, field, 1000)
      end
      output = math.min(output, free - prompt)
    end
  end
end
if worst then
  return append_rates({worst.code, worst.scope, worst.limit, worst.value, worst.wait or ''}, caller.facts.key, states.key)
end

-- From here on it is granted.
local hold = {
  'state', 'held', 'digest', digest, 'key', caller.ids.key, 'project', caller.ids.project, 'tenant', caller.ids.tenant,
  'day', starts.day, 'month', starts.month,
  'prompt', prompt, 'most', most, 'allowance', output, 'held', prompt + output, 'captured', 0
}
for _, scope in ipairs(SCOPES) do
  local limits, state = caller.facts[scope], states[scope]
  if state.values[state.held.day] == nil then sweep(state, tonumber(starts.month)) end
  add_to_budgets(state, prompt + output, 0)
  for field, rate in pairs({
    called = {'requests', per_minute(limits.requests_per_minute), 1},
    rated = {'tokens', per_minute(limits.tokens_per_minute), prompt + output},
  }) do
    if rate[2] then
      hold[#hold + 1] = field .. ':' .. scope
      hold[#hold + 1] = charge(state, rate[1], rate[2], rate[3])
    end
  end
  save(state)
  redis.call('ZADD', inflight_name(scope, caller.ids[scope]), now_ms + lease_ms, request)
end
redis.call('ZADD', HOLDS, now_ms + lease_ms, request)
redis.call('HSET', hold_name(request), unpack(hold))
redis.call('HSET', 'lockgate:used', caller.ids.key, now_s)
return granted(caller, output, starts, states.key)
