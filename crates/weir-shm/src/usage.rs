//! What the store tells of itself.

/// How full a store is, and what has had to go. The counts are of the whole
/// host, since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes that it may take.
    pub size_bytes: u64,
    /// Bytes that are taken.
    pub used_bytes: u64,
    /// Entries in it.
    pub entries: u64,
    /// Entries that made room because they no longer mattered.
    pub evicted_expired: u64,
    /// Entries that made room because others had been used since.
    pub evicted_least_recently_used: u64,
    /// Entries lost because a worker died while it wrote them.
    pub resets: u64,
}
