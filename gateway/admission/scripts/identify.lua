-- ARGV: digest. Who a key belongs to, or why it may not come in; and what its own limits have left. Counts nothing.
if redis.call('EXISTS', 'lockgate:ready') == 0 then return {'unavailable'} end
local key = hash('lockgate:key:' .. ARGV[1])
if key.id == nil or key.state ~= 'active' or (key.expires_ms ~= '' and tonumber(key.expires_ms) <= now_ms) then
  return {'invalid_api_key'}
end
local project, tenant = hash('lockgate:project:' .. key.project), hash('lockgate:tenant:' .. key.tenant)
if project.state == nil or tenant.state == nil then return {'unavailable'} end
if tenant.state ~= 'active' then return {'suspended', 'tenant'} end
if project.state ~= 'active' then return {'suspended', 'project'} end
local function state(limit, name)
  if limit == nil or limit == '' or limit == '0' then return limit or '', limit == '0' and '0' or '', '' end
  local ahead = ahead_us(name)
  return limit, text(math.max(math.floor((MINUTE_US - ahead) / (MINUTE_US / tonumber(limit))), 0)), text(math.ceil(ahead / 1000))
end
local a, b, c = state(key.requests_per_minute, rate_name('requests', 'key', key.id))
local d, e, f = state(key.tokens_per_minute, rate_name('tokens', 'key', key.id))
return {
  'granted', '0', key.id, key.project, key.tenant, tenant.weight, tenant.priority, tenant.policy, tenant.cache_epoch, tenant.group,
  table.concat({key.models, project.models, tenant.models}, '\0'), '0', '0', a, b, c, d, e, f
}
