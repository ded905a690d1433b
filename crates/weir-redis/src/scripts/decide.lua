    -- The end of algorithm(): it is none of the branches before.
    error("no such algorithm: " .. name, 0)
end


-- The functions of a limit, with which it is decided, charged or given back.
local function read_limit(ask, name, limit, window, burst)
    limit, burst = tonumber(limit), tonumber(burst)
    local is_valid = limit >= 1 and limit <= MAX_LIMIT
    if name == "quota" then
        is_valid = is_valid and (window == "hour" or window == "day" or window == "month")
    else
        window = not window:find("%D") and tonumber(window)
        is_valid = is_valid and window and window >= 1000 and window <= MAX_WINDOW
    end
    if name == "bucket" then
        is_valid = is_valid and burst and burst >= 1 and burst <= MAX_LIMIT
    else
        is_valid = is_valid and not burst
    end
    if not is_valid then
        error("out of range", 0)
    end

    local afterwards, units, time = ask.afterwards, ask.units, ask.time
    local look, charge, rest, refund = algorithm(name, limit, window, burst, afterwards)
    if time then
        -- A view, at the end of which it is given back.
        return look, nil, function(key)
            refund(key, units, time)
            local remaining = look(key, 0)
            local reset, expires = rest(key)
            return reset, expires, remaining
        end
    elseif afterwards then
        -- A decision that finds room whatever there is.
        return function(key, cost)
            return (look(key, cost)), 0
        end, function(key, cost, remaining)
            local left, reset = charge(key, cost, remaining)
            return left > 0 and left or 0, reset
        end, rest
    end
    return look, charge, rest
end


-- The requests' texts, taken apart: for each limit its three functions, one after
-- another. Requests of one policy, kind and cost share one.
local asks = {}


local function read_ask(text)
    local _, stop, cost = text:find("^(%d+)")
    -- With places for all that a decision under one limit has: to grow costs a table
    -- as much as a function.
    local ask, limits, length = { false, false, false, cost = tonumber(cost), limits = 0 }, 0, #text
    if not stop then
        _, stop, cost = text:find("^%+(%d+)")
        local time
        if not stop then
            _, stop, cost, time = text:find("^%-(%d+)@(%d+)")
        end
        ask.afterwards, ask.units, ask.time = true, tonumber(cost), tonumber(time)
        ask.cost = time and 0 or ask.units
    end
    while stop and stop < length do
        local name, limit, window, colon, burst
        _, stop, name, limit, window, colon, burst =
            text:find("^ (%a+):(%d+):(%w+)(:?)(%d*)", stop + 1)
        if stop and (colon == "") == (burst == "") then
            local place = 3 * limits
            ask[place + 1], ask[place + 2], ask[place + 3] =
                read_limit(ask, name, limit, window, burst)
            limits = limits + 1
        else
            stop = nil
        end
    end
    if not stop or limits == 0 or ask.cost > MAX_LIMIT
        or ask.afterwards and not (ask.units >= 1 and ask.units <= MAX_LIMIT)
        or ask.time and ask.time > MAX_LIMIT then
        error("not a request", 0)
    end
    ask.limits = limits
    asks[text] = ask
    return ask
end


-- With places for one request under one limit, as the asks have.
local reply, replied = { now, 0, 0, 0, 0 }, 1


-- Charges a request that is allowed, looks at what is left to one that is not,
-- and writes where it stands behind what was replied.
local function settle(ask, before, allowed)
    local cost, place = ask.cost, replied + 1
    reply[place] = allowed
    local is_charged = allowed == 1 and cost > 0
    for i = 1, ask.limits do
        local key, charge, rest = KEYS[before + i], ask[3 * i - 1], ask[3 * i]
        if is_charged then
            reply[place + 1], reply[place + 3] = charge(key, cost, reply[place + 1])
        else
            local reset, expires, after = rest(key)
            reply[place + 1], reply[place + 3] = after or reply[place + 1], reset
            -- A key that has lost its time to live gets it back.
            if expires and call("PTTL", key) == -1 then
                call("PEXPIRE", key, lifetime(expires - now))
            end
        end
        place = place + 3
    end
    replied = place
end


-- What cannot be read is refused before anything is charged: behind it, no key
-- could be told from another request's.
local keys, requests = 0, #ARGV
if requests < 2 then
    error("there are no requests", 0)
end
for i = 2, requests do
    local text = ARGV[i]
    local ask = asks[text]
    if not ask then
        local ok
        ok, ask = pcall(read_ask, text)
        if not ok then
            error(ask .. ": " .. text, 0)
        end
    end
    keys = keys + ask.limits
end
if keys ~= #KEYS then
    error("the requests have " .. keys .. " limits, but there are " .. #KEYS .. " keys", 0)
end

-- How many texts, and keys of theirs, are behind us.
local done, before = 1, 0


-- Decides all that are left, up to one that fails. By far the most are of one
-- limit and pass: these in a straight line.
local function decide_all()
    while done < requests do
        local ask, place = asks[ARGV[done + 1]], replied
        local cost, limits = ask.cost, ask.limits
        if limits == 1 and cost > 0 then
            local key, look, charge = KEYS[before + 1], ask[1], ask[2]
            local remaining, wait = look(key, cost)
            if wait == 0 then
                local left, reset = charge(key, cost, remaining)
                reply[place + 1], reply[place + 2] = 1, left
                reply[place + 3], reply[place + 4] = 0, reset
                replied = place + 4
            else
                reply[place + 2], reply[place + 3] = remaining, wait
                settle(ask, before, 0)
            end
        else
            local allowed = 1
            for i = 1, limits do
                local key, look = KEYS[before + i], ask[3 * i - 2]
                for j = 1, i - 1 do
                    if key == KEYS[before + j] then
                        error("the keys of a request must differ", 0)
                    end
                end
                local remaining, wait = look(key, cost)
                reply[place + 2], reply[place + 3] = remaining, wait
                place = place + 3
                if wait ~= 0 then
                    allowed = 0
                end
            end
            settle(ask, before, allowed)
        end
        done, before = done + 1, before + limits
    end
end


while done < requests do
    local ok, problem = pcall(decide_all)
    if not ok then
        local ask = asks[ARGV[done + 1]]
        -- A table since Redis 7; before, a string that tells of the script's
        -- line before the error's own code.
        problem = type(problem) == "table" and problem.err or tostring(problem)
        reply[replied + 1] = -1
        reply[replied + 2] = problem:gsub("^@?user_script: ?%d+: %-?", ""):gsub("%s+$", "")
        replied = replied + 2
        for place = replied + 1, replied + 3 * ask.limits do
            reply[place] = nil
        end
        done, before = done + 1, before + ask.limits
    end
end
return reply
