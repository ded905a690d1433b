//! What the engine counts for all workers of the host.

use std::cell::Cell;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mlua::BString;
use mlua::prelude::*;
use tokio::sync::Notify;
use weir_core::{Config, ConfigError};
pub(crate) use weir_metrics::source;
use weir_metrics::{Books, Decision, Exposition, OUTCOMES, Publisher, REASONS, SOURCES};
use weir_redis::{Health, LinkState};
use weir_shm::MemoryUsage;

/// How often an I/O thread publishes what it has counted.
const PERIOD: Duration = Duration::from_secs(1);

/// The same while it connects for the first time: not long, and until then the
/// host seems to be without Redis.
const WHILE_CONNECTING: Duration = Duration::from_millis(20);

/// What `clock` counts from.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What a decision is counted with.
pub(crate) struct Recorded {
    /// The policy's index.
    pub(crate) policy: usize,
    /// As [`labels`] numbers them.
    pub(crate) outcome: Option<usize>,
    /// Likewise; `None` if nobody was asked.
    pub(crate) source: Option<usize>,
    /// When it was begun, by [`clock`].
    pub(crate) started: Option<f64>,
    /// The wait that was told, in seconds.
    pub(crate) wait: Option<f64>,
    /// As [`labels`] numbers them, if there is no decision.
    pub(crate) reason: Option<usize>,
}

/// Opened before nginx forks, with the configuration.
pub(crate) struct Metrics {
    books: Arc<Books>,
    stripe: Cell<usize>,
    /// What this worker has decided, by outcome.
    decisions: [Cell<u64>; OUTCOMES.len()],
}

impl Metrics {
    pub(crate) fn open(config: &Config) -> Result<Self, ConfigError> {
        let policies = config.policies.iter().map(|policy| policy.name.as_str());
        let books = Books::open(policies, config.redis.is_some()).map_err(|error| {
            ConfigError::new("policies", format!("no memory to count what they decide: {error}"))
        })?;
        LazyLock::force(&BEGINNING);
        Ok(Self { books: Arc::new(books), stripe: Cell::new(0), decisions: Default::default() })
    }

    /// In a worker, before it decides: gives it counters that the others seldom write
    /// to.
    pub(crate) fn start(&self) {
        // In a row for the workers of one start.
        self.stripe.set(std::process::id() as usize);
    }

    /// What carries this worker's [`Health`] to the books.
    pub(crate) fn publisher(&self, health: Arc<Health>) -> Arc<Mutex<Publisher>> {
        Arc::new(Mutex::new(Publisher::new(Arc::clone(&self.books), health, self.stripe.get())))
    }

    /// Counts a decision.
    pub(crate) fn record(&self, recorded: Recorded) {
        let Recorded { policy, outcome, source, started, wait, reason } = recorded;
        if let Some(count) = outcome.and_then(|outcome| self.decisions.get(outcome)) {
            count.set(count.get() + 1);
        }
        let took =
            |started: f64| Duration::try_from_secs_f64(clock() - started).unwrap_or_default();
        self.books.record(
            self.stripe.get(),
            &Decision {
                policy,
                outcome: outcome.unwrap_or(usize::MAX),
                took: source.and_then(|source| Some((source, took(started?)))),
                wait_s: wait.map(|wait| wait as u64),
                reason,
            },
        );
    }

    /// What this worker has decided, by the word for the outcome.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        OUTCOMES.into_iter().zip(self.decisions.iter().map(Cell::get))
    }

    /// `upstream_429(id)`: counts an answer of the upstream to what the policy of
    /// this id had let through.
    pub(crate) fn record_upstream_429(&self, id: usize) {
        self.books.record_upstream_429(self.stripe.get(), id.wrapping_sub(1));
    }

    /// `metrics(accept)`: `Content-Type` and body.
    pub(crate) fn tell(
        &self,
        accept: Option<BString>,
        memory: MemoryUsage,
    ) -> LuaResult<(&'static str, String)> {
        let accept = accept.as_ref().and_then(|accept| std::str::from_utf8(accept).ok());
        let form = Exposition::preferred(accept);
        let told = weir_metrics::tell(&self.books, Some(memory), form).into_lua_err()?;
        Ok((form.content_type(), told))
    }
}

/// Seconds since some moment, by a clock that never steps back.
pub(crate) fn clock() -> f64 {
    BEGINNING.elapsed().as_secs_f64()
}

/// The tables `outcomes`, `sources` and `reasons`, from name to number: looked up
/// in Lua, where a name is an address.
pub(crate) fn labels(lua: &Lua) -> LuaResult<LuaTable> {
    let labels = lua.create_table()?;
    for (name, words) in
        [("outcomes", &OUTCOMES[..]), ("sources", &SOURCES[..]), ("reasons", &REASONS[..])]
    {
        let numbers = lua.create_table()?;
        for (number, word) in words.iter().enumerate() {
            numbers.set(*word, number)?;
        }
        labels.set(name, numbers)?;
    }
    Ok(labels)
}

/// Ends a publisher: of two threads that do, the second carries what was counted
/// since the first did.
pub(crate) fn end(publisher: &Mutex<Publisher>) {
    publisher.lock().unwrap_or_else(PoisonError::into_inner).end();
}

/// Publishes now and then, and soon after there was news: when whoever brought
/// them has shown what follows from them.
pub(crate) async fn publish(
    publisher: &Mutex<Publisher>,
    health: &Health,
    news: &Notify,
    queued: impl Fn() -> usize,
) {
    loop {
        publisher.lock().unwrap_or_else(PoisonError::into_inner).publish(queued());
        let pause = if health.link() == LinkState::Connecting { WHILE_CONNECTING } else { PERIOD };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = news.notified() => {}
        }
    }
}
