-- ARGV: most holds to look at, how long a claimed hold may stay silent in ms.
-- A hold whose lease has expired: never claimed, it is undone; claimed, its slots are free and its tokens stay held until its worker's
-- journal settles it, or until the bound, when it is captured as held.
local function reap(most, silent_ms)
  local done = 0
  for _, request in ipairs(redis.call('ZRANGEBYSCORE', HOLDS, '-inf', '(' .. text(now_ms), 'LIMIT', 0, most)) do
    local hold = hash(hold_name(request))
    if hold.state == nil or hold.state == 'settled' then
      redis.call('ZREM', HOLDS, request)
    elseif hold.state == 'held' then
      undo(request, hold)
    else
      leave(request, hold)
      redis.call('ZADD', 'lockgate:orphans', text(now_ms + silent_ms), request)
    end
    done = done + 1
  end
  for _, request in ipairs(redis.call('ZRANGEBYSCORE', 'lockgate:orphans', '-inf', '(' .. text(now_ms), 'LIMIT', 0, most)) do
    local hold = hash(hold_name(request))
    if hold.state == 'claimed' then capture(request, hold, tonumber(hold.held), 7 * 24 * 3600 * 1000) end
    redis.call('ZREM', 'lockgate:orphans', request)
    done = done + 1
  end
  return done
end
