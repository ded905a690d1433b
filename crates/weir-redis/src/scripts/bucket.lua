-- The token bucket: a string of three numbers (little-endian doubles): a time
-- in microseconds, the tokens that were missing from the bucket then, and what
-- was missing of one more, in units of which a token has as many as the window
-- microseconds. A microsecond refills LIMIT of these: nothing is ever rounded.
--
-- Of a bucket in debt, which was charged more than was in it, there is a fourth:
-- by how many tokens, rounded up, more was missing than the burst. It tells a
-- debt from what was used under a larger burst, which is not held against a
-- smaller one.
local function bucket(limit, window, burst)
    local FORMAT, SIZE = "<ddd", 24
    local DEBT_FORMAT, DEBT_SIZE = "<dddd", 32


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
    -- taken, and when it was so, which is now unless the clock stepped back; what
    -- is missing of this burst and the debt; and the time to refill those.
    local stored_time, stored, stored_part, debt
    local time, owed, owed_part
    local missing, part
    local longest


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
        stored_time, debt, longest = nil, 0, whole
        local value = call("GET", key)
        if not value then
            return
        end
        if #value == DEBT_SIZE then
            debt = unpack_struct("<d", value, SIZE + 1)
            if not (debt >= 1 and debt <= MAX_LIMIT and debt % 1 == 0) then
                foreign(key, "a token bucket")
            end
            value = sub(value, 1, SIZE)
        end
        stored_time, stored, stored_part =
            unpack_value(FORMAT, SIZE, value, key, "a token bucket")
        if stored_time > ahead then
            debt = 0
            return
        end

        local most = burst
        if debt > 0 then
            most = min(burst + debt, MAX_LIMIT)
            longest = min(refill(most, 0), MAX_WINDOW)
        end
        local gained, gained_part = 0, 0
        if stored_time < now then
            gained, gained_part = muldiv(now - stored_time, limit, window)
        else
            time = stored_time
        end
        owed, owed_part = less(stored, stored_part, gained, gained_part)
        if stored < most then
            missing, part = owed, owed_part
        else
            -- A burst that was lowered meanwhile, by another plan for example,
            -- is not held against it for longer.
            missing, part = less(most, 0, gained, gained_part)
        end
    end


    local function whole_tokens()
        if missing >= burst then
            return 0
        end
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
        return remaining, min(time - now + refill(cost - (burst - missing), part), longest)
    end


    local function reset()
        if missing == 0 and part == 0 then
            return 0
        end
        return min(time - now + refill(missing, part), longest)
    end


    local function charge(key, cost, remaining)
        local most = burst
        if cost <= remaining then
            owed, debt, longest = owed + cost, 0, whole
        else
            -- Into debt, but into none of more than MAX_WINDOW.
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
            missing, part = more(missing, part)
            debt = max(missing - burst + (part > 0 and 1 or 0), 0)
            most = min(burst + debt, MAX_LIMIT)
            longest = min(refill(most, 0), MAX_WINDOW)
        end
        missing, part = owed, owed_part
        if missing >= most then
            missing, part = most, 0
        end
        local span = time - now + min(refill(owed, owed_part), MAX_WINDOW)
        call("SET", key, debt == 0 and pack(FORMAT, time, owed, owed_part)
            or pack(DEBT_FORMAT, time, owed, owed_part, debt), "PX", lifetime(span))
        return whole_tokens(), reset()
    end


    local function rest()
        return reset(),
            stored_time and stored_time + min(refill(stored, stored_part), MAX_WINDOW)
    end


    -- What the rate has refilled since is not given back a second time: the
    -- bucket may have been full in between, and would then let more through than
    -- the burst and the refill.
    local function refund(key, cost, charged_at)
        if not stored_time or stored_time > ahead then
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
        local most = min(burst + debt, MAX_LIMIT)
        local held, held_part = stored, stored_part
        if held >= most then
            held, held_part = most, 0
        end
        held, held_part = less(held, held_part, back, back_part)
        local in_debt = max(held - burst + (held_part > 0 and 1 or 0), 0)
        local tokens, of_one = less(stored, stored_part, back, back_part)
        local span = stored_time + min(refill(tokens, of_one), MAX_WINDOW) - now
        if span <= 0 or tokens == 0 and of_one == 0 then
            call("UNLINK", key)
            return
        end
        call("SET", key, in_debt == 0 and pack(FORMAT, stored_time, tokens, of_one)
            or pack(DEBT_FORMAT, stored_time, tokens, of_one, in_debt), "PX", lifetime(span))
    end


    return look, charge, rest, refund
end


