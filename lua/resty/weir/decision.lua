-- A decision about a request: what it is asked with, who is asked, and what is
-- noted of it.

local calls = require "resty.weir.calls"
local journal = require "resty.weir.journal"
local key = require "resty.weir.key"
local pump = require "resty.weir.pump"
local settlement = require "resty.weir.settlement"
local variables = require "resty.weir.variables"

local ngx = ngx
local ANY = calls.ANY
local MEANWHILE = calls.MEANWHILE
local REMEMBERED = calls.REMEMBERED
local SHARE = calls.SHARE
local call = calls.ask
local clock = calls.clock
local full = calls.full
local distrust_waiters = pump.distrust
local ensure_pump = pump.ensure
local is_exempt = key.is_exempt
local key_of = key.of
local note_charge = settlement.note
local note_variables = variables.note
local record_decision = calls.record
local set_variables = variables.set
local wait = pump.wait
local error = error
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
local ENDING = { denied = true, error_closed = true }

_M.ENDING = ENDING

-- As what an outcome is counted that was not Redis's to decide.
local COUNTED = {
    remembered = { denied = "remembered" },
    ["local"] = { allowed = "error_local", denied = "error_local_denied" },
}

-- What a policy passes over.
local EXEMPT = {}


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
local function is_mistake(reason)
    return reason and sub(reason, 1, 4) == "bad_"
end

_M.is_mistake = is_mistake


-- Asks whoever decides, and waits if that is Redis.
local function ask_any(rule, source, value, cost, in_full)
    if has_redis then
        local ok, err = ensure_pump()
        if not ok then
            return nil, "no_pump", err
        end
    end
    local decision, word, detail = call(ANY, rule, source, value, cost)
    if decision ~= false then
        return decision, word, detail
    end

    return wait(word, timeout, in_full and rule or nil)
end


-- Asks for a decision, with each limit in its `table` if `in_full`; never of Redis if
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
        local passes, err = is_exempt(engine, policy)
        if err then
            return nil, "bad_exempt", err
        elseif passes then
            return EXEMPT
        end
    end

    local source, value = key_of(engine, policy, override)
    if not source then
        return nil, "bad_key", value
    end

    local decision, reason, detail
    if is_late then
        decision, reason, detail = call(REMEMBERED, rule, source, value, cost)
    else
        decision, reason, detail = ask_any(rule, source, value, cost, in_full)
    end
    if not decision and policy.on_error == "local" and has_redis
        and not is_mistake(reason) then
        local problem_here
        decision, problem_here = call(SHARE, rule, source, value, cost)
        if problem_here then
            detail = (detail and detail .. ", " or "") .. problem_here
        end
    end
    if decision then
        if in_full and not decision.table then
            decision.table = full(rule) or error(MEANWHILE)
        end
        decision.rule, decision.source, decision.value = rule, source, value
        decision.units = cost or 1
    end
    return decision, reason, detail
end


-- Asks for a decision, with each limit in its `table` if `in_full`; the record is the
-- request's, nil in a timer. Returns what conclude() takes. A fault in here must end
-- as the policy says, not as a 500.
function _M.ask(policy, opts, in_full, record)
    local started = clock()
    -- A request waits in vain but once.
    local is_late = record and record.has_timed_out
    local ok, decision, reason, detail = pcall(ask, policy, opts, in_full, record, is_late)
    if not ok then
        distrust_waiters()
        return started, nil, "fault", tostring(decision)
    end
    return started, decision, reason, detail
end


-- Tells the worker's books and the request's record what came of asking. Returns the
-- outcome.
function _M.conclude(policy, record, started, decision, reason, detail)
    if reason then
        journal.no_decision(policy, reason, detail, decision)
    end

    local outcome, remaining, source, told_wait
    if not decision then
        source = "on_error"
        local is_closed = policy.on_error == "closed" and not policy.dry_run
        outcome = is_closed and "error_closed" or "error_open"
    elseif decision == EXEMPT then
        outcome, source = "exempt", "exempt"
    else
        source, remaining = decision.origin, decision.remaining
        if not decision.denied then
            outcome = "allowed"
        else
            outcome = policy.dry_run and "dry_run_denied" or "denied"
            settlement.refused(policy)
            if policy.dry_run then
                journal.would_refuse(policy)
            else
                told_wait = tonumber(decision.retry_after)
            end
            if not decision.retry_after then
                journal.never_fits(policy, decision.units)
            end
        end
    end

    local counted = COUNTED[source] and COUNTED[source][outcome] or outcome
    record_decision(policy, counted, source, started, told_wait, reason)
    if record then
        if outcome == "allowed" then
            note_charge(policy, record, decision)
        end
        if reason == "timeout" then
            record.has_timed_out = true
        end
        -- A subrequest's refusal is not the request's.
        if not (ENDING[outcome] and ngx.is_subrequest) then
            note_variables(record, policy, outcome, remaining, source)
        end
        set_variables(record)
    end
    return outcome
end


return _M
