//! Limits, and how the store keeps what is counted under them.

use std::time::Duration;

use weir_core::Limit;
use weir_core::algorithm::State;

use super::{Named, Store, Tag};
use crate::moment::Moment;
use crate::shard::{Fingerprint, Full, Shard};

/// How many expired records go for each new one.
const SWEPT: usize = 2;

/// Limits as the store decides them, prepared once.
#[derive(Clone, Debug)]
pub struct Terms {
    pub(super) limits: Vec<Limit>,
    pub(super) names: Vec<Fingerprint>,
    /// The name of a denial of one unit, for each client; and what makes that of
    /// another cost.
    pub(crate) denial: Fingerprint,
    /// How long a denial is remembered at most.
    pub(crate) longest: Duration,
}

impl Terms {
    /// The same, but denials under them are those of this decider: what one has
    /// refused another may admit.
    pub fn denied_by(self, store: &Store, decider: &str) -> Self {
        let decider = store.hash(Named::Decider, decider.as_bytes());
        Self { denial: self.denial.with(decider), ..self }
    }

    /// The same, but denials under them are remembered for no longer than this.
    pub fn remembered_for(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// The limits.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    pub(super) fn records(&self, tag: Tag) -> impl Iterator<Item = (Fingerprint, &Limit)> {
        self.names.iter().map(move |&name| tag.0.with(name)).zip(&self.limits)
    }

    /// Writes all states or, where there is no room for them, none.
    pub(super) fn keep(
        &self,
        shard: &Shard,
        tag: Tag,
        states: &[State],
        now: Moment,
        begun: u64,
        mut words: Vec<u64>,
    ) -> Result<(), Full> {
        words.clear();
        let mut records = Vec::with_capacity(states.len());
        let mut expiries = Vec::with_capacity(states.len());
        for ((name, limit), state) in self.records(tag).zip(states) {
            // What says nothing takes no room.
            if let Some(expires) = state.expires(limit) {
                let begin = words.len();
                state.write(&mut words);
                records.push((name, begin..words.len()));
                expiries.push(now.uptime.after(expires.since(now.wall)));
            }
        }
        shard.sweep(now.uptime, SWEPT);
        shard.reserve(&records, now.uptime, begun)?;
        for ((name, limit), state) in self.records(tag).zip(states) {
            if state.expires(limit).is_none() {
                shard.remove(name);
            }
        }
        for ((name, range), expires) in records.into_iter().zip(expiries) {
            shard.write(name, &words[range], expires);
        }
        Ok(())
    }
}
