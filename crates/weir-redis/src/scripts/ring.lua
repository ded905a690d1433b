-- The compact log: the sliding log's decisions from one string of 8-byte times
-- (little-endian doubles, microseconds), oldest first.
--
-- Up to SMALL of them are the whole string, written anew each time. More are a
-- ring behind a head of 24 bytes: the slot of the oldest, the number of slots,
-- the number of times, MAGIC, and the newest time. The ring is changed in place
-- and made anew, with a sixteenth to spare, when it is full or too large: at
-- most 9 bytes for each recorded unit and 64 of frame.
local function ring()
    local SMALL = 32
    local HEAD, HEAD_FORMAT = 24, "<I4I4I4I4d"
    local MAGIC = 1380533591

    -- Times for one read of a ring.
    local BLOCK = 16

    -- The most units that are recorded: 128 MiB, which the server copies as a
    -- whole now and then.
    local MAX_UNITS = 16777216

    -- One byte more than a whole small string.
    local SMALL_END = digits(8 * SMALL)

    local now_packed = pack("<d", now)


    local function prepare(rate)
        rate.cutoff = now - rate.window
        rate.expiry = expiry(now + rate.window)
    end


    -- The time of index i, from 0 for the oldest.
    local function at(view, key, i)
        if not view.slots then
            return (unpack_struct("<d", view.data, 8 * i + 1))
        end
        local slot = (view.head + i) % view.slots
        local place = slot % BLOCK
        local block = slot - place
        if view.block ~= block then
            local from = HEAD + 8 * block
            view.block = block
            view.block_data = call("GETRANGE", key, digits(from), digits(from + 8 * BLOCK - 1))
        end
        return (unpack_struct("<d", view.block_data, 8 * place + 1))
    end


    -- How many of the times are at or before this one.
    local function count_until(view, key, time)
        local low, high = 0, 1
        while high <= view.total and at(view, key, high - 1) <= time do
            low, high = high, high * 2
        end
        high = min(high - 1, view.total)
        while low < high do
            local middle = floor((low + high) / 2)
            if at(view, key, middle) <= time then
                low = middle + 1
            else
                high = middle
            end
        end
        return low
    end


    local function read(view, key)
        local data = call("GETRANGE", key, "0", SMALL_END)
        view.data = data
        view.slots, view.block, view.newest = nil, nil, nil
        if #data <= 8 * SMALL then
            view.total = #data / 8
            if view.total > 0 then
                view.newest = #data % 8 == 0 and at(view, key, view.total - 1) or -1
            end
        else
            local magic
            view.head, view.slots, view.total, magic, view.newest =
                unpack_struct(HEAD_FORMAT, data)
            if magic ~= MAGIC then
                view.newest = -1
            end
        end
        if view.total > 0 then
            check_time(view.newest, key, "a compact log")
        end
    end


    local function look(view, key, rate, cost)
        check_log_cost(rate, cost)
        read(view, key)
        local limit, window, total = rate.limit, rate.window, view.total
        -- Those that count: from `first` up to but not including `stop`.
        local first, stop = 0, total
        if total > 0 then
            first = count_until(view, key, rate.cutoff)
            if view.newest > ahead then
                stop = count_until(view, key, ahead)
            end
        end
        local count = stop - first
        if count + cost > MAX_UNITS and cost <= limit then
            error("a compact log holds at most " .. MAX_UNITS .. " units", 0)
        end
        view.first, view.stop = first, stop
        view.remaining = max(limit - count, 0)
        if cost > limit then
            view.wait = -1
        elseif count <= limit - cost then
            view.wait = 0
        else
            -- Room is made when all but the newest `limit - cost` have left.
            local leaving = at(view, key, stop - 1 - (limit - cost))
            view.wait = min(leaving + window - now, window)
        end
    end


    -- The times from `first` up to but not including `stop`, as one string.
    local function slice(view, key, first, stop)
        if not view.slots then
            return sub(view.data, 8 * first + 1, 8 * stop)
        end
        if first == stop then
            return ""
        end
        local from = (view.head + first) % view.slots
        local to = from + stop - first
        local slots = function(a, b)
            return call("GETRANGE", key, digits(HEAD + 8 * a), digits(HEAD + 8 * b - 1))
        end
        if to <= view.slots then
            return slots(from, to)
        end
        return slots(from, view.slots) .. slots(0, to - view.slots)
    end


    -- Writes the times that count and `cost` new ones as a new string.
    local function rewrite(view, key, rate, cost)
        local kept = slice(view, key, view.first, view.stop)
        local times
        if view.newest and view.newest > now then
            -- The clock stepped back: the new ones are not the newest.
            local older = 8 * (min(count_until(view, key, now), view.stop) - view.first)
            times = sub(kept, 1, older) .. rep(now_packed, cost) .. sub(kept, older + 1)
        else
            times = kept .. rep(now_packed, cost)
        end

        local total = #times / 8
        if total > SMALL then
            local slots = min(total + floor(total / 16), max(total, rate.limit))
            local newest = unpack_struct("<d", times, #times - 7)
            times = pack(HEAD_FORMAT, 0, slots, total, MAGIC, newest) .. times
                .. rep("\0", 8 * (slots - total))
        end
        call("SET", key, times, "PXAT", rate.expiry)
    end


    -- Whether the ring as it is takes `cost` new times, and is not too large.
    local function fits(view, cost)
        local slots, total = view.slots, view.stop - view.first + cost
        return slots and total > SMALL and total <= slots
            and HEAD + 8 * slots <= 9 * total + 64
            and view.stop == view.total and view.newest <= now
    end


    local function append(view, key, rate, cost)
        local slots = view.slots
        local to = (view.head + view.stop) % slots
        local fitting = min(cost, slots - to)
        call("SETRANGE", key, digits(HEAD + 8 * to), rep(now_packed, fitting))
        if fitting < cost then
            call("SETRANGE", key, digits(HEAD), rep(now_packed, cost - fitting))
        end
        local head = (view.head + view.first) % slots
        local total = view.stop - view.first + cost
        call("SETRANGE", key, "0", pack(HEAD_FORMAT, head, slots, total, MAGIC, now))
        call("PEXPIREAT", key, rate.expiry)
    end


    local function charge(view, key, rate, cost)
        if fits(view, cost) then
            append(view, key, rate, cost)
        else
            rewrite(view, key, rate, cost)
        end
        view.remaining = view.remaining - cost
        view.reset = rate.window
    end


    local function rest(view, key, rate)
        view.reset = 0
        if view.total == 0 then
            return nil
        end
        if view.stop > view.first then
            view.reset = min(at(view, key, view.stop - 1) + rate.window - now, rate.window)
        end
        return view.newest + rate.window
    end


    return { prepare = prepare, look = look, charge = charge, rest = rest }
end


