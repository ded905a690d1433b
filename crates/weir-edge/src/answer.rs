//! A decision as Lua takes it.

use mlua::prelude::*;
use weir_core::decision::{Standing, Verdict, Wait};
use weir_core::fields::{self, Presenter};
use weir_redis::{Answer, Decided};

/// What is to be told of a decision.
pub(crate) enum Form {
    /// For an answer to a client: its headers, which may tell the partition key.
    Headers {
        /// The partition key, if the headers tell it.
        partition_key: Vec<u8>,
    },
    /// For the operator's Lua: every number.
    Table,
}

impl Default for Form {
    fn default() -> Self {
        Self::Headers { partition_key: Vec::new() }
    }
}

impl Form {
    /// Whether it is the one by default.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Headers { partition_key } if partition_key.is_empty())
    }
}

/// An answer of the I/O thread as Lua takes it: `ticket, nil, reason` where there
/// is no decision, else `ticket` and what [`Told`] says.
pub(crate) struct LuaAnswer<'a> {
    pub(crate) answer: Answer,
    pub(crate) presenter: &'a Presenter,
    pub(crate) form: Form,
}

/// A decision as Lua takes it:
/// `allowed, at, remaining, retry_after, violated, ...`.
///
/// `at` is when it was decided, in microseconds since the epoch; `remaining` the
/// units left of the tightest limit; `retry_after` in whole seconds, as text, nil
/// if there is none; `violated` the names of the limits without room, between
/// commas, nil if all had. Behind them stand the values of the policy's headers in
/// their order, nil for one that is not sent; or, of [`Form::Table`], a table: of
/// the tightest limit `name`, `limit`, `remaining`, `retry_after` (nil if there is
/// none) and `reset`, times in seconds, the same of each in `limits`, and
/// `allowed`.
pub(crate) struct Told<'a> {
    pub(crate) decided: Decided,
    pub(crate) presenter: &'a Presenter,
    pub(crate) form: Form,
}

impl IntoLuaMulti for LuaAnswer<'_> {
    fn into_lua_multi(self, lua: &Lua) -> LuaResult<LuaMultiValue> {
        let Self { answer: Answer { ticket, outcome, .. }, presenter, form } = self;
        let decided = match outcome {
            Ok(decided) => decided,
            Err(failure) => return (ticket, LuaNil, failure.word()).into_lua_multi(lua),
        };
        if decided.verdict.limits.is_empty() {
            // A policy has limits, so a verdict has too; but an answer that
            // says nothing must not become a decision.
            return (ticket, LuaNil, "malformed_reply").into_lua_multi(lua);
        }
        let mut told = Told { decided, presenter, form }.into_lua_multi(lua)?;
        told.push_front(ticket.into_lua(lua)?);
        Ok(told)
    }
}

impl IntoLuaMulti for Told<'_> {
    fn into_lua_multi(self, lua: &Lua) -> LuaResult<LuaMultiValue> {
        let Self { decided: Decided { at, verdict }, presenter, form } = self;
        let tightest = verdict.tightest_index().unwrap_or_default();
        let remaining = verdict.tightest().map_or(0, |standing| standing.remaining);
        let values = match form {
            Form::Headers { partition_key } => {
                let values = presenter.values(&verdict, &partition_key).into_iter();
                values.map(|value| value.into_lua(lua)).collect::<LuaResult<_>>()?
            }
            Form::Table => {
                vec![to_table(lua, presenter, &verdict, tightest)?.into_lua(lua)?]
            }
        };
        (
            verdict.allowed,
            at.as_micros(),
            remaining,
            fields::retry_after(&verdict).map(|wait| wait.to_string()),
            (!verdict.allowed).then(|| presenter.violated(&verdict).collect::<Vec<_>>().join(",")),
            LuaVariadic::from_iter(values),
        )
            .into_lua_multi(lua)
    }
}

fn to_table(
    lua: &Lua,
    presenter: &Presenter,
    verdict: &Verdict,
    tightest: usize,
) -> LuaResult<LuaTable> {
    let standing = |index: usize| {
        let name = presenter.limit_names().nth(index).unwrap_or_default();
        standing_to_table(lua, name, &verdict.limits[index])
    };
    let limits = lua.create_table()?;
    for index in 0..verdict.limits.len() {
        limits.push(standing(index)?)?;
    }
    let table = standing(tightest)?;
    table.set("allowed", verdict.allowed)?;
    table.set("limits", limits)?;
    Ok(table)
}

fn standing_to_table(lua: &Lua, name: &str, standing: &Standing) -> LuaResult<LuaTable> {
    let table = lua.create_table()?;
    table.set("name", name)?;
    table.set("limit", standing.limit)?;
    table.set("remaining", standing.remaining)?;
    if let Wait::For(wait) = standing.wait {
        table.set("retry_after", wait.as_secs_f64())?;
    }
    table.set("reset", standing.reset.as_secs_f64())?;
    Ok(table)
}
