-- The ledger has committed these stream entries: count them, tell their worker, and acknowledge them, once.
-- ARGV: stream, group, time to live of committed sets in ms, then eleven for each entry: its id, "1" if it was this entry that brought the
-- event into the ledger, its committed set, sequence, row, request, total tokens, key, project, tenant, and day and month as "day month".
local stream, group, ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local counted = 0
for i = 4, #ARGV, 11 do
  local entry, is_source, committed, sequence, row, request, total, key, project, tenant, periods = unpack(ARGV, i, i + 10)
  redis.call('SADD', committed, sequence)
  redis.call('PEXPIRE', committed, ttl_ms)
  -- Acknowledged before, it was counted before.
  if redis.call('XACK', stream, group, entry) == 1 and is_source == '1' then
    local day, month = string.match(periods, '^(%d+) (%d+)$')
    local account = {key = key, project = project, tenant = tenant, day = day, month = month, held = '0', captured = '0'}
    book(request, tonumber(total), account, tonumber(row))
    counted = counted + 1
  end
  redis.call('XDEL', stream, entry)
end
return counted
