//! Remembered denials: what another store said of a client, for as long as it is
//! bound to say the same again.
//!
//! A denial is one of a client, under these limits, of this cost: whatever differs
//! in any of them is not answered from it. Waits are kept by the monotonic clock,
//! from when the denial was told. What is given back to a client on this host calls
//! off all of its denials: each has the epoch in which it was asked for, and giving
//! back begins another, when it is sent and again when it is done. An epoch is one
//! of many clients, so that a few are called off in vain.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use weir_core::decision::{Standing, Verdict, Wait};
use weir_core::time::micros;

use crate::moment::Uptime;
use crate::shard::Fingerprint;
use crate::store::{Named, Store, Tag, Terms};

/// What denials are called off by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u32);

/// Words before those of the limits, and for each limit.
const OWN: usize = 3;
const EACH: usize = 4;

impl Store {
    /// The epoch of a client's denials. It is to be read before the request is
    /// sent that may be denied.
    pub fn epoch(&self, tag: Tag) -> Epoch {
        Epoch(self.epoch_of(tag).load(Relaxed))
    }

    /// Calls off the denials of a client.
    pub fn call_off(&self, tag: Tag) {
        self.epoch_of(tag).fetch_add(1, Relaxed);
    }

    /// Calls off the denials of all clients.
    pub fn call_off_all(&self) {
        for epoch in self.epochs() {
            epoch.fetch_add(1, Relaxed);
        }
    }

    /// Remembers a refusal of `cost` units that was asked for in `epoch` and told at
    /// `now`, until its wait is over, or for as long as the terms say. One without a
    /// wait, or of an epoch that is over, is forgotten. Where the store cannot take it,
    /// it is not remembered.
    pub fn remember(
        &self,
        terms: &Terms,
        tag: Tag,
        cost: u64,
        epoch: Epoch,
        verdict: &Verdict,
        now: Uptime,
    ) {
        let Some(wait) = wait_of(verdict) else { return };
        let until = now.after(wait.min(terms.longest));
        let mut words = Vec::with_capacity(OWN + EACH * verdict.limits.len());
        words.extend([u64::from(epoch.0), now.as_micros(), until.as_micros()]);
        for standing in &verdict.limits {
            let wait = match standing.wait {
                Wait::For(wait) => micros(wait),
                Wait::None | Wait::Forever => 0,
            };
            words.extend([standing.limit, standing.remaining, wait, micros(standing.reset)]);
        }
        let name = self.denial(terms, tag, cost);
        let Ok(shard) = self.lock(tag) else { return };
        if self.epoch(tag) == epoch {
            let begun = shard.clock();
            shard.sweep(now, 2);
            if shard.reserve(&[(name, 0..words.len())], now, begun).is_ok() {
                shard.write(name, &words, until);
            }
        }
    }

    /// What is remembered of a request of `cost` units, with what is left of its
    /// waits at `now`.
    pub fn recall(&self, terms: &Terms, tag: Tag, cost: u64, now: Uptime) -> Option<Verdict> {
        let mut words = Vec::new();
        let name = self.denial(terms, tag, cost);
        {
            let shard = self.lock(tag).ok()?;
            shard.read(name, &mut words)?;
        }
        let (&[epoch, since, until], standings) = words.split_first_chunk::<OWN>()?;
        if epoch != u64::from(self.epoch(tag).0) || now.as_micros() >= until {
            return None;
        }
        let gone = now.since(Uptime::from_micros(since));
        let left = |span: u64| Duration::from_micros(span).saturating_sub(gone);
        let standing = |words: &[u64; EACH]| {
            let [limit, then, waited, reset] = *words;
            let (wait, reset) = match (left(waited), left(reset)) {
                (Duration::ZERO, reset) => (Wait::None, reset),
                (wait, reset) => (Wait::For(wait), reset),
            };
            // What has come free meanwhile, as far as it is known.
            let remaining = match wait {
                Wait::None if reset.is_zero() => limit,
                Wait::None if waited > 0 => then.max(cost),
                _ => then,
            };
            Standing { limit, remaining, wait, reset }
        };
        let (standings, _) = standings.as_chunks::<EACH>();
        let verdict = Verdict { allowed: false, limits: standings.iter().map(standing).collect() };
        Some(verdict)
    }

    pub(crate) fn denial(&self, terms: &Terms, tag: Tag, cost: u64) -> Fingerprint {
        let unit = tag.0.with(terms.denial);
        if cost == 1 { unit } else { unit.with(self.hash(Named::Cost, &cost.to_le_bytes())) }
    }
}

/// How long a refusal is bound to hold; `None` for one that holds for ever, and for
/// what is no refusal: it has no waits.
fn wait_of(verdict: &Verdict) -> Option<Duration> {
    let mut longest = None;
    for standing in &verdict.limits {
        match standing.wait {
            Wait::None => {}
            Wait::For(wait) => longest = longest.max(Some(wait)),
            Wait::Forever => return None,
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use weir_core::Limit;
    use weir_core::Timestamp;
    use weir_core::algorithm::{State, decide};

    fn store(name: &str) -> Arc<Store> {
        Store::open(name, 1 << 20).expect("a store").0
    }

    fn limit(text: &str) -> Limit {
        Limit::SlidingLog(text.parse().expect("a rate"))
    }

    fn at(millis: u64) -> Uptime {
        Uptime::from_micros(millis * 1_000)
    }

    /// A refusal of one unit under two limits, whose waits are 500 ms and 9.5 s.
    fn refusal() -> (Vec<Limit>, Verdict) {
        let limits = vec![limit("1/1s"), limit("1/10s")];
        let mut states: Vec<State> = limits.iter().map(State::new).collect();
        let wall = |millis: u64| Timestamp::from_micros(millis * 1_000);
        assert!(decide(&limits, &mut states, wall(0), 1).allowed);
        let verdict = decide(&limits, &mut states, wall(500), 1);
        assert!(!verdict.allowed);
        (limits, verdict)
    }

    #[test]
    fn a_refusal_is_repeated_until_its_wait_is_over() {
        let store = store("a_refusal_is_repeated");
        let (limits, verdict) = refusal();
        let terms = store.terms(&limits, &["log:1s", "log:10s"]);
        let tag = store.tag(b"client");
        let told = |millis| store.recall(&terms, tag, 1, at(millis));
        assert_eq!(told(0), None);
        store.remember(&terms, tag, 1, store.epoch(tag), &verdict, at(1_000));
        assert_eq!(told(1_000), Some(verdict));

        // Each wait counts down by itself, and so do the resets.
        let later = told(1_600).expect("still refused");
        assert!(!later.allowed);
        let waits: Vec<Wait> = later.limits.iter().map(|limit| limit.wait).collect();
        assert_eq!(waits, [Wait::None, Wait::For(Duration::from_millis(8_900))]);
        assert_eq!(later.limits[1].reset, Duration::from_millis(8_900));
        assert_eq!(later.limits[0].reset, Duration::ZERO);
        let remaining: Vec<u64> = later.limits.iter().map(|limit| limit.remaining).collect();
        assert_eq!(remaining, [1, 0], "what has room again says so");
        assert!(store.recall(&terms, tag, 1, Uptime::from_micros(10_499_999)).is_some());
        assert_eq!(told(10_500), None, "the first after the wait is asked again");
    }

    #[test]
    fn a_limit_that_had_room_is_told_without_a_wait() {
        let store = store("a_limit_that_had_room");
        let limits = [limit("5/1s"), limit("1/10s")];
        let mut states = limits.each_ref().map(State::new);
        let now = Timestamp::from_micros(0);
        assert!(decide(&limits, &mut states, now, 1).allowed);
        let verdict = decide(&limits, &mut states, now, 1);
        let terms = store.terms(&limits, &["a", "b"]);
        let tag = store.tag(b"client");
        store.remember(&terms, tag, 1, store.epoch(tag), &verdict, at(0));
        assert_eq!(verdict.limits[0].wait, Wait::None);
        assert_eq!(store.recall(&terms, tag, 1, at(0)), Some(verdict));
    }

    #[test]
    fn a_refusal_may_be_remembered_for_less_than_its_wait() {
        let store = store("a_refusal_may_be_remembered_for_less");
        let (limits, verdict) = refusal();
        let terms = store.terms(&limits, &["a", "b"]).remembered_for(Duration::from_secs(1));
        let tag = store.tag(b"client");
        store.remember(&terms, tag, 1, store.epoch(tag), &verdict, at(0));
        let told =
            |millis| store.recall(&terms, tag, 1, at(millis)).map(|told| told.limits[1].wait);
        assert_eq!(told(999), Some(Wait::For(Duration::from_millis(8_501))));
        assert_eq!(told(1_000), None);
    }

    #[test]
    fn whatever_differs_is_not_answered_from_it() {
        let store = store("whatever_differs");
        let (limits, verdict) = refusal();
        let names = ["log:1s", "log:10s"];
        let terms = store.terms(&limits, &names);
        let tag = store.tag(b"client");
        store.remember(&terms, tag, 2, store.epoch(tag), &verdict, at(0));
        let recalls = |terms: &Terms, client: &[u8], cost| {
            store.recall(terms, store.tag(client), cost, at(1)).is_some()
        };
        assert!(recalls(&terms, b"client", 2));
        for cost in [0, 1, 3] {
            assert!(!recalls(&terms, b"client", cost), "{cost}");
        }
        assert!(!recalls(&terms, b"another", 2));
        let raised = store.terms(&[limit("1/1s"), limit("2/10s")], &names);
        assert!(!recalls(&raised, b"client", 2), "another limit");
        let budget = store.terms(&limits, &["@shared:log:1s", "@shared:log:10s"]);
        assert!(!recalls(&budget, b"client", 2), "another budget");
        // The same limits of another configuration are the same.
        assert!(recalls(&store.terms(&limits, &names), b"client", 2));
    }

    #[test]
    fn what_is_given_back_calls_it_off() {
        let store = store("what_is_given_back");
        let (limits, verdict) = refusal();
        let terms = store.terms(&limits, &["a", "b"]);
        let tag = store.tag(b"client");
        let remember = |epoch| store.remember(&terms, tag, 1, epoch, &verdict, at(0));
        let is_remembered = || store.recall(&terms, tag, 1, at(1)).is_some();
        remember(store.epoch(tag));
        assert!(is_remembered());
        store.call_off(tag);
        assert!(!is_remembered());

        // Asked before, and told after: it may not know of what was given back.
        let asked = store.epoch(tag);
        store.call_off(tag);
        remember(asked);
        assert!(!is_remembered());
        remember(store.epoch(tag));
        assert!(is_remembered());
        store.call_off_all();
        assert!(!is_remembered());
    }

    #[test]
    fn all_clients_are_called_off_together() {
        let store = store("all_clients_are_called_off");
        assert_eq!(store.epochs().len(), 4096);
        store.call_off_all();
        assert!(store.epochs().iter().all(|epoch| epoch.load(Relaxed) == 1));
    }

    #[test]
    fn a_refusal_of_an_epoch_that_is_over_displaces_nothing() {
        let store = store("displaces_nothing");
        let (limits, verdict) = refusal();
        let terms = store.terms(&limits, &["a", "b"]);
        let tag = store.tag(b"client");
        let asked = store.epoch(tag);
        store.call_off(tag);
        store.remember(&terms, tag, 1, asked, &verdict, at(0));
        assert_eq!(store.usage().entries, 0);
        store.remember(&terms, tag, 1, store.epoch(tag), &verdict, at(0));
        store.remember(&terms, tag, 1, asked, &verdict, at(0));
        assert!(store.recall(&terms, tag, 1, at(1)).is_some());
    }

    #[test]
    fn two_refusals_that_are_over_go_for_each_new_one() {
        let store = store("two_go");
        let (limits, verdict) = refusal();
        let terms = store.terms(&limits, &["a", "b"]);
        let remember = |client: u32, millis| {
            let tag = store.tag(&client.to_le_bytes());
            store.remember(&terms, tag, 1, store.epoch(tag), &verdict, at(millis));
        };
        (0..2_000).for_each(|client| remember(client, 0));
        assert_eq!(store.usage().entries, 2_000);
        (2_000..3_000).for_each(|client| remember(client, 20_000));
        // They are not spread evenly over the shards.
        let usage = store.usage();
        assert!(usage.entries <= 1_200 && usage.evicted_expired >= 1_800, "{usage:?}");
    }

    #[test]
    fn where_the_memory_is_full_what_was_used_least_recently_makes_room() {
        let store = store("makes_room_for_denials");
        let (limits, verdict) = refusal();
        let terms = store.terms(&limits, &["a", "b"]);
        for client in 0..20_000_u32 {
            let tag = store.tag(&client.to_le_bytes());
            store.remember(&terms, tag, 1, store.epoch(tag), &verdict, at(0));
            assert!(store.recall(&terms, tag, 1, at(1)).is_some(), "{client}");
        }
        assert!(store.usage().evicted_least_recently_used > 0);
    }

    #[test]
    fn only_refusals_that_end_are_remembered() {
        let store = store("only_refusals_that_end");
        let limits = [limit("1/10s")];
        let terms = store.terms(&limits, &["a"]);
        let tag = store.tag(b"client");
        let mut states = limits.each_ref().map(State::new);
        for (cost, what) in [(2, "a cost that never fits"), (1, "admitted"), (0, "a look")] {
            let verdict = decide(&limits, &mut states, Timestamp::from_micros(0), cost);
            store.remember(&terms, tag, cost, store.epoch(tag), &verdict, at(0));
            assert_eq!(store.recall(&terms, tag, cost, at(0)), None, "{what}");
        }
        // Under one of the limits it never fits, and under the other it would.
        let limits = [limit("1/10s"), limit("2/10s")];
        let terms = store.terms(&limits, &["a", "b"]);
        let mut states = limits.each_ref().map(State::new);
        assert!(decide(&limits, &mut states, Timestamp::from_micros(0), 1).allowed);
        let verdict = decide(&limits, &mut states, Timestamp::from_micros(1), 2);
        assert!(matches!(verdict.limits[..], [Standing { wait: Wait::Forever, .. }, _]));
        assert!(matches!(verdict.limits[1].wait, Wait::For(_)));
        store.remember(&terms, tag, 2, store.epoch(tag), &verdict, at(0));
        assert_eq!(store.usage().entries, 0);
    }
}
