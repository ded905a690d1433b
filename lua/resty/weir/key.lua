-- Whom a request counts for. Reads nginx variables; how a key looks is
-- decided elsewhere.

local ngx_var = ngx.var
local concat = table.concat
local find = string.find
local pcall = pcall
local tostring = tostring
local type = type


local _M = {}


-- What `source` may say about a value: the index of the policy's key that gave
-- it, or one of these.
local GIVEN = 0
local ADDRESS = -1


-- The client of an address. Most are IPv4 and stand for themselves.
local function client(engine, policy, address)
    if policy.masks_v4 or find(address, ":", 1, true) then
        return engine:network(policy.rule, address)
    end
    return address
end


local function text_of(engine, policy, part)
    local text = part.literal or ngx_var[part.variable]
    if not text or text == "" then
        return nil
    elseif part.address then
        return client(engine, policy, text)
    end
    return text
end


-- The value of a template, or nil where one of its variables is empty: text
-- around an empty variable would be a bucket that strangers share.
local function render(engine, policy, parts)
    if #parts == 1 then
        return text_of(engine, policy, parts[1])
    end

    local texts = {}
    for i = 1, #parts do
        local text = text_of(engine, policy, parts[i])
        if not text then
            return nil
        end
        texts[i] = text
    end
    return concat(texts)
end


-- The values of templates that stand apart, or nil where one has none.
local function render_apart(engine, policy, templates)
    local values = {}
    for i = 1, #templates do
        local value = render(engine, policy, templates[i])
        if not value then
            return nil
        end
        values[i] = value
    end
    return values
end


local function value_of(engine, policy, source)
    if source.apart then
        return render_apart(engine, policy, source)
    end
    return render(engine, policy, source)
end


local function own_address(engine, policy)
    return ADDRESS, client(engine, policy, ngx_var.remote_addr)
end


local function given(engine, policy, value)
    if value == nil or value == "" then
        return own_address(engine, policy)
    elseif type(value) == "string" then
        return GIVEN, value
    elseif type(value) ~= "table" then
        return nil, "the key must be a string, a list of strings or nil, not a " .. type(value)
    end

    -- Copied: what is checked here must be what is used.
    local parts = {}
    for i = 1, #value do
        local part = value[i]
        if part == nil or part == "" then
            return own_address(engine, policy)
        elseif type(part) ~= "string" then
            return nil, "part " .. i .. " of the key must be a string, not a " .. type(part)
        end
        parts[i] = part
    end
    if #parts == 0 then
        return own_address(engine, policy)
    end
    return GIVEN, parts
end


-- source, value: whom this request counts for under the policy, value being a
-- string or a list of them; or nil, error. `override` is a key given for this
-- request.
function _M.of(engine, policy, override)
    if override ~= nil then
        return given(engine, policy, override)
    end

    if policy.key_function then
        local ok, value = pcall(policy.key_function)
        if not ok then
            return nil, "the key function raised: " .. tostring(value)
        end
        return given(engine, policy, value)
    end

    -- Few have more than two, and a loop of two turns is none to LuaJIT: see
    -- weir/calls.lua.
    local sources = policy.key
    local value = value_of(engine, policy, sources[1])
    if value then
        return 1, value
    end
    if sources[2] then
        value = value_of(engine, policy, sources[2])
        if value then
            return 2, value
        end
    end
    for i = 3, #sources do
        value = value_of(engine, policy, sources[i])
        if value then
            return i, value
        end
    end
    return own_address(engine, policy)
end


-- Whether the policy passes this request over; or nil, error.
function _M.is_exempt(engine, policy)
    local exempt = policy.exempt
    if exempt.methods[ngx_var.request_method]
        or exempt.networks and engine:exempts(policy.rule, ngx_var.remote_addr) then
        return true
    elseif not policy.exempt_function then
        return false
    end
    local ok, is_exempt = pcall(policy.exempt_function)
    if not ok then
        return nil, "the exempt function raised: " .. tostring(is_exempt)
    end
    return is_exempt
end


return _M
