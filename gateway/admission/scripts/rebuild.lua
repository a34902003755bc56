-- In one call: budgets become what the ledger says plus what is held, or settled and not in the ledger yet. Opens admission.
-- ARGV: run id, ledger row counted through, JSON {scope's hash: {field: captured tokens}}, requests whose holds the ledger has settled.
for i = 4, #ARGV do
  local hold = hash(hold_name(ARGV[i]))
  if hold.state then leave(ARGV[i], hold) end
  redis.call('DEL', hold_name(ARGV[i]))
  redis.call('ZREM', ORPHANS, ARGV[i])
  redis.call('ZREM', UNBOOKED, ARGV[i])
end
for _, name in ipairs(redis.call('KEYS', 'lockgate:scope:*')) do
  for _, field in ipairs(redis.call('HKEYS', name)) do
    if string.find(field, '^captured:') or string.find(field, '^held:') then redis.call('HDEL', name, field) end
  end
end
for name, fields in pairs(cjson.decode(ARGV[3])) do
  for field, tokens in pairs(fields) do redis.call('HSET', name, field, tokens) end
  redis.call('PEXPIRE', name, IDLE_SCOPE_MS)
end
for _, name in ipairs(redis.call('KEYS', hold_name('*'))) do
  local hold = hash(name)
  for _, scope in ipairs(SCOPES) do
    local state = read_scope(scope, hold[scope], hold)
    add_to_budgets(state, tonumber(hold.held), tonumber(hold.captured))
    save(state)
  end
end
redis.call('SET', REBUILT_THROUGH, ARGV[2])
redis.call('SET', READY, ARGV[1])
return 1
