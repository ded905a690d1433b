-- Weir: rate limiting at the nginx edge. This is the glue: it reads nginx
-- variables, waits, sets headers and ends the request. What a limit is, and
-- whether there is room in it, is decided elsewhere.

local answer = require "resty.weir.answer"
local calls = require "resty.weir.calls"
local decision = require "resty.weir.decision"
local edge = require "weir_edge"
local journal = require "resty.weir.journal"
local metrics = require "resty.weir.metrics"
local process = require "ngx.process"
local pump = require "resty.weir.pump"
local request = require "resty.weir.request"
local settlement = require "resty.weir.settlement"
local variables = require "resty.weir.variables"

local ngx = ngx
local ask = decision.ask
local begin = request.begin
local conclude = decision.conclude
local finish = request.finish
local get_phase = ngx.get_phase
local is_counted = request.is_counted
local is_mistake = decision.is_mistake
local record_of = request.of
local set_variables = variables.set
local tell = answer.tell
local log = ngx.log
local ERR = ngx.ERR
local NOTICE = ngx.NOTICE
local error = error
local pairs = pairs
local rawget = rawget
local tostring = tostring
local type = type


local _M = { _VERSION = "0.5.1" }


local engine
local policies
local timeout

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


local function find_function(value)
    if type(value) == "function" then
        return value
    end
    for i = 1, #value do
        if type(value[i]) == "function" then
            return value[i]
        end
    end
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
    calls.configure(engine)
    decision.configure(engine, timeout)
    if not checked:has_redis() then
        log(NOTICE, "weir: no redis is configured, or store is \"memory\": limits are this host's ",
            "alone")
    end
    local notice = checked:notice()
    if notice then
        log(ERR, "weir: ", notice)
    end
    metrics.configure(engine)
    for name, policy in pairs(policies) do
        policy.logged_at, policy.calls = {}, {}
        if not policy.key then
            policy.key_function = config.policies[name].key
        end
        if policy.exempt and policy.exempt["function"] then
            policy.exempt_function = find_function(config.policies[name].exempt)
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


local function find(name)
    if not policies then
        error("weir: setup() was not called in init_by_lua", 3)
    end
    return policies[name] or error("weir: no such policy: " .. tostring(name), 3)
end


-- In seconds: how much longer than a decision takes a subrequest waits for that
-- of another.
local SLACK = 1


-- Whether a call stands for those of other passes: not a look, nor one that
-- counts on purpose.
local function is_numbered(opts)
    return type(opts) ~= "table" or rawget(opts, "cost") ~= 0 and not rawget(opts, "internal")
end


-- Whether the call counts for the request. A subrequest that is refused leaves
-- the request to go on; a mistake, which another call may not make, has sent
-- nothing, but must not be made again in the error page that it led to.
local function stands(pass, outcome, reason)
    if outcome == "exempt" then
        return false
    elseif pass.is_subrequest then
        return not decision.ENDING[outcome] and not is_mistake(reason)
    end
    return outcome == "error_closed" or not is_mistake(reason)
end


-- Does what follows from a decision; `call` is the request's, nil if it has no number.
-- All that comes after a wait is in here: what is on the way to it is not compiled.
local function follow(policy, record, pass, call, started, made, reason, detail)
    local outcome = conclude(policy, record, started, made, reason, detail)
    if call then
        finish(record, call, outcome, stands(pass, outcome, reason))
    end
    if pass.is_subrequest then
        -- What it is told is not what the client is told.
        record = {}
        if outcome == "allowed" then
            made.is_untold = true
        end
    end

    if policy.dry_run then
        answer.tell_dry_run(policy, record, outcome)
    elseif outcome == "allowed" then
        tell(policy, record, made)
    elseif outcome == "denied" then
        answer.refuse(policy, record, made)
    elseif outcome == "error_closed" then
        answer.fail(policy, record)
    end
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
    local record, pass = record_of()
    local numbered, call = is_numbered(opts), nil
    if numbered then
        local counted = is_counted(record, pass, policy, timeout + SLACK)
        if counted == "error_closed" then
            answer.fail(policy, {})
            return
        elseif counted then
            journal.count_internal()
            if not pass.is_subrequest then
                answer.tell_of_subrequest(policy, record)
            end
            set_variables(record)
            return
        end
        call = begin(record, pass, policy)
    end

    return follow(policy, record, pass, call, ask(policy, opts, false, record))
end


-- check(policy, opts): the same decision as a table, answering nothing:
-- allowed; name, limit, remaining, retry_after, reset (seconds, fractions kept;
-- retry_after is nil if there is nothing to wait for) of the tightest limit, the
-- same of each in the list `limits`; and source: "redis", "memory" (this host's,
-- where there is no Redis), "remembered" (a refusal that Redis gave before), "local"
-- (this host's, under on_error, with the reason in `reason`); "exempt", without
-- numbers; or "on_error", without numbers and with the reason in `reason`. Of a
-- dry run allowed is true; would_refuse tells what it would be. Counts at each
-- call.
function _M.check(name, opts)
    local policy = find(name)
    local phase = get_phase()
    if not WAITING_PHASES[phase] then
        journal.no_decision(policy, "bad_phase", "nothing can be waited for in " .. phase)
        local is_open = policy.on_error ~= "closed" or policy.dry_run
        local outcome = is_open and "error_open" or "error_closed"
        calls.record(policy, outcome, "on_error", nil, nil, "bad_phase")
        return { allowed = is_open, source = "on_error", reason = "bad_phase" }
    end

    local record
    if phase ~= "timer" then
        record = record_of()
    end
    local started, made, reason, detail = ask(policy, opts, true, record)
    local outcome = conclude(policy, record, started, made, reason, detail)
    if outcome == "exempt" then
        return { allowed = true, source = "exempt" }
    elseif not made then
        return { allowed = outcome == "error_open", source = "on_error", reason = reason }
    end
    local told = made.table
    if reason then
        told.reason = reason
    end
    if outcome == "dry_run_denied" then
        told.allowed, told.would_refuse = true, true
    end
    return told
end


-- refund(units, policy), wherever a request is: gives back up to so many units
-- of what it was charged under the policy, by default the one that decided last.
-- Returns how many, or nil and the reason. Waits for nothing.
function _M.refund(units, name)
    return settlement.refund(engine, units, name ~= nil and find(name) or nil)
end


-- charge(units, policy), wherever a request is: charges so many units more,
-- whether there is room or not, to whom it was charged under the policy, by
-- default the one that decided last. Returns them, or nil and the reason. Waits
-- for nothing.
function _M.charge(units, name)
    return settlement.charge(engine, units, name ~= nil and find(name) or nil)
end


-- forget_denials(), anywhere: has all workers of this host ask Redis again about
-- clients that it has refused, for whoever has let one in by hand.
function _M.forget_denials()
    if not engine then
        error("weir: setup() was not called in init_by_lua", 2)
    end
    engine:forget_denials()
end


-- header_filter(), in header_filter_by_lua: where the client is told of a limit
-- here, the limit headers of the upstream are left out.
function _M.header_filter()
    local record = not ngx.is_subrequest and request.find()
    if record then
        answer.filter(record)
    end
end


-- log(), in log_by_lua: gives back the charges that the status takes back, sets
-- the variables that a redirect has emptied, and counts an upstream's 429.
function _M.log()
    if get_phase() ~= "log" then
        error("weir: log() belongs in log_by_lua", 2)
    end
    local record = not ngx.is_subrequest and request.find()
    if record then
        settlement.finish(engine, record, record.status or ngx.status)
        set_variables(record)
        metrics.note_upstream(record)
    end
end


-- metrics(), in content_by_lua: answers with what all workers of the host have
-- counted, as Prometheus reads it: docs/metrics.md.
function _M.metrics()
    if not engine then
        error("weir: setup() was not called in init_by_lua", 2)
    end
    if get_phase() ~= "content" then
        error("weir: metrics() belongs in content_by_lua", 2)
    end
    metrics.answer()
end


-- stats(): this worker's counters since it started: decisions by outcome,
-- errors by reason, waiting, pumps, settled and unsettled (what was charged or
-- given back afterwards, and what of that was lost), and the I/O thread's
-- queued, wakeups, batches, batched, connects, failed_attempts, breaker_opened,
-- servers_away, redirected and redis ("up", "connecting", "down", "not_started",
-- "none"); and of the whole host memory (size, used, entries, expired, evicted,
-- resets).
function _M.stats()
    if not engine then
        error("weir: setup() was not called in init_by_lua", 2)
    end
    local stats = engine:stats()
    journal.add_to(stats)
    pump.add_to(stats)
    return stats
end


return _M
