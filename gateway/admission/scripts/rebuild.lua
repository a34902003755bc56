-- ARGV: run id, ledger row id counted through, then for each (scope, id, period, start) its captured tokens, five values each.
-- In one call: counters become what the ledger says, plus what is held or settled here and not yet in the ledger. Opens admission.
for _, name in ipairs(redis.call('KEYS', 'lockgate:budget:*')) do redis.call('DEL', name) end
for i = 3, #ARGV, 5 do
  local name = budget_name(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  redis.call('HSET', name, 'captured', ARGV[i + 4])
  redis.call('PEXPIRE', name, BUDGET_TTL_MS)
end
for _, name in ipairs(redis.call('KEYS', 'lockgate:hold:*')) do
  local hold = hash(name)
  if hold.state == 'held' or hold.state == 'claimed' then
    budget_add(hold, 'held', tonumber(hold.held))
  elseif redis.call('PTTL', name) == -1 then
    budget_add(hold, 'captured', tonumber(hold.captured))
  end
end
redis.call('SET', 'lockgate:rebuilt_through', ARGV[2])
redis.call('SET', 'lockgate:ready', ARGV[1])
return 1
