-- Who a key belongs to, or why it may not come in; and what its own rates have left. Counts nothing.
-- ARGV: digest. Answer: as admit.lua's, with nothing held.
local refusal, caller = identify(ARGV[1])
if refusal then return refusal end
local none = {day = '0', month = '0'}
return granted(caller, 0, none, read_scope('key', caller.ids.key, none))
