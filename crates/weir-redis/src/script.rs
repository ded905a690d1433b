//! The decision script.

use std::sync::LazyLock;

use redis::Cmd;

/// Its source, with the contract (KEYS, ARGV, reply) in its head. `make script`
/// prints the same.
pub const SOURCE: &str = concat!(
    include_str!("scripts/contract.lua"),
    include_str!("scripts/log.lua"),
    include_str!("scripts/ring.lua"),
    include_str!("scripts/counter.lua"),
    include_str!("scripts/bucket.lua"),
    include_str!("scripts/quota.lua"),
    include_str!("scripts/decide.lua"),
);

static HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(SOURCE).get_hash().to_owned());

/// The SHA-1 by which Redis knows it, in hexadecimal.
pub fn hash() -> &'static str {
    &HASH
}

/// The command that stores it in a server.
pub(crate) fn load() -> Cmd {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(SOURCE);
    load
}
