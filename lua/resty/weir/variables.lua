-- The variables that access logs tell of decisions with. An operator who wants
-- one declares it: `set $weir_outcome "";`.

local ngx_var = ngx.var
local ipairs = ipairs
local pcall = pcall
local tostring = tostring


local _M = {}


local NAMES = { "weir_policy", "weir_outcome", "weir_remaining", "weir_source" }


-- The names that nginx.conf declares; nil before the first try.
local declared


local function value_of(noted, name)
    if name == "weir_policy" then
        return noted.policy
    elseif name == "weir_outcome" then
        return noted.outcome
    elseif name == "weir_remaining" then
        return noted.remaining and tostring(noted.remaining)
    end
    return noted.source
end


local function write(name, value)
    ngx_var[name] = value
end


-- Only nginx knows, and only writing tells: reading one that was not set yet is a
-- line in the log.
local function find_declared()
    declared = {}
    for _, name in ipairs(NAMES) do
        if pcall(write, name, "") then
            declared[#declared + 1] = name
        end
    end
end


-- Which of several policies a request is told of: one that refuses, then one
-- about which nobody could say, then the tightest; a dry run only where no
-- other decided.
local RANKS = { denied = 5, error_closed = 5, error_open = 4, allowed = 3, exempt = 1 }
local DRY_RUN = 2


-- Notes what a policy decided about the request of this record, if anybody wants to
-- know.
function _M.note(record, policy, outcome, remaining, source)
    if not declared then
        find_declared()
    end
    if #declared == 0 then
        return
    end
    local rank = policy.dry_run and outcome ~= "exempt" and DRY_RUN or RANKS[outcome]
    local noted = record.noted
    if noted and (rank < noted.rank
        or rank == noted.rank and (remaining or 0) >= (noted.remaining or 0)) then
        return
    end
    record.noted = { rank = rank, policy = policy.name, outcome = outcome,
        remaining = remaining, source = source }
end


-- Sets those that are declared. A redirect runs `set` again, so this is called
-- wherever the request may end.
function _M.set(record)
    local noted = record.noted
    if not noted then
        return
    end
    for i = 1, #declared do
        local name = declared[i]
        ngx_var[name] = value_of(noted, name) or ""
    end
end


return _M
