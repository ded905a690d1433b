-- What clients are told: the limit headers, and the answers in place of the
-- upstream's.

local calls = require "resty.weir.calls"

local ngx = ngx
local exit = ngx.exit
local get_headers = ngx.resp.get_headers
local get_method = ngx.req.get_method
local header = ngx.header
local http_version = ngx.req.http_version
local match = string.match
local ngx_var = ngx.var
local pairs = pairs
local print = ngx.print
local send_headers = ngx.send_headers
local type = type
local concat = table.concat
local lower = string.lower


local _M = {}


local EXPOSE = "Access-Control-Expose-Headers"

-- What a client is told to wait, in seconds, when on_error closes: within this
-- time the next attempt to reach Redis is made.
local ERROR_RETRY_AFTER = "1"

-- UNAVAILABLE: what a gRPC client may try again.
local GRPC_UNAVAILABLE = "14"


-- Lets scripts of other origins read the headers.
local function expose(policy, record)
    local names = policy.expose
    if not names then
        return
    end
    local exposed = record.exposed or {}
    record.exposed = exposed
    if exposed[names] then
        return
    end
    exposed[names] = true
    local present = header[EXPOSE]
    if type(present) == "table" then
        present = concat(present, ", ")
    end
    header[EXPOSE] = present and present .. ", " .. names or names
end


-- Joins the members of a policy's list to those of others, or puts them in the
-- place of its own.
local function join(record, name, id, members)
    local lists = record.lists or {}
    record.lists = lists
    local list = lists[name] or { ids = {} }
    lists[name] = list
    local place = #list + 1
    for i = 1, #list do
        if list.ids[i] == id then
            place = i
        end
    end
    list[place], list.ids[place] = members, id
    return concat(list, ", ")
end


-- What was told, by the header's name. Few need it, so it is made then.
local function told_by(record)
    local told, decision = record.told, record.first
    if not told and decision then
        told = {}
        record.told, record.told_remaining = told, decision.remaining
        local headers = decision.policy.headers
        for i = 1, #headers do
            local name, value = headers[i].name, decision[i]
            if headers[i].joins then
                value = join(record, name, decision.policy.id, value)
            end
            told[name] = value
        end
    end
    return told
end


-- Of several policies in one request each joins its list members to the
-- others'; of plain numbers the tightest are told.
local function tell_too(policy, record, decision)
    local told, headers = told_by(record), policy.headers
    local is_tighter = decision.remaining < record.told_remaining
    if is_tighter then
        record.told_remaining = decision.remaining
    end
    for i = 1, #headers do
        local name, value = headers[i].name, decision[i]
        if headers[i].joins then
            value = join(record, name, policy.id, value)
        elseif told[name] and not is_tighter then
            value = told[name]
        end
        told[name] = value
        header[name] = value
    end
end


local function tell_rest(headers, decision)
    for i = 4, #headers do
        header[headers[i].name] = decision[i]
    end
end


-- Sets the headers of a decision. In the error page of a refusal it is the
-- refusal that is told of.
function _M.tell(policy, record, decision)
    if record.is_refused then
        return
    end
    expose(policy, record)
    local headers = policy.headers
    local count = #headers
    if count == 0 then
        return
    elseif record.first then
        return tell_too(policy, record, decision)
    end
    record.first = decision
    decision.policy = policy
    -- One by one: see weir/calls.lua.
    header[headers[1].name] = decision[1]
    if count > 1 then
        header[headers[2].name] = decision[2]
    end
    if count > 2 then
        header[headers[3].name] = decision[3]
    end
    if count > 3 then
        tell_rest(headers, decision)
    end
end


-- The same where a subrequest was decided for the request, and told.
function _M.tell_of_subrequest(policy, record)
    local decision = record.charge
    while decision do
        if decision.policy == policy and decision.is_untold then
            decision.is_untold = false
            if not policy.dry_run then
                _M.tell(policy, record, decision)
            end
        end
        decision = decision.before
    end
end


-- Takes back what was told: a refusal tells of the policy that refuses alone.
local function untell(record)
    local told = told_by(record)
    if told then
        for name in pairs(told) do
            header[name] = nil
        end
        record.told, record.first, record.lists = nil, false, nil
    end
end


-- What a dry run did, in the header that the policy names. In a dry run's own
-- header "denied" is enough.
function _M.tell_dry_run(policy, record, outcome)
    local name = policy.dry_run_header
    if not name or outcome == "exempt" then
        return
    end
    local text = policy.name .. "=" .. (outcome == "dry_run_denied" and "denied" or outcome)
    if record.dry_run_header == name then
        text = record.dry_run_text .. ", " .. text
    end
    record.dry_run_header, record.dry_run_text = name, text
    header[name] = text
end


-- The media type of a gRPC request, or nil: for the web or not, and with the
-- name of a codec or without one. gRPC is POST over HTTP/2, for the web POST:
-- whatever else says so gets no answer of status 200 that a cache might keep. Nor does
-- a subrequest, whoever made it: its status is what auth_request lets the client in by.
local function grpc_type()
    if ngx.is_subrequest or get_method() ~= "POST" then
        return nil
    end
    local content_type = ngx_var.content_type
    if not content_type then
        return nil
    end
    local media, rest = match(lower(content_type), "^(application/grpc([^;%s]*))")
    if not media then
        return nil
    end
    local codec = match(rest, "^%-web%-text(.*)") or match(rest, "^%-web(.*)")
    if not codec then
        codec = rest
        if http_version() < 2 then
            return nil
        end
    end
    return (codec == "" or match(codec, "^%+[%w.+-]+$")) and media
end


-- Answers a gRPC call: trailers only, as headers of an answer without a body.
local function answer_grpc(media, status, message)
    ngx.status = 200
    header["Content-Type"] = media
    header["Content-Length"] = 0
    header["grpc-status"] = status
    header["grpc-message"] = message
    send_headers()
    exit(200)
end


local function answer(policy, record, status, is_error, retry_after, violated)
    header["Retry-After"] = retry_after
    -- No cache may answer others with it: neither for as long as an upstream that sent
    -- the request on (X-Accel-Redirect) said of its own answer, nor as it keeps errors.
    header["Cache-Control"] = "no-store"
    local media = grpc_type()
    if media then
        -- What the answer means, whatever nginx takes it for.
        record.status = status
        if is_error then
            answer_grpc(media, GRPC_UNAVAILABLE, "the rate limit cannot be checked")
        else
            answer_grpc(media, policy.grpc_status, "rate limit exceeded")
        end
        return
    elseif policy.error_page then
        exit(status)
        return
    end

    local own = is_error and policy.error_body or not is_error and policy.body
    local text
    if own then
        media, text = own.type, own.text
    else
        media, text =
            calls.refusal(ngx_var.http_accept, is_error, status, retry_after, violated)
    end
    ngx.status = status
    header["Content-Type"] = media
    header["Content-Length"] = #text
    print(text)
    exit(status)
end


-- Ends the request with 429.
function _M.refuse(policy, record, decision)
    untell(record)
    record.is_refused = false
    _M.tell(policy, record, decision)
    record.is_refused, record.retry_after = true, decision.retry_after
    answer(policy, record, 429, false, decision.retry_after, decision.violated)
end


-- Ends the request with the policy's error status.
function _M.fail(policy, record)
    untell(record)
    expose(policy, record)
    record.is_refused, record.retry_after = true, ERROR_RETRY_AFTER
    answer(policy, record, policy.error_status, true, ERROR_RETRY_AFTER)
end


local function is_limit_header(name)
    return match(name, "^x?%-?rate%-?limit$") or match(name, "^x?%-?rate%-?limit%-")
end


-- In the header filter: takes away the limit headers of an upstream, of any
-- style, where the client is told of a limit here.
function _M.filter(record)
    local told = told_by(record)
    if told then
        for name in pairs(get_headers(0, true)) do
            if is_limit_header(lower(name)) then
                header[name] = nil
            end
        end
        for name, value in pairs(told) do
            header[name] = value
        end
    end
    if record.dry_run_header then
        header[record.dry_run_header] = record.dry_run_text
    end
    if record.is_refused then
        -- What an error_page fetched may bring its own.
        header["Retry-After"] = record.retry_after
    end
end


return _M
