-- The token bucket: a string of three numbers (little-endian doubles): a time
-- in microseconds, the tokens that were missing from the bucket then, and what
-- was missing of one more, in units of which a token has as many as the window
-- microseconds. A microsecond refills LIMIT of these: nothing is ever rounded.
local function bucket(limit, window, burst)
    local FORMAT, SIZE = "<ddd", 24


    -- Microseconds in which the rate refills so many tokens and such a part of
    -- one more, rounded up.
    local function refill(tokens, part)
        local span, left = muldiv(tokens, window, limit)
        local part_left = part % limit
        span = span + (part - part_left) / limit
        if part_left > 0 and left >= limit - part_left then
            span, left = span + 1, left - (limit - part_left)
        else
            left = left + part_left
        end
        return left > 0 and span + 1 or span
    end


    local whole = refill(burst, 0)
    if whole > MAX_WINDOW then
        error("a bucket that takes longer than 366 days to refill", 0)
    end

    -- What look found: what is missing, and when it was so, which is now unless
    -- the clock stepped back; and what was stored.
    local time, missing, part
    local stored_time, stored_missing, stored_part


    -- What is missing now.
    local function read(key)
        time, missing, part, stored_time = now, 0, 0, nil
        local value = call("GET", key)
        if not value then
            return
        end
        stored_time, stored_missing, stored_part =
            unpack_value(FORMAT, SIZE, value, key, "a token bucket")
        -- A burst that was lowered meanwhile is not held against it for longer.
        if stored_missing >= burst then
            stored_missing, stored_part = burst, 0
        end
        if stored_time > ahead or now - stored_time >= whole then
            return
        end
        missing, part = stored_missing, stored_part
        if stored_time >= now then
            time = stored_time
            return
        end
        local tokens, more = muldiv(now - stored_time, limit, window)
        missing, part = missing - tokens, part - more
        if part < 0 then
            missing, part = missing - 1, part + window
        end
        if missing < 0 then
            missing, part = 0, 0
        end
    end


    local function look(key, cost)
        read(key)
        local room = burst - missing
        local remaining = part > 0 and room - 1 or room
        if cost <= remaining then
            return remaining, 0
        elseif cost > burst then
            return remaining, -1
        end
        return remaining, min(time - now + refill(cost - room, part), whole)
    end


    local function reset()
        if missing == 0 and part == 0 then
            return 0
        end
        return time - now + refill(missing, part)
    end


    local function charge(key, cost, remaining)
        missing = missing + cost
        local span = reset()
        call("SET", key, pack(FORMAT, time, missing, part), "PXAT", expiry(now + span))
        return remaining - cost, min(span, whole)
    end


    local function rest()
        return min(reset(), whole),
            stored_time and stored_time + refill(stored_missing, stored_part)
    end


    return look, charge, rest
end


