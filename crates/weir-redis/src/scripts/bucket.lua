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

    -- What look found: what was stored; what is missing of all that was ever
    -- taken, and when it was so, which is now unless the clock stepped back; and
    -- what is missing of this burst.
    local stored_time, stored, stored_part
    local time, owed, owed_part
    local missing, part


    -- So much less, but no less than nothing.
    local function less(tokens, of_one, gained, gained_part)
        tokens, of_one = tokens - gained, of_one - gained_part
        if of_one < 0 then
            tokens, of_one = tokens - 1, of_one + window
        end
        if tokens < 0 then
            return 0, 0
        end
        return tokens, of_one
    end


    local function read(key)
        time, owed, owed_part, missing, part = now, 0, 0, 0, 0
        stored_time = nil
        local value = call("GET", key)
        if not value then
            return
        end
        stored_time, stored, stored_part =
            unpack_value(FORMAT, SIZE, value, key, "a token bucket")
        if stored_time > ahead then
            return
        end

        local gained, gained_part = 0, 0
        if stored_time < now then
            gained, gained_part = muldiv(now - stored_time, limit, window)
        else
            time = stored_time
        end
        owed, owed_part = less(stored, stored_part, gained, gained_part)
        if stored < burst then
            missing, part = owed, owed_part
        else
            -- A burst that was lowered meanwhile, by another plan for example,
            -- is not held against it for longer.
            missing, part = less(burst, 0, gained, gained_part)
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
        local span = time - now + min(refill(owed, owed_part), MAX_WINDOW)
        call("SET", key, pack(FORMAT, time, owed, owed_part), "PX", lifetime(span))
        return whole_tokens(), reset()
    end


    local function rest()
        return reset(),
            stored_time and stored_time + min(refill(stored, stored_part), MAX_WINDOW)
    end


    return look, charge, rest
end


