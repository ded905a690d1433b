//! A load that does not wait: every request is due at its time, whatever has
//! become of those before it.
//!
//! A client that waits for each answer asks a stalled server less often, and so
//! hides the stall. Here the answers that a stall holds up pile up instead, each
//! on a connection of its own. Two times are kept of each request: since it was
//! due, which is what a client sees, and since it was sent, which is what the
//! server did. The first is longer where the machine or this generator stalls, or
//! where all connections are waiting.

mod answers;
mod generator;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::wait_until;

pub use answers::{Answers, Asked};

/// How long a request waits for its answer; then it counts as unanswered.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked for, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// The path.
    pub path: &'static str,
    /// Requests a second.
    pub rate: u32,
}

/// A load on an nginx; stopped on drop.
pub struct Load {
    shared: Arc<Shared>,
    generator: Option<JoinHandle<()>>,
}

#[derive(Default)]
pub(crate) struct Shared {
    stopped: AtomicBool,
    asked: Mutex<Vec<Asked>>,
}

impl Load {
    /// Opens this many connections to a server at this port, and then asks for
    /// these. All streams begin at the same time, so that those of one rate are
    /// due in the same moments: what the machine does to one it does to the
    /// other.
    pub fn start(port: u16, connections: usize, streams: &[Stream]) -> Self {
        let shared = Arc::new(Shared::default());
        let (begun, begin) = mpsc::channel();
        let (theirs, streams) = (Arc::clone(&shared), streams.to_vec());
        let generator = std::thread::Builder::new()
            .name("load".to_owned())
            .spawn(move || generator::run(port, connections, &streams, &theirs, &begun))
            .expect("a thread");
        begin.recv().expect("all connections are open");
        Self { shared, generator: Some(generator) }
    }

    /// What was answered so far.
    pub fn so_far(&self) -> Answers {
        Answers::new(self.shared.asked.lock().expect("the generator runs").clone())
    }

    /// Waits for an answer with limit headers to a request for `path` that was
    /// sent after `mark`; returns how long after it that came.
    pub fn limited_after(&self, path: &str, mark: Instant, limit: Duration) -> Duration {
        let mut came = None;
        wait_until("limits are back", limit, || {
            let asked = self.shared.asked.lock().expect("the generator runs");
            // Ends are in order, so all that counts is at the end of the list.
            let recent = asked.iter().rev().take_while(|asked| asked.done >= mark);
            let limited =
                recent.filter(|asked| asked.path == path && asked.sent >= mark && asked.limited);
            came = limited.last().map(|asked| asked.done - mark);
            came.is_some()
        });
        came.expect("waited for")
    }

    /// Sends nothing more, waits for what is under way, and returns everything.
    pub fn stop(mut self) -> Answers {
        self.end();
        self.so_far()
    }

    fn end(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        if let Some(generator) = self.generator.take() {
            let ended = generator.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the generator panicked");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn record(&self, asked: Asked) {
        self.asked.lock().expect("no reader panics").push(asked);
    }
}
