//! All that the I/O thread does for a decision, on this thread: its allocations are
//! counted here, and its time is CPU, since it waits for Redis in between.

use std::cell::RefCell;
use std::fs;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use weir_core::config::Value;
use weir_core::{Config, ConfigError};
use weir_redis::{Answer, Ask, Deployment, Health, Limiter, Outlet, Queue, Rule, queue};
use weir_tests::Redis;

use crate::BATCHES;
use crate::steps::{asks, policy};
use crate::table::Table;

/// How many batches are counted.
const COUNTED: usize = 64;

/// A limiter, whoever asks it and whoever it answers, all on one thread.
struct Scene {
    runtime: Runtime,
    limiter: Pin<Box<dyn Future<Output = ()>>>,
    asks: Queue,
    inbox: Rc<Inbox>,
}

#[derive(Default)]
struct Inbox {
    answers: RefCell<Vec<Answer>>,
    come: Notify,
}

struct Mail(Rc<Inbox>);

impl Outlet for Mail {
    fn deliver(&self, answers: Vec<Answer>) {
        *self.0.answers.borrow_mut() = answers;
        self.0.come.notify_one();
    }

    fn notify(&self, line: String) {
        panic!("{line}");
    }
}

impl Scene {
    fn new(redis: &Redis) -> Self {
        let config = config(redis).expect("a configuration");
        let config = config.redis.expect("a Redis");
        let deployment = Deployment::new(&config).expect("a deployment");
        let policy = policy();
        let rules: Arc<[Rule]> = Arc::new([Rule::new(&policy, &policy.limits)]);
        let inbox = Rc::new(Inbox::default());
        let (sender, asks) = queue(config.queue);
        let outlet = Mail(Rc::clone(&inbox));
        let limiter = Limiter::new(deployment, &config, rules, outlet, Arc::new(Health::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Self {
            runtime: runtime.expect("a runtime"),
            limiter: Box::pin(limiter.run(asks)),
            asks: sender,
            inbox,
        }
    }

    /// Asks each batch, and waits for its answer before the next.
    fn ask(&mut self, batches: Vec<Vec<Ask>>) {
        let Self { runtime, limiter, asks, inbox } = self;
        let driver = async {
            for batch in batches {
                let count = batch.len();
                batch.into_iter().for_each(|ask| asks.push(ask).expect("room"));
                asks.wake();
                inbox.come.notified().await;
                let answers = std::mem::take(&mut *inbox.answers.borrow_mut());
                assert_eq!(answers.len(), count, "one batch");
                assert!(answers.iter().all(|answer| answer.outcome.is_ok()));
            }
        };
        runtime.block_on(async {
            tokio::select! {
                () = limiter => panic!("the limiter ended"),
                () = driver => {}
            }
        });
    }
}

fn config(redis: &Redis) -> Result<Config, ConfigError> {
    let text = |text: &str| Value::String(text.to_owned());
    let table = |fields: Vec<(&str, Value)>| {
        Value::Table(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    };
    let redis = vec![("url", text(&redis.url())), ("timeout", text("60s"))];
    let api = vec![("limit", text("1/1s")), ("key", text("$remote_addr"))];
    let config = vec![("redis", table(redis)), ("policies", table(vec![("api", table(api))]))];
    Config::check(table(config), &|_| unreachable!("nothing lies elsewhere"))
}

pub(crate) fn measure(criterion: &mut Criterion, table: &mut Table) {
    let redis = Redis::start();
    let mut scene = Scene::new(&redis);
    // Connected, and the script is there.
    scene.ask(vec![asks(1)]);
    for batch in BATCHES {
        let step = ("thread: all of it, CPU", batch);
        let mut group = criterion.benchmark_group("decision");
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(BenchmarkId::new(step.0, batch), |bencher| {
            bencher.iter_custom(|iterations| {
                let batches = (0..iterations).map(|_| asks(batch)).collect();
                let before = cpu();
                scene.ask(batches);
                let took = cpu() - before;
                table.time(step, iterations * batch as u64, took);
                took
            });
        });
        group.finish();
        let batches = (0..COUNTED).map(|_| asks(batch)).collect();
        let counted = allocation_counter::measure(|| scene.ask(batches));
        table.count(step, (COUNTED * batch) as u64, &counted);
    }
}

/// What this thread has used.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells");
    let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("nanoseconds"))
}
