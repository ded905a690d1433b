//! One script call: requests whose keys lie on one server, in a cluster in one
//! slot.

use std::time::Instant;

use redis::Cmd;

use crate::batch::Batch;
use crate::rule::{Ask, Rule};

/// How often a call may be sent on to another server until it is given up: more
/// than any cluster needs that knows what it wants.
const MAX_HOPS: u8 = 8;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) asks: Vec<Ask>,
    /// The slot of all its keys; 0 where there is no cluster.
    pub(crate) slot: u16,
    /// Has the script in it, so that it cannot be unknown.
    pub(crate) brings_script: bool,
    /// Goes to the server that a slot is being moved to.
    pub(crate) asking: bool,
    hops: u8,
}

impl Call {
    pub(crate) fn new(slot: u16, asks: Vec<Ask>) -> Self {
        Self { asks, slot, brings_script: false, asking: false, hops: 0 }
    }

    /// What is sent.
    pub(crate) fn command(&self, prefix: &str, rules: &[Rule]) -> Cmd {
        let batch = Batch::new(prefix, rules, &self.asks);
        if self.brings_script { batch.eval() } else { batch.evalsha() }
    }

    /// Whether it is sent for the first time.
    pub(crate) fn is_fresh(&self) -> bool {
        self.hops == 0 && !self.brings_script
    }

    /// The same once more, unless it has been sent often enough.
    pub(crate) fn again(mut self) -> Result<Self, Vec<Ask>> {
        if self.hops >= MAX_HOPS {
            return Err(self.asks);
        }
        self.hops += 1;
        self.brings_script = false;
        self.asking = false;
        Ok(self)
    }

    /// Each of its requests alone, as if never sent: of several clients of a slot
    /// some may be decided that together cannot.
    pub(crate) fn split(self) -> impl Iterator<Item = Self> {
        let slot = self.slot;
        self.asks.into_iter().map(move |ask| Self::new(slot, vec![ask]))
    }

    /// Takes out the requests that have been given up by `now`. They are not
    /// sent, and so not charged.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<Ask> {
        self.asks.extract_if(.., |ask| ask.deadline <= now).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::asks;

    #[test]
    fn a_call_is_sent_on_as_if_it_were_new_and_counted() {
        let mut call = Call::new(7, asks(1));
        (call.brings_script, call.asking) = (true, true);
        assert!(!call.is_fresh());
        for _ in 0..MAX_HOPS {
            call = call.again().expect("not too often");
            assert!(!call.brings_script && !call.asking && !call.is_fresh());
        }
        assert_eq!(call.again().map_err(|asks| asks.len()).err(), Some(1));
    }
}
