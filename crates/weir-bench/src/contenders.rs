//! Who is compared.

/// Which nginx a contender is a location of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// The one whose limits are decided in Redis.
    Redis,
    /// The one whose limits are decided in its own memory.
    Memory,
}

/// What each answer must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// 200.
    Passed,
    /// 200, with the headers of a limit.
    Limited,
    /// 429, but for the first request of each client.
    Refused,
    /// The same, with the headers of a limit.
    RefusedWithHeaders,
}

impl Expected {
    /// Whether it is a 429.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Refused | Self::RefusedWithHeaders)
    }

    /// Whether it tells of the limit.
    pub fn has_headers(self) -> bool {
        matches!(self, Self::Limited | Self::RefusedWithHeaders)
    }
}

/// One way to limit requests, or none.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// What it is called on the command line and in JSON; its location's path.
    pub id: &'static str,
    /// What it is called in tables and plots.
    pub name: &'static str,
    /// Where it lives.
    pub store: Store,
    /// What it answers.
    pub expected: Expected,
    /// How it limits.
    pub by: Limiter,
}

impl Contender {
    /// Where it is asked.
    pub fn path(&self) -> String {
        format!("/{}", self.id)
    }
}

/// How requests are limited.
#[derive(Clone, Copy, Debug)]
pub enum Limiter {
    /// Not at all.
    Nothing,
    /// By nginx: the directive's arguments.
    LimitReq(&'static str),
    /// By this Lua.
    Lua(&'static str),
    /// By Weir: a policy's fields beside its key.
    Weir(&'static str),
}

/// What the others are compared with: what requests cost by themselves.
pub const BASE: &str = "none";

/// The other yardstick: what is written by hand in place of Weir.
pub const GLUE: &str = "glue-eval";

/// The same without sending the script each time.
pub const GLUE_BY_SHA: &str = "glue-evalsha";

use Expected::{Limited, Passed, Refused, RefusedWithHeaders};
use Limiter::{LimitReq, Lua, Nothing, Weir};
use Store::{Memory, Redis};

const fn contender(
    id: &'static str,
    name: &'static str,
    store: Store,
    expected: Expected,
    by: Limiter,
) -> Contender {
    Contender { id, name, store, expected, by }
}

// Limits are never reached, or at once. Windows are shorter than a round, so that for
// most of it entries leave as others come.
#[rustfmt::skip]
static ALL: [Contender; 20] = [
    contender(BASE, "no limiter", Memory, Passed, Nothing),
    contender("limit-req", "limit_req", Memory, Passed, LimitReq("zone=wide burst=100000 nodelay")),
    contender("limit-req-refused", "limit_req, refused", Memory, Refused, LimitReq("zone=narrow")),
    contender("dict", "shared dict", Memory, Limited, Lua(r#"require("glue").dict(90000, 0.25)"#)),
    contender("dict-refused", "shared dict, refused", Memory, RefusedWithHeaders, Lua(r#"require("glue").dict(1, 86400)"#)),
    contender(GLUE, "glue, EVAL", Redis, Limited, Lua(r#"require("glue").eval(90000, 0.25)"#)),
    contender(GLUE_BY_SHA, "glue, EVALSHA", Redis, Limited, Lua(r#"require("glue").evalsha(90000, 0.25)"#)),
    contender("glue-refused", "glue, EVALSHA, refused", Redis, RefusedWithHeaders, Lua(r#"require("glue").evalsha(1, 3600)"#)),
    contender("sliding-log", "Weir, sliding-log", Redis, Limited, Weir(r#"limit = "90000/250ms""#)),
    contender("compact-log", "Weir, compact-log", Redis, Limited, Weir(r#"limit = "90000/250ms", algorithm = "compact-log""#)),
    contender("sliding-counter", "Weir, sliding-counter", Redis, Limited, Weir(r#"limit = "90000/250ms", algorithm = "sliding-counter""#)),
    contender("token-bucket", "Weir, token-bucket", Redis, Limited, Weir(r#"limit = "90000/250ms", algorithm = "token-bucket""#)),
    contender("quota", "Weir, quota", Redis, Limited, Weir(r#"limit = "1000000000/day", algorithm = "quota""#)),
    contender("several", "Weir, three limits", Redis, Limited, Weir(THREE_LIMITS)),
    contender("refused", "Weir, refused", Redis, RefusedWithHeaders, Weir(r#"limit = "1/1h""#)),
    contender("refused-asked", "Weir, refused by Redis each time", Redis, RefusedWithHeaders, Weir(r#"limit = "1/1h", remember_denials = false"#)),
    contender("embedded-log", "Weir, embedded, sliding-log", Memory, Limited, Weir(r#"limit = "90000/250ms""#)),
    contender("embedded-counter", "Weir, embedded, sliding-counter", Memory, Limited, Weir(r#"limit = "90000/250ms", algorithm = "sliding-counter""#)),
    contender("embedded-bucket", "Weir, embedded, token-bucket", Memory, Limited, Weir(r#"limit = "90000/250ms", algorithm = "token-bucket""#)),
    contender("embedded-refused", "Weir, embedded, refused", Memory, RefusedWithHeaders, Weir(r#"limit = "1/1h""#)),
];

const THREE_LIMITS: &str = r#"limits = {
    { limit = "1000000/1s" },
    { limit = "100000000/1m", algorithm = "sliding-counter" },
    { limit = "1000000000/1h", algorithm = "sliding-counter" },
}"#;

/// All of them, in the order in which they run and are shown.
pub fn all() -> &'static [Contender] {
    &ALL
}

/// The one of this id.
pub fn find(id: &str) -> Option<&'static Contender> {
    ALL.iter().find(|contender| contender.id == id)
}
