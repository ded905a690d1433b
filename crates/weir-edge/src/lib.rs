//! The Lua module `weir_edge`: what `lua/resty/weir.lua` stands on.
//!
//! Every function is called on the nginx worker's only thread and returns at
//! once. What can fail at run time is a return value (`nil, reason`); a Lua
//! error is left to misuse.

mod asking;
mod bell;
mod calls;
mod engine;
mod guard;
mod host;
mod lua_config;
mod metrics;
mod policies;
mod request;
mod secrets;
mod settling;
mod sys;
mod telling;
mod worker;

use mlua::prelude::*;

use engine::Handle;

/// `setup(config)`: `engine`, or `nil, error` for a configuration that is
/// wrong, the error being one line that names the field.
fn setup(_: &Lua, config: LuaValue) -> LuaResult<(Option<Handle>, Option<String>)> {
    Ok(match Handle::new(config) {
        Ok(engine) => (Some(engine), None),
        Err(error) => (None, Some(error.to_string())),
    })
}

#[mlua::lua_module]
fn weir_edge(lua: &Lua) -> LuaResult<LuaTable> {
    let module = lua.create_table()?;
    module.set("version", env!("CARGO_PKG_VERSION"))?;
    module.set("setup", lua.create_function(setup)?)?;
    Ok(module)
}
