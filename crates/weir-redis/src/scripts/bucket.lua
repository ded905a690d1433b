-- The token bucket: a string of three numbers (little-endian doubles): a time
-- in microseconds, the tokens that were missing from the bucket then, and what
-- was missing of one more, in units of which a token has as many as the window
-- microseconds. A microsecond refills LIMIT of these: nothing is ever rounded.
local function bucket()
    local FORMAT, SIZE = "<ddd", 24


    -- Microseconds in which the rate refills so many tokens and such a part of
    -- one more, rounded up.
    local function refill(rate, tokens, part)
        local limit = rate.limit
        local span, left = muldiv(tokens, rate.window, limit)
        local part_left = part % limit
        span = span + (part - part_left) / limit
        if part_left > 0 and left >= limit - part_left then
            span, left = span + 1, left - (limit - part_left)
        else
            left = left + part_left
        end
        return left > 0 and span + 1 or span
    end


    local function prepare(rate)
        rate.refill = refill(rate, rate.burst, 0)
        if rate.refill > MAX_WINDOW then
            error("a bucket that takes longer than 366 days to refill", 0)
        end
    end


    -- Notes what is missing now.
    local function read(view, key, rate)
        view.time, view.missing, view.part, view.expires = now, 0, 0, nil
        local value = call("GET", key)
        if not value then
            return
        end
        local time, missing, part = unpack_value(FORMAT, SIZE, value, key, "a token bucket")
        -- A burst that was lowered meanwhile is not held against it for longer.
        if missing >= rate.burst then
            missing, part = rate.burst, 0
        end
        view.stored_time, view.stored_missing, view.stored_part = time, missing, part
        view.expires = true
        if time > ahead then
            return
        elseif time < now then
            if now - time >= rate.refill then
                return
            end
            local tokens, more = muldiv(now - time, rate.limit, rate.window)
            missing, part = missing - tokens, part - more
            if part < 0 then
                missing, part = missing - 1, part + rate.window
            end
            if missing < 0 then
                return
            end
            time = now
        end
        view.time, view.missing, view.part = time, missing, part
    end


    local function look(view, key, rate, cost)
        read(view, key, rate)
        local burst, missing, part = rate.burst, view.missing, view.part
        local room = burst - missing
        view.remaining = part > 0 and room - 1 or room
        if cost > burst then
            view.wait = -1
        elseif cost <= view.remaining then
            view.wait = 0
        else
            local span = refill(rate, cost - room, part)
            view.wait = min(view.time - now + span, rate.refill)
        end
    end


    local function reset(view, rate)
        if view.missing == 0 and view.part == 0 then
            return 0
        end
        return view.time - now + refill(rate, view.missing, view.part)
    end


    local function charge(view, key, rate, cost)
        view.missing = view.missing + cost
        local span = reset(view, rate)
        call("SET", key, pack(FORMAT, view.time, view.missing, view.part),
            "PXAT", expiry(now + span))
        view.remaining = view.remaining - cost
        view.reset = min(span, rate.refill)
    end


    local function rest(view, _, rate)
        view.reset = min(reset(view, rate), rate.refill)
        return view.expires
            and view.stored_time + refill(rate, view.stored_missing, view.stored_part)
    end


    return { prepare = prepare, look = look, charge = charge, rest = rest }
end


