//! Gauges of a whole host: each worker writes its own, and whoever reads adds
//! up those of the living.

use std::io;
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use crate::mapping::Mapping;
use crate::registry::Registry;

/// How long a worker may be silent and still counts.
///
/// A process id says within a moment that its process is dead, but not that it
/// is still the same process: a dead worker's may have been given to another. So
/// a slot must also have been written lately.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Numbers in a cache line, which no two slots share.
const LINE: usize = 8;

/// Before the gauges: the process id of the owner, 0 for nobody's, and when the
/// gauges were last written, in milliseconds; 0 for never by this owner.
const OWNER: usize = 0;
const WRITTEN_MS: usize = 1;
const HEAD: usize = 2;

static KNOWN: Registry<Slots> = Registry::new();

/// A fixed number of slots, each with the gauges of one process.
#[derive(Debug)]
pub struct Slots {
    mapping: Mapping,
    slots: usize,
    gauges: usize,
}

impl Slots {
    /// The slots of this name, each with so many gauges: those of the
    /// configuration before, if they were as many, else new ones.
    ///
    /// # Errors
    ///
    /// If the system has no memory for them.
    pub fn open(name: &str, slots: usize, gauges: usize) -> io::Result<Arc<Self>> {
        let make = || {
            let mapping = Mapping::new(slots.max(1) * stride(gauges) * size_of::<AtomicU64>())?;
            Ok(Self { mapping, slots, gauges })
        };
        let fits = |known: &Self| (known.slots, known.gauges) == (slots, gauges);
        KNOWN.open(name, fits, make).map(|(slots, _)| slots)
    }

    /// A slot for this process: a free one, or that of a process that is dead.
    /// `None` if all are taken. It counts from the first [`Slot::write`] on.
    pub fn claim(self: &Arc<Self>) -> Option<Slot> {
        let owner = std::process::id();
        (0..self.slots).find_map(|index| {
            let slot = self.slot(index);
            let before = slot[OWNER].load(Acquire);
            if before != 0 && is_alive(before) {
                return None;
            }
            // Of several that want the same slot one gets it.
            slot[OWNER].compare_exchange(before, owner.into(), AcqRel, Relaxed).ok()?;
            slot[WRITTEN_MS].store(0, Relaxed);
            Some(Slot { slots: Arc::clone(self), index, owner })
        })
    }

    /// The gauges of each process that lives and has written them lately.
    pub fn read(&self) -> Vec<Vec<u64>> {
        self.read_at(now_ms())
    }

    fn read_at(&self, now_ms: u64) -> Vec<Vec<u64>> {
        let is_recent = |written_ms: u64| {
            written_ms != 0 && u128::from(now_ms.saturating_sub(written_ms)) < SILENCE.as_millis()
        };
        (0..self.slots)
            .map(|index| self.slot(index))
            .filter(|slot| {
                let owner = slot[OWNER].load(Acquire);
                owner != 0 && is_recent(slot[WRITTEN_MS].load(Acquire)) && is_alive(owner)
            })
            .map(|slot| slot[HEAD..].iter().map(|gauge| gauge.load(Relaxed)).collect())
            .collect()
    }

    fn slot(&self, index: usize) -> &[AtomicU64] {
        let offset = index * stride(self.gauges) * size_of::<AtomicU64>();
        self.mapping.slice(offset, HEAD + self.gauges)
    }
}

/// This process's slot; free again when it is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    index: usize,
    owner: u32,
}

impl Slot {
    /// Writes all gauges; readers may see some of them before the others.
    ///
    /// # Panics
    ///
    /// If there are not as many as the slot has.
    pub fn write(&self, gauges: &[u64]) {
        let slot = self.slots.slot(self.index);
        assert_eq!(gauges.len(), self.slots.gauges, "all gauges of a slot");
        for (gauge, value) in slot[HEAD..].iter().zip(gauges) {
            gauge.store(*value, Relaxed);
        }
        slot[WRITTEN_MS].store(now_ms(), Release);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A process that was forked since drops a copy, and the slot stays.
        if self.owner == std::process::id() {
            let owner = &self.slots.slot(self.index)[OWNER];
            let _ = owner.compare_exchange(self.owner.into(), 0, AcqRel, Relaxed);
        }
    }
}

/// Numbers in a slot: whole cache lines.
fn stride(gauges: usize) -> usize {
    (HEAD + gauges).next_multiple_of(LINE)
}

/// Whether there is a process of this id; whose it is does not matter.
fn is_alive(pid: u64) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    // SAFETY: kill takes numbers and touches no memory; signal 0 is sent to
    // nobody.
    let found = unsafe { libc::kill(pid, 0) } == 0;
    found || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// By a clock that all processes of the host share, and that never steps back.
fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes to the timespec it is given, which lives;
    // it cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    // Neither is ever negative.
    now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(name: &str, count: usize) -> Arc<Slots> {
        Slots::open(name, count, 2).expect("slots")
    }

    /// Runs `work` in a forked process, which then dies as by SIGKILL, dropping
    /// nothing; returns when it is dead. `work` must neither allocate nor lock:
    /// other threads of this process may hold what it would wait for.
    fn in_a_process_that_dies(work: impl FnOnce()) {
        // SAFETY: the child calls `work`, which does nothing that needs another
        // thread, and then _exit, which runs no handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            work();
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0, "fork");
        let mut status = 0;
        // SAFETY: waitpid writes to a live int.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child did its work");
    }

    #[test]
    fn a_slot_counts_from_its_first_gauges_until_it_is_dropped() {
        let slots = slots("counts_from", 3);
        assert!(slots.read().is_empty());
        let (one, two) = (slots.claim().expect("free"), slots.claim().expect("free"));
        assert!(slots.read().is_empty(), "nothing was written");
        assert!(slots.read_at(1).is_empty(), "nor when the system started");
        one.write(&[1, 10]);
        two.write(&[2, 20]);
        one.write(&[3, 30]);
        assert_eq!(slots.read(), [[3, 30], [2, 20]]);
        drop(one);
        assert_eq!(slots.read(), [[2, 20]]);
    }

    #[test]
    fn there_are_no_more_than_there_are_and_a_dropped_one_is_free() {
        let slots = slots("no_more", 2);
        let (one, _two) = (slots.claim().expect("free"), slots.claim().expect("free"));
        assert!(slots.claim().is_none());
        one.write(&[7, 7]);
        drop(one);
        let again = slots.claim().expect("free again");
        assert!(slots.read().is_empty(), "what its last owner wrote is not its own");
        again.write(&[8, 8]);
        assert_eq!(slots.read(), [[8, 8]]);
    }

    #[test]
    fn a_dead_owner_is_not_counted_and_its_slot_is_given_away() {
        let slots = slots("dead_owner", 1);
        in_a_process_that_dies(|| {
            let slot = slots.claim();
            slot.iter().for_each(|slot| slot.write(&[1, 2]));
            std::mem::forget(slot);
        });
        let slot = slots.slot(0);
        assert_ne!(slot[OWNER].load(Relaxed), 0, "it did not release it");
        assert_eq!(slot[HEAD + 1].load(Relaxed), 2, "it wrote it");
        assert!(slots.read().is_empty());
        let claimed = slots.claim().expect("a dead owner's slot");
        claimed.write(&[3, 4]);
        assert_eq!(slots.read(), [[3, 4]]);
    }

    #[test]
    fn a_copy_in_another_process_frees_nothing() {
        let slots = slots("a_copy", 1);
        let slot = slots.claim().expect("free");
        slot.write(&[5, 6]);
        in_a_process_that_dies(|| {
            // SAFETY: a bitwise copy, as fork makes one; the child runs nothing
            // after it that could use the original.
            drop(unsafe { std::ptr::read(&raw const slot) });
        });
        assert_eq!(slots.read(), [[5, 6]]);
    }

    #[test]
    fn whoever_was_silent_for_long_is_not_counted_until_it_writes_again() {
        let slots = slots("silent", 1);
        let slot = slots.claim().expect("free");
        slot.write(&[1, 1]);
        let silence_ms = SILENCE.as_millis() as u64;
        assert_eq!(slots.read_at(now_ms() + silence_ms / 2).len(), 1);
        assert_eq!(slots.read_at(now_ms() - 1).len(), 1, "written since the clock was read");
        assert_eq!(slots.read_at(now_ms() + silence_ms + 1).len(), 0);
        assert!(slots.claim().is_none(), "its owner lives, and may write again");
    }

    #[test]
    fn they_are_found_again_by_name_while_somebody_holds_them() {
        let first = slots("slots_found_again", 2);
        let slot = first.claim().expect("free");
        slot.write(&[1, 1]);
        assert_eq!(slots("slots_found_again", 2).read().len(), 1);
        let others = Slots::open("slots_found_again", 2, 3).expect("slots");
        assert_eq!(others.read().len(), 0, "of another number of gauges");
        assert_eq!(slots("slots_found_again", 3).read().len(), 0, "more of them");
    }
}
