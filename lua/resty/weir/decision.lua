-- A decision about a request: what it is asked with, who is asked, and what is
-- noted of it.

local journal = require "resty.weir.journal"
local key = require "resty.weir.key"
local metrics = require "resty.weir.metrics"
local pump = require "resty.weir.pump"
local settlement = require "resty.weir.settlement"
local variables = require "resty.weir.variables"

local ngx = ngx
local clock = metrics.clock
local getmetatable = getmetatable
local pairs = pairs
local pcall = pcall
local sub = string.sub
local tonumber = tonumber
local tostring = tostring
local type = type


local _M = {}


local engine
local timeout
-- Whether decisions may have to be waited for.
local has_redis

-- Outcomes that end a request, or a subrequest alone.
_M.ENDING = { denied = true, error_closed = true }

-- As what an outcome is counted that was not Redis's to decide.
local COUNTED = {
    remembered = { denied = "remembered" },
    ["local"] = { allowed = "error_local", denied = "error_local_denied" },
}

-- What a policy passes over.
local EXEMPT = { allowed = true, exempt = true }


-- Before the first decision; `patience` is how long one may take, in seconds.
function _M.configure(configured, patience)
    engine, timeout = configured, patience
    has_redis = configured:has_redis()
end


local OPTIONS = { cost = true, internal = true, key = true, plan = true }


local function unknown_field(opts)
    for name in pairs(opts) do
        if not OPTIONS[name] then
            return name
        end
    end
end


-- The rule by which a request is decided: its plan's, or the policy's own if
-- the plan is none of the policy's. Whoever invents a plan gains nothing.
local function rule_of(policy, plan)
    if plan == nil then
        return policy.rule
    end
    if type(plan) ~= "string" then
        return nil, "opts.plan must be a string or nil, not a " .. type(plan)
    end
    return policy.plans and policy.plans[plan] or policy.rule
end


-- Whether this reason, or nil, is a mistake in the call: nothing was sent
-- anywhere.
function _M.is_mistake(reason)
    return reason and sub(reason, 1, 4) == "bad_"
end


-- A decision that was made at once, where `origin` says; with the fields of one
-- that was waited for.
local function made(origin, allowed, at, remaining, retry_after, violated, ...)
    return { done = true, origin = origin, allowed = allowed, at = at, remaining = remaining,
        retry_after = retry_after, violated = violated, values = { ... },
        rule = false, source = false, value = false, units = false, policy = false,
        before = false }
end


-- What becomes of a request: the decision; or nil and the reason in one word, with
-- more to say about it for the log.
local function take(ticket, origin, ...)
    if ticket == true then
        return made(origin, ...)
    elseif not ticket then
        return nil, origin, ...
    end
    local decision = pump.wait(ticket, timeout)
    if not decision.done then
        return nil, "timeout"
    elseif decision.allowed == nil then
        return nil, decision.reason
    end
    decision.origin = "redis"
    return decision
end


local function decide(rule, source, value, cost, in_full)
    if has_redis then
        local ok, err = pump.ensure()
        if not ok then
            return nil, "no_pump", err
        end
    end
    return take(engine:submit(rule, source, value, cost, in_full))
end


-- Asks for a decision, with each limit listed if `in_full`; never of Redis if
-- `is_late`: the request has waited for Redis in vain. Returns it, or nil; the reason
-- in one word why Redis could not give it, if it could not, with more to say about it
-- for the log. Without a record there is no request: that is a timer.
local function ask(policy, opts, in_full, record, is_late)
    local override, plan, cost
    if opts ~= nil then
        if type(opts) ~= "table" then
            return nil, "bad_options", "opts must be a table, not a " .. type(opts)
        end
        if getmetatable(opts) ~= nil then
            return nil, "bad_options", "opts must be a plain table, without a metatable"
        end
        local unknown = unknown_field(opts)
        if unknown ~= nil then
            return nil, "bad_options", "opts has an unknown field " .. tostring(unknown)
                .. "; known here are cost, internal, key, plan"
        end
        override, plan, cost = opts.key, opts.plan, opts.cost
    end

    local rule, problem = rule_of(policy, plan)
    if not rule then
        return nil, "bad_options", problem
    end
    if not record then
        if override == nil and not policy.key_function then
            return nil, "bad_key", "a timer has no request: it needs opts.key"
        end
    elseif policy.exempt then
        local is_exempt, err = key.is_exempt(engine, policy)
        if err then
            return nil, "bad_exempt", err
        elseif is_exempt then
            return EXEMPT
        end
    end

    local source, value = key.of(engine, policy, override)
    if not source then
        return nil, "bad_key", value
    end

    local decision, reason, detail
    if is_late then
        decision, reason, detail = take(engine:recall(rule, source, value, cost, in_full))
    else
        decision, reason, detail = decide(rule, source, value, cost, in_full)
    end
    if not decision and policy.on_error == "local" and has_redis
        and not _M.is_mistake(reason) then
        local problem_here
        decision, problem_here = take(engine:decide_share(rule, source, value, cost, in_full))
        if problem_here then
            detail = (detail and detail .. ", " or "") .. problem_here
        end
    end
    if decision then
        decision.rule, decision.source, decision.value = rule, source, value
        decision.units = cost or 1
    end
    return decision, reason, detail
end


-- Asks, and tells the worker's books and the request's record (nil in a timer)
-- what comes of it. Returns the decision and the outcome; the decision is nil if
-- nobody could say, with the reason in third place. A fault in here must end as
-- the policy says, not as a 500.
function _M.make(policy, opts, in_full, record)
    local started = clock()
    -- A request waits in vain but once.
    local is_late = record and record.has_timed_out
    local ok, decision, reason, detail = pcall(ask, policy, opts, in_full, record, is_late)
    if not ok then
        decision, reason, detail = nil, "fault", tostring(decision)
    end
    if reason then
        journal.no_decision(policy, reason, detail, decision)
    end

    local outcome, remaining, source, wait
    if not decision then
        source = "on_error"
        local is_closed = policy.on_error == "closed" and not policy.dry_run
        outcome = is_closed and "error_closed" or "error_open"
    elseif decision.exempt then
        outcome, source = "exempt", "exempt"
    else
        source, remaining = decision.origin, decision.remaining
        if decision.allowed then
            outcome = "allowed"
        else
            outcome = policy.dry_run and "dry_run_denied" or "denied"
            settlement.refused(policy)
            if policy.dry_run then
                journal.would_refuse(policy)
            else
                wait = tonumber(decision.retry_after)
            end
            if not decision.retry_after then
                journal.never_fits(policy, decision.units)
            end
        end
    end

    local counted = COUNTED[source] and COUNTED[source][outcome] or outcome
    journal.count(counted)
    metrics.record(policy, counted, source, started, wait, reason)
    if record then
        if outcome == "allowed" then
            settlement.note(policy, record, decision)
        end
        record.has_timed_out = record.has_timed_out or reason == "timeout"
        -- A subrequest's refusal is not the request's.
        if not (_M.ENDING[outcome] and ngx.is_subrequest) then
            variables.note(record, policy, outcome, remaining, source)
        end
        variables.set(record)
    end
    return decision, outcome, reason
end


return _M
