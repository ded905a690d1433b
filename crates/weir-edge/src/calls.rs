//! What Lua calls for each request: plain C functions, which LuaJIT compiles into
//! its traces as it does nginx's own.
//!
//! A call of a Lua function that is written in C or Rust ends a trace, and costs the
//! caller more than a decision does. All else goes through mlua. Every call is made
//! on the nginx worker's thread, by `lua/resty/weir/calls.lua` alone, which holds
//! the engine as long as it calls.

use std::ffi::{c_char, c_void};
use std::slice;

use mlua::LightUserData;
use mlua::prelude::*;

use crate::asking::{Asked, Reply, Request};
use crate::engine::Engine;
use crate::guard;
use crate::metrics::{self, Recorded};
use crate::telling::Telling;

/// How a call has ended.
mod end {
    /// The answer comes under the ticket that was told.
    pub(super) const SENT: i32 = 1;
    /// It was decided, and that is told.
    pub(super) const DECIDED: i32 = 0;
    /// There is no decision, and why is told.
    pub(super) const FAILED: i32 = -1;
    /// There is nothing.
    pub(super) const NOTHING: i32 = -2;
    /// A panic, and what it has done is unknown; or there is no engine.
    pub(super) const FAULT: i32 = -3;
}

/// What `calls()` returns: `engine`, `told` and each function by its address, with
/// their declarations in C, for LuaJIT's `ffi.cast`.
pub(crate) fn to_lua(lua: &Lua, engine: &Engine) -> LuaResult<LuaTable> {
    let calls = lua.create_table()?;
    let add = |name: &str, declaration: &str, address: *const c_void| {
        let call = lua.create_table()?;
        call.set("declaration", declaration)?;
        call.set("address", LightUserData(address.cast_mut()))?;
        calls.set(name, call)
    };
    add("engine", "void *", std::ptr::from_ref(engine).cast())?;
    let told = format!("const {} *", Telling::DECLARATION);
    add("told", &told, engine.telling.borrow().address())?;
    add("clock", "double (*)(void)", clock as *const c_void)?;
    add(
        "ask",
        "int32_t (*)(const void *engine, int32_t asked, uint32_t rule, int32_t source, \
         const char *value, size_t length, double cost)",
        ask as *const c_void,
    )?;
    add("next", "int32_t (*)(const void *engine)", next as *const c_void)?;
    add("clear", "int32_t (*)(const void *engine)", clear as *const c_void)?;
    add("flush", "int32_t (*)(const void *engine)", flush as *const c_void)?;
    add("line", "int32_t (*)(const void *engine)", line as *const c_void)?;
    add(
        "record",
        "void (*)(const void *engine, uint32_t policy, int32_t outcome, int32_t source, \
         double started, double wait, int32_t reason)",
        record as *const c_void,
    )?;
    add(
        "refusal",
        "int32_t (*)(const void *engine, const char *accept, size_t accept_length, \
         bool is_error, int32_t status, const char *retry_after, size_t retry_after_length, \
         const char *violated, size_t violated_length)",
        refusal as *const c_void,
    )?;
    Ok(calls)
}

/// Seconds since some moment, by a clock that never steps back.
extern "C" fn clock() -> f64 {
    metrics::clock()
}

/// Asks for a decision: of any, of what is remembered, of the share. The value is
/// null for the parts that were held.
extern "C" fn ask(
    engine: *const Engine,
    asked: i32,
    rule: u32,
    source: i32,
    value: *const c_char,
    length: usize,
    cost: f64,
) -> i32 {
    guarded(engine, |engine| {
        let asked = match asked {
            0 => Asked::Any,
            1 => Asked::Remembered,
            _ => Asked::Share,
        };
        let request = Request {
            rule: rule as usize,
            source: i64::from(source),
            // SAFETY: Lua's string, which it keeps during the call.
            value: unsafe { bytes(value, length) },
            cost,
        };
        code_of(engine.ask(asked, request))
    })
}

/// Takes the next answer that has come.
extern "C" fn next(engine: *const Engine) -> i32 {
    guarded(engine, |engine| engine.next().map_or(end::NOTHING, code_of))
}

/// Before looking for answers.
extern "C" fn clear(engine: *const Engine) -> i32 {
    guarded(engine, |engine| {
        engine.clear();
        end::NOTHING
    })
}

/// Has what was asked leave for the I/O thread.
extern "C" fn flush(engine: *const Engine) -> i32 {
    guarded(engine, |engine| {
        engine.flush();
        end::NOTHING
    })
}

/// Takes the next line for the error log.
extern "C" fn line(engine: *const Engine) -> i32 {
    guarded(engine, |engine| engine.next_line().map_or(end::NOTHING, code_of))
}

/// Counts a decision under the policy of this number, from 1: the outcome, the
/// source and the reason as `labels()` numbers them, -1 for none; begun at `started`
/// by the clock, -1 where nobody was asked; the wait that was told, in seconds, -1
/// for none.
extern "C" fn record(
    engine: *const Engine,
    policy: u32,
    outcome: i32,
    source: i32,
    started: f64,
    wait: f64,
    reason: i32,
) {
    guarded(engine, |engine| {
        let index = |number: i32| usize::try_from(number).ok();
        let seconds = |number: f64| (number >= 0.0).then_some(number);
        engine.metrics.record(Recorded {
            policy: (policy as usize).wrapping_sub(1),
            outcome: index(outcome),
            source: index(source),
            started: seconds(started),
            wait: seconds(wait),
            reason: index(reason),
        });
        end::NOTHING
    });
}

/// Tells `Content-Type` and body of an answer in place of the upstream's; `is_error`
/// for one under `on_error`. Each text may be null for none.
extern "C" fn refusal(
    engine: *const Engine,
    accept: *const c_char,
    accept_length: usize,
    is_error: bool,
    status: i32,
    retry_after: *const c_char,
    retry_after_length: usize,
    violated: *const c_char,
    violated_length: usize,
) -> i32 {
    guarded(engine, |engine| {
        // SAFETY: Lua's strings, which it keeps during the call.
        let [accept, retry_after, violated] = unsafe {
            [
                bytes(accept, accept_length),
                bytes(retry_after, retry_after_length),
                bytes(violated, violated_length),
            ]
        }
        .map(|text| text.and_then(|text| std::str::from_utf8(text).ok()));
        engine.tell_refusal(accept, is_error, status as u16, retry_after, violated);
        end::DECIDED
    })
}

/// # Safety
///
/// What is not null must be so many bytes that stay as they are for `'a`.
unsafe fn bytes<'a>(text: *const c_char, length: usize) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { slice::from_raw_parts(text.cast(), length) })
}

/// Runs a call. A null engine is one that is gone: at the end of its VM, Lua's
/// finalizers may call still.
fn guarded(engine: *const Engine, run: impl FnOnce(&Engine) -> i32) -> i32 {
    // SAFETY: null, or the address that `calls()` gave, of an engine that Lua holds: it
    // is shared with nobody but other calls on this thread, and they borrow it too.
    unsafe { guard::call(engine, end::FAULT, run) }
}

fn code_of(reply: Reply) -> i32 {
    match reply {
        Reply::Sent => end::SENT,
        Reply::Decided => end::DECIDED,
        Reply::Failed => end::FAILED,
    }
}
