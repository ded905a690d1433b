-- What this worker has decided so far, in numbers and in the error log.

local ngx = ngx
local gsub = string.gsub
local log = ngx.log
local now = ngx.now
local pairs = pairs
local sub = string.sub
local ERR = ngx.ERR


local _M = {}


-- How often, in seconds, a reason for having no decision is logged at most.
local PAUSE = 10


-- Redirects and subrequests of what had been counted.
local internal = 0

-- Reasons for having no decision.
_M.errors = {}

-- What the I/O thread tells of, once for all requests that meet it.
local TOLD = { unreachable = true, redis_error = true, malformed_reply = true }


function _M.count_internal()
    internal = internal + 1
end


-- Whether it is time to log this about the policy again.
local function is_due(policy, what)
    local time = now()
    local last = policy.logged_at[what]
    if last and time - last < PAUSE then
        return false
    end
    policy.logged_at[what] = time
    return true
end


-- What on_error does, in words.
local function word_of(policy, decision)
    if policy.on_error == "local" then
        return decision and "local" or "local, and without a decision here the request passes"
    end
    return policy.dry_run and "open (dry run)" or policy.on_error
end


-- Redis gives no decision for this reason; on_error decides, and has decided here if
-- there is a decision.
function _M.no_decision(policy, reason, detail, decision)
    _M.errors[reason] = (_M.errors[reason] or 0) + 1
    if TOLD[reason] and (decision or policy.on_error ~= "local") or not is_due(policy, reason) then
        return
    end
    -- It may quote what a client sent.
    detail = detail and ": " .. sub(gsub(detail, "%c", " "), 1, 200) or ""
    log(ERR, "weir: no decision for policy ", policy.name, ": ", reason, detail,
        "; on_error is ", word_of(policy, decision),
        " (told at most every ", PAUSE, " s)")
end


function _M.never_fits(policy, cost)
    if is_due(policy, "never_fits") then
        log(ERR, "weir: policy ", policy.name, " can never admit a cost of ", cost,
            policy.dry_run and "; such requests would be" or "; such requests are",
            " refused (told at most every ", PAUSE, " s)")
    end
end


-- A dry run would have refused this request.
function _M.would_refuse(policy)
    policy.would_refuse = (policy.would_refuse or 0) + 1
    if is_due(policy, "would_refuse") then
        log(ERR, "weir: policy ", policy.name, " would have refused ", policy.would_refuse,
            " more (dry run; told at most every ", PAUSE, " s)")
        policy.would_refuse = 0
    end
end


-- So many charges under this policy wait for a log phase that never came.
function _M.never_given_back(policy, count)
    if is_due(policy, "never_given_back") then
        log(ERR, "weir: policy ", policy.name, " gives charges back at the end of requests, but ",
            "none of ", count, " has called log() yet: unless all are still under way, nginx.conf ",
            "needs log_by_lua_block { require(\"resty.weir\").log() } (told at most every ", PAUSE,
            " s)")
    end
end


function _M.bad_settlement(policy, problem)
    if is_due(policy, "bad_settlement") then
        log(ERR, "weir: policy ", policy.name, " cannot charge or give back: ", problem,
            " (told at most every ", PAUSE, " s)")
    end
end


local function copy(counters)
    local copied = {}
    for name, count in pairs(counters) do
        copied[name] = count
    end
    return copied
end


-- Adds them to a table of statistics.
function _M.add_to(stats)
    stats.decisions.internal = internal
    stats.errors = copy(_M.errors)
end


return _M
