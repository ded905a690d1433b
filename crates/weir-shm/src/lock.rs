//! A lock between processes that outlives whoever holds it.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime};

use crate::mapping::Shared;

/// How often a lock that is held is tried before the process sleeps for it: a
/// holder keeps it for a fraction of a microsecond.
const SPINS: u32 = 200;

/// A mutex in shared memory. Whoever dies with it leaves it to the next.
#[repr(transparent)]
pub(crate) struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a process-shared mutex, only ever used by the system's calls for it, once
// `init` has made it. All zero bytes are a mutex too, an ordinary one.
unsafe impl Shared for Lock {}
// SAFETY: mutual exclusion between threads is what it is for.
unsafe impl Sync for Lock {}

/// A lock that was taken.
pub(crate) enum Taken {
    /// From nobody.
    Free,
    /// From a process that died with it: what it guards may be half written.
    /// [`Lock::repaired`] must be called before it is released.
    Abandoned,
}

impl Lock {
    /// Makes it usable by every process that has it mapped. Once, before any other
    /// call.
    pub(crate) fn init(&self) -> io::Result<()> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the attributes are initialised by the first call before the
        // others use them, and destroyed once; the mutex is at an address that
        // does not change, and nobody uses it yet.
        unsafe {
            check(libc::pthread_mutexattr_init(attributes.as_mut_ptr()))?;
            let attributes = attributes.as_mut_ptr();
            let made =
                check(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))
                    .and_then(|()| {
                        check(libc::pthread_mutexattr_setrobust(
                            attributes,
                            libc::PTHREAD_MUTEX_ROBUST,
                        ))
                    })
                    .and_then(|()| check(libc::pthread_mutex_init(self.0.get(), attributes)));
            libc::pthread_mutexattr_destroy(attributes);
            made
        }
    }

    /// Takes it, waiting no longer than `patience`; `None` if it is still held.
    pub(crate) fn take(&self, patience: Duration) -> Option<Taken> {
        for _ in 0..SPINS {
            // SAFETY: initialised by `init`.
            match unsafe { libc::pthread_mutex_trylock(self.0.get()) } {
                libc::EBUSY if patience.is_zero() => return None,
                libc::EBUSY => std::hint::spin_loop(),
                taken => return outcome(taken),
            }
        }
        let until = SystemTime::now() + patience;
        let until = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let until = libc::timespec {
            tv_sec: until.as_secs() as libc::time_t,
            tv_nsec: until.subsec_nanos().into(),
        };
        // SAFETY: initialised by `init`; the time is a valid timespec.
        outcome(unsafe { libc::pthread_mutex_timedlock(self.0.get(), &raw const until) })
    }

    /// Says that what an [`Abandoned`](Taken::Abandoned) lock guards is whole again.
    pub(crate) fn repaired(&self) {
        // SAFETY: initialised by `init`, and held by this thread.
        unsafe { libc::pthread_mutex_consistent(self.0.get()) };
    }

    /// Releases it. Only whoever holds it may call this.
    pub(crate) fn release(&self) {
        // SAFETY: initialised by `init`; of a robust mutex that somebody else holds
        // the call would fail and change nothing.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

fn outcome(taken: libc::c_int) -> Option<Taken> {
    match taken {
        0 => Some(Taken::Free),
        libc::EOWNERDEAD => Some(Taken::Abandoned),
        _ => None,
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}
