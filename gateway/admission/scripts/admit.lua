-- ARGV: digest, request id, model, prompt tokens, most output tokens, tranche, lease in ms, silent bound in ms.
-- Every limit of every scope, or nothing: all checks come first, and only then is anything written.
local digest, request, model = ARGV[1], ARGV[2], ARGV[3]
local prompt, most, tranche, lease_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

if redis.call('EXISTS', 'lockgate:ready') == 0 then return {'unavailable'} end

local key = hash('lockgate:key:' .. digest)
if key.id == nil or key.state ~= 'active' or (key.expires_ms ~= '' and tonumber(key.expires_ms) <= now_ms) then
  return {'invalid_api_key'}
end
local facts = {key = key, project = hash('lockgate:project:' .. key.project), tenant = hash('lockgate:tenant:' .. key.tenant)}
local ids = {key = key.id, project = key.project, tenant = key.tenant}
if facts.project.state == nil or facts.tenant.state == nil then return {'unavailable'} end
for _, scope in ipairs({'tenant', 'project'}) do
  if facts[scope].state ~= 'active' then return {'suspended', scope} end
end
for _, scope in ipairs(SCOPES) do
  local allowed = facts[scope].models
  if allowed ~= '' and string.find(allowed, '\n' .. model .. '\n', 1, true) == nil then return {'model_not_allowed', scope} end
end
if redis.call('EXISTS', hold_name(request)) == 1 then return {'duplicate'} end

reap(8, tonumber(ARGV[8]))

local function period_start(kind)
  local starts = cjson.decode(facts.tenant[kind .. '_starts'])
  local current, following = nil, nil
  for _, start in ipairs(starts) do
    if start <= now_s then current = start elseif following == nil then following = start end
  end
  return current, following
end
local hold = {key = ids.key, project = ids.project, tenant = ids.tenant}
local resets = {}
for _, kind in ipairs(PERIODS) do
  local current, following = period_start(kind)
  if current == nil or following == nil then return {'unavailable'} end
  hold[kind] = text(current)
  resets[kind] = following - now_s
end

local output = math.min(tranche, most)
local least = math.min(1, most)

-- The key's own scope as the caller may see it.
local function limits_of_key(after_call, after_tokens)
  local function state(limit, name, spent)
    if limit == nil or limit == '' then return '', '', '' end
    local each = MINUTE_US / tonumber(limit)
    local ahead = ahead_us(name)
    return limit, text(math.max(math.floor((MINUTE_US - ahead) / each), 0)), text(math.ceil(ahead / 1000))
  end
  local a, b, c = state(key.requests_per_minute, rate_name('requests', 'key', key.id))
  local d, e, f = state(key.tokens_per_minute, rate_name('tokens', 'key', key.id))
  return a, b, c, d, e, f
end
local function refused(code, limit, scope, value, wait_s)
  return {code, scope, limit, value, tostring(wait_s), limits_of_key()}
end

for _, scope in ipairs(SCOPES) do
  local fact, id = facts[scope], ids[scope]

  local limit = tonumber(fact.in_flight)
  if limit then
    local name = inflight_name(scope, id)
    redis.call('ZREMRANGEBYSCORE', name, '-inf', '(' .. text(now_ms))
    if redis.call('ZCARD', name) >= limit then
      -- Nobody knows when one ends; a second is when asking again is worth it.
      return refused('concurrency_limit_exceeded', 'in_flight', scope, fact.in_flight, 1)
    end
  end

  limit = tonumber(fact.requests_per_minute)
  if limit then
    if limit == 0 then return refused('request_too_large', 'requests_per_minute', scope, fact.requests_per_minute, '') end
    local each = MINUTE_US / limit
    local over = ahead_us(rate_name('requests', scope, id)) + each - MINUTE_US
    if over > 0.5 then
      return refused('rate_limit_exceeded', 'requests_per_minute', scope, fact.requests_per_minute, over / 1000000)
    end
    hold['call_us_' .. scope] = text(math.floor(each))
  end

  limit = tonumber(fact.tokens_per_minute)
  if limit then
    if prompt + least > limit then
      return refused('request_too_large', 'tokens_per_minute', scope, fact.tokens_per_minute, '')
    end
    local each = MINUTE_US / limit
    local free = math.floor((MINUTE_US - ahead_us(rate_name('tokens', scope, id))) / each + 0.0001)
    if free < prompt + least then
      local wait = (prompt + least - free) * each
      return refused('rate_limit_exceeded', 'tokens_per_minute', scope, fact.tokens_per_minute, wait / 1000000)
    end
    output = math.min(output, free - prompt)
    hold['us_' .. scope] = string.format('%.6f', each)
  end

  for _, kind in ipairs(PERIODS) do
    local field = 'tokens_per_' .. kind
    limit = tonumber(fact[field])
    if limit then
      if prompt + least > limit then return refused('request_too_large', field, scope, fact[field], '') end
      local counted = redis.call('HMGET', budget_name(scope, id, kind, hold[kind]), 'captured', 'held')
      local free = limit - tonumber(counted[1] or '0') - tonumber(counted[2] or '0')
      if free < prompt + least then return refused('insufficient_quota', field, scope, fact[field], resets[kind]) end
      output = math.min(output, free - prompt)
    end
  end
end

-- From here on it is granted.
local held = prompt + output
for _, scope in ipairs(SCOPES) do
  redis.call('ZADD', inflight_name(scope, ids[scope]), text(now_ms + lease_ms), request)
  local each = tonumber(hold['call_us_' .. scope] or '0')
  if each > 0 then push_arrival(rate_name('requests', scope, ids[scope]), each) end
end
token_rate_add(hold, held)
budget_add(hold, 'held', held)
redis.call('ZADD', HOLDS, text(now_ms + lease_ms), request)
local flat = {'state', 'held', 'digest', digest, 'prompt', text(prompt), 'allowance', text(output), 'most', text(most), 'held', text(held), 'captured', '0'}
for field, value in pairs(hold) do
  flat[#flat + 1] = field
  flat[#flat + 1] = value
end
redis.call('HSET', hold_name(request), unpack(flat))
redis.call('HSET', 'lockgate:used', key.id, text(now_s))

local tenant = facts.tenant
return {
  'granted', text(output), key.id, key.project, key.tenant, tenant.weight, tenant.priority, tenant.policy, tenant.cache_epoch, tenant.group,
  table.concat({key.models, facts.project.models, tenant.models}, '\0'), hold.day, hold.month, limits_of_key()
}
