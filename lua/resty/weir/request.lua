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
--   has_begun     whether there was a pass that is no subrequest's;
--   charge        the last admitted decision: see weir/settlement.lua;
--   first, told, told_remaining, lists, exposed, dry_run_header, dry_run_text,
--   is_refused, retry_after, status
--                 what the client was told: see weir/answer.lua;
--   has_timed_out whether a decision did not come in time;
--   policy, outcome, remaining, source, rank
--                 what access logs say of it: see weir/variables.lua.
-- And of a pass, which is ngx.ctx.weir:
--   record        the record;
--   is_subrequest whether it is one's;
--   [policy.id]   the number of its last call.

local new_table = require "table.new"
local semaphore = require "ngx.semaphore"

local ngx = ngx
local floor = math.floor
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


-- Tables have room for what nearly every request has: growing one costs more
-- than making it.
local function new_pass(record, is_subrequest)
    local pass = new_table(3, 4)
    pass.record, pass.is_subrequest = record, is_subrequest
    return pass
end


-- The name of a policy's call of this number in a record; nil for one that no
-- pass of a sane configuration has.
local CALLS = 1024

local function call_of(id, number)
    return number < CALLS and id * CALLS + number or nil
end


-- Of a request without redirects there is one pass: if it is not there any
-- more, the operator's Lua has replaced ngx.ctx.
local function same_pass(record)
    local pass = new_pass(record, false)
    for call in pairs(record) do
        if type(call) == "number" then
            local id = floor(call / CALLS)
            pass[id] = max(pass[id] or 0, call % CALLS)
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
        return pass.record, pass
    end

    local request = name()
    local record = records[request]
    if not record then
        record = new_table(3, 8)
        records[request] = record
        pass = new_pass(record, is_subrequest)
    elseif record.has_begun and not is_internal() then
        pass = same_pass(record)
    else
        pass = new_pass(record, is_subrequest)
    end
    if not is_subrequest then
        record.has_begun = true
    end
    ctx.weir = pass
    return record, pass
end


-- The record of this client request, or nil.
function _M.find()
    local pass = ngx.ctx.weir
    return pass and pass.record or records[name()]
end


-- Whether the policy's next call of this pass has been counted in another: true,
-- false, or "error_closed" if nobody could say. Where a subrequest beside this one
-- is being decided, what comes of it is waited for, up to `patience` seconds.
function _M.is_counted(record, pass, id, patience)
    local number = (pass[id] or 0) + 1
    local call = call_of(id, number)
    local pending = record.pending and record.pending[call]
    while pending do
        if pending.decided:wait(patience) then
            -- For the next that waits.
            pending.decided:post()
        end
        if pending.outcome == "error_closed" then
            pass[id] = number
            return "error_closed"
        elseif record.pending[call] == pending then
            return false
        end
        pending = record.pending[call]
    end
    if record[call] then
        pass[id] = number
        return true
    end
    return false
end


-- The policy is about to decide its next call. Returns what finish() needs.
function _M.begin(record, pass, id)
    local number = (pass[id] or 0) + 1
    pass[id] = number
    local call = call_of(id, number)
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
