//! What is found again by name.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Shared memory of one kind by name, as long as somebody holds it. A reload runs
/// `init_by_lua` in the process and before the end of the configuration that it
/// replaces, so it finds what that one holds. If the reload then fails, what it made
/// goes, and the next finds what is held still.
pub(crate) struct Registry<T> {
    /// Under each name from the oldest.
    known: Mutex<Option<HashMap<String, Vec<Weak<T>>>>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { known: Mutex::new(None) }
    }

    /// What is known by this name, if `fits` says that it will do; else what
    /// `make` makes, which takes the name. Tells in second place what there was
    /// and did not fit.
    pub(crate) fn open(
        &self,
        name: &str,
        fits: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<(Arc<T>, Option<Arc<T>>)> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        known.retain(|_, held| {
            held.retain(|one| one.strong_count() > 0);
            !held.is_empty()
        });
        let before = known.get(name).and_then(|held| held.last()).and_then(Weak::upgrade);
        match before {
            Some(before) if fits(&before) => Ok((before, None)),
            before => {
                let made = Arc::new(make()?);
                known.entry(name.to_owned()).or_default().push(Arc::downgrade(&made));
                Ok((made, before))
            }
        }
    }
}
