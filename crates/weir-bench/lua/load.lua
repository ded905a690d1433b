-- What wrk sends: the header X-Client, of so many clients in turn. Of the answers
-- it prints one line of JSON, with times in microseconds.
--
--     wrk --script load.lua URL -- CLIENTS

-- luacheck: globals wrk setup init request done first

local format = string.format
local floor = math.floor

local threads = 0
local requests, at


-- Each thread has a Lua state of its own, and begins elsewhere.
function setup(thread)
    thread:set("first", threads)
    threads = threads + 1
end


-- Written once: what the load costs is taken from what it measures.
function init(args)
    local clients = tonumber(args[1])
    requests = {}
    for client = 1, clients do
        requests[client] = wrk.format(nil, nil, { ["X-Client"] = format("client-%d", client) })
    end
    at = floor(first * clients / 2) % clients
end


function request()
    at = at % #requests + 1
    return requests[at]
end


function done(summary, latency)
    local errors = summary.errors
    print(format(
        '{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"refused":%d,"failed":%d}',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.status, errors.connect + errors.read + errors.write + errors.timeout
    ))
end
