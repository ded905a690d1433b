-- What each request calls of the engine: plain C functions of weir_edge.so, which
-- LuaJIT compiles into its traces. All else are methods of the object that setup()
-- makes: crates/weir-edge/src/calls.rs has the reasons and the other side.
--
-- What every request passes is written so that LuaJIT makes one trace of it (a test
-- sees to that): it has no loops of a few turns, which LuaJIT gives up on, and then on
-- whatever calls them; few tail calls, of which a trace takes 15; and functions in
-- locals, since each name that is looked up in a module is two of a trace's 500
-- constants.

local ffi = require "ffi"

local cast = ffi.cast
local error = error
local getmetatable = getmetatable
local newproxy = newproxy
local pairs = pairs
local str = ffi.string
local type = type


local _M = {}


-- Who is asked.
_M.ANY = 0
_M.REMEMBERED = 1
_M.SHARE = 2

-- How a call ends.
local SENT = 1
local DECIDED = 0
local FAILED = -1
local NOTHING = -2


-- The object that all of these belong to, and what takes its address back.
local object, guard
local limit_names
local address, told
local call_ask, call_clear, call_clock, call_flush, call_line, call_next, call_record
local call_refusal

-- The names of sources, by their numbers; and numbers by names.
local source_names
local outcomes, sources, reasons


-- When its VM ends, Lua finalizes the newest first: whatever is older than the engine
-- and calls from its own finalizer must not find an engine that is gone.
local function guard_address()
    local made = newproxy(true)
    getmetatable(made).__gc = function(ended)
        if ended == guard then
            address = nil
        end
    end
    guard = made
end


-- Before the first call; `engine` is what setup() made.
function _M.configure(engine)
    object = engine
    local calls = engine:calls()
    local function find(name)
        return cast(calls[name].declaration, calls[name].address)
    end
    address, told = find("engine"), find("told")
    guard_address()
    call_ask, call_clear, call_clock = find("ask"), find("clear"), find("clock")
    call_line, call_next, call_record = find("line"), find("next"), find("record")
    call_flush, call_refusal = find("flush"), find("refusal")

    limit_names = engine:limit_names()
    local labels = engine:labels()
    outcomes, sources, reasons = labels.outcomes, labels.sources, labels.reasons
    source_names = {}
    for name, number in pairs(sources) do
        source_names[number] = name
    end
end


-- In seconds since some moment, by a clock that never steps back.
function _M.clock()
    return (call_clock())
end


-- The text of this number, nil if there is none.
local function text(number)
    local length = told.lengths[number]
    if length < 0 then
        return nil
    end
    return (str(told.texts + told.begins[number], length))
end


local function fail()
    error("a fault in weir_edge.so")
end


-- What is told may have the garbage collector run, and with it a finalizer of the
-- operator's that decides itself.
local MEANWHILE = "a finalizer (__gc) asked for another decision meanwhile"

_M.MEANWHILE = MEANWHILE


-- The decision that was told last, nil if another is told meanwhile. In its list are
-- the values of the policy's headers.
--   at, remaining, denied, retry_after, violated
--                           what was decided: see crates/weir-edge/src/telling.rs;
--   origin                  who decided;
--   rule, source, value     what it was asked with: see weir/decision.lua;
--   units, policy, before   what can be given back: see weir/settlement.lua.
-- It is made with what each has, since growing a table costs more than making it, and
-- no more: tables of up to eight names are the cheap ones.
local function read()
    local serial = told.serial
    local decision = { text(2), text(3), text(4), at = told.at, remaining = told.remaining,
        origin = source_names[told.source], rule = false, source = false, value = false,
        units = false, policy = false }
    if told.values > 3 then
        decision[4], decision[5], decision[6] = text(5), text(6), text(7)
        decision[7], decision[8] = text(8), text(9)
    end
    if told.allowed ~= 1 then
        decision.denied = true
        decision.retry_after, decision.violated = text(0), text(1)
    end
    return told.serial == serial and decision or nil
end


local function standing(names, index)
    local stands = told.standings[index]
    local wait = stands.retry_after
    return { name = names[index + 1], limit = stands.limit, remaining = stands.remaining,
        retry_after = wait >= 0 and wait or nil, reset = stands.reset }
end


-- What was told last in full, for check(), made under this rule; nil if it is no
-- decision, or another is told meanwhile. To be called at once. Of the tightest limit
-- name, limit, remaining, retry_after and reset, in seconds, the same of each in the
-- list limits; allowed; and source, who decided.
function _M.full(rule)
    local serial, count = told.serial, told.limits
    if count == 0 then
        return nil
    end
    local names = limit_names[rule + 1]
    local limits = { standing(names, 0) }
    -- As in read().
    if count > 1 then
        limits[2] = standing(names, 1)
    end
    for index = 2, count - 1 do
        limits[index + 1] = standing(names, index)
    end
    local tightest = limits[told.tightest + 1]
    local full = { name = tightest.name, limit = tightest.limit, remaining = tightest.remaining,
        retry_after = tightest.retry_after, reset = tightest.reset,
        allowed = told.allowed == 1, limits = limits, source = source_names[told.source] }
    return told.serial == serial and full or nil
end


-- Asks for a decision under the rule: the decision, if it was made at once; or false
-- and the ticket under which it comes, once flush() was called; or nil, the reason in
-- one word, and more to say about it for the log. `source` and `value` are what
-- weir/key.lua says; `cost` is what the caller wrote, nil for 1.
function _M.ask(asked, rule, source, value, cost)
    if cost == nil then
        cost = 1
    elseif type(cost) ~= "number" then
        return nil, "bad_cost", "the cost must be a number, not a " .. type(cost)
    end
    local ending
    if type(value) == "string" then
        ending = call_ask(address, asked, rule, source, value, #value, cost)
    else
        object:hold(value)
        ending = call_ask(address, asked, rule, source, nil, 0, cost)
    end
    if ending == DECIDED then
        return read() or error(MEANWHILE)
    elseif ending == SENT then
        return false, told.ticket
    elseif ending == FAILED then
        return nil, text(0), text(1)
    end
    fail()
end


-- Has what was asked leave for the I/O thread: see weir/sender.lua.
function _M.flush()
    call_flush(address)
end


-- The ticket of the next answer that has come, nil if there is none; and whether it is
-- a decision, which decision_that_came() is then.
function _M.next()
    local ending = call_next(address)
    if ending == NOTHING then
        return nil
    elseif ending == DECIDED or ending == FAILED then
        return told.ticket, ending == DECIDED
    end
    fail()
end


_M.decision_that_came = read


-- Why there is none.
function _M.reason_that_came()
    return (text(0))
end


-- Before looking for answers: what comes from now on wakes the pump.
function _M.clear()
    call_clear(address)
end


-- The next line for the error log, or nil.
function _M.line()
    if call_line(address) == DECIDED then
        return text(0)
    end
end


-- Counts a decision for all workers of the host: begun at `started` by the clock;
-- `wait` in seconds if its client is told one, `reason` if nobody could say.
function _M.record(policy, outcome, source, started, wait, reason)
    call_record(address, policy.id, outcomes[outcome], sources[source] or -1, started or -1,
        wait or -1, reason and (reasons[reason] or reasons.other) or -1)
end


-- Content-Type and body of an answer in place of the upstream's; `is_error` for one
-- under on_error.
function _M.refusal(accept, is_error, status, retry_after, violated)
    local ending = call_refusal(address, accept, accept and #accept or 0, is_error, status,
        retry_after, retry_after and #retry_after or 0, violated, violated and #violated or 0)
    if ending ~= DECIDED then
        -- Nothing here may turn an answer into a 500.
        return "text/plain", "rate limit exceeded\n"
    end
    return text(0), text(1)
end


return _M
