-- Weir's decision script: the contract between all who share a budget.
-- Contract 2.
--
-- Decides a batch of requests, in order, each under one or more limits, all
-- or nothing: a request is charged under each of its limits or under none. Or,
-- of requests that have passed, charges what they were found to cost, and gives
-- back what they need not have been charged.
--
-- KEYS      the keys of all limits, request by request, in the order of ARGV.
-- ARGV[1]   the time in microseconds since the Unix epoch; empty, as always
--           outside tests, for this server's own clock.
-- ARGV[2..] one text for each request. It begins with one of
--             COST        decide, for so many units, from 0 (which only views)
--                         to 9007199254740991;
--             +COST       charge so many units, from 1, whether there is room
--                         or not;
--             -COST@TIME  give back so many units, from 1, that were charged
--                         at TIME: the time that the reply of that call names.
--           Then for each limit a space and one of
--             log:LIMIT:WINDOW         sliding log
--             ring:LIMIT:WINDOW        compact log
--             counter:LIMIT:WINDOW     sliding counter
--             bucket:LIMIT:WINDOW:BURST  token bucket
--             quota:LIMIT:PERIOD       quota for each calendar period, UTC
--           LIMIT and BURST from 1 to 9007199254740991, WINDOW in
--           microseconds from 1000 to 31622400000000, PERIOD one of hour, day
--           and month; BURST refills within 366 days. For example
--           "1 log:100:60000000". The keys of a request differ. A batch may
--           mix all kinds.
--           A call that cannot be read is an error, and charges nobody.
--
-- Reply     one flat list: the time of the call in microseconds since the
--           epoch, and then for each request
--             1 (admitted and charged, and always after + and -) or
--             0 (refused, nothing changed), then
--             for each limit three integers:
--               remaining  units that could still be admitted now;
--               wait       microseconds until this limit has room; 0 if it
--                          has and after + and -, -1 if it can never hold the
--                          cost;
--               reset      microseconds until all of it is free again;
--           or, when this request failed and the others did not,
--             -1 and the error as a string.
--
-- A key holds one limit of one client. It always carries a time to live, by
-- which it goes when it can no longer matter. One that has lost it gets it back
-- when it is next refused, looked at or charged; a counter or quota that is charged,
-- whose end is that of a window or period, when it is charged in another.
--
-- The clock may step back: what is recorded then stands still until the clock
-- has caught up, and waits are cut to the longest that the limit can ask for.
-- What is further ahead than a limit's own span (its window, time to refill or
-- period; at least one second, at most sixty) does not count: its clock has
-- since been set back.
--
-- A log takes at most 10000 units at once; what costs more never fits, and
-- fails if it is charged afterwards.
--
-- What is given back was charged once and is gone then: nothing goes below zero,
-- and nothing makes or prolongs a key. What has left, was refilled or is of
-- another period is not given back, so that what is recorded afterwards is no
-- less than if those units had never been charged. (Of a bucket, while its rate
-- and burst stay the same; of a count, if it has not come to the end of its
-- numbers.)
--
-- These are the parts of one script: this one, the algorithms, decide.lua. The
-- algorithms are branches of one function of a limit's name and numbers; it returns
-- four functions, that share what look found:
--   look(key, cost)    returns remaining and wait; writes nothing;
--   charge(key, cost, remaining)
--                      records cost; returns remaining, which is below 0 where
--                      there was no room, and reset as they are then;
--   rest(key)          for a key that is not charged: returns reset, and when
--                      what is recorded there will have ceased to matter, nil
--                      for nothing;
--   refund(key, cost, time)
--                      gives back what of cost was charged at this time and is
--                      still recorded; what look found is no more true then.
-- Only with `afterwards` there is a refund. The other three then charge
-- afterwards: look raises an error if cost cannot be recorded, whatever the wait.
--
-- Whole numbers are given to redis.call() as "%d" writes them: tostring() would round
-- them at 1e14, and a number costs three times as much.
--
-- Lua in Redis is interpreted, and half of what a decision costs: numbers live
-- in locals, not in tables. Nothing outlives a call, so that a lone decision pays
-- for all that is made before it: for each function, and for each local of this
-- level that a function uses. What is needed seldom is made where it is needed.

local MAX_LIMIT = 9007199254740991

-- In microseconds.
local MAX_WINDOW = 31622400000000

-- The most that a log takes at once: it records each unit by itself, and the
-- server does nothing else meanwhile.
local MAX_LOG_COST = 10000

local call = redis.call
local ARGV, KEYS = ARGV, KEYS
local max, min = math.max, math.min
local format, pack, unpack_struct = string.format, struct.pack, struct.unpack


local now
if ARGV[1] == "" then
    local time = call("TIME")
    now = time[1] * 1000000 + time[2]
else
    now = tonumber(ARGV[1]:match("^%d+$"))
end
if not now then
    error("ARGV[1] is not a time in microseconds", 0)
end


-- Up to when something counts that is ahead of the clock: by its span, of one
-- second to sixty.
local function ahead_of(span)
    return now + min(max(span, 1000000), 60000000)
end


-- A time to live in milliseconds. The server adds it to a clock that it reads
-- before or after this script did, in whole milliseconds: one more makes up for
-- that. Never an absolute time: a script that takes longer than a window would
-- delete what it has just written.
local function lifetime(span)
    local up = span + 999
    return format("%d", (up - up % 1000) / 1000 + 1)
end


-- a * b / c for whole numbers below 2^53, rounded down, and what is left over;
-- exact where the quotient is below 2^53, and never too small above.
local function muldiv(a, b, c)
    local product = a * b
    if product <= MAX_LIMIT then
        local left = product % c
        return (product - left) / c, left
    end

    -- Bit by bit from the top of a, since doubles have no room for more: twice
    -- what there was, and b for a bit that is set.
    local whole, part = math.floor(b / c), b % c
    local quotient, left = 0, 0
    local bit = 4503599627370496
    while bit >= 1 do
        quotient = quotient + quotient
        if left >= c - left then
            left, quotient = left - (c - left), quotient + 1
        else
            left = left + left
        end
        if a >= bit then
            a, quotient = a - bit, quotient + whole
            if left >= c - part then
                left, quotient = left - (c - part), quotient + 1
            else
                left = left + part
            end
        end
        bit = bit / 2
    end
    return quotient, left
end


local function foreign(key, what)
    error("the value of " .. key .. " is not " .. what, 0)
end


-- Writes over a value of the same size, which keeps its time to live and costs half of
-- what SET costs with one; false where that is not done. A user of a counter or a
-- quota needed no SETRANGE before 0.5.0.
local function overwrite(key, value)
    return type(redis.pcall("SETRANGE", key, "0", value)) == "number"
end


-- Takes a value of this many bytes apart: a time, and one or two counts. What does
-- not look like that is not touched.
local function unpack_value(layout, size, value, key, what)
    if #value ~= size then
        foreign(key, what)
    end
    local time, first, second = unpack_struct(layout, value)
    if not (time >= 0 and time <= MAX_LIMIT and time % 1 == 0
        and first >= 0 and first <= MAX_LIMIT and second >= 0 and second <= MAX_LIMIT) then
        foreign(key, what)
    end
    return time, first, second
end


-- Members that sliding logs have been given in this call.
local members = 0


-- Each of the parts up to decide.lua is a branch of it.
local function algorithm(name, limit, window, burst, afterwards)

