-- Weir's decision script: the contract between all who share a budget.
-- Contract 1.
--
-- Decides a batch of requests, in order, each under one or more limits, all
-- or nothing: a request is charged under each of its limits or under none.
--
-- KEYS      the keys of all limits, request by request, in the order of ARGV.
-- ARGV[1]   the time in microseconds since the Unix epoch; empty, as always
--           outside tests, for this server's own clock.
-- ARGV[2..] one text for each request: its cost in units (0 only looks), then
--           for each limit a space and ALGORITHM:LIMIT:WINDOW, the window in
--           microseconds: "1 log:100:60000000".
--
-- Reply     one flat list. For each request
--             1 (admitted and charged) or 0 (refused, nothing changed), then
--             for each limit three integers:
--               remaining  units that could still be admitted now;
--               wait       microseconds until this limit has room; 0 if it
--                          has, -1 if it can never hold the cost;
--               reset      microseconds until all of it is free again;
--           or, when this request failed and the others did not,
--             -1 and the error as a string.
--
-- A key holds one limit of one client. It always carries a time to live, by
-- which it goes when it can no longer matter.
--
-- log, the sliding log: a sorted set with one member for each admitted unit,
-- scored with its time in microseconds. A member is a 13-digit number, one
-- more than the newest member's: unique within its set whoever calls, sorted
-- like the times, and short enough for a listpack.

-- Stored time further ahead of the clock than this, in microseconds, was
-- written by a clock that has since been set back: it no longer counts.
local CLOCK_RESET = 60 * 1000000

local FIRST_MEMBER = 1000000000000
local LAST_MEMBER = 9999999999999

-- Members for one ZADD: Lua's stack bounds what unpack may return.
local CHUNK = 1000

local call = redis.call
local format = string.format
local ceil, max, min = math.ceil, math.max, math.min

local server_time = call("TIME")
local server_now = tonumber(server_time[1]) * 1000000 + tonumber(server_time[2])
local now = ARGV[1] == "" and server_now or tonumber(ARGV[1])


-- Whole numbers travel as digits: tostring() would round them at 1e14.
local function digits(number)
    return format("%.0f", number)
end


-- Lets the key go at `time`, by the clock that decides. Absolute, since the
-- server truncates relative times to the millisecond in which it began.
local function expire_at(key, time)
    call("PEXPIREAT", key, digits(ceil((time - now + server_now) / 1000)))
end


local log = {}


-- Where the limit stands before anything is charged. Writes only a time to
-- live that was missing.
function log.look(key, rate, cost)
    local window, limit = rate.window, rate.limit
    local found = call("ZRANGE", key, -1, -1, "WITHSCORES")
    local newest = tonumber(found[2])
    local look = { key = key, rate = rate, wait = 0, reset = 0 }

    if newest and newest - now > CLOCK_RESET then
        look.void = true
        newest = nil
    end

    if newest then
        look.time = max(newest, now)
        look.member = tonumber(found[1])
    else
        look.time = now
        look.member = FIRST_MEMBER - 1
    end

    look.cutoff = digits(look.time - window)
    local count = 0
    if newest and newest + window > look.time then
        count = call("ZCOUNT", key, "(" .. look.cutoff, "+inf")
        look.reset = min(newest + window - now, window)
    end
    look.count = count
    look.remaining = max(limit - count, 0)

    if cost > limit then
        look.wait = -1
    elseif count + cost > limit then
        -- Room is made when all but the newest `limit - cost` have left.
        local rank = digits(cost - limit - 1)
        local entry = call("ZRANGE", key, rank, rank, "WITHSCORES")
        look.wait = min(tonumber(entry[2]) + window - now, window)
        if call("PTTL", key) == -1 then
            expire_at(key, newest + window)
        end
    end
    return look
end


function log.charge(look, cost)
    local key, window = look.key, look.rate.window
    local member, time = look.member, look.time

    -- Only where there is something to remove: a server out of memory refuses
    -- ZADD unless the script has written before, and it should.
    if look.void then
        call("DEL", key)
    elseif call("ZCARD", key) > look.count then
        call("ZREMRANGEBYSCORE", key, "-inf", look.cutoff)
    end

    if member + cost > LAST_MEMBER then
        -- Begins again from the first. A microsecond on, so that the newest
        -- member is still the last of the set.
        member, time = FIRST_MEMBER - 1, time + 1
    end

    local score = digits(time)
    if cost == 1 then
        call("ZADD", key, score, digits(member + 1))
    else
        local entries = {}
        for unit = 1, cost do
            entries[#entries + 1] = score
            entries[#entries + 1] = digits(member + unit)
            if #entries == 2 * CHUNK or unit == cost then
                call("ZADD", key, unpack(entries))
                entries = {}
            end
        end
    end

    expire_at(key, time + window)
    look.remaining = look.remaining - cost
    look.reset = min(time + window - now, window)
end


local algorithms = { log = log }


-- A request's text, taken apart. Requests of one policy and cost share it.
local asks = {}


local function parse(text)
    local ask = { limits = {} }
    local cost, rest = text:match("^(%d+)( .+)$")
    ask.cost = tonumber(cost)
    for name, limit, window in (rest or ""):gmatch(" (%a+):(%d+):(%d+)") do
        ask.limits[#ask.limits + 1] = {
            algorithm = algorithms[name] or error("no such algorithm: " .. name, 0),
            limit = tonumber(limit),
            window = tonumber(window),
        }
    end
    if #ask.limits == 0 then
        error("not a request: " .. text, 0)
    end
    asks[text] = ask
    return ask
end


local reply = {}


-- Decides one request whose first key is KEYS[first].
local function decide(ask, first)
    local looks, allowed = {}, 1
    for i, rate in ipairs(ask.limits) do
        local look = rate.algorithm.look(KEYS[first + i - 1], rate, ask.cost)
        looks[i] = look
        if look.wait ~= 0 then
            allowed = 0
        end
    end

    if allowed == 1 and ask.cost > 0 then
        for i, rate in ipairs(ask.limits) do
            rate.algorithm.charge(looks[i], ask.cost)
        end
    end

    reply[#reply + 1] = allowed
    for _, look in ipairs(looks) do
        reply[#reply + 1] = look.remaining
        reply[#reply + 1] = look.wait
        reply[#reply + 1] = look.reset
    end
end


-- What cannot be read is refused before anything is charged: after it, no key
-- could be told from another request's.
local keys = 0
for i = 2, #ARGV do
    local ask = asks[ARGV[i]] or parse(ARGV[i])
    keys = keys + #ask.limits
end
if keys ~= #KEYS then
    error("the requests have " .. keys .. " limits, but there are " .. #KEYS .. " keys", 0)
end

local first = 1
for i = 2, #ARGV do
    local ask = asks[ARGV[i]]
    local ok, problem = pcall(decide, ask, first)
    if not ok then
        -- A table since Redis 7, a string before.
        reply[#reply + 1] = -1
        reply[#reply + 1] = type(problem) == "table" and problem.err or tostring(problem)
    end
    first = first + #ask.limits
end
return reply
