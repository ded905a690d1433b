//! What the worker's thread does, called by Lua: `submit`, and what the pump does
//! once it is woken.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use mlua::prelude::*;
use weir_tests::{Redis, wait_until};

use crate::engine::Handle;
use crate::steps::address;
use crate::table::{Step, Table};

/// How many requests wait while Redis does not answer.
const QUEUED: usize = 64;

/// How many times allocations are counted.
const COUNTED: u64 = 16;

/// Long enough for the I/O thread to go to sleep.
const LULL: Duration = Duration::from_millis(1);

/// The time within Lua, as what a call from here costs is not nginx's.
const SCRIPT: &str = r#"
    local calls, engine, values = ...
    local rule = engine:policies().api.rule
    local ask, clock, flush = calls.ask, calls.clock, calls.flush
    calls.configure(engine)

    local function submit(count)
        local begun = clock()
        for i = 1, count do
            local decision, reason = ask(calls.ANY, rule, 1, values[i])
            if decision ~= false then
                error(reason or "decided at once")
            end
        end
        flush()
        return clock() - begun
    end

    local function settle_next()
        local ticket, is_decided = calls.next()
        return ticket, is_decided and calls.decision_that_came()
    end

    local function drain()
        local admitted = 0
        local begun = clock()
        calls.clear()
        local ticket, decision = settle_next()
        while ticket do
            if decision and not decision.denied then
                admitted = admitted + 1
            end
            ticket, decision = settle_next()
        end
        return clock() - begun, admitted
    end

    local function nothing()
        local begun = clock()
        return clock() - begun
    end

    local function queued()
        return engine:stats().queued
    end

    return submit, drain, nothing, queued
"#;

/// What nginx's Lua calls the engine by.
const CALLS: &str = include_str!("../../../../lua/resty/weir/calls.lua");

/// An engine in a Lua of its own, with a pump that is called by hand.
struct Worker {
    submit: LuaFunction,
    drain: LuaFunction,
    nothing: LuaFunction,
    queued: LuaFunction,
    bell: UnixStream,
    /// What the clock itself costs.
    clock: Duration,
    /// Asked, and not yet drained.
    under_way: usize,
    _lua: Lua,
}

impl Worker {
    fn start(redis: &Redis) -> LuaResult<Self> {
        // SAFETY: all that is loaded is ours, and calls.lua needs LuaJIT's ffi.
        let lua = unsafe { Lua::unsafe_new() };
        let config = format!(
            "return {{ redis = {{ url = '{}', timeout = '60s' }}, policies = {{ api = {{ \
             key = '$remote_addr', limit = '1000000/1m', algorithm = 'sliding-counter' }} }} }}",
            redis.url()
        );
        let config: LuaValue = lua.load(config).eval()?;
        let engine = lua.create_userdata(Handle::new(config).into_lua_err()?)?;
        let calls: LuaTable = lua.load(CALLS).call(())?;
        let values: Vec<String> = (0..QUEUED).map(address).collect();
        let (submit, drain, nothing, queued) =
            lua.load(SCRIPT).call((calls, engine.clone(), values))?;
        engine.call_method::<()>("start", ())?;
        let path: String = engine.call_method("meet", ())?;
        let bell = UnixStream::connect(path)?;
        engine.call_method::<()>("met", ())?;
        let clock = Duration::ZERO;
        let mut worker =
            Self { submit, drain, nothing, queued, bell, clock, under_way: 0, _lua: lua };
        let mut reads: Vec<f64> =
            (0..999).map(|_| worker.nothing.call(())).collect::<LuaResult<_>>()?;
        reads.sort_by(f64::total_cmp);
        worker.clock = Duration::from_secs_f64(reads[reads.len() / 2]);
        // The first answer means that Redis is connected to, and has the script.
        worker.submit(1);
        worker.drain_all();
        Ok(worker)
    }

    fn submit(&mut self, count: usize) -> Duration {
        let took: f64 = self.submit.call(count).expect("queued");
        self.under_way += count;
        Duration::from_secs_f64(took).saturating_sub(self.clock)
    }

    /// Takes what has come: how many, and how long it took.
    fn drain(&mut self) -> (usize, Duration) {
        let (took, count): (f64, usize) = self.drain.call(()).expect("drained");
        self.under_way -= count;
        (count, Duration::from_secs_f64(took).saturating_sub(self.clock))
    }

    fn drain_all(&mut self) {
        while self.under_way > 0 {
            self.wait();
            self.drain();
        }
    }

    /// As the pump does.
    fn wait(&mut self) {
        let bytes = self.bell.read(&mut [0; 64]).expect("a byte, in time");
        assert!(bytes > 0, "the I/O thread has ended");
    }

    fn queued(&self) -> usize {
        self.queued.call(()).expect("a number")
    }

    /// Submits until every place is taken that the thread has, so that it takes no
    /// more from the queue.
    fn fill(&mut self) {
        wait_until("the thread takes no more", Duration::from_secs(10), || {
            self.submit(1);
            std::thread::sleep(LULL);
            self.queued() > 0
        });
    }
}

pub(crate) fn measure(criterion: &mut Criterion, table: &mut Table) {
    let redis = Redis::start();
    let mut worker = Worker::start(&redis).expect("Lua goes on");
    alone(criterion, table, &mut worker);
    together(criterion, table, &mut worker, &redis);
}

/// One at a time: each wakes the thread, and is woken for.
fn alone(criterion: &mut Criterion, table: &mut Table, worker: &mut Worker) {
    let (submit, drain) = (("worker: submit, the thread asleep", 1), ("worker: drain", 1));
    bench(criterion, ("worker: submit and drain", 1), |iterations| {
        let (mut submits, mut drains) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..iterations {
            std::thread::sleep(LULL);
            submits += worker.submit(1);
            while worker.under_way > 0 {
                worker.wait();
                let (count, took) = worker.drain();
                // Woken by the heartbeat, it finds nothing.
                drains += if count > 0 { took } else { Duration::ZERO };
            }
        }
        table.time(submit, iterations, submits);
        table.time(drain, iterations, drains);
        submits + drains
    });
    for _ in 0..COUNTED {
        std::thread::sleep(LULL);
        let counted = allocation_counter::measure(|| {
            worker.submit(1);
        });
        table.count(submit, 1, &counted);
        while worker.under_way > 0 {
            worker.wait();
            let mut drained = 0;
            let counted = allocation_counter::measure(|| drained = worker.drain().0);
            if drained > 0 {
                table.count(drain, 1, &counted);
            }
        }
    }
}

/// Many while Redis does not answer, and all their answers at once.
fn together(criterion: &mut Criterion, table: &mut Table, worker: &mut Worker, redis: &Redis) {
    let (submit, drain) = (("worker: submit, the thread busy", QUEUED), ("worker: drain", QUEUED));
    let round = |table: &mut Table, worker: &mut Worker, counts: bool| {
        redis.freeze();
        worker.fill();
        let mut submitted = Duration::ZERO;
        let counted = allocation_counter::measure(|| submitted = worker.submit(QUEUED));
        redis.thaw();
        // Answers come in two or more batches, and are to be there together.
        std::thread::sleep(5 * LULL);
        let mut drained = (0, Duration::ZERO);
        let drain_counted = allocation_counter::measure(|| drained = worker.drain());
        worker.drain_all();
        match counts {
            true => table.count(submit, QUEUED as u64, &counted),
            false => table.time(submit, QUEUED as u64, submitted),
        }
        // On a busy machine only some had come.
        if drained.0 >= QUEUED {
            let count = drained.0 as u64;
            match counts {
                true => table.count(drain, count, &drain_counted),
                false => table.time(drain, count, drained.1),
            }
        }
        submitted + drained.1
    };
    bench(criterion, ("worker: submit and drain", QUEUED), |iterations| {
        (0..iterations).map(|_| round(table, worker, false)).sum()
    });
    (0..COUNTED).for_each(|_| {
        round(table, worker, true);
    });
}

fn bench(criterion: &mut Criterion, step: Step, mut run: impl FnMut(u64) -> Duration) {
    let mut group = criterion.benchmark_group("decision");
    group.throughput(Throughput::Elements(step.1 as u64));
    group.bench_function(BenchmarkId::new(step.0, step.1), |bencher| {
        bencher.iter_custom(&mut run);
    });
    group.finish();
}
