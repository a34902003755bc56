-- ARGV: request id.
local hold = hash(hold_name(ARGV[1]))
if hold.state ~= 'held' and hold.state ~= 'claimed' then return 0 end
undo(ARGV[1], hold)
return 1
