//! What the limiter hears from elsewhere than its queue and the batches under
//! way.

use redis::aio::MultiplexedConnection;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

use crate::node::{ConnectionId, NodeId};
use crate::server::Server;
use crate::slots::Range;

/// See the module's documentation.
pub(crate) enum News {
    /// Of a node, and which of its connections or attempts.
    Node(NodeId, ConnectionId, Event),
    /// What asking a cluster for its map led to.
    Map(Result<Vec<Range>, String>),
}

/// Who is told. Telling fails only when the limiter itself has ended.
pub(crate) type Listener = UnboundedSender<News>;

/// What happens to a node's connections.
pub(crate) enum Event {
    /// A connection over which this server takes writes.
    Connected(MultiplexedConnection, Box<Server>),
    /// An attempt that took this long failed.
    AttemptFailed(String, Duration),
    /// The connection ended.
    Lost,
    /// The server that Sentinel says is the primary, or why it says nothing.
    Primary(Result<String, String>),
}
