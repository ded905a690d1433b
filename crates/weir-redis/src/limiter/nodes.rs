//! The nodes of a deployment.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::attempt::Target;
use crate::news::Listener;
use crate::node::{Node, NodeId, Settings};
use crate::slots;

/// See the module's documentation.
pub(super) struct Nodes {
    nodes: BTreeMap<NodeId, Node>,
    last: u32,
    settings: Settings,
    prefix: String,
    listener: Listener,
}

impl Nodes {
    pub(super) fn new(settings: Settings, prefix: &str, listener: Listener) -> Self {
        Self { nodes: BTreeMap::new(), last: 0, settings, prefix: prefix.to_owned(), listener }
    }

    /// A node of this name at this place. `slot`: one that it serves, in a
    /// cluster.
    pub(super) fn add(&mut self, name: String, target: Target, slot: Option<u16>) -> &mut Node {
        self.last += 1;
        let id = NodeId(self.last);
        let tag = slot.map_or_else(|| "probe".to_owned(), slots::tag);
        let probe_key = format!("{}:{{{tag}}}:probe", self.prefix);
        let listener = self.listener.clone();
        let node = Node::new(id, name, target, probe_key, self.settings.clone(), listener);
        self.nodes.entry(id).or_insert(node)
    }

    pub(super) fn patience(&self) -> Duration {
        self.settings.patience
    }

    /// Begins to connect to those that are not connected.
    pub(super) fn connect_all(&mut self) {
        self.nodes.values_mut().for_each(|node| node.connect(Duration::ZERO));
    }

    pub(super) fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    /// The node, where there is no cluster.
    pub(super) fn only(&self) -> Option<&Node> {
        self.nodes.values().next()
    }

    pub(super) fn only_mut(&mut self) -> Option<&mut Node> {
        self.nodes.values_mut().next()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.nodes.values_mut()
    }

    pub(super) fn remove(&mut self, id: NodeId) {
        self.nodes.remove(&id);
    }
}
