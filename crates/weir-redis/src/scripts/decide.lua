local makers = { log = log, ring = ring, counter = counter, bucket = bucket, quota = quota }

-- Made when they are first asked for: a call pays for those that it needs.
local algorithms = {}

-- The requests' texts, taken apart. Requests of one policy and cost share one.
local asks = {}


local function in_range(number, low, high)
    return number and number >= low and number <= high
end


local function read_limit(text)
    local name, limit, window, burst = text:match("^(%a+):(%d+):(%w+):(%d+)$")
    if not name then
        name, limit, window = text:match("^(%a+):(%d+):(%w+)$")
    end
    if not name then
        error("not a limit: " .. text, 0)
    end
    if not algorithms[name] then
        local make = makers[name] or error("no such algorithm: " .. name, 0)
        algorithms[name] = make()
    end

    local rate = { algorithm = algorithms[name], limit = tonumber(limit) }
    local is_range
    if name == "quota" then
        rate.period = window
        is_range = window == "hour" or window == "day" or window == "month"
    else
        rate.window = tonumber(window:match("^%d+$"))
        is_range = in_range(rate.window, MIN_WINDOW, MAX_WINDOW)
    end
    if name == "bucket" then
        rate.burst = tonumber(burst)
        is_range = is_range and in_range(rate.burst, 1, MAX_LIMIT)
    elseif burst then
        error("not a limit: " .. text, 0)
    end
    if not (is_range and in_range(rate.limit, 1, MAX_LIMIT)) then
        error("out of range: " .. text, 0)
    end
    rate.algorithm.prepare(rate)
    return rate
end


local function read_ask(text)
    local cost, rest = text:match("^(%d+)( .+)$")
    local ask = { cost = tonumber(cost) }
    local read = 0
    for limit in (rest or ""):gmatch(" ([^ ]+)") do
        read = read + 1 + #limit
        ask[#ask + 1] = read_limit(limit)
    end
    if #ask == 0 or read ~= #rest or ask.cost > MAX_LIMIT then
        error("not a request: " .. text, 0)
    end
    asks[text] = ask
    return ask
end


local reply, replied = {}, 0

-- Where each limit of the request at hand stands; used again by the next one.
local views = {}


-- Notes what becomes of a limit that is not charged, and gives its key the time
-- to live that it may have lost.
local function leave(view, key, rate)
    local expires = rate.algorithm.rest(view, key, rate)
    if expires and call("PTTL", key) == -1 then
        call("PEXPIREAT", key, expiry(expires))
    end
end


-- Decides one request, whose keys stand behind the first `before`.
local function decide(ask, before)
    local cost, allowed = ask.cost, 1
    for i = 1, #ask do
        local rate, view = ask[i], views[i]
        if not view then
            view = {}
            views[i] = view
        end
        rate.algorithm.look(view, KEYS[before + i], rate, cost)
        if view.wait ~= 0 then
            allowed = 0
        end
    end

    local is_charged = allowed == 1 and cost > 0
    for i = 1, #ask do
        local rate, key = ask[i], KEYS[before + i]
        if is_charged then
            rate.algorithm.charge(views[i], key, rate, cost)
        else
            leave(views[i], key, rate)
        end
    end

    reply[replied + 1] = allowed
    replied = replied + 1
    for i = 1, #ask do
        local view = views[i]
        reply[replied + 1] = view.remaining
        reply[replied + 2] = view.wait
        reply[replied + 3] = view.reset
        replied = replied + 3
    end
end


-- What cannot be read is refused before anything is charged: behind it, no key
-- could be told from another request's.
local keys = 0
for i = 2, #ARGV do
    local ask = asks[ARGV[i]] or read_ask(ARGV[i])
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
