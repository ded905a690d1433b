-- The sliding counter: a string of three numbers (little-endian doubles): where
-- the current window begins, in microseconds, and the units admitted in it and
-- in the window before. Windows are aligned to the epoch.
local function counter()
    local FORMAT, SIZE = "<ddd", 24


    local function prepare(rate)
        local into_window = now % rate.window
        rate.start = now - into_window
        rate.overlap = rate.window - into_window
        rate.expiry = expiry(rate.start + 2 * rate.window)
    end


    -- Notes the counts as they stand now.
    local function read(view, key, rate)
        view.start, view.current, view.previous, view.expires = rate.start, 0, 0, nil
        local value = call("GET", key)
        if not value then
            return
        end
        local start, current, previous =
            unpack_value(FORMAT, SIZE, value, key, "a sliding counter")
        view.expires = start + (current > 0 and 2 or 1) * rate.window
        if start > ahead then
            return
        elseif start >= rate.start then
            view.start, view.current, view.previous = start, current, previous
        elseif start == rate.start - rate.window then
            view.previous = current
        end
    end


    -- Until no more than `room` of what was admitted in a window overlaps, of
    -- which `overlap` does now.
    local function until_room(previous, overlap, room, window)
        if previous <= room then
            return 0
        end
        return overlap - (muldiv(room, window, previous))
    end


    local function look(view, key, rate, cost)
        read(view, key, rate)
        local limit, window, current = rate.limit, rate.window, view.current
        -- A limit that was lowered meanwhile is not held against it for longer.
        local previous = min(view.previous, limit)
        -- A clock that stepped back behind the window is taken to be at its
        -- start.
        local overlap = view.start == rate.start and rate.overlap or window
        view.overlap, view.behind = overlap, max(view.start - now, 0)

        local estimate, left = muldiv(previous, overlap, window)
        if left > 0 then
            estimate = estimate + 1
        end
        local room = limit - current - estimate
        view.remaining = max(room, 0)
        if cost > limit then
            view.wait = -1
        elseif cost <= room then
            view.wait = 0
        else
            local span
            if cost <= limit - current then
                span = until_room(previous, overlap, limit - current - cost, window)
            else
                -- Not in this window; in the next its count is the previous one.
                span = overlap
                    + until_room(min(current, limit), window, limit - cost, window)
            end
            view.wait = min(view.behind + span, 2 * window)
        end
    end


    local function reset(view, rate)
        if view.current > 0 then
            return min(view.behind + view.overlap + rate.window, 2 * rate.window)
        elseif view.previous > 0 then
            return min(view.behind + view.overlap, 2 * rate.window)
        end
        return 0
    end


    local function charge(view, key, rate, cost)
        local start = view.start
        view.current = view.current + cost
        call("SET", key, pack(FORMAT, start, view.current, view.previous),
            "PXAT", start == rate.start and rate.expiry or expiry(start + 2 * rate.window))
        view.remaining = view.remaining - cost
        view.reset = reset(view, rate)
    end


    local function rest(view, _, rate)
        view.reset = reset(view, rate)
        return view.expires
    end


    return { prepare = prepare, look = look, charge = charge, rest = rest }
end


