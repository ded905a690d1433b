//! What is found again by name.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Shared memory of one kind by name, as long as somebody holds it. A reload runs
/// `init_by_lua` in the process and before the end of the configuration that it
/// replaces, so it finds what that one holds; also where a reload in between has
/// failed, whose own was not of the same size.
pub(crate) struct Registry<T> {
    known: Mutex<Vec<(String, Weak<T>)>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { known: Mutex::new(Vec::new()) }
    }

    /// What is known by this name, if `fits` says that it will do; else what
    /// `make` makes. Tells in second place what there was and did not fit.
    pub(crate) fn open(
        &self,
        name: &str,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<(Arc<T>, Option<Arc<T>>)> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, held)| held.strong_count() > 0);
        let named = known.iter().filter(|(known, _)| known == name);
        let held: Vec<Arc<T>> = named.filter_map(|(_, held)| held.upgrade()).collect();
        if let Some(found) = held.iter().find(|held| fits(held)) {
            return Ok((Arc::clone(found), None));
        }
        let made = Arc::new(make()?);
        known.push((name.to_owned(), Arc::downgrade(&made)));
        Ok((made, held.into_iter().next_back()))
    }
}
