-- What is held for a request, and the ends that a hold can come to.
--
-- lockgate:hold:{request} has: state (held, claimed by a worker, settled), digest, key, project, tenant; day and month, the starts of the
-- periods that it is charged to; prompt, most, allowance (output tokens), held, captured; and for each scope that had a limit per minute
-- rated:{scope}, called:{scope}: the receipts of what its rates were charged (common.lua).

-- Change what the hold's scopes count: budgets by these differences, the tokens' rate so that only `tokens` of the hold count (nil: all),
-- and the requests' rate by taking the call back.
local function recount(hold, more_held, more_captured, tokens, uncalled)
  local receipts = {}
  for _, scope in ipairs(SCOPES) do
    local state = read_scope(scope, hold[scope], hold)
    add_to_budgets(state, more_held, more_captured)
    local rated, called = hold['rated:' .. scope], hold['called:' .. scope]
    if rated and tokens then
      receipts[#receipts + 1] = 'rated:' .. scope
      receipts[#receipts + 1] = refund(state, 'tokens', rated, tokens)
    end
    if called and uncalled then refund(state, 'requests', called, 0) end
    save(state)
  end
  return receipts
end

-- The slots are free; nothing waits for its lease any more.
local function leave(request, hold)
  redis.call('ZREM', HOLDS, request)
  for _, scope in ipairs(SCOPES) do redis.call('ZREM', inflight_name(scope, hold[scope]), request) end
end

-- Nothing was computed: nothing stays charged, the call itself included.
local function undo(request, hold)
  leave(request, hold)
  recount(hold, -tonumber(hold.held), 0, 0, true)
  redis.call('DEL', hold_name(request))
end

-- Charge what was computed and give back the rest. Totals are cumulative: a later, larger one posts the difference.
local function settle(request, hold, total)
  local before, was_held = tonumber(hold.captured), tonumber(hold.held)
  if hold.state == 'settled' and total <= before then return 0 end
  total = math.max(total, before)
  leave(request, hold)
  redis.call('ZREM', ORPHANS, request)
  local receipts = recount(hold, -was_held, total - before, total)
  redis.call('HSET', hold_name(request), 'state', 'settled', 'held', 0, 'captured', total, unpack(receipts))
  redis.call('ZADD', UNBOOKED, 'NX', now_ms, request)
  return 1
end

-- The ledger has the request's usage: from now on its total is what counts, and the hold's work is done.
local function book(request, total, account, row)
  local hold = hash(hold_name(request))
  -- Later than a rebuild that counted this row, there is nothing left to add.
  if row <= tonumber(redis.call('GET', REBUILT_THROUGH) or '0') then return end
  if hold.state == nil then hold = account end
  local was_held, before = tonumber(hold.held), tonumber(hold.captured)
  if hold.state then leave(request, hold) end
  if was_held ~= 0 or total ~= before then recount(hold, -was_held, total - before, total) end
  redis.call('DEL', hold_name(request))
  redis.call('ZREM', ORPHANS, request)
  redis.call('ZREM', UNBOOKED, request)
end

-- Holds whose lease has ended, by one of the sets of leases. Never claimed: undone, so that no worker can claim it any more. Claimed: the slot
-- is free at once, the tokens stay held for the worker's journal.
local function reap(leases, most, silent_ms)
  local expired = redis.call('ZRANGEBYSCORE', leases, '-inf', '(' .. now_ms, 'LIMIT', 0, most)
  for _, request in ipairs(expired) do
    local hold = hash(hold_name(request))
    if hold.state == 'held' then
      undo(request, hold)
    elseif hold.state == 'claimed' then
      leave(request, hold)
      redis.call('ZADD', ORPHANS, now_ms + silent_ms, request)
    else
      redis.call('ZREM', leases, request)
    end
  end
  return #expired
end

-- Orphans whose worker has been silent for too long, and settled holds that the ledger never heard of: the journal is lost, and what no
-- ledger will ever show isn't charged. If it turns up after all, it is booked like any other.
local function give_up(most, unbooked_ms)
  local silent = redis.call('ZRANGEBYSCORE', ORPHANS, '-inf', '(' .. now_ms, 'LIMIT', 0, most)
  local unbooked = redis.call('ZRANGEBYSCORE', UNBOOKED, '-inf', '(' .. (now_ms - unbooked_ms), 'LIMIT', 0, most)
  for _, requests in ipairs({silent, unbooked}) do
    for _, request in ipairs(requests) do
      local hold = hash(hold_name(request))
      if hold.state then
        recount(hold, -tonumber(hold.held), -tonumber(hold.captured))
        leave(request, hold)
        redis.call('DEL', hold_name(request))
      end
      redis.call('ZREM', ORPHANS, request)
      redis.call('ZREM', UNBOOKED, request)
    end
  end
  return #silent + #unbooked
end
