-- The token bucket: a string of three numbers (little-endian doubles): a time
-- in microseconds, the tokens that were missing from the bucket then, and what
-- was missing of one more, in units of which a token has as many as the window
-- microseconds. A microsecond refills LIMIT of these: nothing is ever rounded.
--
-- Of a bucket in debt, which was charged more than was in it, there is a fourth:
-- by how many tokens, rounded up, more was missing than the burst. It tells a
-- debt from what was used under a larger burst, which is not held against a
-- smaller one.
if name == "bucket" then
    -- Microseconds in which the rate refills so many tokens and such a part of
    -- one more, rounded up.
    local function refill(tokens, part)
        local span, left = muldiv(tokens, window, limit)
        if part > 0 then
            local part_left = part % limit
            span = span + (part - part_left) / limit
            if left > limit - part_left then
                return span + 2
            end
            left = left + part_left
        end
        return left > 0 and span + 1 or span
    end


    local whole = refill(burst, 0)
    if whole > MAX_WINDOW then
        error("a bucket that takes longer than 366 days to refill", 0)
    end
    local ahead = ahead_of(whole)

    -- What look found: what was stored; what is missing of all that was ever
    -- taken, and when it was so, which is now unless the clock stepped back; what
    -- is missing of what is held against the client, and of a bucket in debt how
    -- much that is at most: burst and debt.
    local stored_time, stored, stored_part
    local time, owed, owed_part
    local missing, part, most


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


    local function whole_tokens()
        return part > 0 and burst - missing - 1 or burst - missing
    end


    local function look(key, cost)
        local value = call("GET", key)
        time, owed, owed_part, missing, part = now, 0, 0, 0, 0
        stored_time, most = nil, nil
        if value then
            if #value == 32 then
                -- Read as the last of three, it is checked like those.
                local _, _, debt =
                    unpack_value("<ddd", 24, value:sub(9), key, "a token bucket")
                most = min(burst + debt, MAX_LIMIT)
                value = value:sub(1, 24)
            end
            stored_time, stored, stored_part =
                unpack_value("<ddd", 24, value, key, "a token bucket")
        end
        if value and stored_time <= ahead then
            local gained, gained_part = 0, 0
            if stored_time < now then
                gained, gained_part = muldiv(now - stored_time, limit, window)
            else
                time = stored_time
            end
            owed, owed_part = less(stored, stored_part, gained, gained_part)
            if stored < (most or burst) then
                missing, part = owed, owed_part
            else
                -- A burst that was lowered meanwhile, by another plan for
                -- example, is not held against it for longer.
                missing, part = less(most or burst, 0, gained, gained_part)
            end
        end

        local remaining = whole_tokens()
        if cost <= remaining then
            return remaining, 0
        end
        remaining = max(remaining, 0)
        if cost <= remaining then
            return remaining, 0
        elseif cost > burst then
            return remaining, -1
        end
        return remaining, min(time - now + refill(cost - (burst - missing), part),
            most and min(refill(most, 0), MAX_WINDOW) or whole)
    end


    local function rest()
        local reset = 0
        if missing > 0 or part > 0 then
            reset = min(time - now + refill(missing, part),
                most and min(refill(most, 0), MAX_WINDOW) or whole)
        end
        return reset, stored_time and stored_time + min(refill(stored, stored_part), MAX_WINDOW)
    end


    -- Charges what fits in the burst, and so leaves no debt.
    local function charge(key, cost)
        most = nil
        owed = owed + cost
        local behind, span = time - now, refill(owed, owed_part)
        if span > MAX_WINDOW then
            span = MAX_WINDOW
        end
        call("SET", key, pack("<ddd", time, owed, owed_part), "PX", lifetime(behind + span))
        if owed >= burst then
            missing, part, span = burst, 0, whole
        else
            missing, part = owed, owed_part
        end
        span = behind + span
        return whole_tokens(), span < whole and span or whole
    end


    if not afterwards then
        return look, charge, rest
    end


    -- Stores what was missing at a time, and the debt: what of `held`, and of a
    -- part of one more, is beyond the burst.
    local function store(key, at, tokens, of_one, held, held_part)
        local debt = max(held - burst + (held_part > 0 and 1 or 0), 0)
        local value = pack("<ddd", at, tokens, of_one)
        if debt > 0 then
            value = value .. pack("<d", debt)
        end
        local span = at - now + min(refill(tokens, of_one), MAX_WINDOW)
        if span <= 0 or tokens == 0 and of_one == 0 then
            call("UNLINK", key)
        else
            call("SET", key, value, "PX", lifetime(span))
        end
        most = debt > 0 and min(burst + debt, MAX_LIMIT) or nil
    end


    -- Charges into debt, but into none that takes longer than MAX_WINDOW to
    -- refill.
    local function charge_anyway(key, cost, remaining)
        if cost <= remaining then
            return charge(key, cost)
        end
        local dearest = min(muldiv(MAX_WINDOW, limit, window), MAX_LIMIT)
        local function more(tokens, of_one)
            if tokens >= dearest then
                return tokens, of_one
            elseif tokens + cost >= dearest then
                return dearest, 0
            end
            return tokens + cost, of_one
        end

        owed, owed_part = more(owed, owed_part)
        store(key, time, owed, owed_part, more(missing, part))
        missing, part = owed, owed_part
        if missing >= (most or burst) then
            missing, part = most or burst, 0
        end
        return whole_tokens(), (rest())
    end


    -- What the rate has refilled since is not given back a second time: the
    -- bucket may have been full in between, and would then let more through than
    -- the burst and the refill.
    local function refund(key, cost, charged_at)
        if not stored_time or stored_time > ahead or charged_at > stored_time then
            -- Nothing that counts, or nothing that was charged there: a clock was
            -- set back, and the record begun anew.
            return
        end
        local back, back_part = cost, 0
        if charged_at < time then
            back, back_part = less(cost, 0, muldiv(time - charged_at, limit, window))
        end
        if back == 0 and back_part == 0 then
            return
        end

        -- As of when it was stored: what is missing now follows from that.
        local held, held_part = stored, stored_part
        if held >= (most or burst) then
            held, held_part = most or burst, 0
        end
        held, held_part = less(held, held_part, back, back_part)
        local tokens, of_one = less(stored, stored_part, back, back_part)
        store(key, stored_time, tokens, of_one, held, held_part)
    end


    return look, charge_anyway, rest, refund
end


