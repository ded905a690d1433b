//! What follows when a batch has landed, or what is heard of a connection.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use redis::{RedisError, RedisResult, Value};

use super::flights::Flight;
use super::{Answer, Decided, Limiter, Outlet, no_answer};
use crate::attempt::CLOSED;
use crate::batch::{self, Reply};
use crate::breaker::Breaker;
use crate::call::Call;
use crate::error::{self, Code, Failure, Remedy, printable, words};
use crate::news::Event;
use crate::node::{ConnectionId, NodeId, State};
use crate::rule::Ask;

/// How long to wait for a slot that is being moved.
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(5);

/// Where a reply came from.
#[derive(Clone, Copy)]
pub(super) struct From {
    pub(super) node: NodeId,
    pub(super) connection: ConnectionId,
    /// Whether that connection is still in use.
    pub(super) current: bool,
}

impl<O: Outlet> Limiter<O> {
    pub(super) fn land(&mut self, flight: Flight, replies: RedisResult<Vec<Value>>) {
        let (node, connection) = (flight.node, flight.connection);
        let mut from = From { node, connection, current: false };
        if let Some(node) = self.nodes.get_mut(node) {
            from.current = node.give_place_back(connection);
        }
        match replies {
            Ok(replies) if replies.len() == flight.calls.len() => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.places.measured(flight.round_trip(), Instant::now());
                }
                for (call, reply) in flight.calls.into_iter().zip(replies) {
                    self.land_call(from, call, reply);
                }
            }
            // What was sent may have been decided: it is not sent again.
            broken => {
                let why = broken.map_or_else(|error| words(&error), |_| "too few replies".into());
                self.lose(node, connection, &why, true);
                self.fail(node, flight.into_asks(), Failure::Unreachable);
            }
        }
    }

    fn land_call(&mut self, from: From, call: Call, reply: Value) {
        match error::of_value(reply) {
            Ok(reply) => match batch::decode(reply, &self.desk.rules, &call.asks) {
                Ok(reply) => self.answer(from, call, reply),
                Err(error) => {
                    self.complain(from.node, &error.to_string());
                    self.fail(from.node, call.asks, Failure::Malformed);
                }
            },
            Err(error) => self.refused(from, call, &error),
        }
    }

    fn answer(&mut self, from: From, mut call: Call, Reply { at, verdicts }: Reply) {
        let mut answers = Vec::with_capacity(call.asks.len());
        let (mut again, mut failed, mut decided) = (Vec::new(), 0, false);
        let (mut demoted, mut complaint) = (None, None);
        for (ask, verdict) in call.asks.drain(..).zip(verdicts) {
            let outcome = match verdict {
                Ok(verdict) => {
                    decided = true;
                    Ok(Decided { at, verdict })
                }
                Err(error) if Code::of(&error).remedy() == Remedy::Relocate => {
                    demoted = Some(error);
                    again.push(ask);
                    continue;
                }
                Err(error) => {
                    complaint = Some(error);
                    failed += u64::from(ask.operation.is_decision());
                    Err(Failure::Refused)
                }
            };
            answers.push(Answer { ticket: ask.ticket, rule: ask.rule, outcome });
        }
        self.desk.count_failed(failed);
        self.desk.outlet.deliver(answers);
        if let Some(node) = self.nodes.get_mut(from.node) {
            node.failed += failed;
        }
        if let Some(error) = complaint {
            self.complain(from.node, &printable(&error));
        }
        // What it still knows to refuse does not make it a server that decides.
        if let Some(error) = demoted {
            call.asks = again;
            return self.relocate(from, call, &printable(&error));
        }
        if decided && from.current {
            if let Some(node) = self.nodes.get_mut(from.node) {
                node.decided(from.connection);
            }
            self.back(from.node);
        }
    }

    /// The whole call was answered with an error.
    pub(super) fn refused(&mut self, from: From, mut call: Call, error: &RedisError) {
        let text = words(error);
        let code = Code::of(&text);
        match code.remedy() {
            Remedy::BringScript if !call.brings_script => {
                call.brings_script = true;
                self.return_to(from.node, call);
            }
            Remedy::Redirect if self.directory.is_some() => self.redirect(from, call, error),
            // As often as the deadline allows.
            Remedy::TryAgain if self.directory.is_some() => {
                let due = Instant::now() + TRY_AGAIN_PAUSE;
                // Whoever would have no time left then.
                let late = call.take_overdue(due + TRY_AGAIN_PAUSE);
                if !late.is_empty() {
                    let text = format!("slot {} is being moved: {text}", call.slot);
                    self.give_up(from.node, late, &text);
                }
                self.later.extend(call.split().map(|call| (due, call)));
            }
            Remedy::Relocate => self.relocate(from, call, &text),
            Remedy::Wait => {
                self.condemn(from, &text);
                self.fail(from.node, call.asks, Failure::Refused);
            }
            Remedy::BringScript | Remedy::Redirect | Remedy::TryAgain | Remedy::GiveUp => {
                self.give_up(from.node, call.asks, &text);
            }
        }
        if code == Code::ClusterDown {
            self.doubt();
        }
    }

    pub(super) fn give_up(&mut self, node: NodeId, asks: Vec<Ask>, text: &str) {
        self.complain(node, text);
        self.fail(node, asks, Failure::Refused);
    }

    /// No reply came in time: whoever asked has been answered by `on_error`.
    pub(super) fn give_up_overdue(&mut self) {
        for flight in self.flights.take_overdue(Instant::now()) {
            let node = flight.node;
            // A late reply must meet nobody: not pooled, closed.
            self.lose(node, flight.connection, &no_answer(self.nodes.patience()), true);
            self.fail(node, flight.into_asks(), Failure::Timeout);
        }
    }

    pub(super) fn node_event(&mut self, id: NodeId, connection: ConnectionId, event: Event) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        match event {
            Event::Connected(live, server) => {
                let Some(is_news) = node.connected(connection, live, *server) else { return };
                self.desk.health.connects.fetch_add(1, Relaxed);
                if is_news {
                    self.back(id);
                }
            }
            Event::AttemptFailed(problem, spent) => {
                if !node.attempt_failed(connection, problem) {
                    return;
                }
                self.desk.health.failed_attempts.fetch_add(1, Relaxed);
                self.no_connection(id);
                if let Some(node) = self.nodes.get_mut(id) {
                    node.connect(spent);
                }
            }
            Event::Lost => self.lose(id, connection, CLOSED, false),
            Event::Primary(named) => {
                if let Ok(primary) = &named
                    && node.is_elsewhere(primary)
                {
                    let line = format!("redis {}: Sentinel names {primary} now", node.name);
                    node.connect(Duration::ZERO);
                    self.desk.tell(Some(line));
                }
                self.desk.tell(node.sentinels_told(named.err()));
            }
        }
    }

    /// A connection is of no more use. One that nobody waited on, as when Redis
    /// closes connections that it thinks unused, is made anew without a word.
    fn lose(&mut self, id: NodeId, connection: ConnectionId, why: &str, was_used: bool) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let Some(was_used) = node.drop_connection(connection, was_used) else { return };
        if was_used {
            if node.is_another_failure(connection) {
                self.desk.failure(node, Breaker::failed);
            }
            if node.state() != State::Up {
                self.desk.tell_of(node, |report, moment, open| report.lost(moment, why, open));
            }
        }
        node.connect(Duration::ZERO);
        self.doubt();
    }

    /// Requests wait for a connection, and there is none yet.
    pub(super) fn no_connection(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.state() == State::Up {
            // It was to be an additional one.
            return;
        }
        self.desk.failure(node, Breaker::failed);
        let why = node.problem();
        self.desk.tell_of(node, |report, moment, open| report.failing(moment, &why, open));
        self.doubt();
    }

    /// The server is there and says that it cannot serve.
    fn condemn(&mut self, from: From, why: &str) {
        let Some(node) = self.nodes.get_mut(from.node) else { return };
        if from.current {
            node.drop_all();
            self.desk.failure(node, Breaker::condemned);
            self.desk.tell_of(node, |report, moment, open| report.lost(moment, why, open));
            // What it says of itself it will say again: not at once.
            node.breaker.next_pause();
            node.connect(Duration::ZERO);
            self.doubt();
        }
    }

    /// Another server decides by now. The call is sent there, once it is found.
    fn relocate(&mut self, from: From, call: Call, why: &str) {
        if from.current
            && let Some(node) = self.nodes.get_mut(from.node)
        {
            node.drop_all();
            self.desk.failure(node, Breaker::failed);
            self.desk.tell_of(node, |report, moment, open| report.lost(moment, why, open));
            node.connect(Duration::ZERO);
            self.doubt();
        }
        match call.again() {
            Ok(call) => self.return_to(from.node, call),
            Err(asks) => self.fail(from.node, asks, Failure::Refused),
        }
    }

    /// The call is sent to this node again, before all others.
    pub(super) fn return_to(&mut self, id: NodeId, call: Call) {
        match self.nodes.get_mut(id) {
            Some(node) => node.returned.push_back(call),
            None => self.fail(id, call.asks, Failure::Unreachable),
        }
    }

    pub(super) fn fail(
        &mut self,
        node: NodeId,
        asks: impl IntoIterator<Item = Ask>,
        failure: Failure,
    ) {
        let failed = self.desk.fail(asks, failure);
        if let Some(node) = self.nodes.get_mut(node) {
            node.failed += failed;
        }
    }

    fn back(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(id) {
            self.desk.tell_of(node, |report, moment, _| report.back(moment));
        }
    }

    fn complain(&mut self, id: NodeId, what: &str) {
        if let Some(node) = self.nodes.get_mut(id) {
            self.desk.tell_of(node, |report, moment, _| report.complaint(moment, what));
        }
    }

    /// In a cluster: the map may not be right any more.
    fn doubt(&mut self) {
        if let Some(directory) = &mut self.directory {
            directory.doubt();
        }
    }
}

#[cfg(test)]
mod tests;
