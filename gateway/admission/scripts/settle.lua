-- Charge what was computed, give back the rest and the slot. ARGV: request id, total tokens. Answer: 1 if anything has changed.
local hold = hash(hold_name(ARGV[1]))
if hold.state == nil then return 0 end
return settle(ARGV[1], hold, tonumber(ARGV[2]))
