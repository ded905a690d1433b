//! The map of a cluster: which node serves which slot, and how that is learnt.
//!
//! The crate has a cluster client, which is not used: it sends again by itself
//! what was under way when a connection broke, and that may have been charged;
//! and while it asks for the map nobody is served, whatever their slot. Its
//! connections to single nodes are what this stands on.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;

use super::survey::{Source, survey};
use crate::access::Access;
use crate::address::Place;
use crate::breaker::{Breaker, jittered};
use crate::news::{Listener, News};
use crate::node::{NodeId, Settings};
use crate::report::{Moment, Report};
use crate::server::Server;
use crate::slots::{Range, SLOTS};

/// How many nodes are asked at once; not always the same.
const ASKED: usize = 3;

/// The pauses between two times of asking for the map.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The same once the map has stayed as it is so many times, as when a shard is
/// gone for good.
const SETTLED_PAUSE: Duration = Duration::from_secs(10);
const SETTLED_AFTER: u32 = 60;

/// See the module's documentation.
pub(super) struct Directory {
    name: String,
    pub(super) access: Access,
    seeds: Vec<Place>,
    /// Whom to ask where there is no connection. Kept from time to time: a name
    /// that it takes long to look up is not looked up anew each time.
    servers: HashMap<Place, Server>,
    owners: Box<[Option<NodeId>]>,
    by_address: HashMap<(String, u16), NodeId>,
    /// Whether there has been a map.
    known: bool,
    asking: Option<AbortHandle>,
    /// When the map is to be asked for.
    due: Option<Instant>,
    last_asked: Option<Instant>,
    times_asked: usize,
    pause: Duration,
    /// How often in a row the map was as it had been.
    unchanged: u32,
    /// Of the map, as long as there has been none.
    pub(super) breaker: Breaker,
    report: Report,
    /// Why asking for the first map failed the last time.
    problem: Option<String>,
    pub(super) hope_until: Instant,
    patience: Duration,
    listener: Listener,
}

/// What asking for the map led to.
pub(super) type Found = Result<Vec<Range>, String>;

impl Directory {
    pub(super) fn new(
        name: String,
        seeds: Vec<Place>,
        access: Access,
        settings: &Settings,
        listener: Listener,
    ) -> Self {
        let now = Instant::now();
        Self {
            name,
            access,
            seeds,
            servers: HashMap::new(),
            owners: vec![None; usize::from(SLOTS)].into(),
            by_address: HashMap::new(),
            known: false,
            asking: None,
            due: Some(now),
            last_asked: None,
            times_asked: 0,
            pause: FIRST_PAUSE,
            unchanged: 0,
            breaker: Breaker::new(settings.breaker.clone()),
            report: Report::default(),
            problem: None,
            hope_until: now + settings.patience,
            patience: settings.patience,
            listener,
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.known
    }

    pub(super) fn owner(&self, slot: u16) -> Option<NodeId> {
        self.owners[usize::from(slot)]
    }

    /// Takes note of what MOVED says.
    pub(super) fn set_owner(&mut self, slot: u16, node: NodeId) {
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = Some(node);
        }
    }

    pub(super) fn node_at(&self, host: &str, port: u16) -> Option<NodeId> {
        self.by_address.get(&(host.to_owned(), port)).copied()
    }

    pub(super) fn enter(&mut self, host: &str, port: u16, node: NodeId) {
        self.by_address.insert((host.to_owned(), port), node);
    }

    pub(super) fn strike(&mut self, node: NodeId) {
        self.by_address.retain(|_, entered| *entered != node);
        self.owners
            .iter_mut()
            .filter(|owner| **owner == Some(node))
            .for_each(|owner| *owner = None);
    }

    /// Where a server of the cluster listens.
    pub(super) fn place(&self, host: &str, port: u16) -> Place {
        let host = host.to_owned();
        match self.access.tls {
            Some(_) => Place::Tls { host, port },
            None => Place::Tcp { host, port },
        }
    }

    /// The host of a node, for servers that leave theirs out.
    pub(super) fn host_of(&self, node: NodeId) -> String {
        let found = self.by_address.iter().find(|(_, entered)| **entered == node);
        found.map(|((host, _), _)| host.clone()).unwrap_or_default()
    }

    /// Something does not fit the map. It is asked for again soon, and the more
    /// slowly the longer that does not help.
    pub(super) fn doubt(&mut self) {
        if self.asking.is_none() && self.due.is_none() {
            let pause = jittered(self.pause);
            self.due = Some(self.last_asked.map_or_else(Instant::now, |asked| asked + pause));
            let settled = self.unchanged >= SETTLED_AFTER;
            let longest = if settled { SETTLED_PAUSE } else { LONGEST_PAUSE };
            self.pause = (self.pause * 2).min(longest);
        }
    }

    /// Why there is no map, as far as that is known.
    pub(super) fn problem(&mut self, problem: Option<String>) -> String {
        self.problem = problem.or(self.problem.take());
        self.problem.clone().unwrap_or_else(|| super::no_answer(self.patience))
    }

    /// When the next chore is due.
    pub(super) fn next_chore(&self) -> Option<Instant> {
        let hope = (!self.known && !self.breaker.is_open()).then_some(self.hope_until);
        [self.due, hope].into_iter().flatten().min()
    }

    /// Whether requests have waited in vain for the first map.
    pub(super) fn is_hopeless(&mut self, now: Instant) -> bool {
        let over = !self.known && !self.breaker.is_open() && now >= self.hope_until;
        if over {
            self.hope_until = now + self.patience;
        }
        over
    }

    /// Asks for the map if that is due: over a few of these connections to its
    /// nodes, and where there are fewer also at the seeds and at all other nodes
    /// that are known.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        connections: impl Iterator<Item = (NodeId, MultiplexedConnection)>,
    ) {
        if self.asking.is_some() || self.due.is_none_or(|due| now < due) {
            return;
        }
        self.due = None;
        self.last_asked = Some(now);
        let sources = self.sources(connections.collect());
        let listener = self.listener.clone();
        let task = tokio::spawn(async move {
            // Fails only when the limiter itself has ended.
            let _ = listener.send(News::Map(survey(sources).await));
        });
        self.asking = Some(task.abort_handle());
    }

    /// Who is asked; of many connections a few, in turn.
    fn sources(&mut self, connections: Vec<(NodeId, MultiplexedConnection)>) -> Vec<Source> {
        self.times_asked += 1;
        let skipped = self.times_asked % connections.len().max(1);
        let in_turn = connections.iter().cycle().skip(skipped).take(connections.len().min(ASKED));
        let mut sources: Vec<Source> = in_turn
            .cloned()
            .map(|(node, connection)| Source::Connection(connection, self.host_of(node)))
            .collect();
        if sources.len() < ASKED {
            let asked: HashSet<NodeId> = connections.iter().map(|(node, _)| *node).collect();
            let asked = |place: &Place, by_address: &HashMap<(String, u16), NodeId>| {
                by_address
                    .iter()
                    .any(|((host, port), node)| asked.contains(node) && place.is_at(host, *port))
            };
            let servers: Vec<_> = self.servers().collect();
            sources.extend(
                servers
                    .into_iter()
                    .filter(|(place, _)| !asked(place, &self.by_address))
                    .map(|(place, server)| Source::Server(place, server.into())),
            );
        }
        sources
    }

    /// The seeds and all nodes that are known.
    fn servers(&mut self) -> impl Iterator<Item = (Place, Server)> {
        let known = self.by_address.keys().map(|(host, port)| self.place(host, *port));
        let places: HashSet<Place> = self.seeds.iter().cloned().chain(known).collect();
        self.servers.retain(|place, _| places.contains(place));
        for place in places {
            // Fails only where something is wrong with the certificates.
            if let Entry::Vacant(vacant) = self.servers.entry(place)
                && let Ok(server) = self.access.server(vacant.key())
            {
                vacant.insert(server);
            }
        }
        self.servers.iter().map(|(place, server)| (place.clone(), server.clone()))
    }

    /// Takes note that the question has been answered.
    pub(super) fn answered(&mut self, found: &Found) {
        self.asking = None;
        self.known |= found.is_ok();
    }

    /// Enters a map whose servers are all known; whether that changed anything.
    pub(super) fn apply(&mut self, ranges: &[Range]) -> bool {
        let mut owners = vec![None; usize::from(SLOTS)];
        for range in ranges {
            let node = self.node_at(&range.host, range.port);
            owners[usize::from(range.first)..=usize::from(range.last.max(range.first))].fill(node);
        }
        let changed = self.owners[..] != owners[..];
        self.owners = owners.into();
        if changed {
            self.pause = FIRST_PAUSE;
            self.unchanged = 0;
        } else {
            self.unchanged = self.unchanged.saturating_add(1);
        }
        changed
    }

    /// The nodes that serve no slot.
    pub(super) fn without_slots(&self) -> Vec<NodeId> {
        self.by_address
            .values()
            .copied()
            .filter(|node| !self.owners.contains(&Some(*node)))
            .collect()
    }

    /// What there is to tell of the map, `failed` being the requests left to
    /// `on_error`: see [`Report::tell`].
    pub(super) fn tell(
        &mut self,
        failed: u64,
        tell: impl FnOnce(&mut Report, Moment<'_>, bool) -> Option<String>,
    ) -> Option<String> {
        self.report.tell(&self.name, failed, self.breaker.is_open(), tell)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(asking) = &self.asking {
            asking.abort();
        }
    }
}

#[cfg(test)]
mod tests;
