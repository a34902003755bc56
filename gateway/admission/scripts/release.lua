-- Undo an admission of which nothing was computed. ARGV: request id. Answer: 1 if it took effect.
local hold = hash(hold_name(ARGV[1]))
if hold.state ~= 'held' and hold.state ~= 'claimed' then return 0 end
undo(ARGV[1], hold)
redis.call('ZREM', ORPHANS, ARGV[1])
return 1
