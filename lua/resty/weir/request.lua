-- What has become of each client request so far: which policies have counted
-- it, what they told the client, what they charged.
--
-- A record belongs to a client request, however nginx routes it: an internal
-- redirect (try_files, error_page, ngx.exec) runs the access phase again with
-- an empty ngx.ctx, and a subrequest has an ngx.ctx of its own. Each such run is
-- a pass. What a policy has counted in one pass is not counted in another: its
-- first call stands for the first of the others, the second for the second.
-- Looks, and calls that count on purpose, are no such calls. Fields of a record:
--   [call]        true, if that call was counted in some pass: see call_of();
--   pending       by call, while a subrequest's is being decided: `decided`, a
--                 semaphore, and what came of it, `outcome`;
--   has_begun     of one that a subrequest has made: whether there was another pass;
--   charge        the last admitted decision: see weir/settlement.lua;
--   first, told, told_remaining, lists, exposed, dry_run_header, dry_run_text,
--   is_refused, retry_after, status
--                 what the client was told: see weir/answer.lua;
--   has_timed_out whether a decision did not come in time;
--   noted         what access logs say of it: see weir/variables.lua.
-- And of a pass, which is ngx.ctx.weir:
--   record        the record, if it is another table;
--   is_subrequest whether it is one's;
--   [policy]      the number of its last call.
-- A record is its own first pass: most requests have no other.

local semaphore = require "ngx.semaphore"

local ngx = ngx
local is_internal = ngx.req.is_internal
local max = math.max
local new_semaphore = semaphore.new
local ngx_var = ngx.var
local pairs = pairs
local setmetatable = setmetatable
local type = type


local _M = {}


-- By the request's name. nginx keeps an ngx.ctx until the request ends, also
-- one that a redirect has hidden: so a record lives there, and is only found
-- here.
local records = setmetatable({}, { __mode = "v" })


-- A connection's number is never used again, and its requests are counted: for
-- HTTP/2 each stream has a number too.
local function name()
    return ngx_var.connection .. ":" .. ngx_var.connection_requests
end


-- With what nearly every request has, and room for two calls: see weir/calls.lua.
local function new_record(is_subrequest)
    return { is_subrequest = is_subrequest, charge = false, first = false,
        is_refused = false, noted = false }
end


local function new_pass(record, is_subrequest)
    return { record = record, is_subrequest = is_subrequest }
end


-- More calls of a policy than any pass of a sane configuration has.
local MAX_CALLS = 1023


-- What stands in a record for a policy's call of this number; nil if there are too
-- many.
local function call_of(policy, number)
    local call = policy.calls[number]
    if not call and number <= MAX_CALLS then
        call = { policy = policy, number = number }
        policy.calls[number] = call
    end
    return call
end


-- Of a request without redirects there is one pass: if it is not there any
-- more, the operator's Lua has replaced ngx.ctx.
local function same_pass(record)
    local pass = new_pass(record, false)
    for call in pairs(record) do
        if type(call) == "table" and call.number then
            pass[call.policy] = max(pass[call.policy] or 0, call.number)
        end
    end
    return pass
end


-- The record of this client request and its pass, made if there are none.
function _M.of()
    local ctx, is_subrequest = ngx.ctx, ngx.is_subrequest
    local pass = ctx.weir
    -- A subrequest may have been given its parent's.
    if pass and pass.is_subrequest == is_subrequest then
        return pass.record or pass, pass
    end

    local request = name()
    local record = records[request]
    if not record then
        record = new_record(is_subrequest)
        records[request] = record
        pass = record
    elseif (record.has_begun or not record.is_subrequest) and not is_internal() then
        pass = same_pass(record)
    else
        pass = new_pass(record, is_subrequest)
    end
    if record.is_subrequest and not is_subrequest then
        record.has_begun = true
    end
    ctx.weir = pass
    return record, pass
end


-- The record of this client request, or nil.
function _M.find()
    local pass = ngx.ctx.weir
    return pass and (pass.record or pass) or records[name()]
end


-- Whether the policy's next call of this pass has been counted in another: true,
-- false, or "error_closed" if nobody could say. Where a subrequest beside this one
-- is being decided, what comes of it is waited for, up to `patience` seconds.
function _M.is_counted(record, pass, policy, patience)
    local number = (pass[policy] or 0) + 1
    local call = call_of(policy, number)
    local pending = record.pending and record.pending[call]
    while pending do
        if pending.decided:wait(patience) then
            -- For the next that waits.
            pending.decided:post()
        end
        if pending.outcome == "error_closed" then
            pass[policy] = number
            return "error_closed"
        elseif record.pending[call] == pending then
            return false
        end
        pending = record.pending[call]
    end
    if record[call] then
        pass[policy] = number
        return true
    end
    return false
end


-- The policy is about to decide its next call. Returns what finish() needs.
function _M.begin(record, pass, policy)
    local number = (pass[policy] or 0) + 1
    pass[policy] = number
    local call = call_of(policy, number)
    if not call then
        return nil
    end
    record[call] = true
    if pass.is_subrequest then
        record.pending = record.pending or {}
        record.pending[call] = { decided = new_semaphore(0) }
    end
    return call
end


-- It was counted, if this stands; else another pass may count it.
function _M.finish(record, call, outcome, stands)
    if not call then
        return
    end
    record[call] = stands or nil
    local pending = record.pending and record.pending[call]
    if pending then
        record.pending[call] = nil
        pending.outcome = outcome
        pending.decided:post()
    end
end


return _M
