-- The quota: a string of two numbers (little-endian doubles): where the period
-- begins, in microseconds, and the units admitted in it. Periods are the
-- calendar's, in UTC.
if name == "quota" then
    local period = window
    local DAY = 86400000000


    -- Days from the epoch to the first of January.
    local function days_before(year)
        local past = year - 1
        local floor = math.floor
        return 365 * past + floor(past / 4) - floor(past / 100) + floor(past / 400) - 719162
    end


    -- Where the month of this time begins and ends.
    local function month(time)
        local day = math.floor(time / DAY)
        -- A year has 365.2425 days in the mean; by that it may be one too many.
        local year = 1970 + math.floor(day / 365.2425)
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


    -- Where the period of this time begins and ends.
    local function bounds(time)
        if period == "month" then
            return month(time)
        end
        local length = period == "hour" and 3600000000 or DAY
        local start = time - time % length
        return start, start + length
    end


    local this_start, this_stop = bounds(now)
    local ahead = ahead_of(this_stop - this_start)

    -- What look found: the period, its count, and when that ceases to matter; and
    -- whether the key lives as long as it will have to.
    local start, stop, count, expires, lives


    local function read(key)
        start, stop, count, expires, lives = this_start, this_stop, 0, nil, false
        local value = call("GET", key)
        if not value then
            return
        end
        local time, units = unpack_value("<dd", 16, value, key, "a quota")
        if time == this_start then
            count, expires, lives = units, this_stop, true
            return
        end
        local _, time_stop = bounds(time)
        expires = time_stop
        if time > this_start and time <= ahead then
            -- The clock stepped back into the period before.
            start, stop, count, lives = time, time_stop, units, true
        end
    end


    local function left()
        return min(stop - now, stop - start)
    end


    local function look(key, cost)
        read(key)
        local remaining = max(limit - count, 0)
        if cost <= remaining then
            return remaining, 0
        elseif cost > limit then
            return remaining, -1
        end
        return remaining, left()
    end


    local function charge(key, cost, remaining)
        count = count + cost
        if count > MAX_LIMIT then
            count = MAX_LIMIT
        end
        local value = pack("<dd", start, count)
        if not (lives and overwrite(key, value)) then
            -- Of this period: another is gone on with only where it has a key.
            call("SET", key, value, "PX", lifetime(this_stop - now))
        end
        return remaining - cost, left()
    end


    local function rest()
        return count > 0 and left() or 0, expires
    end


    if not afterwards then
        return look, charge, rest
    end


    local function refund(key, cost, time)
        if time < start or time >= stop or count == 0 then
            return
        elseif cost >= count then
            call("UNLINK", key)
            return
        end
        call("SET", key, pack("<dd", start, count - cost), "PX", lifetime(stop - now))
    end


    return look, charge, rest, refund
end


