//! What happens when a cluster's slots lie elsewhere than was known.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use redis::RedisError;

use super::directory::Found;
use super::landing::From;
use super::{Limiter, Outlet};
use crate::attempt::Target;
use crate::call::Call;
use crate::error::{Code, Failure, words};
use crate::node::NodeId;
use crate::report::{Moment, Report};
use crate::slots::{self, SLOTS};

impl<O: Outlet> Limiter<O> {
    /// Follows MOVED or ASK.
    pub(super) fn redirect(&mut self, from: From, call: Call, error: &RedisError) {
        let text = words(error);
        let Some(directory) = &mut self.directory else { return };
        let asked = directory.host_of(from.node);
        let redirection = error.redirect_node().filter(|(_, slot)| *slot < SLOTS);
        let target = redirection.and_then(|(address, slot)| {
            slots::redirection(address, &asked).map(|(host, port)| (host, port, slot))
        });
        // It never said where to, or too often.
        let Some((host, port, slot)) = target else {
            return self.give_up(from.node, call.asks, &text);
        };
        let mut call = match call.again() {
            Ok(call) => call,
            Err(asks) => return self.give_up(from.node, asks, &text),
        };
        self.desk.health.redirected.fetch_add(1, Relaxed);
        let Some(target) = self.node_at(&host, port, slot) else {
            return self.fail(from.node, call.asks, Failure::Unreachable);
        };
        call.asking = Code::of(&text) == Code::Ask;
        if !call.asking
            && let Some(directory) = &mut self.directory
        {
            directory.set_owner(slot, target);
            directory.doubt();
        }
        self.return_to(target, call);
    }

    /// The node at this address of the cluster, which serves this slot; made if
    /// it is new.
    fn node_at(&mut self, host: &str, port: u16, slot: u16) -> Option<NodeId> {
        let directory = self.directory.as_mut()?;
        if let Some(known) = directory.node_at(host, port) {
            return Some(known);
        }
        let place = directory.place(host, port);
        let server = directory.access.server(&place).ok()?;
        let node = self.nodes.add(place.to_string(), Target::Server(server), Some(slot));
        node.connect(Duration::ZERO);
        directory.enter(host, port, node.id);
        Some(node.id)
    }

    /// Takes what asking for the map led to.
    pub(super) fn map_found(&mut self, found: Found) {
        let Some(directory) = &mut self.directory else { return };
        let was_known = directory.is_known();
        directory.answered(&found);
        match found {
            Ok(ranges) => {
                for range in &ranges {
                    self.node_at(&range.host, range.port, range.first);
                }
                let Some(directory) = &mut self.directory else { return };
                let changed = directory.apply(&ranges);
                if !was_known {
                    let failed = self.desk.health.failed.load(Relaxed);
                    self.desk.tell(directory.tell(failed, |report, moment, _| report.back(moment)));
                }
                if changed {
                    self.reroute();
                }
                self.dismiss();
            }
            Err(problem) => {
                if was_known {
                    directory.doubt();
                } else {
                    self.desk.health.failed_attempts.fetch_add(1, Relaxed);
                    self.no_map(Some(problem));
                }
            }
        }
    }

    /// There is no map yet, and requests wait for one. `problem`: why asking for
    /// it has failed just now.
    pub(super) fn no_map(&mut self, problem: Option<String>) {
        let Some(directory) = &mut self.directory else { return };
        let why = &directory.problem(problem);
        if directory.breaker.failed() {
            self.desk.health.opened.fetch_add(1, Relaxed);
        }
        let failed = self.desk.health.failed.load(Relaxed);
        let told =
            |report: &mut Report, moment: Moment<'_>, open| report.failing(moment, why, open);
        self.desk.tell(directory.tell(failed, told));
        directory.doubt();
    }

    /// What waits for a node that does not serve its slot any more goes to the
    /// one that does.
    fn reroute(&mut self) {
        let Some(directory) = &self.directory else { return };
        let mut moved = Vec::new();
        for node in self.nodes.iter_mut() {
            let id = node.id;
            let stays = |slot: u16| directory.owner(slot) == Some(id);
            let returned = std::mem::take(&mut node.returned);
            for call in returned {
                if call.asking || stays(call.slot) {
                    node.returned.push_back(call);
                } else {
                    moved.push(call);
                }
            }
            let (kept, gone) =
                std::mem::take(&mut node.queue).into_iter().partition(|(slot, _)| stays(*slot));
            node.queue = kept;
            let gone: std::collections::VecDeque<(u16, _)> = gone;
            moved.extend(gone.into_iter().map(|(slot, ask)| Call::new(slot, vec![ask])));
        }
        moved.into_iter().for_each(|call| self.send_again(call));
    }

    /// Sends a call to whoever serves its slot now.
    pub(super) fn send_again(&mut self, call: Call) {
        let owner = self.directory.as_ref().and_then(|directory| directory.owner(call.slot));
        match owner {
            Some(node) => self.return_to(node, call),
            None => {
                self.desk.fail(call.asks, Failure::Unreachable);
            }
        }
    }

    /// Lets go of nodes that serve nothing and owe nothing.
    fn dismiss(&mut self) {
        let Some(directory) = &mut self.directory else { return };
        for id in directory.without_slots() {
            let owes = self.nodes.get(id).is_some_and(|node| node.has_waiting());
            if !owes && self.flights.none_with(id) {
                if let Some(node) = self.nodes.get_mut(id) {
                    self.desk.tell_of(node, |report, moment, _| report.replaced(moment));
                }
                directory.strike(id);
                self.nodes.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
