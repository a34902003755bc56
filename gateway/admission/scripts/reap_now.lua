return reap(tonumber(ARGV[1]), tonumber(ARGV[2]))
