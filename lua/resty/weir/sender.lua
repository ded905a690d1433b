-- The sender: has what is asked leave for the I/O thread together.
--
-- The thread sends at once whatever it finds, and waking it is a system call. So what
-- is asked in one turn of nginx's event loop leaves at the end of that turn: the first
-- posts a semaphore, and nginx runs the light thread that waits for it behind all
-- other events of the turn. Nobody waits longer than the worker is busy anyway. Where
-- requests come one by one, each leaves at once.

local calls = require "resty.weir.calls"
local semaphore = require "ngx.semaphore"

local flush_calls = calls.flush
local kill = ngx.thread.kill
local new_semaphore = semaphore.new
local spawn = ngx.thread.spawn


local _M = {}


-- In seconds. A wait that ends without a post begins anew.
local TIMEOUT = 3600

-- For so many turns after one that asked for several, the first of a turn is taken to
-- be followed by others.
local TURNS = 16


-- The light thread, if it runs, and what it waits for.
local thread
local posted

-- What was asked and has not left; whether the light thread has been told.
local asked = 0
local is_told = false

-- How many more turns are taken to ask for several.
local crowded = 0


local function flush()
    if asked > 1 then
        crowded = TURNS
    elseif crowded > 0 then
        crowded = crowded - 1
    end
    asked, is_told = 0, false
    flush_calls()
end


-- Something was asked; `is_alone` if nobody waits for an answer.
function _M.send(is_alone)
    asked = asked + 1
    if not thread or is_alone and crowded == 0 then
        flush()
    elseif not is_told then
        is_told = true
        posted:post()
    end
end


local function run()
    while true do
        posted:wait(TIMEOUT)
        if asked > 0 then
            flush()
        end
    end
end


-- Starts the light thread, which ends with the one that calls this, or by stop().
-- Without it all leaves at once.
function _M.start()
    posted = new_semaphore(0)
    thread = posted and spawn(run)
end


-- Ends it.
function _M.stop()
    if thread then
        kill(thread)
        thread = nil
        flush()
    end
end


return _M
