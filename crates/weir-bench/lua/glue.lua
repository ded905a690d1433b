-- Limiters by hand, as guides teach them, each written as well as its design allows.
--
-- Over Redis: the Redis client of OpenResty, a pool of kept connections, and a sorted
-- set for each client, in which a script records each request that it admits. One
-- round trip for each request, all of it in one script by the clock of Redis, nothing
-- recorded of a refusal.
--
-- On one host: a number for each client and window of the clock, in a lua_shared_dict.

local floor = math.floor
local ceil = math.ceil
local max = math.max
local ngx = ngx
local exit = ngx.exit
local header = ngx.header
local log = ngx.log
local now = ngx.now
local ngx_var = ngx.var
local pcall = pcall
local require = require
local type = type

-- Debian has it elsewhere than OpenResty.
local found, redis = pcall(require, "resty.redis")
if not found then
    redis = require("nginx.redis")
end


local _M = {}


local counts = ngx.shared.counts

local TIMEOUT_MS = 5000

-- As many connections are kept as there can be requests at once in this bench: with
-- fewer, some would connect anew for each. They are kept for good: others run in
-- between, for as long as a round takes.
local POOL = 256
local POOL_IDLE_MS = 0

-- ARGV: the limit, its window in microseconds and in milliseconds. Returns whether
-- it is admitted, what remains, and the microseconds until all is free; of a refusal
-- those until there is room. EVAL sends this text with each request, so it has no
-- comments. Members are unique: in one microsecond the set only grows.
local SCRIPT = [[
local key, limit, window = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local call = redis.call
local time = call("TIME")
local now = time[1] * 1000000 + time[2]
call("ZREMRANGEBYSCORE", key, "-inf", now - window)
local used = call("ZCARD", key)
if used >= limit then
local oldest = call("ZRANGE", key, 0, 0, "WITHSCORES")
return {0, 0, oldest[2] + window - now}
end
call("ZADD", key, now, time[1] .. ":" .. time[2] .. ":" .. used)
call("PEXPIRE", key, ARGV[3])
return {1, limit - used - 1, window}
]]

local host, port
-- Of SCRIPT, once this worker has loaded it.
local sha


-- Where Redis is.
function _M.redis_at(redis_host, redis_port)
    host, port = redis_host, redis_port
end


local function by_eval(connection, key, limit, window, window_ms)
    return connection:eval(SCRIPT, 1, key, limit, window, window_ms)
end


local function by_evalsha(connection, key, limit, window, window_ms)
    local reply, err
    if sha then
        reply, err = connection:evalsha(sha, 1, key, limit, window, window_ms)
        if reply or not err or err:sub(1, 8) ~= "NOSCRIPT" then
            return reply, err
        end
    end
    sha, err = connection:script("load", SCRIPT)
    if not sha then
        return nil, err
    end
    return connection:evalsha(sha, 1, key, limit, window, window_ms)
end


local function client()
    return ngx_var.http_x_client or ngx_var.remote_addr
end


local function decide(by, limit, seconds)
    local connection = redis:new()
    connection:set_timeout(TIMEOUT_MS)
    local connected, err = connection:connect(host, port)
    if not connected then
        return nil, err
    end
    local window = floor(seconds * 1000000)
    -- What was under way under another limit may still come to its end.
    local key = "glue:" .. limit .. ":" .. client()
    local reply
    reply, err = by(connection, key, limit, window, ceil(window / 1000))
    if type(reply) ~= "table" then
        return nil, err
    end
    connection:set_keepalive(POOL_IDLE_MS, POOL)
    return reply
end


local function answer(admitted, limit, remaining, reset)
    header["RateLimit-Limit"] = limit
    header["RateLimit-Remaining"] = remaining
    header["RateLimit-Reset"] = reset
    if not admitted then
        header["Retry-After"] = reset
        return exit(429)
    end
end


local function access(by, limit, seconds)
    local reply, err = decide(by, limit, seconds)
    if not reply then
        log(ngx.ERR, "no decision: ", err)
        return
    end
    return answer(reply[1] == 1, limit, reply[2], ceil(reply[3] / 1000000))
end


-- At most `limit` requests in so many seconds.
function _M.eval(limit, seconds)
    return access(by_eval, limit, seconds)
end


-- The same, without sending the script.
function _M.evalsha(limit, seconds)
    return access(by_evalsha, limit, seconds)
end


-- At most `limit` requests in each window of the clock, of so many seconds, on this
-- host.
function _M.dict(limit, seconds)
    local time = now()
    local window = floor(time / seconds)
    local key = limit .. ":" .. window .. ":" .. client()
    local used, err = counts:incr(key, 1, 0, seconds)
    if not used then
        log(ngx.ERR, "no decision: ", err)
        return
    end
    return answer(used <= limit, limit, max(limit - used, 0), ceil((window + 1) * seconds - time))
end


return _M
