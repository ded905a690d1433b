//! The limiter: takes requests from a queue, answers every one of them.
//!
//! One task, on one thread. Whatever has queued for a node when a place is free
//! there leaves as one batch ([`crate::places`]). While a node is being
//! connected to, requests wait as long as their deadline allows. Once that has
//! failed a few times they are answered at once, until the node decides again
//! ([`crate::breaker`]).
//!
//! A batch is sent once. Only what Redis says that it has not run is sent again
//! ([`crate::error`]): what may have been charged is never charged twice.

mod desk;
mod directory;
mod flights;
mod health;
mod landing;
mod map;
mod nodes;
#[cfg(test)]
mod scene;
mod survey;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep_until;
use weir_core::config::RedisConfig;
use weir_core::{Timestamp, Verdict};

use crate::attempt::Target;
use crate::batch::MAX_BATCH;
use crate::call::Call;
use crate::deployment::{Deployment, Kind};
use crate::error::Failure;
use crate::news::News;
use crate::node::{self, NodeId, State};
use crate::queue::Inbox;
use crate::rule::{Ask, Rule};

use desk::Desk;
use directory::Directory;
use flights::Flights;
pub use health::{BATCH_SIZES, Health, LinkState};
use nodes::Nodes;

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

/// See the module's documentation.
pub struct Limiter<O> {
    desk: Desk<O>,
    nodes: Nodes,
    /// The map, in a cluster.
    directory: Option<Directory>,
    flights: Flights,
    /// Calls that are to be sent again, and when.
    later: Vec<(Instant, Call)>,
    /// How many requests may wait for one node of a cluster.
    queue: usize,
    news: UnboundedReceiver<News>,
}

impl<O: Outlet> Limiter<O> {
    /// A limiter that decides by `rules` where `deployment` says, as `config` has
    /// it.
    pub fn new(
        deployment: Deployment,
        config: &RedisConfig,
        rules: Arc<[Rule]>,
        outlet: O,
        health: Arc<Health>,
    ) -> Self {
        let (sender, news) = unbounded_channel();
        let settings = node::Settings {
            connections: config.connections,
            patience: config.timeout,
            breaker: config.breaker.clone(),
        };
        let name = deployment.name();
        let prefix = config.prefix.as_str();
        let (target, directory) = match deployment.0 {
            Kind::Single(server) => (Some(Target::Server(server)), None),
            Kind::Sentinel(sentinels) => (Some(Target::Primary(sentinels)), None),
            Kind::Cluster { seeds, access } => {
                let directory =
                    Directory::new(name.clone(), seeds, access, &settings, sender.clone());
                (None, Some(directory))
            }
        };
        let mut nodes = Nodes::new(settings, prefix, sender);
        if let Some(target) = target {
            nodes.add(name, target, None);
        }
        Self {
            desk: Desk {
                prefix: prefix.into(),
                rules,
                outlet,
                health,
                is_cluster: directory.is_some(),
            },
            nodes,
            directory,
            flights: Flights::default(),
            later: Vec::new(),
            queue: config.queue,
            news,
        }
    }

    /// Serves until the queue is closed and empty; what is under way then has
    /// nobody left to hear of it. Must run within a tokio runtime with I/O and
    /// time.
    pub async fn run(mut self, mut queue: Inbox) {
        self.nodes.connect_all();
        self.do_chores(Instant::now());
        let mut asks = Vec::with_capacity(MAX_BATCH);
        // Armed by the first batch that finds it idle, and left to run: set
        // once for a whole deadline's worth of batches.
        let mut watch = pin!(sleep_until(Instant::now().into()));
        let mut watching = false;
        let mut chore = pin!(sleep_until(Instant::now().into()));
        let mut chore_at = None;
        loop {
            self.dispatch();
            self.show_state();
            let takes = self.takes();
            if !watching && let Some(deadline) = self.flights.next_deadline() {
                watch.as_mut().reset(deadline.into());
                watching = true;
            }
            if let Some(due) = self.next_chore()
                && chore_at.is_none_or(|at| due < at)
            {
                chore.as_mut().reset(due.into());
                chore_at = Some(due);
            }
            tokio::select! {
                biased;
                (flight, replies) = self.flights.landed(), if !self.flights.is_empty() => {
                    self.land(flight, replies);
                }
                // The nodes hold senders themselves, so the channel never closes.
                Some(news) = self.news.recv() => match news {
                    News::Node(node, connection, event) => {
                        self.node_event(node, connection, event);
                    }
                    News::Map(found) => self.map_found(found),
                },
                () = watch.as_mut(), if watching => {
                    watching = false;
                    self.give_up_overdue();
                }
                () = chore.as_mut(), if chore_at.is_some() => {
                    chore_at = None;
                    self.do_chores(Instant::now());
                }
                taken = queue.take(&mut asks, MAX_BATCH), if takes => {
                    if taken == 0 {
                        break;
                    }
                    self.take(asks.drain(..));
                }
            }
        }
    }

    /// Whether to take more from the queue: of a single server what can leave at
    /// once or will not leave at all, in a cluster whatever has a node to go to.
    fn takes(&self) -> bool {
        match (&self.directory, self.nodes.only()) {
            (None, Some(node)) => match node.state() {
                State::Up => !node.has_waiting() && node.has_room(),
                State::Connecting => false,
                State::Down => true,
            },
            (Some(directory), _) => directory.is_known() || directory.breaker.is_open(),
            (None, None) => false,
        }
    }

    fn take(&mut self, asks: impl Iterator<Item = Ask>) {
        let Some(directory) = &mut self.directory else {
            if let Some(node) = self.nodes.only_mut() {
                node.queue.extend(asks.map(|ask| (0, ask)));
            }
            return;
        };
        let mut scratch = Vec::with_capacity(128);
        let (mut lost, mut full) = (Vec::new(), Vec::new());
        let mut unserved = None;
        for ask in asks {
            let rule = &self.desk.rules[ask.rule];
            let slot = rule.slot(&self.desk.prefix, ask.source, &ask.value, &mut scratch);
            match directory.owner(slot).and_then(|owner| self.nodes.get_mut(owner)) {
                Some(node) if node.waiting() < self.queue => node.queue.push_back((slot, ask)),
                Some(node) => {
                    node.failed += u64::from(ask.operation.is_decision());
                    full.push(ask);
                }
                None => {
                    unserved = Some(slot);
                    lost.push(ask);
                }
            }
        }
        self.desk.fail(full, Failure::QueueFull);
        if !lost.is_empty() {
            // Nobody serves these slots, as far as is known.
            self.desk.fail(lost, Failure::Unreachable);
            directory.doubt();
        }
        if let Some(slot) = unserved.filter(|_| directory.is_known()) {
            // Of no node's lines would this be one.
            let what = format!("by its map nobody serves slot {slot}");
            let failed = self.desk.health.failed.load(Relaxed);
            let told = directory.tell(failed, |report, moment, _| report.complaint(moment, &what));
            self.desk.tell(told);
        }
    }

    /// Sends what can be sent, and answers what will not be.
    fn dispatch(&mut self) {
        for node in self.nodes.iter_mut() {
            while node.has_waiting() {
                match node.state() {
                    State::Connecting => break,
                    State::Down => {
                        let asks = node.take_waiting();
                        node.failed += self.desk.fail(asks, Failure::Unreachable);
                    }
                    State::Up => {
                        let Some(place) = node.take_place() else { break };
                        let connection = place.0;
                        let (calls, overdue) = node.next_calls(&self.desk.rules, Instant::now());
                        node.failed += self.desk.fail(overdue, Failure::Timeout);
                        if calls.is_empty() {
                            node.give_place_back(connection);
                            continue;
                        }
                        self.desk.count_sent(&calls);
                        let what = (&*self.desk.prefix, &*self.desk.rules);
                        self.flights.send(node.id, place, what, calls);
                    }
                }
            }
        }
    }

    /// Shows whether Redis can be asked. A cluster can if any part of it can.
    fn show_state(&self) {
        let (mut link, mut away, mut waiting) = (LinkState::Down, 0, 0);
        for node in self.nodes.iter() {
            match node.state() {
                State::Up => link = LinkState::Up,
                State::Connecting if link == LinkState::Down => link = LinkState::Connecting,
                State::Connecting | State::Down => {}
            }
            away += u64::from(node.state() != State::Up);
            waiting += node.waiting() as u64;
        }
        if let Some(directory) = self.directory.as_ref().filter(|directory| !directory.is_known()) {
            away += 1;
            if !directory.breaker.is_open() {
                link = LinkState::Connecting;
            }
        }
        self.desk.health.set_link(link);
        self.desk.health.away.store(away, Relaxed);
        self.desk.health.waiting.store(waiting, Relaxed);
    }

    fn next_chore(&self) -> Option<Instant> {
        let hopes = self.nodes.iter().filter_map(|node| node.hope_until());
        let summaries = self.nodes.iter().filter_map(|node| node.summary_due());
        let later = self.later.iter().map(|(due, _)| *due);
        let directory = self.directory.as_ref().and_then(Directory::next_chore);
        hopes.chain(summaries).chain(later).chain(directory).min()
    }

    fn do_chores(&mut self, now: Instant) {
        let hopeless: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|node| node.hope_until().is_some_and(|until| until <= now))
            .map(|node| node.id)
            .collect();
        for node in hopeless {
            self.no_connection(node);
            if let Some(node) = self.nodes.get_mut(node) {
                node.hope();
            }
        }
        for node in self.nodes.iter_mut().filter(|node| node.summary_due().is_some()) {
            self.desk.tell_of(node, |report, moment, _| report.summary(moment));
        }
        let due: Vec<(Instant, Call)> = self.later.extract_if(.., |(due, _)| *due <= now).collect();
        due.into_iter().for_each(|(_, call)| self.send_again(call));
        if let Some(directory) = &mut self.directory {
            let connections =
                self.nodes.iter().filter_map(|node| Some((node.id, node.any_connection()?)));
            directory.ask(now, connections);
            if directory.is_hopeless(now) {
                self.no_map(None);
            }
        }
    }
}

fn no_answer(within: Duration) -> String {
    format!("no answer within {within:?}")
}

#[cfg(test)]
mod tests;
