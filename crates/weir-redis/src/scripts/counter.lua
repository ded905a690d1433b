-- The sliding counter: a string of three numbers (little-endian doubles): where
-- the current window begins, in microseconds, and the units admitted in it and
-- in the window before. Windows are aligned to the epoch.
if name == "counter" then
    local window_start = now - now % window
    local window_overlap = window_start + window - now
    local ahead = ahead_of(window)

    -- What look found: the counts, how much of the previous window overlaps,
    -- how far the clock is behind the window, and when all that ceases to
    -- matter; and whether the key lives as long as it will have to.
    local start, current, previous, overlap, behind, expires, lives


    local function look(key, cost)
        local value = call("GET", key)
        local this, last = 0, 0
        start, overlap, behind, expires, lives = window_start, window_overlap, 0, nil, false
        if value then
            local time
            time, this, last = unpack_value("<ddd", 24, value, key, "a sliding counter")
            expires = time + (this > 0 and 2 or 1) * window
            if time == window_start then
                lives = this > 0
            elseif time == window_start - window then
                this, last = 0, this
            elseif time > window_start and time <= ahead then
                -- A clock that stepped back behind the window is taken to be at
                -- its start.
                start, overlap, behind, lives = time, window, time - now, this > 0
            else
                this, last = 0, 0
            end
        end
        current, previous = this, last

        local room = limit - this
        -- A limit that was lowered meanwhile is not held against it for longer.
        local counted = last < limit and last or limit
        if counted > 0 then
            local estimate, left = muldiv(counted, overlap, window)
            room = room - (left > 0 and estimate + 1 or estimate)
        end
        local remaining = room > 0 and room or 0
        if cost <= remaining then
            return remaining, 0
        elseif cost > limit then
            return remaining, -1
        end

        -- Until no more than `left` of what was admitted in a window overlaps, of
        -- which `overlaps` does now.
        local function until_room(admitted, overlaps, left)
            if admitted <= left then
                return 0
            end
            return overlaps - (muldiv(left, window, admitted))
        end

        local span
        if cost <= limit - current then
            span = until_room(counted, overlap, limit - current - cost)
        else
            -- Not in this window; in the next its count is the previous one.
            span = overlap + until_room(min(current, limit), window, limit - cost)
        end
        return remaining, min(behind + span, 2 * window)
    end


    local function rest()
        local reset = 0
        if current > 0 then
            reset = min(behind + overlap + window, 2 * window)
        elseif previous > 0 then
            reset = min(behind + overlap, 2 * window)
        end
        return reset, expires
    end


    local function charge(key, cost, remaining)
        current = current + cost
        if current > MAX_LIMIT then
            current = MAX_LIMIT
        end
        local value = pack("<ddd", start, current, previous)
        if not (lives and overwrite(key, value)) then
            call("SET", key, value, "PX", lifetime(start + 2 * window - now))
        end
        if behind == 0 then
            return remaining - cost, overlap + window
        end
        return remaining - cost, (rest())
    end


    if not afterwards then
        return look, charge, rest
    end


    local function refund(key, cost, time)
        if time >= start and time < start + window and current > 0 then
            current = max(current - cost, 0)
        elseif time >= start - window and time < start and previous > 0 then
            previous = max(previous - cost, 0)
        else
            return
        end
        if current == 0 and previous == 0 then
            call("UNLINK", key)
            return
        end
        local ends = start + (current > 0 and 2 or 1) * window
        call("SET", key, pack("<ddd", start, current, previous), "PX", lifetime(ends - now))
    end


    return look, charge, rest, refund
end


