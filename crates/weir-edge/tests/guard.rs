//! What stands between Lua's calls and a fault. (The library itself can be tested only
//! where Lua is.)

#[path = "../src/guard.rs"]
mod guard;

const FAULT: i32 = -3;

#[test]
fn a_call_returns_what_it_says() {
    let value = 7;
    // SAFETY: the value outlives the call.
    assert_eq!(unsafe { guard::call(&raw const value, FAULT, |value| *value) }, 7);
}

#[test]
fn a_panic_ends_there() {
    let value = 7;
    // SAFETY: the value outlives the call.
    let ended = unsafe { guard::call(&raw const value, FAULT, |_| panic!("of the test")) };
    assert_eq!(ended, FAULT);
}

#[test]
fn nothing_runs_where_nothing_is() {
    // SAFETY: it is null.
    let ended = unsafe { guard::call(std::ptr::null::<i32>(), FAULT, |_| panic!("it ran")) };
    assert_eq!(ended, FAULT);
}
