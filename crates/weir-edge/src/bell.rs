//! How the I/O thread wakes the worker's event loop: one byte into a Unix
//! socket whose other end the Lua pump reads.
//!
//! The flag `rung` says that a byte is under way. The pump clears it *before*
//! it looks for answers, so an answer that comes while it looks brings a byte
//! of its own; the other order would lose that wake-up.

use std::fs::DirBuilder;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

/// How often the pump is woken though there is nothing to carry, to see whether
/// the worker is to exit: in case the timer that tells it could not be had.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// The half that both threads see.
#[derive(Debug, Default)]
pub(crate) struct Rung {
    rung: AtomicBool,
    bytes: AtomicU64,
}

impl Rung {
    /// Says that whoever reads the socket is about to look for answers.
    pub(crate) fn clear(&self) {
        // Pairs with the swap in `ring`: what was delivered before a ring that
        // found the flag set is seen by whoever clears it.
        self.rung.swap(false, AcqRel);
    }

    /// How many bytes have been written: how often the worker was woken.
    pub(crate) fn wakeups(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// What the worker tells the thread's [`Bell`].
pub(crate) enum Order {
    /// A pump is about to connect here.
    Await(UnixListener),
    /// Wake the pump: the worker is to exit.
    Ring,
}

/// The thread's half.
pub(crate) struct Bell {
    rung: Arc<Rung>,
    /// Never waited for: only this one thread takes it.
    stream: Mutex<Option<UnixStream>>,
}

impl Bell {
    pub(crate) fn new(rung: Arc<Rung>) -> Self {
        Self { rung, stream: Mutex::new(None) }
    }

    /// Wakes the pump, unless a byte is under way already. Without a pump the
    /// flag stays up, and the next one is woken when it connects.
    pub(crate) fn ring(&self) {
        if !self.rung.rung.swap(true, AcqRel) {
            self.write();
        }
    }

    /// Carries out orders until the worker has dropped its end.
    pub(crate) async fn serve(&self, mut orders: UnboundedReceiver<Order>) {
        let mut awaited: Option<tokio::net::UnixListener> = None;
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        loop {
            let accepted = async {
                match &awaited {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                order = orders.recv() => match order {
                    // A pump that never came is not waited for any longer.
                    Some(Order::Await(listener)) => {
                        awaited = tokio::net::UnixListener::from_std(listener).ok();
                    }
                    Some(Order::Ring) => self.ring_anyway(),
                    None => return,
                },
                accepted = accepted => match accepted {
                    Ok((stream, _)) if is_own(&stream) => {
                        awaited = None;
                        *self.stream() = stream.into_std().ok();
                        self.ring_anyway();
                    }
                    // Somebody else's: ours is still to come.
                    Ok(_) => {}
                    // No descriptors left: the pump sees the end of its
                    // connection, and tries again later.
                    Err(_) => awaited = None,
                },
                _ = heartbeat.tick() => self.ring(),
            }
        }
    }

    /// Writes a byte whether one is under way or not: to a pump that has just
    /// come, or that must look at something else than answers.
    fn ring_anyway(&self) {
        self.rung.rung.store(true, Relaxed);
        self.write();
    }

    fn stream(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) {
        if let Some(stream) = &mut *self.stream() {
            // The socket does not block, and holds far more than the few bytes
            // that can be unread. If the pump is gone, the next one is woken
            // when it connects.
            if stream.write(b"\n").is_ok() {
                self.rung.bytes.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Whether the other end is this very process.
fn is_own(stream: &tokio::net::UnixStream) -> bool {
    let own = std::process::id();
    stream.peer_cred().is_ok_and(|peer| peer.pid().is_some_and(|pid| pid as u32 == own))
}

/// A place where pump and thread meet: a socket in a private directory, both
/// gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    dir: PathBuf,
    path: PathBuf,
}

impl Rendezvous {
    /// Makes one in `runtime_dir`, or in the first directory that will do.
    pub(crate) fn new(runtime_dir: Option<&str>) -> io::Result<(Self, UnixListener)> {
        let temporary = std::env::var("TMPDIR").ok();
        let usual = [temporary.as_deref(), Some("/dev/shm"), Some("/tmp")];
        let candidates = match runtime_dir {
            Some(_) => vec![runtime_dir],
            None => usual.to_vec(),
        };
        let mut problem = io::Error::from(io::ErrorKind::NotFound);
        for parent in candidates.into_iter().flatten() {
            match Self::within(Path::new(parent)) {
                Ok(made) => return Ok(made),
                Err(error) => problem = io::Error::new(error.kind(), format!("{parent}: {error}")),
            }
        }
        Err(problem)
    }

    fn within(parent: &Path) -> io::Result<(Self, UnixListener)> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // The mode keeps others out, and creating fails for a name that is
        // there already, so the name need not be a secret.
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        let dir = loop {
            let count = COUNT.fetch_add(1, Relaxed);
            let dir = parent.join(format!("weir-{}-{count}", std::process::id()));
            match builder.create(&dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => break created.map(|()| dir)?,
            }
        };
        let rendezvous = Self { path: dir.join("s"), dir };
        let listener = UnixListener::bind(&rendezvous.path)?;
        listener.set_nonblocking(true)?;
        Ok((rendezvous, listener))
    }

    /// Where to connect to.
    pub(crate) fn path(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        // Nothing is lost if either is gone already.
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_dir(&self.dir);
    }
}
