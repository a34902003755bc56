-- Deal with leases that have ended. ARGV: most at once, ms after which a lapsed claim is charged. Answer: how many there were.

return lapse(HOLDS, now_ms(), tonumber(ARGV[1]), tonumber(ARGV[2]))
