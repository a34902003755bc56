-- Who a key belongs to, as the projection says: shared by the scripts that ask.

-- nil and the caller, or a refusal.
local function identify(digest)
  if redis.call('EXISTS', READY) == 0 then return {'unavailable'} end
  local key = hash('lockgate:key:' .. digest)
  if key.id == nil or key.state ~= 'active' or (key.expires_ms ~= '' and tonumber(key.expires_ms) <= now_ms) then
    return {'invalid_api_key'}
  end
  local project, tenant = hash('lockgate:project:' .. key.project), hash('lockgate:tenant:' .. key.tenant)
  if project.state == nil or tenant.state == nil then return {'unavailable'} end
  if tenant.state ~= 'active' then return {'suspended', 'tenant'} end
  if project.state ~= 'active' then return {'suspended', 'project'} end
  return nil, {
    ids = {key = key.id, project = key.project, tenant = key.tenant},
    facts = {key = key, project = project, tenant = tenant},
  }
end

-- When a period of the tenant's began, and when the next one does; nil where the projection's calendar has run out.
local function period(tenant, kind)
  local current, following
  for _, start in ipairs(cjson.decode(tenant[kind .. '_starts'])) do
    if start <= now_s then current = start elseif following == nil then following = start end
  end
  if current and following then return string.format('%.0f', current), following * 1000 end
end

-- The key's own rates, for the x-ratelimit headers: limit, left, and ms until all is back, of requests and of tokens; '' for no limit.
local function append_rates(answer, key, state)
  for _, rate in ipairs({{'requests', key.requests_per_minute}, {'tokens', key.tokens_per_minute}}) do
    local bucket, limit = rate[1], per_minute(rate[2])
    answer[#answer + 1] = limit or ''
    answer[#answer + 1] = limit and math.max(left(state, bucket, limit), 0) or ''
    answer[#answer + 1] = limit and (limit > 0 and math.ceil(level(state, bucket, limit) / limit) or 0) or ''
  end
  return answer
end

local function granted(caller, output, starts, state)
  local key, project, tenant = caller.facts.key, caller.facts.project, caller.facts.tenant
  local answer = {
    'granted', output, starts.day, starts.month, key.id, key.project, key.tenant, tenant.weight, tenant.priority, tenant.policy,
    tenant.cache_epoch, tenant.group, table.concat({key.models, project.models, tenant.models}, '\0')
  }
  return append_rates(answer, key, state)
end
