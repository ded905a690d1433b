//! What stands between Lua's calls and a fault.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call on what stands at an address. Returns `fault` where nothing does, and
/// where the call panics: that must not reach LuaJIT, which cannot unwind.
///
/// # Safety
///
/// The address is null, or that of a value which nobody changes meanwhile but through
/// its own cells.
pub(crate) unsafe fn call<T>(at: *const T, fault: i32, run: impl FnOnce(&T) -> i32) -> i32 {
    // SAFETY: the caller's promise.
    let Some(value) = (unsafe { at.as_ref() }) else { return fault };
    catch_unwind(AssertUnwindSafe(|| run(value))).unwrap_or(fault)
}
