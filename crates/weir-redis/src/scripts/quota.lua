-- The quota: a string of two numbers (little-endian doubles): where the period
-- begins, in microseconds, and the units admitted in it. Periods are the
-- calendar's, in UTC.
local function quota()
    local FORMAT, SIZE = "<dd", 16
    local DAY = 86400000000
    local LENGTHS = { hour = 3600000000, day = DAY }


    -- Days from the epoch to the first of January.
    local function days_before(year)
        local past = year - 1
        return 365 * past + floor(past / 4) - floor(past / 100) + floor(past / 400) - 719162
    end


    -- Where the month of this time begins and ends.
    local function month(time)
        local day = floor(time / DAY)
        -- A year has 365.2425 days in the mean; by that it may be one too many.
        local year = 1970 + floor(day / 365.2425)
        if day < days_before(year) then
            year = year - 1
        elseif day >= days_before(year + 1) then
            year = year + 1
        end

        local begins = days_before(year)
        local february = days_before(year + 1) - begins - 337
        local days = { 31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }
        local number = 1
        while begins + days[number] <= day do
            begins = begins + days[number]
            number = number + 1
        end
        return begins * DAY, (begins + days[number]) * DAY
    end


    local function period(name, time)
        local length = LENGTHS[name]
        if not length then
            return month(time)
        end
        local start = time - time % length
        return start, start + length
    end


    local function prepare(rate)
        rate.start, rate.stop = period(rate.period, now)
        rate.expiry = expiry(rate.stop)
    end


    local function look(view, key, rate, cost)
        local start, stop, count = rate.start, rate.stop, 0
        view.expires = nil
        local value = call("GET", key)
        if value then
            local stored, units = unpack_value(FORMAT, SIZE, value, key, "a quota")
            if stored == start then
                count, view.expires = units, stop
            else
                local _, stored_stop = period(rate.period, stored)
                view.expires = stored_stop
                if stored > start and stored <= ahead then
                    -- The clock stepped back into the period before.
                    start, stop, count = stored, stored_stop, units
                end
            end
        end

        view.start, view.stop, view.count = start, stop, count
        view.left = min(stop - now, stop - start)
        local room = rate.limit - count
        view.remaining = max(room, 0)
        if cost > rate.limit then
            view.wait = -1
        elseif cost <= room then
            view.wait = 0
        else
            view.wait = view.left
        end
    end


    local function charge(view, key, rate, cost)
        call("SET", key, pack(FORMAT, view.start, view.count + cost),
            "PXAT", view.stop == rate.stop and rate.expiry or expiry(view.stop))
        view.remaining = view.remaining - cost
        view.reset = view.left
    end


    local function rest(view)
        view.reset = view.count > 0 and view.left or 0
        return view.expires
    end


    return { prepare = prepare, look = look, charge = charge, rest = rest }
end


