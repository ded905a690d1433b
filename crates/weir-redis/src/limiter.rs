//! The limiter: takes requests from a queue, answers every one of them.
//!
//! One task, on one thread. While the connection is up, whatever has queued
//! when a place is free leaves as one batch ([`crate::places`]). While it is
//! being brought up, requests wait as long as their deadline allows. Once that
//! has failed they are answered at once, until a connection is there again.
//!
//! A batch is sent once. Only `NOSCRIPT`, by which Redis says that it ran
//! nothing, is followed by sending the same batch again: what may have been
//! charged is never charged twice.

mod flights;
mod health;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisResult, Value};
use tokio::sync::mpsc::Receiver;
use tokio::time::sleep_until;
use weir_core::{Timestamp, Verdict};

use crate::batch::{self, Batch, MAX_BATCH, Reply};
use crate::error::{self, Failure, Remedy, printable};
use crate::link::{Event, Link};
use crate::places::Places;
use crate::rule::{Ask, Rule};
use crate::server::Server;

use flights::{Flight, Flights};
pub use health::{Health, LinkState};

/// The answer to the request of this ticket.
#[derive(Debug)]
pub struct Answer {
    /// The [`Ask`]'s ticket.
    pub ticket: u64,
    /// Its rule.
    pub rule: usize,
    /// The decision, or why there is none.
    pub outcome: Result<Decided, Failure>,
}

/// A decision, and when it was made.
#[derive(Debug)]
pub struct Decided {
    /// By the clock of whoever decided. What was charged is given back under this
    /// time ([`Operation::Refund`](crate::Operation::Refund)).
    pub at: Timestamp,
    /// The decision.
    pub verdict: Verdict,
}

/// Where answers and notices go. Called on the limiter's thread; must not
/// block.
pub trait Outlet {
    /// Takes a batch of answers.
    fn deliver(&self, answers: Vec<Answer>);
    /// Takes a line for the log: what changed, never what one request met.
    fn notify(&self, line: String);
}

const CLOSED: &str = "the connection was closed";

/// How often at most error replies are logged.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

/// See the module's documentation.
pub struct Limiter<O> {
    prefix: Arc<str>,
    rules: Arc<[Rule]>,
    /// How long requests wait for a connection that is being brought up.
    patience: Duration,
    outlet: O,
    health: Arc<Health>,
    link: Link,
    places: Places,
    flights: Flights,
    /// Until when requests wait for the connection, while it is not there.
    hope_until: Instant,
    /// Since when Redis has been away, once that was logged, and how many
    /// requests had failed by then.
    away: Option<(Instant, u64)>,
    /// Whether the next decision, and not the next connection, ends `away`.
    unproven: bool,
    quiet_until: Option<Instant>,
    /// Whether the connection was closed while nobody used it.
    closed_idle: bool,
}

impl<O: Outlet> Limiter<O> {
    /// A limiter that decides by `rules` at `server`, under keys that begin
    /// with `prefix`; `deadline` is how long a request may take.
    pub fn new(
        server: Server,
        prefix: &str,
        rules: Arc<[Rule]>,
        deadline: Duration,
        outlet: O,
        health: Arc<Health>,
    ) -> Self {
        let now = Instant::now();
        Self {
            prefix: prefix.into(),
            rules,
            patience: deadline,
            outlet,
            health,
            link: Link::new(server),
            places: Places::new(now),
            flights: Flights::default(),
            hope_until: now + deadline,
            away: None,
            unproven: false,
            quiet_until: None,
            closed_idle: false,
        }
    }

    /// Serves until the queue is closed and empty; what is under way then has
    /// nobody left to hear of it. Must run within a tokio runtime with I/O and
    /// time.
    pub async fn run(mut self, mut queue: Receiver<Ask>) {
        self.link.reconnect(false);
        let mut asks = Vec::with_capacity(MAX_BATCH);
        // Armed by the first batch that finds it idle, and left to run: set
        // once for a whole deadline's worth of batches.
        let mut watch = pin!(sleep_until(self.hope_until.into()));
        let mut watching = false;
        loop {
            let state = self.health.link();
            let takes = match state {
                LinkState::Up => self.flights.on(self.link.generation()) < self.places.count(),
                LinkState::Connecting => false,
                LinkState::Down => true,
            };
            if !watching && let Some(deadline) = self.flights.next_deadline() {
                watch.as_mut().reset(deadline.into());
                watching = true;
            }
            // What was left of the last batch goes before what is queued.
            if takes && !asks.is_empty() {
                match state {
                    LinkState::Down => self.fail(asks.drain(..), Failure::Unreachable),
                    _ => self.send(&mut asks),
                }
                continue;
            }
            tokio::select! {
                biased;
                (flight, reply) = self.flights.landed(), if !self.flights.is_empty() => {
                    self.land(flight, reply);
                }
                event = self.link.event() => self.link_event(event),
                () = watch.as_mut(), if watching => {
                    watching = false;
                    self.give_up_overdue();
                }
                () = sleep_until(self.hope_until.into()), if state == LinkState::Connecting => {
                    self.give_up_hope(format!("no answer within {:?}", self.patience));
                }
                taken = queue.recv_many(&mut asks, MAX_BATCH), if takes && asks.is_empty() => {
                    if taken == 0 {
                        break;
                    }
                }
            }
        }
    }

    /// Sends what fits into one call, and leaves the rest.
    fn send(&mut self, asks: &mut Vec<Ask>) {
        let now = Instant::now();
        // Whoever asked has given up on these; they are not charged.
        self.fail(asks.extract_if(.., |ask| ask.deadline <= now), Failure::Timeout);
        if asks.is_empty() {
            return;
        }
        let mut left = Vec::with_capacity(MAX_BATCH);
        left.extend(asks.drain(batch::fitting(&self.rules, asks)..));
        let asks = std::mem::replace(asks, left);
        let call = Batch::new(&self.prefix, &self.rules, &asks).evalsha();
        self.health.batches.fetch_add(1, Relaxed);
        self.health.batched.fetch_add(asks.len() as u64, Relaxed);
        self.launch(call, asks, false);
    }

    fn launch(&mut self, call: Cmd, asks: Vec<Ask>, brings_script: bool) {
        match self.link.connection.clone() {
            Some(connection) => {
                let generation = self.link.generation();
                self.flights.send(connection, generation, call, asks, brings_script);
            }
            None => self.fail(asks.into_iter(), Failure::Unreachable),
        }
    }

    fn land(&mut self, flight: Flight, reply: RedisResult<Value>) {
        let current = flight.generation == self.link.generation();
        let round_trip = flight.round_trip();
        let asks = flight.asks;
        let error = match reply {
            Ok(reply) => {
                self.places.measured(round_trip, Instant::now());
                match batch::decode(reply, &self.rules, &asks) {
                    Ok(reply) => self.answer(asks, reply, current),
                    Err(error) => {
                        self.complain(&error.to_string());
                        self.fail(asks.into_iter(), Failure::Malformed);
                    }
                }
                return;
            }
            Err(error) => error,
        };
        let text = error::describe(&error);
        match error::remedy_for(&error) {
            // Nothing was run, so nothing can be charged twice.
            Remedy::BringScript if current && !flight.brings_script => {
                let call = Batch::new(&self.prefix, &self.rules, &asks).eval();
                self.launch(call, asks, true);
            }
            Remedy::Reconnect => {
                let lost = error.is_unrecoverable_error() || error.is_io_error();
                if current {
                    self.lose(text, !lost);
                }
                let why = if lost { Failure::Unreachable } else { Failure::Refused };
                self.fail(asks.into_iter(), why);
            }
            Remedy::BringScript | Remedy::GiveUp => {
                self.complain(&text);
                self.fail(asks.into_iter(), Failure::Refused);
            }
        }
    }

    /// No reply came in time: whoever asked has been answered by `on_error`.
    fn give_up_overdue(&mut self) {
        let overdue = self.flights.take_overdue(Instant::now());
        if overdue.iter().any(|flight| flight.generation == self.link.generation()) {
            // A late reply must meet nobody: not pooled, closed.
            self.lose(format!("no answer within {:?}", self.patience), false);
        }
        for flight in overdue {
            self.fail(flight.asks.into_iter(), Failure::Timeout);
        }
    }

    fn answer(&mut self, asks: Vec<Ask>, Reply { at, verdicts }: Reply, current: bool) {
        let mut refusal = None;
        let mut decided = false;
        let answers: Vec<Answer> = asks
            .iter()
            .zip(verdicts)
            .map(|(ask, verdict)| {
                let outcome = verdict.map(|verdict| Decided { at, verdict }).map_err(|error| {
                    refusal = Some(error);
                    Failure::Refused
                });
                decided |= outcome.is_ok();
                Answer { ticket: ask.ticket, rule: ask.rule, outcome }
            })
            .collect();
        let failed = asks.iter().zip(&answers).filter(|(_, answer)| answer.outcome.is_err());
        self.count_failed(failed.map(|(ask, _)| ask));
        self.outlet.deliver(answers);
        if decided && current {
            self.link.proven();
            self.back();
        }
        if let Some(error) = refusal {
            let text = printable(&error);
            if error::remedy(error::code(&error)) == Remedy::Reconnect && current {
                self.lose(text, true);
            } else {
                self.complain(&text);
            }
        }
    }

    fn fail(&self, asks: impl Iterator<Item = Ask>, failure: Failure) {
        let asks: Vec<Ask> = asks.collect();
        if asks.is_empty() {
            return;
        }
        self.count_failed(asks.iter());
        let answer =
            |ask: &Ask| Answer { ticket: ask.ticket, rule: ask.rule, outcome: Err(failure) };
        self.outlet.deliver(asks.iter().map(answer).collect());
    }

    /// Counts those about which `on_error` decides.
    fn count_failed<'a>(&self, asks: impl Iterator<Item = &'a Ask>) {
        let decisions = asks.filter(|ask| ask.operation.is_decision()).count();
        self.health.failed.fetch_add(decisions as u64, Relaxed);
    }

    fn link_event(&mut self, event: Event) {
        match event {
            Event::Connected(_) => {
                self.health.connects.fetch_add(1, Relaxed);
                self.health.set_link(LinkState::Up);
                self.closed_idle = false;
                if !self.unproven {
                    self.back();
                }
            }
            Event::AttemptFailed(problem) => self.give_up_hope(problem),
            // Idle, as when Redis closes connections that it thinks unused:
            // worth a word only if it cannot be made again.
            Event::Lost if self.flights.is_empty() => {
                self.closed_idle = true;
                self.reconnect();
            }
            Event::Lost => self.lose(CLOSED.to_owned(), false),
        }
    }

    /// The connection is of no more use, and requests were lost with it.
    /// `by_reply`: because of what the server said on it, so that connecting
    /// again proves nothing.
    fn lose(&mut self, why: String, by_reply: bool) {
        self.announce_away(&format!("lost: {why}"));
        self.unproven = by_reply;
        if by_reply {
            self.link.reconnect(true);
            self.health.set_link(LinkState::Down);
        } else {
            self.reconnect();
        }
    }

    fn reconnect(&mut self) {
        if self.link.reconnect(false) {
            self.hope_until = Instant::now() + self.patience;
            self.health.set_link(LinkState::Connecting);
        } else {
            // It was made and was good for nothing; so may the next one be.
            self.unproven = true;
            self.health.set_link(LinkState::Down);
            self.announce_away(&format!("lost: {CLOSED}"));
        }
    }

    fn give_up_hope(&mut self, why: String) {
        self.health.set_link(LinkState::Down);
        if self.closed_idle {
            self.announce_away(&format!("lost: {CLOSED}, and then {why}"));
        } else {
            self.announce_away(&format!("unreachable: {why}"));
        }
    }

    fn announce_away(&mut self, what: &str) {
        if self.away.is_none() {
            self.away = Some((Instant::now(), self.health.failed.load(Relaxed)));
            let text =
                format!("redis {} {what}; on_error decides until it is back", self.link.server());
            self.outlet.notify(text);
        }
    }

    fn back(&mut self) {
        self.unproven = false;
        if let Some((since, failed_before)) = self.away.take() {
            let text = format!(
                "redis {} is back after {:.1} s; on_error decided {} requests meanwhile",
                self.link.server(),
                since.elapsed().as_secs_f64(),
                self.health.failed.load(Relaxed) - failed_before,
            );
            self.outlet.notify(text);
        }
    }

    /// Logs an error reply, unless one was logged a moment ago.
    fn complain(&mut self, what: &str) {
        let now = Instant::now();
        if self.quiet_until.is_none_or(|until| now >= until) {
            self.quiet_until = Some(now + COMPLAINT_PAUSE);
            let text = format!(
                "redis {} answers with an error: {what}; on_error decides \
                 (told at most every {} s)",
                self.link.server(),
                COMPLAINT_PAUSE.as_secs(),
            );
            self.outlet.notify(text);
        }
    }
}
