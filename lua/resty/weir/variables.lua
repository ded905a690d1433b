-- The variables that access logs tell of decisions with. An operator who wants
-- one declares it: `set $weir_outcome "";`.

local ngx_var = ngx.var
local ipairs = ipairs
local pcall = pcall
local tostring = tostring


local _M = {}


-- In the order of the record's fields in `value_of`.
local NAMES = { "weir_policy", "weir_outcome", "weir_remaining", "weir_source" }


-- The names that nginx.conf declares; nil before the first try.
local declared


local function value_of(record, name)
    if name == "weir_policy" then
        return record.policy
    elseif name == "weir_outcome" then
        return record.outcome
    elseif name == "weir_remaining" then
        return record.remaining and tostring(record.remaining)
    end
    return record.source
end


local function write(name, value)
    ngx_var[name] = value
end


-- Which of several policies a request is told of: one that refuses, then one
-- about which nobody could say, then the tightest; a dry run only where no
-- other decided.
local RANKS = { denied = 5, error_closed = 5, error_open = 4, allowed = 3, exempt = 1 }
local DRY_RUN = 2


-- Notes what a policy decided about the request of this record.
function _M.note(record, policy, outcome, remaining, source)
    local rank = policy.dry_run and outcome ~= "exempt" and DRY_RUN or RANKS[outcome]
    local noted = record.rank
    if noted and (rank < noted
        or rank == noted and (remaining or 0) >= (record.remaining or 0)) then
        return
    end
    record.rank, record.policy, record.outcome = rank, policy.name, outcome
    record.remaining, record.source = remaining, source
end


-- Sets those that are declared. A redirect runs `set` again, so this is called
-- wherever the request may end.
function _M.set(record)
    if not record.outcome then
        return
    end
    if not declared then
        -- Only nginx knows, and only writing tells: reading one that was not
        -- set yet is a line in the log.
        declared = {}
        for _, name in ipairs(NAMES) do
            if pcall(write, name, "") then
                declared[#declared + 1] = name
            end
        end
    end
    for i = 1, #declared do
        local name = declared[i]
        ngx_var[name] = value_of(record, name) or ""
    end
end


return _M
