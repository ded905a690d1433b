-- Which policies have decided about which client requests: nginx runs the
-- access phase again after an internal redirect, with an empty ngx.ctx.

local ngx_var = ngx.var


local _M = {}


-- Marks are kept for at least this many decisions. A request that is
-- redirected later than that is counted twice; memory stays what it is.
local KEPT = 10000


local young, old = {}, {}
local count = 0


-- A connection's number is never used again, and its requests are counted.
local function name_of(policy)
    return ngx_var.connection .. ":" .. ngx_var.connection_requests .. ":" .. policy
end


-- Notes that the policy has decided about this client request.
function _M.mark(policy)
    if count == KEPT then
        young, old, count = {}, young, 0
    end
    count = count + 1
    young[name_of(policy)] = true
end


-- Whether it has.
function _M.is_marked(policy)
    local name = name_of(policy)
    return young[name] or old[name] or false
end


return _M
