-- Whom a request counts for. Reads nginx variables; how a key looks is
-- decided elsewhere.

local ngx_var = ngx.var
local concat = table.concat
local pcall = pcall
local tostring = tostring
local type = type


local _M = {}


-- What `source` may say about a value: the index of the template that gave
-- it, or one of these.
local GIVEN = 0
local ADDRESS = -1


-- The value of a template, or nil where one of its variables is empty: text
-- around an empty variable would be a bucket that strangers share.
local function render(parts)
    if #parts == 1 and parts[1].variable then
        local value = ngx_var[parts[1].variable]
        return value ~= "" and value or nil
    end

    local texts = {}
    for i = 1, #parts do
        local part = parts[i]
        local text = part.literal or ngx_var[part.variable]
        if not text or text == "" then
            return nil
        end
        texts[i] = text
    end
    return concat(texts)
end


local function given(value)
    if value == nil or value == "" then
        return ADDRESS, ngx_var.remote_addr
    end
    if type(value) ~= "string" then
        return nil, "the key must be a string or nil, not a " .. type(value)
    end
    return GIVEN, value
end


-- source, value: whom this request counts for under the policy; or nil, error.
-- `override` is a key given for this request.
function _M.of(policy, override)
    if override ~= nil then
        return given(override)
    end

    if policy.key_function then
        local ok, value = pcall(policy.key_function)
        if not ok then
            return nil, "the key function raised: " .. tostring(value)
        end
        return given(value)
    end

    local templates = policy.key
    for i = 1, #templates do
        local value = render(templates[i])
        if value then
            return i, value
        end
    end
    return ADDRESS, ngx_var.remote_addr
end


return _M
