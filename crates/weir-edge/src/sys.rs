//! What only the operating system can do. With [`crate::calls`] all of this crate's `unsafe`.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Signals that a thread raises by its own fault: blocking them would turn a
/// crash into undefined behaviour.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP];

/// Spawns a thread that takes no signals.
///
/// nginx unblocks all signals in a worker, and its handlers rely on running on
/// the main thread. A new thread inherits the mask of the one that spawns it,
/// so signals are blocked around the spawn and not a moment later.
pub(crate) fn spawn_without_signals(
    builder: Builder,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let mut blocked = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set it is given, and cannot fail for a
    // valid pointer; sigdelset takes that set and valid signal numbers.
    let blocked = unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for signal in FAULTS {
            libc::sigdelset(blocked.as_mut_ptr(), signal);
        }
        blocked.assume_init()
    };
    let before = set_mask(&blocked)?;
    let spawned = builder.spawn(run);
    set_mask(&before)?;
    spawned
}

/// Sets this thread's signal mask; returns the one before.
fn set_mask(mask: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both pointers are to live sigset_t, and pthread_sigmask writes
    // the second one whenever it returns 0.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, before.as_mut_ptr()) } {
        // SAFETY: just written, since the call returned 0.
        0 => Ok(unsafe { before.assume_init() }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
