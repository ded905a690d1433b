//! A policy: what is limited, for whom, and what happens when nobody can say.

use crate::address::{Networks, Prefixes};
use crate::fields::HeaderStyle;
use crate::identity;
use crate::{Limit, Template};

/// Whom a request counts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRule {
    /// The first of these that is not empty.
    Sources(Vec<KeySource>),
    /// A Lua function, kept on the Lua side, that returns it.
    Function,
}

/// One of a policy's keys: the values of all its templates, of which none may
/// be empty. Never without a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySource(pub Vec<Template>);

impl KeySource {
    /// How keys name it: see [`identity`].
    pub fn escaped(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let parts: Vec<&str> = self.0.iter().map(Template::text).collect();
        identity::write_parts(&mut text, &parts);
        text
    }
}

/// Which requests a policy passes over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exempt {
    /// Those from these addresses.
    pub networks: Networks,
    /// Those of these methods.
    pub methods: Vec<String>,
    /// Those of which a Lua function, kept on the Lua side, says so.
    pub function: bool,
}

/// For which requests a charge stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Charge {
    /// For each.
    #[default]
    Always,
    /// For those answered with one of these statuses; of others it is given
    /// back.
    Statuses(Vec<u16>),
}

/// What becomes of a request about which no decision can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// It passes, without limit headers.
    Open,
    /// It is answered with the policy's error status.
    Closed,
    /// It is decided in the memory that the workers of the host share, under this
    /// host's part of the limits. Where that cannot be either, it passes.
    Local,
}

impl OnError {
    /// The word for it in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            OnError::Open => "open",
            OnError::Closed => "closed",
            OnError::Local => "local",
        }
    }
}

/// Other numbers for some clients of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name: 1 to 64 letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// In place of the policy's limits, each of the same algorithm and window,
    /// so that a client whose plan changes keeps what it has used.
    pub limits: Vec<Limit>,
}

/// A body in an operator's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// Its `Content-Type`.
    pub media_type: String,
    /// All of it.
    pub text: String,
}

/// What clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// In which headers, each style at most once; possibly in none.
    pub headers: Vec<HeaderStyle>,
    /// Whether [`HeaderStyle::Draft11`] tells the partition key.
    pub partition_key: bool,
    /// Whether scripts of other origins may read the headers.
    pub expose: bool,
    /// The header in which a dry run tells what it would have done.
    pub dry_run_header: Option<String>,
    /// Whether the answers in place of the upstream's are left to nginx's
    /// `error_page`.
    pub error_page: bool,
    /// The body of a refusal, in place of Weir's.
    pub body: Option<Body>,
    /// The body of an answer under [`OnError::Closed`], in place of Weir's.
    pub error_body: Option<Body>,
    /// The `grpc-status` of a refusal, 1 to 16.
    pub grpc_status: u8,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            headers: vec![HeaderStyle::Separate],
            partition_key: false,
            expose: false,
            dry_run_header: None,
            error_page: false,
            body: None,
            error_body: None,
            // RESOURCE_EXHAUSTED.
            grpc_status: 8,
        }
    }
}

/// A named policy, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name: 1 to 64 letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// Its limits, 1 to 8; a request needs room in each.
    pub limits: Vec<Limit>,
    /// By what names clients know them, in the same order.
    pub limit_names: Vec<String>,
    /// By name in alphabetical order.
    pub plans: Vec<Plan>,
    /// The name of a budget that it shares with other policies.
    pub bucket: Option<String>,
    /// Whom it counts for.
    pub key: KeyRule,
    /// By what prefix addresses are told apart.
    pub ip: Prefixes,
    /// Whether identities are stored as keyed hashes.
    pub hash_keys: bool,
    /// Whom it passes over.
    pub exempt: Exempt,
    /// For which requests a charge stands.
    pub charge: Charge,
    /// Whether it only tells whom it would refuse.
    pub dry_run: bool,
    /// The failure policy.
    pub on_error: OnError,
    /// The status under [`OnError::Closed`], 400 to 599.
    pub error_status: u16,
    /// How many edges share its limits under [`OnError::Local`]: 1 to 10,000.
    pub local_share: u64,
    /// Whether refusals are remembered on the host until their waits are over.
    pub remember_denials: bool,
    /// What clients are told.
    pub answers: Answers,
}

impl Policy {
    /// A policy of these limits, in everything else as if nothing had been
    /// written, except that a function gives the key.
    pub fn new(name: impl Into<String>, limits: Vec<Limit>) -> Self {
        let name = name.into();
        Self {
            limit_names: Self::default_names(&name, &limits),
            name,
            limits,
            plans: Vec::new(),
            bucket: None,
            key: KeyRule::Function,
            ip: Prefixes::default(),
            hash_keys: false,
            exempt: Exempt::default(),
            charge: Charge::default(),
            dry_run: false,
            on_error: OnError::Open,
            error_status: 503,
            local_share: 1,
            remember_denials: true,
            answers: Answers::default(),
        }
    }

    /// By what names clients know limits that were given none: a single one by
    /// the policy's name, several as the ends of their keys.
    pub fn default_names(name: &str, limits: &[Limit]) -> Vec<String> {
        match limits {
            [_] => vec![name.to_owned()],
            _ => limits.iter().map(|limit| format!("{name}:{}", limit.key_suffix())).collect(),
        }
    }

    /// Whose budget it is, as keys say it: the policy's name, or `@BUCKET`,
    /// which no policy can be named.
    pub fn budget(&self) -> String {
        match &self.bucket {
            Some(bucket) => format!("@{bucket}"),
            None => self.name.clone(),
        }
    }
}
