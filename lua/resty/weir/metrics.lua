-- What is counted for all workers of the host, beside the decisions: what the
-- upstream says to those that were let through; and all of it as Prometheus reads it.
-- weir/journal.lua has what this worker counts for itself.

local ngx = ngx
local header = ngx.header
local ngx_var = ngx.var
local print = ngx.print
local sub = string.sub


local _M = {}


local engine


-- Before the first decision.
function _M.configure(configured)
    engine = configured
end


-- At the end of a request: counts a 429 of the upstream under each policy that
-- had let the request through.
function _M.note_upstream(record)
    local decision = record.charge
    if not decision or record.is_refused then
        return
    end
    -- As in "502, 429" and "429 : 200": what was tried last was answered with.
    local status = ngx_var.upstream_status
    if not status or sub(status, -3) ~= "429" then
        return
    end
    local counted = {}
    while decision do
        local id = decision.policy.id
        if not counted[id] then
            counted[id] = true
            engine:upstream_429(id)
        end
        decision = decision.before
    end
end


-- Answers with all of it.
function _M.answer()
    local media, text = engine:metrics(ngx_var.http_accept)
    header["Content-Type"] = media
    print(text)
end


return _M
