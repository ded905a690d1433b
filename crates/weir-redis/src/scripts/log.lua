-- The sliding log: a sorted set with one member for each admitted unit, scored
-- with its time in microseconds. A member is a number of up to 13 digits,
-- unique within its set whoever calls, and short enough for a listpack.
local function log()
    -- Members begin again after this many.
    local MEMBERS = 10000000000000

    -- Members for one ZADD: Lua's stack bounds what unpack may return.
    local CHUNK = 1000

    local now_digits, ahead_digits = digits(now), digits(ahead)
    local units = 0


    local function prepare(rate)
        rate.cutoff = digits(now - rate.window)
        rate.after_cutoff = "(" .. rate.cutoff
        rate.expiry = expiry(now + rate.window)
    end


    -- The time of the entry with `newer` entries behind it, or nil.
    local function entry_time(key, newer)
        local rank = digits(-1 - newer)
        return tonumber(call("ZRANGE", key, rank, rank, "WITHSCORES")[2])
    end


    -- How many entries are too far ahead of the clock to count, given the
    -- newest of all.
    local function uncounted(key, newest)
        if newest <= ahead then
            return 0
        end
        return call("ZCOUNT", key, "(" .. ahead_digits, "+inf")
    end


    local function look(view, key, rate, cost)
        check_log_cost(rate, cost)
        local limit, window = rate.limit, rate.window
        local count = call("ZCOUNT", key, rate.after_cutoff, ahead_digits)
        view.count = count
        view.remaining = max(limit - count, 0)
        view.newest = nil
        if cost > limit then
            view.wait = -1
        elseif count <= limit - cost then
            view.wait = 0
        else
            -- Room is made when all but the newest `limit - cost` have left.
            local newest = entry_time(key, 0)
            view.newest = newest
            local newer = limit - cost + uncounted(key, newest)
            local leaving = newer == 0 and newest or entry_time(key, newer)
            view.wait = min(leaving + window - now, window)
        end
    end


    local function member()
        units = units + 1
        return digits((now + units) % MEMBERS)
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


    local function charge(view, key, rate, cost)
        -- Only where there is something to remove: a server out of memory
        -- refuses ZADD unless the script has written before, and it should.
        local gone = call("ZCARD", key) - view.count
        if gone > 0 then
            local expired = call("ZREMRANGEBYSCORE", key, "-inf", rate.cutoff)
            if expired < gone then
                call("ZREMRANGEBYSCORE", key, "(" .. ahead_digits, "+inf")
            end
        end

        record(key, cost)
        call("PEXPIREAT", key, rate.expiry)
        view.remaining = view.remaining - cost
        view.reset = rate.window
    end


    local function rest(view, key, rate)
        local newest = view.newest or entry_time(key, 0)
        view.reset = 0
        if not newest then
            return nil
        end
        if view.count > 0 then
            local behind = uncounted(key, newest)
            local counted = behind == 0 and newest or entry_time(key, behind)
            view.reset = min(counted + rate.window - now, rate.window)
        end
        return newest + rate.window
    end


    return { prepare = prepare, look = look, charge = charge, rest = rest }
end


