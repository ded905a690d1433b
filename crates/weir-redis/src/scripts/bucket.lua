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
        if left > limit - part_left then
            return span + 2
        elseif left > 0 or part_left > 0 then
            return span + 1
        end
        return span
    end


    local whole = refill(burst, 0)
    if whole > MAX_WINDOW then
        error("a bucket that takes longer than 366 days to refill", 0)
    end
    local ahead = ahead_of(whole)

    -- What look found: what is missing of all that was ever taken, and when it
    -- was so, which is now unless the clock stepped back; what is missing of
    -- this burst; and when what is stored ceases to matter.
    local time, owed, owed_part
    local missing, part
    local expires


    -- When so much is refilled.
    local function refilled(from, tokens, of_one)
        return from + min(refill(tokens, of_one), MAX_WINDOW)
    end


    local function read(key)
        time, owed, owed_part, expires = now, 0, 0, nil
        missing, part = 0, 0
        local value = call("GET", key)
        if not value then
            return
        end
        local stored, tokens, of_one = unpack_value(FORMAT, SIZE, value, key, "a token bucket")
        expires = refilled(stored, tokens, of_one)
        if stored > ahead then
            return
        end

        local gained, more = 0, 0
        if stored < now then
            gained, more = muldiv(now - stored, limit, window)
        else
            time = stored
        end
        local function less_gained(of, of_part)
            of, of_part = of - gained, of_part - more
            if of_part < 0 then
                of, of_part = of - 1, of_part + window
            end
            if of < 0 then
                return 0, 0
            end
            return of, of_part
        end
        owed, owed_part = less_gained(tokens, of_one)
        if tokens < burst then
            missing, part = owed, owed_part
        else
            -- A burst that was lowered meanwhile, by another plan for example,
            -- is not held against it for longer.
            missing, part = less_gained(burst, 0)
        end
    end


    local function whole_tokens()
        return part > 0 and burst - missing - 1 or burst - missing
    end


    local function look(key, cost)
        read(key)
        local remaining = whole_tokens()
        if cost <= remaining then
            return remaining, 0
        elseif cost > burst then
            return remaining, -1
        end
        return remaining, min(time - now + refill(cost - (burst - missing), part), whole)
    end


    local function reset()
        if missing == 0 and part == 0 then
            return 0
        end
        return min(time - now + refill(missing, part), whole)
    end


    local function charge(key, cost)
        owed = owed + cost
        missing, part = owed, owed_part
        if missing >= burst then
            missing, part = burst, 0
        end
        call("SET", key, pack(FORMAT, time, owed, owed_part), "PX",
            lifetime(refilled(time, owed, owed_part) - now))
        return whole_tokens(), reset()
    end


    local function rest()
        return reset(), expires
    end


    return look, charge, rest
end


