-- Charge what was computed, once. ARGV: request, tokens to charge. Answer: 1 if it took effect, 0 if there is no open hold (any more).

local hold = read_hold(ARGV[1])
if not hold or hold.state == 'settled' then return 0 end
capture(hold, tonumber(ARGV[2]), now_ms())
return 1
