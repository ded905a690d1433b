//! What a decision costs outside of Redis, step by step: time, and how often and
//! how much memory is allocated.
//!
//! The library is made for a Lua that loads it, so no other crate can link it. Here
//! its modules are compiled a second time, beside a LuaJIT of their own: `submit` and
//! `next` are called by Lua as in nginx, and answered by a real Redis through the
//! real I/O thread.
//!
//! Allocations are counted for the thread that makes them; growing one counts as
//! another of the whole size. LuaJIT's own memory is not among them. The counting
//! itself is in the times, a few nanoseconds for each. Compare rows of one run;
//! machines are noisy.

#[path = "../../src/asking.rs"]
mod asking;
#[path = "../../src/bell.rs"]
mod bell;
#[path = "../../src/calls.rs"]
mod calls;
#[path = "../../src/engine.rs"]
mod engine;
#[path = "../../src/guard.rs"]
mod guard;
#[path = "../../src/host.rs"]
mod host;
#[path = "../../src/lua_config.rs"]
mod lua_config;
#[path = "../../src/metrics.rs"]
mod metrics;
#[path = "../../src/policies.rs"]
mod policies;
#[path = "../../src/request.rs"]
mod request;
#[path = "../../src/secrets.rs"]
mod secrets;
#[path = "../../src/settling.rs"]
mod settling;
#[path = "../../src/sys.rs"]
mod sys;
#[path = "../../src/telling.rs"]
mod telling;
#[path = "../../src/worker.rs"]
mod worker;

mod steps;
mod table;
mod thread;
mod worker_side;

use std::time::Duration;

use criterion::Criterion;

use table::Table;

/// How many requests leave and come back together.
const BATCHES: [usize; 2] = [1, 64];

fn main() {
    let mut criterion = Criterion::default()
        .configure_from_args()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500));
    let mut table = Table::default();
    worker_side::measure(&mut criterion, &mut table);
    steps::measure(&mut criterion, &mut table);
    thread::measure(&mut criterion, &mut table);
    criterion.final_summary();
    table.print();
}
