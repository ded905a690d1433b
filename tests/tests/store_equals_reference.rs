//! The store in memory decides as the reference in weir-core does.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weir_core::algorithm::State;
use weir_core::{Limit, Timestamp};
use weir_redis::Operation;
use weir_shm::{Failure, Moment, Store, Terms, Uptime};
use weir_tests::script::{START_US, limit};
use weir_tests::trace::{Step, perform, rules, step};

/// A store, and what it must hold.
struct Traced {
    store: Arc<Store>,
    rules: Vec<Vec<Limit>>,
    terms: Vec<Terms>,
    /// Of everybody's, that nothing above is counted under.
    other: Terms,
    /// What the reference has of a client under a name, and until when the store must
    /// have it.
    kept: HashMap<(usize, String), (State, Uptime)>,
    charges: Vec<(u64, u64)>,
    now: Moment,
    gone: u64,
}

impl Traced {
    /// `name` must not be that of another that is traced at the same time.
    fn new(rules: &[Vec<Limit>], name: &str) -> Self {
        // The largest logs of a trace fit together.
        let (store, _) = Store::open(name, 16 << 20).expect("memory");
        let names = |limits: &[Limit]| limits.iter().map(Limit::key_suffix).collect::<Vec<_>>();
        let terms = rules.iter().map(|limits| store.terms(limits, &names(limits))).collect();
        let other = store.terms(&[limit("quota 9007199254740991/month")], &["other"]);
        let now = Moment { wall: Timestamp::from_micros(START_US), uptime: Uptime::default() };
        let (rules, kept, charges) = (rules.to_vec(), HashMap::new(), Vec::new());
        Self { store, rules, terms, other, kept, charges, now, gone: 0 }
    }

    /// The clock of the wall moves; that of the host goes on as it does, but not back.
    fn go_on(&mut self, clock_us: i64) {
        let wall = self.now.wall.as_micros().saturating_add_signed(clock_us);
        let uptime = self.now.uptime.as_micros().saturating_add_signed(clock_us.max(0));
        self.now =
            Moment { wall: Timestamp::from_micros(wall), uptime: Uptime::from_micros(uptime) };
    }

    /// Has everything go whose time is over, and nothing else.
    fn sweep(&mut self) {
        for client in 0..2 {
            let mut gone = u64::MAX;
            while gone != self.store.usage().evicted_expired {
                gone = self.store.usage().evicted_expired;
                self.store
                    .charge(&self.other, self.store.tag(&[client]), 1, || self.now)
                    .expect("room");
            }
        }
        let before = self.kept.len();
        self.kept.retain(|_, (_, expires)| *expires > self.now.uptime);
        self.gone += (before - self.kept.len()) as u64;
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let rule = step.rule % self.rules.len();
        let (limits, terms, now) = (&self.rules[rule], &self.terms[rule], self.now);
        let key = |limit: &Limit| (step.client, limit.key_suffix());
        let state = |limit: &Limit| match self.kept.get(&key(limit)) {
            Some((state, _)) => state.clone(),
            None => State::new(limit),
        };
        let mut states: Vec<State> = limits.iter().map(state).collect();
        let operation = step.operation(limits, now.wall.as_micros(), &self.charges);
        let expected = perform(operation, limits, &mut states, now.wall);

        let tag = self.store.tag(&[step.client as u8]);
        let told = match operation {
            Operation::Decide { cost } => self.store.decide(terms, tag, cost, || now),
            Operation::Charge { cost } => self.store.charge(terms, tag, cost, || now),
            Operation::Refund { cost, charged_at } => {
                self.store.refund(terms, tag, cost, charged_at, || now)
            }
        };
        let expected = expected.map(|verdict| (now.wall, verdict)).ok_or(Failure::TooMany);
        prop_assert_eq!(&told, &expected, "{:?} {:?} {:?}", operation, limits, now);

        match (operation, &told) {
            (Operation::Decide { cost } | Operation::Charge { cost }, Ok((_, verdict)))
                if verdict.allowed && cost > 0 =>
            {
                self.charges.push((now.wall.as_micros(), cost));
            }
            (Operation::Refund { .. }, Ok(_)) => {}
            _ => return Ok(()),
        }
        for (limit, state) in limits.iter().zip(states) {
            match state.expires(limit) {
                Some(expires) => {
                    let expires = now.uptime.after(expires.since(now.wall));
                    self.kept.insert(key(limit), (state, expires));
                }
                None => {
                    self.kept.remove(&key(limit));
                }
            }
        }
        Ok(())
    }
}

/// Runs random traces over a store and the reference; returns how many steps there
/// were, and how many records went because their time was over.
fn run(
    traces: impl Strategy<Value = (Vec<Vec<Limit>>, Vec<Step>)>,
    is_swept: bool,
    clock: impl Fn(i64) -> i64,
) -> (u64, u64) {
    let mut runner = TestRunner::new(Config {
        cases: 250,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..Config::default()
    });
    let (number, done, gone) = (Cell::new(0), Cell::new(0), Cell::new(0));
    runner
        .run(&traces, |(rules, steps)| {
            number.set(number.get() + 1);
            let name = format!("trace {}, swept: {is_swept}", number.get());
            let mut traced = Traced::new(&rules, &name);
            for step in &steps {
                traced.go_on(clock(step.clock_us));
                if is_swept {
                    traced.sweep();
                }
                traced.step(step)?;
            }
            let usage = traced.store.usage();
            prop_assert_eq!((usage.evicted_least_recently_used, usage.resets), (0, 0));
            done.set(done.get() + steps.len() as u64);
            gone.set(gone.get() + traced.gone);
            Ok(())
        })
        .unwrap();
    println!("{} steps, {} records went", done.get(), gone.get());
    (done.get(), gone.get())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..250)
}

/// Records that are over may be there or not: it makes no difference, as long as the
/// limits stay the same.
#[test]
fn the_store_decides_as_the_reference_does() {
    let one = rules().prop_map(|mut rules| {
        rules.truncate(1);
        rules
    });
    let (steps, _) = run((one, steps()), false, i64::abs);
    assert!(steps > 10_000);
}

/// Each is there until its time is over, and begins anew then. With limits that change,
/// and a clock that steps back, this makes a difference: what has gone is not counted
/// again.
#[test]
fn the_store_keeps_records_for_their_time() {
    let (steps, gone) = run((rules(), steps()), true, |clock_us| clock_us);
    assert!(steps > 10_000 && gone > 3_000);
}
