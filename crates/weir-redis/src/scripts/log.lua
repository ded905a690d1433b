-- The sliding log: a sorted set with one member for each admitted unit, scored
-- with its time in microseconds. A member is a number of up to 13 digits,
-- unique within its set whoever calls, and short enough for a listpack.

-- Members begin again after this many.
local MEMBERS = 10000000000000

-- Members for one ZADD: Lua's stack bounds what unpack may return.
local CHUNK = 1000

-- Members made in this call.
local members = 0


local function log(limit, window)
    local now_digits, ahead_digits = digits(now), digits(ahead)
    local cutoff = digits(now - window)
    local after_cutoff = "(" .. cutoff
    local window_expiry = expiry(now + window)

    -- What look found: the entries that count, and the newest of all if it was
    -- asked for.
    local count, newest


    -- The time of the entry with `newer` entries behind it, or nil.
    local function entry_time(key, newer)
        local rank = digits(-1 - newer)
        return tonumber(call("ZRANGE", key, rank, rank, "WITHSCORES")[2])
    end


    -- How many entries are too far ahead of the clock to count.
    local function uncounted(key)
        if newest <= ahead then
            return 0
        end
        return call("ZCOUNT", key, "(" .. ahead_digits, "+inf")
    end


    local function look(key, cost)
        check_log_cost(cost, limit)
        count, newest = call("ZCOUNT", key, after_cutoff, ahead_digits), nil
        local remaining = max(limit - count, 0)
        if cost > limit then
            return remaining, -1
        elseif count <= limit - cost then
            return remaining, 0
        end

        -- Room is made when all but the newest `limit - cost` have left.
        newest = entry_time(key, 0)
        local newer = limit - cost + uncounted(key)
        local leaving = newer == 0 and newest or entry_time(key, newer)
        return remaining, min(leaving + window - now, window)
    end


    local function member()
        members = members + 1
        return digits((now + members) % MEMBERS)
    end


    -- Records `cost` units. A number may still be in use by another unit, if
    -- the clock was set back or the numbers began again: NX skips it for the
    -- next.
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


    local function charge(key, cost, remaining)
        -- Only where there is something to remove: a server out of memory
        -- refuses ZADD unless the script has written before, and it should.
        local gone = call("ZCARD", key) - count
        if gone > 0 then
            local expired = call("ZREMRANGEBYSCORE", key, "-inf", cutoff)
            if expired < gone then
                call("ZREMRANGEBYSCORE", key, "(" .. ahead_digits, "+inf")
            end
        end

        record(key, cost)
        call("PEXPIREAT", key, window_expiry)
        return remaining - cost, window
    end


    local function rest(key)
        newest = newest or entry_time(key, 0)
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


    return look, charge, rest
end


