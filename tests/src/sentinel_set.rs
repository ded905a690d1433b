//! A primary with two replicas, watched by three sentinels.

use std::collections::HashMap;
use std::time::Duration;

use crate::gate::Gate;
use crate::process;
use crate::{Redis, wait_until};

/// The name under which the primary is watched.
pub const MASTER: &str = "mymaster";

/// After so long without an answer a server is taken for dead.
const DOWN_AFTER: Duration = Duration::from_millis(1_000);

/// Longer than any failover should take, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(30);

/// A replica is in sync at once, and not after a pause.
pub(crate) const QUICK_REPLICATION: [&str; 4] =
    ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"];

/// Each server has an address of its own in the loopback network.
const SERVERS: [&str; 3] = ["127.0.0.11", "127.0.0.12", "127.0.0.13"];
const SENTINELS: [&str; 3] = ["127.0.0.21", "127.0.0.22", "127.0.0.23"];

/// All are stopped on drop.
pub struct SentinelSet {
    /// The first is the primary at the start.
    pub servers: Vec<Redis>,
    /// The sentinels.
    pub sentinels: Vec<Redis>,
    /// In front of the first server, if it was asked for.
    pub gate: Option<Gate>,
}

impl SentinelSet {
    /// Starts all, and waits until they know each other.
    pub fn start() -> Self {
        Self::start_as(false, |server| server, |sentinel| sentinel)
    }

    /// The same with a [`Gate`] in front of the first server.
    pub fn start_gated() -> Self {
        Self::start_as(true, |server| server, |sentinel| sentinel)
    }

    /// The same with other settings for each server and each sentinel.
    pub fn start_as(
        gated: bool,
        server: impl Fn(Redis) -> Redis,
        sentinel: impl Fn(Redis) -> Redis,
    ) -> Self {
        // Answers are timed, and not what else this machine does. As far as that
        // is allowed.
        let _ = process::goes_first();
        let begin = |host: &&str| server(Redis::absent().at(host).with(&QUICK_REPLICATION));
        let mut servers: Vec<Redis> = SERVERS.iter().map(begin).collect();
        let gate = gated.then(|| Gate::before(servers[0].host(), servers[0].port()));
        let (host, port) = match &gate {
            Some(gate) => ("127.0.0.1".to_owned(), gate.port()),
            None => (servers[0].host().to_owned(), servers[0].tls_or_plain_port()),
        };
        let port_text = port.to_string();
        servers = servers
            .into_iter()
            .enumerate()
            .map(|(index, server)| match (index, &gate) {
                (0, None) => server,
                (0, Some(_)) => server.with(&[
                    "--replica-announce-ip",
                    &host,
                    "--replica-announce-port",
                    &port_text,
                ]),
                // Behind a gate they would all be called 127.0.0.1.
                _ => server
                    .with(&["--replicaof", &host, &port_text])
                    .with(&["--replica-announce-ip", SERVERS[index]]),
            })
            .collect();
        servers.iter_mut().for_each(Redis::launch);
        let mut conf = format!(
            "sentinel monitor {MASTER} {host} {port} 2\n\
             sentinel down-after-milliseconds {MASTER} {}\n\
             sentinel failover-timeout {MASTER} 3000\n\
             sentinel parallel-syncs {MASTER} 2\n",
            DOWN_AFTER.as_millis(),
        );
        if let Some(password) = servers[0].password() {
            conf.push_str(&format!("sentinel auth-pass {MASTER} {password}\n"));
        }
        let begin = |host: &&str| sentinel(Redis::absent().at(host).as_sentinel(&conf));
        let mut sentinels: Vec<Redis> = SENTINELS.iter().map(begin).collect();
        sentinels.iter_mut().for_each(Redis::launch);
        let set = Self { servers, sentinels, gate };
        set.hurry();
        wait_until("the sentinels and replicas are in sync", PATIENCE, || set.is_sane());
        set
    }

    /// The sentinels' addresses, as a Lua list.
    pub fn addresses(&self) -> String {
        let addresses = self.sentinels.iter().map(|sentinel| format!("\"{}\"", sentinel.address()));
        format!("{{ {} }}", addresses.collect::<Vec<_>>().join(", "))
    }

    /// Which of the servers the sentinels call the primary. None while they
    /// disagree.
    pub fn named(&self) -> Option<usize> {
        let said = |sentinel: &Redis| self.state(sentinel).map(|state| state.primary);
        let first = said(&self.sentinels[0])?;
        let agreed = self.sentinels.iter().all(|sentinel| said(sentinel) == Some(first.clone()));
        self.index_of(&first).filter(|_| agreed)
    }

    /// Waits until all call another server the primary; returns it.
    pub fn wait_for_another_primary(&self, old: usize) -> usize {
        let mut new = None;
        wait_until("another server is the primary", PATIENCE, || {
            let named = self.named().filter(|&new| new != old);
            new = named.filter(|&new| is_primary(&self.servers[new]));
            new.is_some()
        });
        new.expect("waited for")
    }

    /// Makes a replica of the primary without closing its clients' connections.
    /// (Sentinel alone would close them.) Returns the new primary, and how many
    /// script calls the old one had answered when it ceased to be one.
    pub fn demote(&self, old: usize) -> (usize, u64) {
        self.sentinels[0].command::<()>(&format!("SENTINEL FAILOVER {MASTER}"));
        let mut new = None;
        wait_until("Sentinel has promoted a replica", PATIENCE, || {
            let mut others = (0..self.servers.len()).filter(|&index| index != old);
            new = others.find(|&index| is_primary(&self.servers[index]));
            new.is_some()
        });
        let new = new.expect("waited for");
        let (host, port) = (self.servers[new].host(), self.servers[new].tls_or_plain_port());
        let ((), stats): ((), String) = redis::pipe()
            .atomic()
            .add_command(redis::Cmd::new().arg("REPLICAOF").arg(host).arg(port).to_owned())
            .add_command(redis::Cmd::new().arg("INFO").arg("commandstats").to_owned())
            .query(&mut self.servers[old].connect())
            .expect("it obeys");
        (new, crate::redis_server::calls_in(&stats, "evalsha"))
    }

    /// Waits until this server is a replica in sync.
    pub fn wait_for_replica(&self, index: usize) {
        wait_until("the server is a replica in sync", PATIENCE, || {
            is_replica_in_sync(&self.servers[index])
        });
    }

    /// From now on nothing that the first server is told reaches its replicas,
    /// while the sentinels still see all of them well.
    pub fn stop_replication(&self) {
        self.gate.as_ref().expect("a gate").shut_out(SERVERS);
    }

    /// Parts the first server from all others, but not from the edges.
    pub fn part_from_the_others(&self) {
        self.gate.as_ref().expect("a gate").shut_out(SERVERS.into_iter().chain(SENTINELS));
    }

    /// Parts the first server from the others and from the edges.
    pub fn part_from_all(&self) {
        let others = SERVERS.into_iter().chain(SENTINELS);
        self.gate.as_ref().expect("a gate").shut_out(others.chain(["127.0.0.1"]));
    }

    /// Ends what the three above began.
    pub fn heal(&self) {
        self.gate.as_ref().expect("a gate").open();
    }

    /// Has the sentinels talk more often, where they know how to: from Redis 7
    /// on. Otherwise it takes seconds until they know each other.
    fn hurry(&self) {
        for sentinel in &self.sentinels {
            let _: Result<(), _> = redis::cmd("SENTINEL")
                .arg(&["DEBUG", "PUBLISH-PERIOD", "200", "INFO-PERIOD", "200"])
                .arg(&["TILT-PERIOD", "2000"])
                .query(&mut sentinel.connect());
        }
    }

    fn is_sane(&self) -> bool {
        self.servers[1..].iter().all(is_replica_in_sync)
            && self.sentinels.iter().all(|sentinel| {
                self.state(sentinel).is_some_and(|state| {
                    (state.flags.as_str(), state.replicas, state.others) == ("master", 2, 2)
                })
            })
    }

    fn state(&self, sentinel: &Redis) -> Option<State> {
        let fields: HashMap<String, String> =
            redis::cmd("SENTINEL").arg(&["MASTER", MASTER]).query(&mut sentinel.connect()).ok()?;
        let number = |name: &str| fields[name].parse().expect("a number");
        Some(State {
            primary: (fields["ip"].clone(), number("port") as u16),
            flags: fields["flags"].clone(),
            replicas: number("num-slaves"),
            others: number("num-other-sentinels"),
        })
    }

    fn index_of(&self, (host, port): &(String, u16)) -> Option<usize> {
        if self.gate.as_ref().is_some_and(|gate| gate.port() == *port) {
            return Some(0);
        }
        let is_it = |server: &Redis| server.host() == host && server.tls_or_plain_port() == *port;
        self.servers.iter().position(is_it)
    }
}

/// What a sentinel knows.
struct State {
    primary: (String, u16),
    flags: String,
    replicas: u32,
    others: u32,
}

fn is_primary(server: &Redis) -> bool {
    replication(server).is_some_and(|info| info.contains("role:master"))
}

fn is_replica_in_sync(server: &Redis) -> bool {
    replication(server).is_some_and(|info| {
        info.contains("role:slave")
            && info.contains("master_link_status:up")
            && info.contains("master_sync_in_progress:0")
    })
}

/// Of a server that is down: none.
fn replication(server: &Redis) -> Option<String> {
    let mut connection = server.try_connect()?;
    redis::cmd("INFO").arg("replication").query(&mut connection).ok()
}
