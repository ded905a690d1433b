//! What Lua asks for, and how it is answered.

use mlua::BString;
use mlua::prelude::*;
use weir_core::rate::MAX_LIMIT;
use weir_core::refusal::{Media, Reason, Refusal};
use weir_redis::Source;

use crate::answer::Told;

/// How a request goes on.
pub(crate) enum Reply<'a> {
    /// Its answer comes under this ticket.
    Sent(u64),
    /// It was decided at once, by this word.
    Decided(&'static str, Told<'a>),
    /// It cannot be decided, by this word, with more to say to the log.
    Failed(&'static str, Option<String>),
}

impl IntoLuaMulti for Reply<'_> {
    fn into_lua_multi(self, lua: &Lua) -> LuaResult<LuaMultiValue> {
        match self {
            Reply::Sent(ticket) => ticket.into_lua_multi(lua),
            Reply::Decided(word, told) => {
                let mut values = told.into_lua_multi(lua)?;
                values.push_front(word.into_lua(lua)?);
                values.push_front(LuaValue::Boolean(true));
                Ok(values)
            }
            Reply::Failed(word, detail) => (LuaNil, word, detail).into_lua_multi(lua),
        }
    }
}

/// A request as Lua asks for it: `rule, source, value, cost, in_full`.
///
/// `rule` is an index of [`crate::policies::rules`]. `source` is the index of the policy's
/// key that gave the value, from 1; 0 for a key given by the caller, -1 for the
/// client's address. `value` is a string, or a list of them for a key of several
/// parts. `cost` is what the caller wrote, nil for 1. `in_full` asks for
/// [`crate::answer::Form::Table`].
pub(crate) type Request = (usize, i64, LuaValue, LuaValue, bool);

/// See [`Request`].
pub(crate) fn source_of(index: i64) -> Source {
    match index {
        0 => Source::Given,
        1.. => Source::Template(index as usize - 1),
        _ => Source::Address,
    }
}

/// A cost as the operator's Lua gave it, in units.
pub(crate) fn units(cost: &LuaValue) -> Result<u64, String> {
    let number = match cost {
        LuaValue::Nil => return Ok(1),
        LuaValue::Integer(number) => *number as f64,
        LuaValue::Number(number) => *number,
        other => return Err(format!("the cost must be a number, not a {}", other.type_name())),
    };
    if number > MAX_LIMIT as f64 {
        // More than any limit can be: it is refused as what never fits.
        return Ok(MAX_LIMIT);
    }
    if number.fract() != 0.0 || number.is_nan() || number < 0.0 {
        let shown = match number.abs() {
            0.0..1e17 => number.to_string(),
            _ => format!("{number:e}"),
        };
        return Err(format!("the cost must be a whole number from 0 to {MAX_LIMIT}, not {shown}"));
    }
    Ok(number as u64)
}

/// `refusal(accept, is_error, status, retry_after, violated)`: `Content-Type` and
/// body of an answer in place of the upstream's; `is_error` for one under
/// `on_error`. `violated` as [`LuaAnswer`] told it.
pub(crate) fn refusal_of(
    (accept, is_error, status, retry_after, violated): (
        Option<BString>,
        bool,
        u16,
        Option<String>,
        Option<String>,
    ),
) -> (&'static str, String) {
    let accept = accept.as_ref().and_then(|accept| std::str::from_utf8(accept).ok());
    let media = Media::preferred(accept);
    let violated: Vec<&str> = violated.iter().flat_map(|names| names.split(',')).collect();
    let refusal = Refusal {
        reason: if is_error { Reason::ReducedCapacity } else { Reason::QuotaExceeded },
        status,
        violated: &violated,
        retry_after: retry_after.as_deref(),
    };
    (media.content_type(), refusal.body(media))
}
