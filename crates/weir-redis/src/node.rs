//! A server of the deployment as the limiter sees it: its connections, what
//! waits for it, and whether that is worth waiting for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;
use weir_core::config::Breaker as BreakerSettings;

use crate::attempt::{Attempt, Target};
use crate::batch::{self, MAX_BATCH};
use crate::breaker::Breaker;
use crate::call::Call;
use crate::news::Listener;
use crate::places::Places;
use crate::report::{Moment, Report};
use crate::rule::{Ask, Rule};
use crate::server::Server;

/// Names a node of a limiter, for as long as that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(crate) u32);

/// Names a connection among all that a node has had.
pub(crate) type ConnectionId = u64;

/// How all nodes are kept.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Connections that each is to have.
    pub(crate) connections: usize,
    /// How long a request may wait.
    pub(crate) patience: Duration,
    pub(crate) breaker: BreakerSettings,
}

/// Whether requests can be sent, or may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Up,
    Connecting,
    Down,
}

/// See the module's documentation.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    target: Target,
    probe_key: String,
    settings: Settings,
    listener: Listener,
    live: Vec<Live>,
    attempt: Option<(ConnectionId, AbortHandle)>,
    /// The primary that Sentinel named last.
    server: Option<Server>,
    watch: Option<AbortHandle>,
    sentinels_silent: bool,
    last_connection: ConnectionId,
    /// The last attempt that failed, or led to a connection that decided nothing.
    last_fruitless: ConnectionId,
    /// The newest connection that was there when a loss was last counted.
    last_counted: ConnectionId,
    pub(crate) breaker: Breaker,
    /// When a failure is counted because there is still no connection.
    hope_until: Instant,
    /// Whether the last connection ended before it decided anything, or because of
    /// what the server said: the next one has to decide before it is news.
    doubtful: bool,
    pub(crate) places: Places,
    /// Requests with their slots, in their order.
    pub(crate) queue: VecDeque<(u16, Ask)>,
    /// Calls to be sent again, before the queue.
    pub(crate) returned: VecDeque<Call>,
    /// Why the last attempt to connect failed.
    problem: Option<String>,
    report: Report,
    /// Requests left to `on_error` because of this node.
    pub(crate) failed: u64,
}

/// A connection that is there.
struct Live {
    id: ConnectionId,
    connection: MultiplexedConnection,
    since: Instant,
    in_flight: usize,
    has_decided: bool,
}

impl Node {
    pub(crate) fn new(
        id: NodeId,
        name: String,
        target: Target,
        probe_key: String,
        settings: Settings,
        listener: Listener,
    ) -> Self {
        let now = Instant::now();
        Self {
            id,
            name,
            target,
            probe_key,
            hope_until: now + settings.patience,
            breaker: Breaker::new(settings.breaker.clone()),
            settings,
            listener,
            live: Vec::new(),
            attempt: None,
            server: None,
            watch: None,
            sentinels_silent: false,
            last_connection: 0,
            last_fruitless: 0,
            last_counted: 0,
            doubtful: false,
            places: Places::new(now),
            queue: VecDeque::new(),
            returned: VecDeque::new(),
            problem: None,
            report: Report::default(),
            failed: 0,
        }
    }

    pub(crate) fn state(&self) -> State {
        match (self.live.is_empty(), self.breaker.is_open()) {
            (false, _) => State::Up,
            (true, false) => State::Connecting,
            (true, true) => State::Down,
        }
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.queue.is_empty() || !self.returned.is_empty()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len() + self.returned.iter().map(|call| call.asks.len()).sum::<usize>()
    }

    /// The calls of the next batch: those that came back, and then what has
    /// queued, by slots. And the requests that have been given up meanwhile,
    /// which are not sent.
    pub(crate) fn next_calls(&mut self, rules: &[Rule], now: Instant) -> (Vec<Call>, Vec<Ask>) {
        let (mut calls, mut overdue) = (Vec::with_capacity(1), Vec::new());
        let mut taken = 0;
        while taken < MAX_BATCH
            && let Some(mut call) = self.returned.pop_front()
        {
            overdue.append(&mut call.take_overdue(now));
            if !call.asks.is_empty() {
                taken += call.asks.len();
                calls.push(call);
            }
        }
        if taken > 0 {
            return (calls, overdue);
        }
        // Those behind them that are overdue as well are found the next time.
        let number = batch::fitting(rules, self.queue.iter().map(|(_, ask)| ask));
        let mut asks: Vec<(u16, Ask)> = self.queue.drain(..number.min(self.queue.len())).collect();
        overdue.extend(asks.extract_if(.., |(_, ask)| ask.deadline <= now).map(|(_, ask)| ask));
        // Stable: of one client the first that came is the first that is asked.
        asks.sort_by_key(|(slot, _)| *slot);
        for (slot, ask) in asks {
            match calls.last_mut() {
                Some(call) if call.slot == slot => call.asks.push(ask),
                _ => calls.push(Call::new(slot, vec![ask])),
            }
        }
        (calls, overdue)
    }

    /// Whether another batch may leave.
    pub(crate) fn has_room(&self) -> bool {
        self.live.iter().any(|live| live.in_flight < self.places.count())
    }

    /// Takes a place for a batch, on the connection that has the most of them.
    pub(crate) fn take_place(&mut self) -> Option<(ConnectionId, MultiplexedConnection)> {
        let live = self.live.iter_mut().min_by_key(|live| live.in_flight)?;
        if live.in_flight >= self.places.count() {
            return None;
        }
        live.in_flight += 1;
        Some((live.id, live.connection.clone()))
    }

    /// Gives a place back; whether its connection is still ours.
    pub(crate) fn give_place_back(&mut self, id: ConnectionId) -> bool {
        match self.live.iter_mut().find(|live| live.id == id) {
            Some(live) => {
                live.in_flight -= 1;
                true
            }
            None => false,
        }
    }

    /// A request was decided on this connection.
    pub(crate) fn decided(&mut self, id: ConnectionId) {
        if let Some(live) = self.live.iter_mut().find(|live| live.id == id) {
            live.has_decided = true;
            self.breaker.succeeded();
            // Of older ones it says nothing about whether another can be had.
            if id > self.last_fruitless {
                self.breaker.attempt_succeeded();
            }
        }
    }

    /// A connection to ask something else on.
    pub(crate) fn any_connection(&self) -> Option<MultiplexedConnection> {
        self.live.first().map(|live| live.connection.clone())
    }

    /// What there is to tell of it, `failed` being the requests left to
    /// `on_error`: see [`Report::tell`].
    pub(crate) fn tell(
        &mut self,
        failed: u64,
        tell: impl FnOnce(&mut Report, Moment<'_>, bool) -> Option<String>,
    ) -> Option<String> {
        self.report.tell(&self.name, failed, self.breaker.is_open(), tell)
    }

    /// When there is something to tell that nothing happens for.
    pub(crate) fn summary_due(&self) -> Option<Instant> {
        self.report.summary_due()
    }

    /// Takes out all that waits.
    pub(crate) fn take_waiting(&mut self) -> Vec<Ask> {
        let returned = self.returned.drain(..).flat_map(|call| call.asks);
        returned.chain(self.queue.drain(..).map(|(_, ask)| ask)).collect()
    }

    /// Until when requests wait for a connection, if they do.
    pub(crate) fn hope_until(&self) -> Option<Instant> {
        (self.state() == State::Connecting).then_some(self.hope_until)
    }

    /// Begins to wait anew.
    pub(crate) fn hope(&mut self) {
        self.hope_until = Instant::now() + self.settings.patience;
    }

    /// Tries to connect, unless that is being done or there are connections
    /// enough. One attempt at a time. `spent` of the pause has passed already.
    pub(crate) fn connect(&mut self, spent: Duration) {
        if self.attempt.is_some() || self.live.len() >= self.settings.connections {
            return;
        }
        self.last_connection += 1;
        let pause = self.breaker.next_pause().saturating_sub(spent);
        let task = tokio::spawn(self.new_attempt(self.last_connection).run(pause));
        self.attempt = Some((self.last_connection, task.abort_handle()));
    }

    fn new_attempt(&self, id: ConnectionId) -> Attempt {
        // Sentinel is asked for the first of several connections: never is there
        // one to each of two primaries, which have a budget each.
        let target = match &self.server {
            Some(server) if !self.live.is_empty() => Target::Server(server.clone()),
            _ => self.target.clone(),
        };
        Attempt {
            node: self.id,
            id,
            target,
            probe_key: self.probe_key.clone(),
            patience: self.settings.patience,
            listener: self.listener.clone(),
        }
    }

    /// Takes a connection that was made; whether it is news that the server is
    /// there. None of it if the attempt is no longer ours.
    pub(crate) fn connected(
        &mut self,
        id: ConnectionId,
        connection: MultiplexedConnection,
        server: Server,
    ) -> Option<bool> {
        self.attempt.take_if(|(attempt, _)| *attempt == id)?;
        if let Target::Primary(sentinels) = &self.target {
            self.name = format!("{} ({})", sentinels.master(), server.name());
            self.server = Some(server);
            if self.watch.is_none() {
                let watch = self.new_attempt(id).watch_primary(sentinels.clone());
                self.watch = Some(tokio::spawn(watch).abort_handle());
            }
        }
        let since = Instant::now();
        self.live.push(Live { id, connection, since, in_flight: 0, has_decided: false });
        self.breaker.probed();
        self.problem = None;
        self.connect(Duration::ZERO);
        Some(!self.doubtful)
    }

    /// Takes note of what Sentinel says is the primary; what it was before, if
    /// that is another server.
    pub(crate) fn is_elsewhere(&mut self, primary: &str) -> bool {
        let elsewhere = self.state() == State::Up
            && self.server.as_ref().is_none_or(|server| server.name() != primary);
        if elsewhere {
            self.drop_all();
            self.doubtful = false;
        }
        elsewhere
    }

    /// Takes note of whether the sentinels answer while all is well; what there is
    /// to tell if that has changed.
    pub(crate) fn sentinels_told(&mut self, problem: Option<String>) -> Option<String> {
        let silent = problem.is_some();
        if std::mem::replace(&mut self.sentinels_silent, silent) == silent {
            return None;
        }
        Some(match problem {
            Some(problem) => format!(
                "redis {}: {problem}; it decides as before, and would not be found after a reload",
                self.name
            ),
            None => format!("redis {}: the sentinels answer again", self.name),
        })
    }

    /// Takes note of an attempt's end, if it is still ours.
    pub(crate) fn attempt_failed(&mut self, id: ConnectionId, problem: String) -> bool {
        let ours = self.attempt.take_if(|(attempt, _)| *attempt == id).is_some();
        if ours {
            self.problem = Some(problem);
            self.last_fruitless = id;
        }
        ours
    }

    /// Why there is no connection, as far as that is known.
    pub(crate) fn problem(&self) -> String {
        let patience = self.settings.patience;
        self.problem.clone().unwrap_or_else(|| format!("no answer within {patience:?}"))
    }

    /// Lets go of a connection; whether requests are lost with it. `None` if it is
    /// not in use any more.
    pub(crate) fn drop_connection(&mut self, id: ConnectionId, was_used: bool) -> Option<bool> {
        let index = self.live.iter().position(|live| live.id == id)?;
        let live = self.live.swap_remove(index);
        let was_used = was_used || live.in_flight > 0;
        self.doubtful = was_used && !live.has_decided;
        if !live.has_decided {
            self.last_fruitless = self.last_fruitless.max(id);
        }
        self.breaker.connection_ended(live.since.elapsed());
        if self.live.is_empty() {
            self.hope();
        }
        Some(was_used)
    }

    /// Whether the loss of this connection is a failure of its own. What ends one
    /// of several ends the others that are there with it, each in its turn.
    pub(crate) fn is_another_failure(&mut self, id: ConnectionId) -> bool {
        let another = id > self.last_counted;
        if another {
            self.last_counted = self.last_connection;
        }
        another
    }

    /// Lets go of all connections and of an attempt under way: what they lead to
    /// is the wrong server, or one that does not serve.
    pub(crate) fn drop_all(&mut self) {
        self.doubtful = true;
        self.live.clear();
        self.hope();
        if let Some((_, attempt)) = self.attempt.take() {
            attempt.abort();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.drop_all();
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

#[cfg(test)]
mod tests;
