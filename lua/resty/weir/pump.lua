-- The pump: one light thread in each worker that carries answers from the I/O
-- thread to the requests that wait for them.
--
-- It sleeps in a read of a Unix socket; the I/O thread writes a byte when
-- there is something to carry. It only receives. A timer's memory is freed
-- when the timer ends, so after many wake-ups it hands over to a new one.

local calls = require "resty.weir.calls"
local sender = require "resty.weir.sender"
local semaphore = require "ngx.semaphore"

local clear = calls.clear
local decision_that_came = calls.decision_that_came
local full = calls.full
local next_answer = calls.next
local reason_that_came = calls.reason_that_came
local flush = sender.flush
local send = sender.send
local tcp = ngx.socket.tcp
local timer_at = ngx.timer.at
local exiting = ngx.worker.exiting
local now = ngx.now
local log = ngx.log
local ERR = ngx.ERR
local new_semaphore = semaphore.new
local min = math.min
local pairs = pairs
local pcall = pcall
local tostring = tostring
local update_time = ngx.update_time


local _M = {}


-- In milliseconds, the longest that a cosocket takes: nothing to read is the
-- normal state, and each timeout is a line in the log.
local READ_TIMEOUT = 2147483647
local CONNECT_TIMEOUT = 1000

-- How many wake-ups a pump serves before it hands over.
_M.wake_ups = 100000

-- In seconds. When the worker is to exit, nginx fires this timer at once.
local SENTINEL = 86400

-- In seconds: how long a timer may take to run before it is taken to have been
-- refused (lua_max_running_timers), and how long to leave a failed pump alone.
local PATIENCE = 1


local engine

-- Waiters that nobody uses, and how many of them are kept.
local idle, idle_count = {}, 0
local max_idle = 1024

-- Ticket to waiter, for every request that waits: `semaphore`, posted once `done`;
-- then `decision`, or `reason` if there is none; `rule`, if all is to be told in the
-- decision's `table`.
local waiters = {}
local waiting = 0

-- What was sent that nobody waits for: still under way, done, and lost.
local settling, settled, unsettled = 0, 0, 0

-- A pump is "on" once its timer runs; "starting" before, since `changed`; and
-- "off" if it ended, at `changed`.
local state = "off"
local changed = -PATIENCE
local doubtful = false
local broken = false

-- How many have been started. Only the latest may run.
local started = 0

-- Whether the worker has been told to exit.
local leaving = false


-- The ticket of what nobody waits for.
local NOBODY = 0


-- Ends the wait for this ticket: with a decision, or a reason why there is none.
local function end_wait(ticket, decision, reason)
    local waiter = waiters[ticket]
    waiters[ticket] = nil
    waiting = waiting - 1
    waiter.done, waiter.decision, waiter.reason = true, decision, reason
    waiter.semaphore:post()
end


local function settle(ticket, is_decided)
    if ticket == NOBODY then
        settling = settling - 1
        if is_decided then
            settled = settled + 1
        else
            unsettled = unsettled + 1
        end
        return
    end
    local waiter = waiters[ticket]
    if not waiter then
        -- It gave up: its client was answered by on_error.
        return
    elseif not is_decided then
        end_wait(ticket, nil, reason_that_came())
        return
    end
    local decision = decision_that_came()
    if decision and waiter.rule then
        decision.table = full(waiter.rule)
        decision = decision.table and decision
    end
    -- None where a finalizer asked for another meanwhile.
    end_wait(ticket, decision, not decision and "fault" or nil)
end


local function settle_next()
    local ticket, is_decided = next_answer()
    if ticket then
        settle(ticket, is_decided)
    end
    return ticket
end


-- Carries all that has come.
local function drain()
    clear()
    while settle_next() do end
end


local function write_log()
    -- At one level, so that whoever reads of a loss reads of its end too.
    local line = calls.line()
    while line do
        log(ERR, "weir: ", line)
        line = calls.line()
    end
end


local function fail_all(reason)
    for ticket in pairs(waiters) do
        end_wait(ticket, nil, reason)
    end
end


local function connect()
    local path, err = engine:meet()
    if not path then
        return nil, err
    end
    local sock = tcp()
    sock:settimeouts(CONNECT_TIMEOUT, CONNECT_TIMEOUT, READ_TIMEOUT)
    local ok
    ok, err = sock:connect("unix:" .. path)
    engine:met()
    if not ok then
        return nil, "no connection to the worker itself: " .. err
    end
    return sock
end


-- Serves until it hands over (true), has nothing more to do at the worker's
-- exit (false), or cannot go on (nil, error).
local function serve()
    local sock, err = connect()
    if not sock then
        return nil, err
    end

    sender.start()
    for _ = 1, _M.wake_ups do
        drain()
        write_log()
        if waiting == 0 and settling == 0 and (leaving or exiting()) then
            sock:close()
            return false
        end
        if broken then
            broken = false
            log(ERR, "weir: the pump runs again")
        end
        local bytes
        bytes, err = sock:receiveany(64)
        if not bytes and err ~= "timeout" then
            drain()
            sock:close()
            return nil, "the I/O thread has ended (" .. err .. ")"
        end
    end

    sock:close()
    return true
end


local function run(_, number)
    if number ~= started then
        -- It came so late that another was started in its place.
        return
    end
    state, doubtful = "on", false
    local ok, again, err = pcall(serve)
    sender.stop()
    state, changed = "off", now()

    if not ok or again == nil then
        -- Requests go to on_error until one of them, a moment later, has
        -- started another pump that stays.
        if not broken then
            broken = true
            log(ERR, "weir: the pump stopped: ", tostring(ok and err or again))
        end
        fail_all("no_pump")
        return
    end

    changed = -PATIENCE
    if again then
        _M.ensure()
    end
end


-- Whether there is a pump to carry an answer, after starting one if need be.
function _M.ensure()
    if state == "on" then
        return true
    end
    if not engine then
        return nil, "start() was not called in init_worker_by_lua"
    end

    local time = now()
    if time - changed >= PATIENCE then
        doubtful = state == "starting" or broken
        local ok, err, is_new = engine:start()
        if is_new then
            -- What a thread before it was asked for nobody answers any more.
            unsettled, settling = unsettled + settling, 0
        end
        if ok then
            started = started + 1
            ok, err = timer_at(0, run, started)
        end
        if not ok then
            state, changed = "off", time
            return nil, err
        end
        state, changed = "starting", time
    end
    return state == "starting" and not doubtful
end


local function sentinel(premature)
    if not premature then
        timer_at(SENTINEL, sentinel)
        return
    end
    leaving = true
    engine:ring()
end


-- Starts the I/O thread, the pump, and what ends it with the worker.
function _M.start(configured)
    engine = configured
    if not configured:has_redis() then
        return configured:start()
    end
    -- So that the time that init took does not count against the pump's timer.
    update_time()
    local ok, err = _M.ensure()
    if not ok then
        return nil, err
    end
    -- Where there is no timer to be had, the heartbeat finds out later.
    timer_at(SENTINEL, sentinel)
    return true
end


-- Counts what was sent without anybody to wait for it, is done already, or could not
-- be.
function _M.sent(ok, is_done)
    if not ok then
        unsettled = unsettled + 1
        return
    elseif is_done then
        settled = settled + 1
        return
    end
    settling = settling + 1
    send(false)
    -- At the worker's exit its pump may be gone already: the worker must not
    -- leave before this has left.
    _M.ensure()
end


local function take_waiter()
    local waiter = idle[idle_count]
    if waiter then
        idle_count = idle_count - 1
        return waiter
    end
    local posted, err = new_semaphore(0)
    if not posted then
        return nil, err
    end
    return { semaphore = posted, done = false, decision = nil, reason = nil, rule = nil }
end


-- Only of one whose wait was ended by its post: after a timeout a late post would be
-- taken for another request's.
local function put_back(waiter)
    if idle_count < max_idle then
        waiter.done, waiter.decision, waiter.reason, waiter.rule = false, nil, nil, nil
        idle_count = idle_count + 1
        idle[idle_count] = waiter
    end
end


-- After a fault nobody's waiter is used again. Where it was a wait that Lua could not
-- leave, as within string.gsub or require, nginx goes on with it: it wakes the same
-- light thread out of its next wait, whose own post is then still to come.
function _M.distrust()
    idle, idle_count, max_idle = {}, 0, 0
end


-- Waits up to `timeout` seconds for the answer of this ticket; of one with a `rule` all
-- is told, in its `table`. Returns the decision; or nil, the reason, and more to say
-- about it for the log.
function _M.wait(ticket, timeout, rule)
    local waiter, err = take_waiter()
    if not waiter then
        send(true)
        return nil, "fault", err
    end
    waiter.rule = rule
    waiters[ticket] = waiter
    local turn = send(waiting == 0)
    waiting = waiting + 1

    -- Not blindly for a pump that may never come.
    timeout = state == "on" and timeout or min(timeout, PATIENCE)
    local was_posted = waiter.semaphore:wait(timeout)

    if not waiter.done then
        -- The answer may have come while the worker was busy elsewhere.
        drain()
    end
    if turn and not waiter.done then
        -- Or the worker was busy for so long that the request could not leave.
        if not turn.has_left then
            flush()
        end
        if turn.late then
            was_posted = waiter.semaphore:wait(min(turn.late, timeout))
            drain()
        end
    end
    if not waiter.done then
        waiters[ticket] = nil
        waiting = waiting - 1
        return nil, "timeout"
    end
    local decision, reason = waiter.decision, waiter.reason
    if was_posted then
        put_back(waiter)
    end
    return decision, reason
end


-- Adds to a table of statistics how many requests wait, how many pumps have
-- been started, and what became of what nobody waits for.
function _M.add_to(stats)
    stats.waiting, stats.pumps = waiting, started
    stats.settled, stats.unsettled = settled, unsettled
end


return _M
