-- The sender: has what is asked leave for the I/O thread together.
--
-- The thread sends at once whatever it finds, and waking it is a system call. So what
-- is asked in one turn of nginx's event loop leaves at the end of that turn: the first
-- posts a semaphore, and nginx runs the light thread that waits for it behind all
-- other events of the turn. Nobody waits longer than the worker is busy anyway; and how
-- long a request may wait for its answer counts from when it leaves, so that a turn in
-- which somebody blocks the worker is not taken for a Redis that does not answer. Where
-- requests come one by one, each leaves at once.

local calls = require "resty.weir.calls"
local semaphore = require "ngx.semaphore"

local ERR = ngx.ERR
local clock = calls.clock
local error = error
local flush_calls = calls.flush
local kill = ngx.thread.kill
local log = ngx.log
local new_semaphore = semaphore.new
local pcall = pcall
local spawn = ngx.thread.spawn
local tostring = tostring


local _M = {}


-- In seconds. A wait that ends without a post begins anew.
local TIMEOUT = 3600

-- In seconds: a turn is not expected to take longer.
local LATE = 0.001

-- For so many turns after one that asked for several, the first of a turn is taken to
-- be followed by others.
local TURNS = 16


-- The light thread, whether it serves, and what it waits for.
local thread
local is_serving = false
local posted

-- The turn of what was asked and has not left, if the light thread has been told:
-- when it began, whether it `has_left`, and in seconds how `late`, if it was.
local turn
local asked = 0

-- How many more turns are taken to ask for several.
local crowded = 0


-- Lets leave what was asked.
local function flush()
    if asked > 1 then
        crowded = TURNS
    elseif crowded > 0 then
        crowded = crowded - 1
    end
    asked = 0
    flush_calls()
    local left = turn
    if left then
        turn = nil
        left.has_left = true
        local late = clock() - left.began
        if late > LATE then
            left.late = late
        end
    end
end

_M.flush = flush


-- Something was asked; `is_alone` if nobody waits for an answer. Returns the turn with
-- which it leaves, nil if it has left.
function _M.send(is_alone)
    asked = asked + 1
    if not is_serving or is_alone and crowded == 0 then
        flush()
    elseif not turn then
        turn = { began = clock(), has_left = false, late = false }
        posted:post()
    end
    return turn
end


local function serve()
    while true do
        local ok, err = posted:wait(TIMEOUT)
        if not ok and err ~= "timeout" then
            error(err)
        end
        if asked > 0 then
            flush()
        end
    end
end


local function run()
    is_serving = true
    local _, err = pcall(serve)
    is_serving = false
    log(ERR, "weir: what is asked leaves one by one, because its light thread ended: ",
        tostring(err))
    flush()
end


-- Starts the light thread, which ends with the one that calls this, or by stop().
-- Without it all leaves at once.
function _M.start()
    posted = new_semaphore(0)
    if posted then
        thread = spawn(run)
    end
end


-- Ends it.
function _M.stop()
    if is_serving then
        kill(thread)
        is_serving = false
        flush()
    end
end


return _M
