-- The compact log: the sliding log's decisions from one string of 8-byte times
-- (little-endian doubles, microseconds), oldest first.
--
-- Up to SMALL of them are the whole string, written anew each time. More are a
-- ring behind a head of 24 bytes: the slot of the oldest, the number of slots,
-- the number of times, MAGIC, and the newest time. The ring is changed in place
-- and made anew, with a sixteenth to spare, when it is full or too large: at
-- most 9 bytes for each recorded unit and 64 of frame.
if name == "ring" then
    local floor = math.floor
    local SMALL = 32
    local HEAD, HEAD_FORMAT = 24, "<I4I4I4I4d"
    local MAGIC = 1380533591

    -- Times for one read of a ring.
    local BLOCK = 16

    -- The most units that are recorded: 128 MiB, which the server copies as a
    -- whole now and then. A limit above that is better kept by another algorithm.
    local MAX_UNITS = 16777216
    local TOO_MANY = "a compact log holds at most 16777216 units: "

    -- One byte more than a whole small string.
    local SMALL_END = format("%d", 8 * SMALL)

    local dearest = min(limit, MAX_LOG_COST)
    local cutoff, ahead = now - window, ahead_of(window)
    local window_lifetime = lifetime(window)
    local now_packed = pack("<d", now)

    -- What look found: the string, or its beginning; of a ring its oldest slot
    -- and number of slots, nil for a small one; the times in it, and the newest.
    local data, head, slots, total, newest
    -- The block of a ring that was read last.
    local block, block_data
    -- The times that count: from `first` up to but not including `stop`.
    local first, stop


    -- The time of index i, from 0 for the oldest.
    local function at(key, i)
        if not slots then
            return (unpack_struct("<d", data, 8 * i + 1))
        end
        local slot = (head + i) % slots
        local place = slot % BLOCK
        if block ~= slot - place then
            block = slot - place
            local from = HEAD + 8 * block
            local to = from + 8 * BLOCK - 1
            block_data = call("GETRANGE", key, format("%d", from), format("%d", to))
        end
        return (unpack_struct("<d", block_data, 8 * place + 1))
    end


    -- How many of the times are at or before this one.
    local function count_until(key, time)
        local low, high = 0, 1
        while high <= total and at(key, high - 1) <= time do
            low, high = high, high * 2
        end
        high = min(high - 1, total)
        while low < high do
            local middle = floor((low + high) / 2)
            if at(key, middle) <= time then
                low = middle + 1
            else
                high = middle
            end
        end
        return low
    end


    local function read(key)
        data = call("GETRANGE", key, "0", SMALL_END)
        slots, block, newest = nil, nil, nil
        local magic = MAGIC
        if #data > 8 * SMALL then
            head, slots, total, magic, newest = unpack_struct(HEAD_FORMAT, data)
        elseif #data % 8 == 0 then
            total = #data / 8
            newest = total > 0 and at(key, total - 1) or nil
        else
            magic = nil
        end
        if magic ~= MAGIC
            or newest and not (newest >= 0 and newest <= MAX_LIMIT and newest % 1 == 0) then
            foreign(key, "a compact log")
        end
    end


    local function look(key, cost)
        read(key)
        first, stop = 0, total
        if total > 0 then
            first = count_until(key, cutoff)
            if newest > ahead then
                stop = count_until(key, ahead)
            end
        end
        local count = stop - first
        local remaining = max(limit - count, 0)
        if cost > dearest then
            return remaining, -1
        elseif cost > remaining then
            -- Room is made when all but the newest `limit - cost` have left.
            local leaving = at(key, stop - 1 - (limit - cost))
            return remaining, min(leaving + window - now, window)
        elseif count + cost > MAX_UNITS then
            error(TOO_MANY .. key, 0)
        end
        return remaining, 0
    end


    -- Calls `each` with where a run of slots from index i on begins and ends, in
    -- bytes: one or, across the end of the ring, two.
    local function each_run(i, count, each)
        local from = (head + i) % slots
        local fitting = min(count, slots - from)
        if fitting > 0 then
            each(HEAD + 8 * from, HEAD + 8 * (from + fitting))
        end
        if fitting < count then
            each(HEAD, HEAD + 8 * (count - fitting))
        end
    end


    -- The times from index i up to but not including j, as one string.
    local function slice(key, i, j)
        if not slots then
            return data:sub(8 * i + 1, 8 * j)
        end
        local times = ""
        each_run(i, j - i, function(from, to)
            times = times .. call("GETRANGE", key, format("%d", from), format("%d", to - 1))
        end)
        return times
    end


    -- The new times and those that are newer, if the clock stepped back; and the
    -- index from which on they stand.
    local function new_times(key, cost)
        local times = now_packed:rep(cost)
        if not newest or newest <= now then
            return times, stop
        end
        local place = min(count_until(key, now), stop)
        return times .. slice(key, place, stop), place
    end


    -- Writes these times as a new string, which lives so long, by default as long
    -- as the one before.
    local function replace(key, times, life)
        local units = #times / 8
        if units > SMALL then
            local room = units + floor(units / 16)
            if units <= limit then
                room = min(room, limit)
            end
            local last = unpack_struct("<d", times, #times - 7)
            times = pack(HEAD_FORMAT, 0, room, units, MAGIC, last) .. times
                .. ("\0"):rep(8 * (room - units))
        end
        if life then
            call("SET", key, times, "PX", life)
        else
            call("SET", key, times, "KEEPTTL")
        end
    end


    -- Whether the ring as it is takes so many times, and is not too large.
    local function fits(units)
        return slots and units > SMALL and units <= slots and HEAD + 8 * slots <= 9 * units + 64
    end


    -- Writes times, from index `place` on, into a ring that then begins at index
    -- `oldest`.
    local function put(key, times, place, oldest, units, last)
        local written = 0
        each_run(place, #times / 8, function(from, to)
            call("SETRANGE", key, format("%d", from), times:sub(written + 1, written + to - from))
            written = written + to - from
        end)
        call("SETRANGE", key, "0",
            pack(HEAD_FORMAT, (head + oldest) % slots, slots, units, MAGIC, last))
    end


    local function charge(key, cost, remaining)
        local units = stop - first + cost
        local times, place = new_times(key, cost)
        if stop == total and fits(units) then
            put(key, times, place, first, units, max(newest, now))
            call("PEXPIRE", key, window_lifetime)
        else
            replace(key, slice(key, first, place) .. times, window_lifetime)
        end
        return remaining - cost, window
    end


    local function rest(key)
        if total == 0 then
            return 0, nil
        end
        local reset = 0
        if stop > first then
            reset = min(at(key, stop - 1) + window - now, window)
        end
        return reset, newest + window
    end


    if not afterwards then
        return look, charge, rest
    end


    local function look_afterwards(key, cost)
        local remaining = look(key, 0)
        if cost > MAX_LOG_COST then
            error("a log takes at most " .. MAX_LOG_COST .. " units at once: " .. key, 0)
        elseif stop - first + cost > MAX_UNITS then
            error(TOO_MANY .. key, 0)
        end
        return remaining, 0
    end


    -- As the sliding log's: only what is of this very time.
    local function refund(key, cost, time)
        if total == 0 or time <= cutoff or time > ahead then
            return
        end
        -- The run of that time, from its last on, ends before this index.
        local behind = count_until(key, time)
        local place = max(count_until(key, time - 1), behind - cost)
        if place == behind then
            return
        end

        local gone = behind - place
        local units = total - gone
        if units == 0 then
            call("UNLINK", key)
            return
        end
        local last = behind < total and newest or at(key, place - 1)
        if not fits(units) then
            replace(key, slice(key, 0, place) .. slice(key, behind, total))
        elseif place < total - behind then
            -- The fewer move: here those that are older.
            put(key, slice(key, 0, place), gone, gone, units, last)
        else
            put(key, slice(key, behind, total), place, 0, units, last)
        end
    end


    return look_afterwards, charge, rest, refund
end


