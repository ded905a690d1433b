-- Weir's decision script: the contract between all who share a budget.
-- Contract 1.
--
-- Decides a batch of requests, in order, each under one or more limits, all
-- or nothing: a request is charged under each of its limits or under none.
--
-- KEYS      the keys of all limits, request by request, in the order of ARGV.
-- ARGV[1]   the time in microseconds since the Unix epoch; empty, as always
--           outside tests, for this server's own clock.
-- ARGV[2..] one text for each request: its cost in units, 0 (which only looks)
--           to 10000, then for each limit a space and ALGORITHM:LIMIT:WINDOW:
--           LIMIT from 1 to 9007199254740991, WINDOW in microseconds, 1000 to
--           31622400000000: "1 log:100:60000000". The keys of a request differ.
--           A call that cannot be read is an error, and charges nobody.
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
-- scored with its time in microseconds. A member is a number of up to 13
-- digits, unique within its set whoever calls, and short enough for a listpack.

-- An entry further ahead of the clock than this, in microseconds, was written
-- by a clock that has since been set back: it does not count.
local CLOCK_RESET = 60 * 1000000

-- Members begin again after this many.
local MEMBERS = 10000000000000

-- Members for one ZADD: Lua's stack bounds what unpack may return.
local CHUNK = 1000

-- The most that a request may cost: a unit is a member, and the server does
-- nothing else meanwhile.
local MAX_COST = 10000

local MAX_LIMIT = 9007199254740991
local MIN_WINDOW, MAX_WINDOW = 1000, 31622400000000

local call = redis.call
local format = string.format
local ceil, max, min = math.ceil, math.max, math.min


-- Whole numbers travel as digits: tostring() would round them at 1e14.
local function digits(number)
    return format("%.0f", number)
end


local server_time = call("TIME")
local server_now = tonumber(server_time[1]) * 1000000 + tonumber(server_time[2])
local now = ARGV[1] == "" and server_now or tonumber(ARGV[1])
if not now then
    error("ARGV[1] is not a time in microseconds", 0)
end
local now_digits = digits(now)
local ahead = digits(now + CLOCK_RESET)
local units = 0


-- A time as PEXPIREAT takes it, by the clock that decides. Absolute, since the
-- server counts relative times from the millisecond in which it began.
local function expiry(time)
    return digits(ceil((time - now + server_now) / 1000))
end


local log = {}


-- What all requests under this rate have in common.
function log.prepare(rate)
    rate.cutoff = digits(now - rate.window)
    rate.after_cutoff = "(" .. rate.cutoff
    rate.expiry = expiry(now + rate.window)
end


-- The time of the entry with `newer` entries behind it, of those that count.
local function entry_time(key, newer)
    local rank = digits(-1 - newer)
    return tonumber(call("ZRANGE", key, rank, rank, "WITHSCORES")[2])
end


-- Notes in `look` where the limit stands before anything is charged. Writes
-- nothing, but for a time to live that is missing.
function log.look(look, key, rate, cost)
    local limit, window = rate.limit, rate.window
    local count = call("ZCOUNT", key, rate.after_cutoff, ahead)
    look.count = count
    look.remaining = max(limit - count, 0)
    look.wait, look.reset = 0, 0

    local refused = count + cost > limit
    if count > 0 and (refused or cost == 0) then
        local uncounted = 0
        local newest = entry_time(key, 0)
        if newest - now > CLOCK_RESET then
            uncounted = call("ZCOUNT", key, "(" .. ahead, "+inf")
            newest = entry_time(key, uncounted)
        end
        look.reset = min(newest + window - now, window)

        if refused and cost <= limit then
            -- Room is made when all but the newest `limit - cost` have left.
            local newer = limit - cost
            local leaving = newer == 0 and newest or entry_time(key, newer + uncounted)
            look.wait = min(leaving + window - now, window)
        end
        if call("PTTL", key) == -1 then
            call("PEXPIREAT", key, expiry(newest + window))
        end
    end
    if cost > limit then
        look.wait = -1
    end
end


local function member()
    units = units + 1
    return digits((now + units) % MEMBERS)
end


-- Records `cost` units. A number may still be in use by another unit, if the
-- clock was set back or the numbers began again: NX skips it for the next.
local function record(key, cost)
    while cost == 1 do
        cost = cost - call("ZADD", key, "NX", now_digits, member())
    end
    while cost > 0 do
        local entries = {}
        for i = 1, 2 * min(cost, CHUNK), 2 do
            entries[i], entries[i + 1] = now_digits, member()
        end
        cost = cost - call("ZADD", key, "NX", unpack(entries))
    end
end


function log.charge(look, key, rate, cost)
    local window = rate.window

    -- Only where there is something to remove: a server out of memory refuses
    -- ZADD unless the script has written before, and it should.
    local gone = call("ZCARD", key) - look.count
    if gone > 0 then
        local expired = call("ZREMRANGEBYSCORE", key, "-inf", rate.cutoff)
        if expired < gone then
            call("ZREMRANGEBYSCORE", key, "(" .. ahead, "+inf")
        end
    end

    record(key, cost)
    call("PEXPIREAT", key, rate.expiry)
    look.remaining = look.remaining - cost
    look.reset = window
end


local algorithms = { log = log }


-- A request's text, taken apart. Requests of one policy and cost share it.
local asks = {}


local function parse(text)
    local cost, rest = text:match("^(%d+)( .+)$")
    local ask = { cost = tonumber(cost) }
    local read = 0
    for limit_text, name, limit, window in (rest or ""):gmatch("( (%a+):(%d+):(%d+))") do
        read = read + #limit_text
        local rate = {
            algorithm = algorithms[name] or error("no such algorithm: " .. name, 0),
            limit = tonumber(limit),
            window = tonumber(window),
        }
        if rate.limit < 1 or rate.limit > MAX_LIMIT
            or rate.window < MIN_WINDOW or rate.window > MAX_WINDOW then
            error("out of range:" .. limit_text, 0)
        end
        rate.algorithm.prepare(rate)
        ask[#ask + 1] = rate
    end
    if #ask == 0 or read ~= #rest or ask.cost > MAX_COST then
        error("not a request: " .. text, 0)
    end
    asks[text] = ask
    return ask
end


local reply, replied = {}, 0

-- Where each limit of the request at hand stands; used again by the next one.
local looks = {}


-- Decides one request, whose keys stand behind the first `before`.
local function decide(ask, before)
    local cost, allowed = ask.cost, 1
    for i = 1, #ask do
        local rate, look = ask[i], looks[i]
        if not look then
            look = {}
            looks[i] = look
        end
        rate.algorithm.look(look, KEYS[before + i], rate, cost)
        if look.wait ~= 0 then
            allowed = 0
        end
    end

    if allowed == 1 and cost > 0 then
        for i = 1, #ask do
            local rate = ask[i]
            rate.algorithm.charge(looks[i], KEYS[before + i], rate, cost)
        end
    end

    reply[replied + 1] = allowed
    replied = replied + 1
    for i = 1, #ask do
        local look = looks[i]
        reply[replied + 1] = look.remaining
        reply[replied + 2] = look.wait
        reply[replied + 3] = look.reset
        replied = replied + 3
    end
end


-- What cannot be read is refused before anything is charged: behind it, no key
-- could be told from another request's.
local keys = 0
for i = 2, #ARGV do
    local ask = asks[ARGV[i]] or parse(ARGV[i])
    keys = keys + #ask
end
if keys ~= #KEYS then
    error("the requests have " .. keys .. " limits, but there are " .. #KEYS .. " keys", 0)
end

local before = 0
for i = 2, #ARGV do
    local ask = asks[ARGV[i]]
    local ok, problem = pcall(decide, ask, before)
    if not ok then
        -- A table since Redis 7, a string before.
        reply[replied + 1] = -1
        reply[replied + 2] = type(problem) == "table" and problem.err or tostring(problem)
        replied = replied + 2
    end
    before = before + #ask
end
return reply
