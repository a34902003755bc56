-- Undo an admission of which nothing was computed. ARGV: request. Answer: 1 if it took effect.

local hold = read_hold(ARGV[1])
if not hold or hold.state == 'settled' then return 0 end
give_back(hold)
return 1
