-- Weir: rate limiting at the nginx edge. This is the glue: it reads nginx
-- variables, waits, sets headers and ends the request. What a limit is, and
-- whether there is room in it, is decided elsewhere.

local edge = require "weir_edge"
local key = require "resty.weir.key"
local once = require "resty.weir.once"
local process = require "ngx.process"
local pump = require "resty.weir.pump"

local ngx = ngx
local exit = ngx.exit
local get_phase = ngx.get_phase
local is_internal = ngx.req.is_internal
local log = ngx.log
local now = ngx.now
local print = ngx.print
local ERR = ngx.ERR
local error = error
local getmetatable = getmetatable
local gsub = string.gsub
local pairs = pairs
local pcall = pcall
local rawget = rawget
local sub = string.sub
local tostring = tostring
local type = type


local _M = { _VERSION = "0.1.0" }


-- How often, in seconds, a reason for having no decision is logged at most.
local LOG_PAUSE = 10

-- What a client is told to wait, in seconds, when on_error closes: within this
-- time the next attempt to reach Redis is made.
local ERROR_RETRY_AFTER = "1"


local engine
local policies
local timeout

local decisions = {
    allowed = 0,
    denied = 0,
    error_open = 0,
    error_closed = 0,
    internal = 0,
}
local errors = {}

-- Where a request can still be answered.
local ANSWERING_PHASES = { rewrite = true, access = true, content = true }

-- Where a light thread can wait.
local WAITING_PHASES = { rewrite = true, access = true, content = true, timer = true }


-- The library stays loaded over a reload and the Lua files do not: after an
-- upgrade only a restart brings both together.
local function check_version()
    if edge.version ~= _M._VERSION then
        return "weir: weir.lua is of version " .. _M._VERSION .. " and the loaded weir_edge.so of "
            .. tostring(edge.version) .. "; restart nginx (a reload keeps the old library)"
    end
end


local function raise_in_one_line(message)
    -- nginx asks debug.traceback for what it logs of an error, and would put
    -- a stack of our own frames behind the one line that helps. Once only.
    -- luacheck: push ignore 122
    local traceback = debug.traceback
    debug.traceback = function(text, ...)
        debug.traceback = traceback
        return type(text) == "string" and text or traceback(text, ...)
    end
    -- luacheck: pop
    error(message, 3)
end


-- setup(config), in init_by_lua: checks the configuration, and raises on the
-- first thing wrong with it.
function _M.setup(config)
    if get_phase() ~= "init" then
        raise_in_one_line("weir: setup() belongs in init_by_lua")
    end
    -- Workers run init_by_lua only for the VM of a single request.
    if process.type() == "worker" then
        raise_in_one_line("weir: lua_code_cache must be on: without it every request is a Lua VM "
            .. "of its own, that shares no connection and no thread")
    end
    local mismatch = check_version()
    if mismatch then
        raise_in_one_line(mismatch)
    end

    local checked, problem = edge.setup(config)
    if not checked then
        raise_in_one_line("weir: " .. problem)
    end

    engine = checked
    policies = checked:policies()
    timeout = checked:timeout()
    for name, policy in pairs(policies) do
        policy.logged_at = {}
        if not policy.key then
            policy.key_function = config.policies[name].key
        end
    end
end


-- start(), in init_worker_by_lua: starts this worker's thread and pump. Does
-- nothing in the processes that serve no requests.
function _M.start()
    if not engine then
        raise_in_one_line("weir: start() needs setup() in init_by_lua before it")
    end
    if get_phase() ~= "init_worker" then
        raise_in_one_line("weir: start() belongs in init_worker_by_lua")
    end
    local kind = process.type()
    if kind ~= "worker" and kind ~= "single" then
        return
    end

    local ok, err = pump.start(engine)
    if not ok then
        log(ERR, "weir: ", err, "; on_error decides until it starts")
    end
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


-- Asks for a decision, with each limit listed if `in_full`. Returns a waiter,
-- or nil and the reason in one word, with more to say about it for the log.
local function ask(policy, opts, in_full)
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
        end
        override, plan, cost = opts.key, opts.plan, opts.cost
    end

    local rule, problem = rule_of(policy, plan)
    if not rule then
        return nil, "bad_options", problem
    end
    local source, value = key.of(policy, override)
    if not source then
        return nil, "bad_key", value
    end

    local ok, err = pump.ensure()
    if not ok then
        return nil, "no_pump", err
    end

    local ticket, reason, detail = engine:submit(rule, source, value, cost, in_full)
    if not ticket then
        return nil, reason, detail
    end

    local waiter = pump.wait(ticket, timeout)
    if not waiter.done then
        return nil, "timeout"
    end
    if waiter.allowed == nil then
        return nil, waiter.reason
    end
    waiter.cost = cost or 1
    return waiter
end


-- What the I/O thread tells of, once for all requests that meet it.
local TOLD = { unreachable = true, redis_error = true, malformed_reply = true }


-- Whether it is time to log this reason again.
local function is_due(policy, reason)
    local time = now()
    local last = policy.logged_at[reason]
    if last and time - last < LOG_PAUSE then
        return false
    end
    policy.logged_at[reason] = time
    return true
end


local function log_error(name, policy, reason, detail)
    if TOLD[reason] or not is_due(policy, reason) then
        return
    end
    -- It may quote what a client sent.
    detail = detail and ": " .. sub(gsub(detail, "%c", " "), 1, 200) or ""
    log(ERR, "weir: no decision for policy ", name, ": ", reason, detail, "; on_error is ",
        policy.on_error, " (told at most every ", LOG_PAUSE, " s)")
end


-- There is no decision, and the policy says what becomes of that.
local function fail(name, policy, reason, detail)
    local outcome = policy.on_error == "open" and "error_open" or "error_closed"
    decisions[outcome] = decisions[outcome] + 1
    errors[reason] = (errors[reason] or 0) + 1
    log_error(name, policy, reason, detail)
    return nil, reason
end


-- Asks, and counts what comes of it. A fault in here must end as the policy
-- says, not as a 500.
local function decide(name, policy, opts, in_full)
    local ok, waiter, reason, detail = pcall(ask, policy, opts, in_full)
    if not ok then
        return fail(name, policy, "fault", tostring(waiter))
    end
    if not waiter then
        return fail(name, policy, reason, detail)
    end

    local outcome = waiter.allowed and "allowed" or "denied"
    decisions[outcome] = decisions[outcome] + 1
    if not waiter.allowed and not waiter.retry_after and is_due(policy, "never_fits") then
        log(ERR, "weir: policy ", name, " can never admit a cost of ", waiter.cost,
            "; such requests are refused (told at most every ", LOG_PAUSE, " s)")
    end
    return waiter
end


local function find(name)
    if not policies then
        error("weir: setup() was not called in init_by_lua", 3)
    end
    return policies[name] or error("weir: no such policy: " .. tostring(name), 3)
end


-- One client request is one unit under a policy: an internal redirect
-- (try_files, error_page, ngx.exec) runs the access phase again, and is not
-- counted again. A rewrite makes a request internal too, before it is counted.
local function is_counted_already(name, opts)
    return is_internal() and not (type(opts) == "table" and rawget(opts, "internal"))
        and once.is_marked(name)
end


-- A look is not yet the request's count under this policy.
local function only_looks(opts)
    return type(opts) == "table" and rawget(opts, "cost") == 0
end


local function refuse(name, status, retry_after)
    local body = engine:body(name, status, retry_after)
    local header = ngx.header
    ngx.status = status
    header["Retry-After"] = retry_after
    header["Content-Type"] = "application/json"
    header["Content-Length"] = #body
    print(body)
    return exit(status)
end


-- access(policy, opts), in the access phase: decides, sets the headers, and
-- ends the request with 429 if it is refused. opts.key replaces the key for
-- this request; opts.cost is its units, 1 if left out, 0 to look only;
-- opts.plan is the plan whose limits it has; opts.internal counts an internal
-- redirect too.
function _M.access(name, opts)
    local policy = find(name)
    if not ANSWERING_PHASES[get_phase()] then
        error("weir: access() cannot answer in " .. get_phase() .. "_by_lua", 2)
    end
    if is_counted_already(name, opts) then
        decisions.internal = decisions.internal + 1
        return
    end

    if not only_looks(opts) then
        once.mark(name)
    end
    local decision = decide(name, policy, opts, false)
    if not decision then
        if policy.on_error == "open" then
            return
        end
        return refuse(name, policy.error_status, ERROR_RETRY_AFTER)
    end

    local limit, remaining, retry_after, reset = engine:fields(decision.allowed,
        decision.limit, decision.remaining, decision.retry_after, decision.reset)
    local header = ngx.header
    header["RateLimit-Limit"] = limit
    header["RateLimit-Remaining"] = remaining
    header["RateLimit-Reset"] = reset
    if not decision.allowed then
        return refuse(name, 429, retry_after)
    end
end


-- check(policy, opts): the same decision as a table, answering nothing:
-- allowed, limit, remaining, retry_after, reset (seconds, fractions kept;
-- retry_after is nil if there is nothing to wait for) of the tightest limit, the
-- same of each in the list `limits`, and source: "redis", or "on_error" with the
-- reason in `reason` and no numbers. Counts at each call.
function _M.check(name, opts)
    local policy = find(name)
    local decision, reason
    local phase = get_phase()
    if WAITING_PHASES[phase] then
        decision, reason = decide(name, policy, opts, true)
    else
        decision, reason = fail(name, policy, "bad_phase", "nothing can be waited for in " .. phase)
    end
    if not decision then
        return { allowed = policy.on_error == "open", source = "on_error", reason = reason }
    end
    return {
        allowed = decision.allowed,
        limit = decision.limit,
        remaining = decision.remaining,
        retry_after = decision.retry_after,
        reset = decision.reset,
        limits = decision.limits,
        source = "redis",
    }
end


local function copy(counters)
    local copied = {}
    for name, count in pairs(counters) do
        copied[name] = count
    end
    return copied
end


-- stats(): this worker's counters since it started: decisions by outcome,
-- errors by reason, waiting, pumps, and the I/O thread's queued, wakeups, batches,
-- batched, connects and redis ("up", "connecting", "down", "not_started").
function _M.stats()
    if not engine then
        error("weir: setup() was not called in init_by_lua", 2)
    end
    local stats = engine:stats()
    stats.decisions = copy(decisions)
    stats.errors = copy(errors)
    stats.waiting, stats.pumps = pump.counts()
    return stats
end


return _M
