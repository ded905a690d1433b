//! What the workers of a host share: the `memory` table, and the fields that
//! policies may have in place of the configuration's.

use std::ops::RangeInclusive;

use super::Value;
use super::fields::Fields;
use crate::{ConfigError, size};

/// The memory that the workers of a host share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Its size in bytes: 1m to 64g.
    pub size: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { size: 32 << 20 }
    }
}

const SIZES: RangeInclusive<u64> = 1 << 20..=64 << 30;

/// The most edges that may share a limit.
const MAX_SHARE: u64 = 10_000;

impl MemoryConfig {
    pub(super) fn check(config: Option<Value>) -> Result<Self, ConfigError> {
        let Some(config) = config else { return Ok(Self::default()) };
        let mut fields = Fields::of("memory", config, &["size"])?;
        let Some(text) = fields.string("size")? else { return Ok(Self::default()) };
        let size = size::parse(&text)
            .map_err(|error| fields.wrong("size", format!("{text:?}: {error}")))?;
        if !SIZES.contains(&size) {
            return Err(fields.wrong("size", format!("{text:?}: must be from 1m to 64g")));
        }
        Ok(Self { size: size as usize })
    }
}

/// What a policy does with this memory, if it says nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    pub(super) local_share: u64,
    pub(super) remember_denials: bool,
}

impl Sharing {
    /// Reads the fields of the configuration, or of a policy.
    pub(super) fn read(fields: &mut Fields, default: Self) -> Result<Self, ConfigError> {
        let share = fields.whole_number("local_share", 1..=MAX_SHARE)?;
        let remember = fields.has("remember_denials");
        let remember = remember.then(|| fields.boolean("remember_denials")).transpose()?;
        Ok(Self {
            local_share: share.unwrap_or(default.local_share),
            remember_denials: remember.unwrap_or(default.remember_denials),
        })
    }
}

impl Default for Sharing {
    fn default() -> Self {
        Self { local_share: 1, remember_denials: true }
    }
}
