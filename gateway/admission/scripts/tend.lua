-- Deal with what has run out of time. ARGV: most of each kind, silent bound in ms, unbooked bound in ms. Answer: how many there were.
return reap(HOLDS, tonumber(ARGV[1]), tonumber(ARGV[2])) + give_up(tonumber(ARGV[1]), tonumber(ARGV[3]))
