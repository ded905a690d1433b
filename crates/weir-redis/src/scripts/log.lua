-- The sliding log: a sorted set with one member for each admitted unit, scored
-- with its time in microseconds. A member is a number of up to 13 digits,
-- unique within its set whoever calls, and short enough for a listpack.
if name == "log" then
    -- Members for one ZADD: Lua's stack bounds what unpack may return.
    local CHUNK = 1000

    local dearest = min(limit, MAX_LOG_COST)
    local ahead = ahead_of(window)
    local now_digits, ahead_digits = format("%d", now), format("%d", ahead)
    local after_cutoff = format("(%d", now - window)
    local window_lifetime = lifetime(window)

    -- What look found: the entries that count, and the newest of all if it was
    -- asked for.
    local count, newest


    -- The time of the entry with `newer` entries behind it, or nil.
    local function entry_time(key, newer)
        local rank = format("%d", -1 - newer)
        return tonumber(call("ZRANGE", key, rank, rank, "WITHSCORES")[2])
    end


    -- How many entries are too far ahead of the clock to count.
    local function uncounted(key)
        if newest <= ahead then
            return 0
        end
        return call("ZCOUNT", key, "(" .. ahead_digits, "+inf")
    end


    local function newest_time(key)
        local time = entry_time(key, 0)
        if time and not (time >= 0 and time <= MAX_LIMIT) then
            foreign(key, "a sliding log")
        end
        return time
    end


    local function look(key, cost)
        count, newest = call("ZCOUNT", key, after_cutoff, ahead_digits), nil
        local remaining = max(limit - count, 0)
        if cost > dearest then
            return remaining, -1
        elseif cost <= remaining then
            return remaining, 0
        end

        -- Room is made when all but the newest `limit - cost` have left.
        newest = newest_time(key)
        local newer = limit - cost + uncounted(key)
        local leaving = newer == 0 and newest or entry_time(key, newer)
        return remaining, min(leaving + window - now, window)
    end


    -- A number that no other unit of this call has. They begin again after 13 digits.
    local function member()
        members = members + 1
        return format("%d", (now + members) % 10000000000000)
    end


    -- Records `cost` units. A number may still be in use by another unit, if
    -- the clock was set back or the numbers began again: NX passes it over, and
    -- the next ones are looked for further and further on.
    local function record(key, cost)
        local step = 1
        while true do
            local entries = {}
            for i = 1, 2 * min(cost, CHUNK), 2 do
                entries[i], entries[i + 1] = now_digits, member()
            end
            local added = call("ZADD", key, "NX", unpack(entries))
            cost = cost - added
            if cost == 0 then
                return
            elseif 2 * added < #entries then
                members, step = members + step, min(step * 2, CHUNK)
            end
        end
    end


    local function charge(key, cost, remaining)
        -- What has expired is removed, and what is too far ahead of the clock to
        -- count. Only once a unit is recorded: a server out of memory refuses ZADD
        -- unless the script has written before, and it should, for all of the call.
        local gone = call("ZCARD", key) - count
        if gone > 0 and count == 0 then
            -- Freed in the background: there may be many.
            call("UNLINK", key)
            gone = 0
        end
        local added = call("ZADD", key, "NX", now_digits, member())
        if gone > 0 and call("ZREMRANGEBYSCORE", key, "-inf", after_cutoff:sub(2)) < gone then
            call("ZREMRANGEBYSCORE", key, "(" .. ahead_digits, "+inf")
        end
        if added < cost then
            record(key, cost - added)
        end
        call("PEXPIRE", key, window_lifetime)
        return remaining - cost, window
    end


    local function rest(key)
        newest = newest or newest_time(key)
        if not newest then
            return 0, nil
        end
        local reset = 0
        if count > 0 then
            local behind = uncounted(key)
            local counted = behind == 0 and newest or entry_time(key, behind)
            reset = min(counted + window - now, window)
        end
        return reset, newest + window
    end


    if not afterwards then
        return look, charge, rest
    end


    local function look_afterwards(key, cost)
        if cost > MAX_LOG_COST then
            error("a log takes at most " .. MAX_LOG_COST .. " units at once: " .. key, 0)
        end
        local remaining = look(key, 0)
        -- Before anything is changed: it tells whether this is a log.
        newest = newest_time(key)
        return remaining, 0
    end


    -- Entries of one time are alike, so any of them will do. One of another
    -- time will not: a newer one would have counted for longer, and more would
    -- pass when these would have left.
    local function refund(key, cost, time)
        if time <= now - window or time > ahead then
            return
        end
        local score = format("%d", time)
        while cost > 0 do
            local entries = call("ZRANGEBYSCORE", key, score, score,
                "LIMIT", "0", format("%d", min(cost, CHUNK)))
            if #entries == 0 then
                return
            end
            cost = cost - call("ZREM", key, unpack(entries))
        end
    end


    return look_afterwards, charge, rest, refund
end


