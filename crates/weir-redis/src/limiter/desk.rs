//! What leaves the limiter: answers, counts and lines for the log.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Answer, Health, Outlet};
use crate::breaker::Breaker;
use crate::call::Call;
use crate::error::Failure;
use crate::node::Node;
use crate::report::{Moment, Report};
use crate::rule::{Ask, Rule};

/// See the module's documentation.
pub(super) struct Desk<O> {
    pub(super) prefix: Arc<str>,
    pub(super) rules: Arc<[Rule]>,
    pub(super) outlet: O,
    pub(super) health: Arc<Health>,
    pub(super) is_cluster: bool,
}

impl<O: Outlet> Desk<O> {
    /// Answers requests that have no decision; how many of them are left to
    /// `on_error`.
    pub(super) fn fail(&self, asks: impl IntoIterator<Item = Ask>, failure: Failure) -> u64 {
        let asks: Vec<Ask> = asks.into_iter().collect();
        if asks.is_empty() {
            return 0;
        }
        let failed = asks.iter().filter(|ask| ask.operation.is_decision()).count() as u64;
        self.count_failed(failed);
        let answer =
            |ask: &Ask| Answer { ticket: ask.ticket, rule: ask.rule, outcome: Err(failure) };
        self.outlet.deliver(asks.iter().map(answer).collect());
        failed
    }

    pub(super) fn count_failed(&self, failed: u64) {
        self.health.failed.fetch_add(failed, Relaxed);
    }

    /// Counts calls about to be sent.
    pub(super) fn count_sent(&self, calls: &[Call]) {
        let fresh = |call: &&Call| call.is_fresh();
        let requests: usize = calls.iter().filter(fresh).map(|call| call.asks.len()).sum();
        calls.iter().for_each(|call| self.health.count_batch(call.asks.len()));
        self.health.batched.fetch_add(requests as u64, Relaxed);
    }

    /// Takes note of a failure of this node.
    pub(super) fn failure(&self, node: &mut Node, failed: fn(&mut Breaker) -> bool) {
        if failed(&mut node.breaker) {
            self.health.opened.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn tell(&self, line: Option<String>) {
        if let Some(line) = line {
            self.outlet.notify(line);
        }
    }

    /// Logs what there is to tell of this node.
    pub(super) fn tell_of(
        &self,
        node: &mut Node,
        tell: impl FnOnce(&mut Report, Moment<'_>, bool) -> Option<String>,
    ) {
        // For what was not even queued all are to blame: no node is worth waiting
        // for then.
        let failed = if self.is_cluster {
            node.failed + self.health.not_queued.load(Relaxed)
        } else {
            self.health.failed.load(Relaxed)
        };
        self.tell(node.tell(failed, tell));
    }
}
