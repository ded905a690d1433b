//! A lock between processes that outlives whoever holds it.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::mapping::Shared;
use crate::moment::Uptime;

unsafe extern "C" {
    /// `pthread_mutex_timedlock` by a clock of one's choice, of glibc 2.30 and newer:
    /// by the wall clock, a worker would wait for an hour when that is set back.
    fn pthread_mutex_clocklock(
        mutex: *mut libc::pthread_mutex_t,
        clock: libc::clockid_t,
        until: *const libc::timespec,
    ) -> libc::c_int;
}

/// How often a lock that is held is tried before the process sleeps for it, or gives
/// up: a holder keeps it for a fraction of a microsecond.
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
    /// [`Lock::inherit`] must be called before it is released.
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

    /// Takes it, waiting no longer than `patience`, and in any case as long as others
    /// usually hold it; `None` if it is still held.
    pub(crate) fn take(&self, patience: Duration) -> Option<Taken> {
        if let Some(taken) = self.spin() {
            return Some(taken);
        }
        if patience.is_zero() {
            return None;
        }
        let until = Uptime::now().after(patience).as_micros();
        let until = libc::timespec {
            tv_sec: (until / 1_000_000) as libc::time_t,
            tv_nsec: (until % 1_000_000 * 1_000) as libc::c_long,
        };
        // SAFETY: initialised by `init`; the time is a valid timespec.
        let taken = unsafe {
            pthread_mutex_clocklock(self.0.get(), libc::CLOCK_MONOTONIC, &raw const until)
        };
        match taken {
            // Where all processes of the host were stopped together, as a container
            // is that has used up its share, the time is over and nobody is stuck.
            libc::ETIMEDOUT => self.spin(),
            taken => outcome(taken),
        }
    }

    fn spin(&self) -> Option<Taken> {
        for _ in 0..SPINS {
            // SAFETY: initialised by `init`.
            match unsafe { libc::pthread_mutex_trylock(self.0.get()) } {
                libc::EBUSY => std::hint::spin_loop(),
                taken => return outcome(taken),
            }
        }
        None
    }

    /// Makes an [`Abandoned`](Taken::Abandoned) lock one like any other.
    pub(crate) fn inherit(&self) {
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
