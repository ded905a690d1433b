//! A cluster of three primaries with a replica each.

use std::time::Duration;

use crate::process::{self, free_port_of_a_node};
use crate::sentinel_set::QUICK_REPLICATION;
use crate::{Redis, wait_until};

/// The slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// How many primaries there are, and replicas.
const SHARDS: usize = 3;

/// The slots of a primary, at the start; the last has one less.
const SHARE: u16 = SLOTS / SHARDS as u16 + 1;

/// After so long without an answer a node is taken for dead.
const NODE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Longer than any change should take, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(30);

/// All nodes are stopped on drop.
pub struct Cluster {
    /// Three primaries and their replicas in the same order, as it was at the
    /// start.
    pub nodes: Vec<Redis>,
    ids: Vec<String>,
}

impl Cluster {
    /// Starts it, and waits until every node serves.
    pub fn start() -> Self {
        Self::start_as(|node| node)
    }

    /// The same with other settings for each node.
    pub fn start_as(node: impl Fn(Redis) -> Redis) -> Self {
        // Answers are timed, and not what else this machine does. As far as that
        // is allowed.
        let _ = process::goes_first();
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let begin = |_| {
            node(Redis::absent().on_port(free_port_of_a_node()))
                .with(&QUICK_REPLICATION)
                .with(&["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout])
                // Where one shard is down the others serve, and each replica stays
                // with its primary.
                .with(&["--cluster-require-full-coverage", "no"])
                .with(&["--cluster-migration-barrier", "10"])
                .with(&["--cluster-replica-validity-factor", "0"])
        };
        let mut nodes: Vec<Redis> = (0..2 * SHARDS).map(begin).collect();
        nodes.iter_mut().for_each(Redis::launch);
        let ids = nodes.iter().map(|node| node.command("CLUSTER MYID")).collect();
        let cluster = Self { nodes, ids };
        cluster.join();
        cluster
    }

    fn join(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            node.command::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
            if index < SHARDS {
                let first = index as u16 * SHARE;
                let slots: Vec<u16> = (first..SLOTS.min(first + SHARE)).collect();
                let mut cmd = redis::cmd("CLUSTER");
                cmd.arg("ADDSLOTS").arg(slots).exec(&mut node.connect()).expect("slots");
            }
            let port = self.nodes[0].tls_or_plain_port();
            node.command::<()>(&format!("CLUSTER MEET {} {port}", self.nodes[0].host()));
        }
        wait_until("all nodes know each other", PATIENCE, || {
            self.nodes.iter().all(|node| self.knows_all(node))
        });
        for (node, id) in self.nodes[SHARDS..].iter().zip(&self.ids) {
            node.command::<()>(&format!("CLUSTER REPLICATE {id}"));
        }
        self.wait_until_ok();
    }

    /// Waits until every node that runs says that the cluster serves, knows all
    /// others that run, and every replica is in sync.
    pub fn wait_until_ok(&self) {
        wait_until("the cluster serves", PATIENCE, || {
            let running = self.running().count();
            self.running().all(|node| {
                let told: String = node.command("INFO replication");
                let in_sync = told.contains("role:master")
                    || told.contains("master_link_status:up")
                        && told.contains("master_sync_in_progress:0");
                let others: String = node.command("CLUSTER NODES");
                let replicas = others.lines().filter(|line| line.contains("slave ")).count();
                let is_well = |line: &&str| !line.contains("fail") && !line.contains("handshake");
                in_sync
                    && replicas == SHARDS
                    && others.lines().filter(is_well).count() == running
                    && node.command::<String>("CLUSTER INFO").contains("cluster_state:ok")
            })
        });
    }

    fn knows_all(&self, node: &Redis) -> bool {
        let known: String = node.command("CLUSTER NODES");
        known.lines().filter(|line| line.contains(" connected")).count() == self.nodes.len()
            && !known.contains("handshake")
    }

    /// The nodes that run.
    fn running(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_launched())
    }

    /// The addresses of all nodes, as a Lua list.
    pub fn addresses(&self) -> String {
        let addresses = self.nodes.iter().map(|node| format!("\"{}\"", node.address()));
        format!("{{ {} }}", addresses.collect::<Vec<_>>().join(", "))
    }

    /// So many keys, given by a request, that this primary serves at the start.
    pub fn keys_of(node: usize, count: usize) -> Vec<String> {
        let keys = (0..).map(|index| format!("k{index}"));
        keys.filter(|key| slot_of(key) / SHARE == node as u16).take(count).collect()
    }

    /// The node that serves a slot, if all nodes that run say the same.
    pub fn node_of(&self, slot: u16) -> Option<usize> {
        let mut said = self.running().map(|node| self.owner(node, slot));
        let first = said.next()??;
        said.all(|other| other == Some(first)).then_some(first)
    }

    /// The node that serves a slot, as this one has it.
    fn owner(&self, asked: &Redis, slot: u16) -> Option<usize> {
        let text: String = asked.command("CLUSTER NODES");
        let serves = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            match (first.parse::<u16>(), last.parse()) {
                (Ok(first), Ok(last)) => (first..=last).contains(&slot),
                // A slot that is being moved.
                _ => false,
            }
        };
        // ID ADDRESS FLAGS PRIMARY PING PONG EPOCH LINK SLOTS...
        let line = text.lines().find(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            words[2].contains("master")
                && !words[2].contains("fail")
                && words[8..].iter().any(|range| serves(range))
        })?;
        let id = line.split(' ').next()?;
        self.ids.iter().position(|known| known == id)
    }

    /// Kills a primary. Its replica will be the primary in its place, in a while.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Waits until a node other than this one serves the slot, which all that run
    /// know; returns it.
    pub fn wait_for_promotion(&self, slot: u16, old: usize) -> usize {
        let mut new = None;
        wait_until("a replica is promoted", PATIENCE, || {
            new = self.node_of(slot).filter(|&new| new != old);
            new.is_some()
        });
        new.expect("waited for")
    }

    /// Begins to move a slot: from now on `from` answers for the keys that it has,
    /// and `to` for those that it has not.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let [source, target] = [from, to].map(|index| &self.ids[index]);
        self.nodes[to].command::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}"));
        self.nodes[from].command::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}"));
    }

    /// Moves one key of a slot that is being moved.
    pub fn move_key(&self, key: &str, from: usize, to: usize) {
        let target = &self.nodes[to];
        redis::cmd("MIGRATE")
            .arg((target.host(), target.tls_or_plain_port(), key, 0, 5_000))
            .exec(&mut self.nodes[from].connect())
            .expect("the key moves");
    }

    /// Moves the keys that `from` still has, and tells everybody.
    pub fn finish_move(&self, slot: u16, from: usize, to: usize) {
        let list = format!("CLUSTER GETKEYSINSLOT {slot} 1000");
        for key in self.nodes[from].command::<Vec<String>>(&list) {
            self.move_key(&key, from, to);
        }
        // The new owner first: nobody must be sent to one that does not know yet.
        let primaries = (0..self.nodes.len()).filter(|&index| {
            index != to
                && index != from
                && self.nodes[index].is_launched()
                && self.is_primary(index)
        });
        for index in [to, from].into_iter().chain(primaries) {
            let id = &self.ids[to];
            self.nodes[index].command::<()>(&format!("CLUSTER SETSLOT {slot} NODE {id}"));
        }
    }

    fn is_primary(&self, node: usize) -> bool {
        self.nodes[node].command::<String>("INFO replication").contains("role:master")
    }

    /// How often nodes that run were asked which node has which slot.
    pub fn questions(&self) -> u64 {
        let asked = |node: &Redis| -> u64 {
            // Redis 6.2 does not tell them apart.
            let names = ["cluster", "cluster|slots", "cluster|shards", "cluster|nodes"];
            names.iter().map(|name| node.calls(name)).sum()
        };
        self.running().map(asked).sum()
    }

    /// How often nodes that run have answered with an error of this kind.
    pub fn errors(&self, kind: &str) -> u64 {
        self.running().map(|node| node.errors(kind)).sum()
    }
}

/// The slot of all that is counted under a key that a request gives.
pub fn slot_of(key: &str) -> u16 {
    slot(&format!("{{={key}}}"))
}

/// The slot of a key in Redis: of what stands between its first braces.
pub fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    // CRC-16/XMODEM, as Redis Cluster's specification has it.
    let crc = hashed.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    });
    crc % SLOTS
}
