-- What is charged and given back after the decision: costs known only
-- afterwards, and charges that the answer's status takes back. Nothing here
-- waits, so it works in every phase of a request.

local journal = require "resty.weir.journal"
local pump = require "resty.weir.pump"
local request = require "resty.weir.request"

local get_phase = ngx.get_phase
local min = math.min
local tostring = tostring
local type = type


local _M = {}


local MAX_UNITS = 9007199254740991

local NO_REQUEST = { init = true, init_worker = true, timer = true }

-- How many charges may wait for their log phase before the first has come.
local PATIENCE = 100


-- Whether this worker has ever run log(), and how many charges have waited for
-- it until then.
local has_log_phase = false
local waiting = 0


-- Notes an admitted decision: `units` of it can be given back.
function _M.note(policy, record, decision)
    decision.policy = policy
    if record.charge then
        decision.before = record.charge
    end
    record.charge = decision
    if policy.charge and not has_log_phase then
        waiting = waiting + 1
        if waiting > PATIENCE then
            journal.never_given_back(policy, waiting)
        end
    end
end


-- Tells of a refusal under this policy: it may be for want of a log phase.
function _M.refused(policy)
    if policy.charge and not has_log_phase and waiting > 0 then
        journal.never_given_back(policy, waiting)
    end
end


local function send(engine, decision, units, charged_at)
    local value = decision.value
    if type(value) == "table" then
        engine:hold(value)
        value = nil
    end
    local ok, reason, is_done =
        engine:settle(decision.rule, decision.source, value, units, charged_at, decision.origin)
    pump.sent(ok, is_done)
    if not ok then
        -- That Redis is away is told once for all.
        if reason ~= "unreachable" then
            journal.bad_settlement(decision.policy, units .. " units: " .. reason)
        end
        return nil, reason
    end
    return units
end


local function give_back(engine, decision, units)
    units = min(units, decision.units)
    if units == 0 then
        return 0
    end
    decision.units = decision.units - units
    return send(engine, decision, units, decision.at)
end


-- nginx's statuses of requests that got no answer. Whether they would have been
-- given back nobody knows, and a guesser could hang up before being told.
local UNANSWERED = { [408] = true, [444] = true, [499] = true }

-- What becomes of a 200 for a client whose headers ask for it (If-Match, Range), when the
-- work is done: who writes them has nothing back.
local MADE_OF_200 = { [206] = true, [412] = true, [416] = true }


-- At the end of the request: gives back what its status takes back.
function _M.finish(engine, record, status)
    has_log_phase = true
    if UNANSWERED[status] then
        return
    end
    local decision = record.charge
    while decision do
        local charge = decision.policy.charge
        if charge and not charge[status] and not (MADE_OF_200[status] and charge[200]) then
            give_back(engine, decision, decision.units)
        end
        decision = decision.before
    end
end


-- The last admitted decision of this request, under the policy if one is given;
-- nil where there is no request.
local function decision_of(policy)
    if NO_REQUEST[get_phase()] then
        return nil
    end
    local record = request.find()
    local decision = record and record.charge
    while decision and policy and decision.policy ~= policy do
        decision = decision.before
    end
    return decision
end


local function problem_of(units)
    if type(units) == "number" then
        if units % 1 == 0 and units >= 0 and units <= MAX_UNITS then
            return nil
        end
        units = tostring(units)
    else
        units = "a " .. type(units)
    end
    return "the units must be a whole number from 0 to 9007199254740991, not " .. units
end


-- The decision that so many units are to be settled of; or nil and the reason,
-- which is `nothing` if there is no such decision.
local function find(units, policy, nothing)
    local decision = decision_of(policy)
    policy = policy or decision and decision.policy
    local problem = problem_of(units)
    if not problem then
        return decision, nothing
    elseif policy then
        journal.bad_settlement(policy, problem)
    end
    return nil, problem
end


-- Gives back up to `units` of what this request was charged, the last charge
-- first. Returns how many, or nil and the reason.
function _M.refund(engine, units, policy)
    local decision, problem = find(units, policy, "nothing was charged")
    if not decision then
        return nil, problem
    end

    local given_back = 0
    policy = decision.policy
    while decision and given_back < units do
        if decision.policy == policy then
            local part, reason = give_back(engine, decision, units - given_back)
            if not part then
                return nil, reason
            end
            given_back = given_back + part
        end
        decision = decision.before
    end
    return given_back
end


-- Charges `units` more to whom this request was charged, whether there is room
-- or not. Returns them, or nil and the reason.
function _M.charge(engine, units, policy)
    local decision, problem = find(units, policy, "nothing was decided")
    if not decision then
        return nil, problem
    elseif units == 0 then
        return 0
    end
    return send(engine, decision, units)
end


return _M
