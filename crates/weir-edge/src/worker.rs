//! One worker process's I/O thread, and the worker's ends of the queues to and
//! from it.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use weir_core::config::RedisConfig;
use weir_metrics::Publisher;
use weir_redis::{Answer, Ask, Deployment, Health, Limiter, LinkState, Outlet, Queue, Rule, queue};

use crate::bell::{Bell, Order, Rendezvous, Rung};
use crate::metrics::{self, Metrics};
use crate::sys;

/// How many log lines may wait for the pump. They tell of changes, so more
/// than a few mean that nobody has read them for a long time.
const MAX_NOTICES: usize = 64;

/// What waits for longer than this to leave is late: the worker is busy with something
/// else.
const LATE: Duration = Duration::from_millis(1);

/// A running thread and the ways to it. Dropping it lets the thread end by
/// itself; nobody waits for it.
pub(crate) struct Worker {
    pid: u32,
    thread: JoinHandle<()>,
    timeout: Duration,
    asks: Queue,
    /// What is to leave for the queue.
    outbox: RefCell<Vec<Ask>>,
    orders: mpsc::UnboundedSender<Order>,
    answers: Receiver<Vec<Answer>>,
    /// The batch that is being handed out.
    handing_out: RefCell<std::vec::IntoIter<Answer>>,
    notices: Receiver<String>,
    rung: Arc<Rung>,
    health: Arc<Health>,
    publisher: Arc<Mutex<Publisher>>,
    /// Where the pump is connecting to.
    rendezvous: RefCell<Option<Rendezvous>>,
}

/// Why a request was not even queued.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    QueueFull,
    Unreachable,
    /// The thread has ended, which it does only by a fault.
    Stopped,
}

impl Refusal {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Refusal::QueueFull => "queue_full",
            Refusal::Unreachable => "unreachable",
            Refusal::Stopped => "stopped",
        }
    }
}

impl Worker {
    /// Starts the thread. Only in a process that will not fork any more.
    pub(crate) fn start(
        config: &RedisConfig,
        deployment: Deployment,
        rules: Arc<[Rule]>,
        metrics: &Metrics,
    ) -> io::Result<Self> {
        let (asks, inbox) = queue(config.queue);
        let (order_sender, orders) = mpsc::unbounded_channel();
        let (answer_sender, answers) = channel();
        let (notice_sender, notices) = sync_channel(MAX_NOTICES);
        let rung = Arc::new(Rung::default());
        let health = Arc::new(Health::default());
        let publisher = metrics.publisher(Arc::clone(&health));

        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // Only names are looked up there, one at a time.
            .max_blocking_threads(1)
            .build()?;
        let redis = config.clone();
        let (thread_rung, thread_health) = (Arc::clone(&rung), Arc::clone(&health));
        let (gauge, thread_publisher) = (asks.gauge(), Arc::clone(&publisher));
        let run = move || {
            let bell = Arc::new(Bell::new(thread_rung));
            let news = Arc::new(Notify::new());
            let outlet = Mail {
                answers: answer_sender,
                notices: notice_sender,
                bell: Arc::clone(&bell),
                news: Arc::clone(&news),
            };
            let health = Arc::clone(&thread_health);
            let limiter = Limiter::new(deployment, &redis, rules, outlet, thread_health);
            let queued = || queued(gauge.len(), &health);
            runtime.block_on(async {
                // A task of its own: what wakes it does not wake the others, and
                // does not have the runtime look for events before it runs.
                let limit = async {
                    if let Err(error) = tokio::spawn(limiter.run(inbox)).await {
                        std::panic::resume_unwind(error.into_panic());
                    }
                };
                let serve = async { tokio::join!(limit, bell.serve(orders)) };
                tokio::select! {
                    _ = serve => {}
                    () = metrics::publish(&thread_publisher, &health, &news, queued) => {}
                }
            });
            metrics::end(&thread_publisher);
            // A name look-up may hang in a thread of its own; nobody waits.
            runtime.shutdown_background();
        };
        let thread = sys::spawn_without_signals(Builder::new().name("weir-io".to_owned()), run)?;
        Ok(Self {
            pid: std::process::id(),
            thread,
            timeout: config.timeout,
            asks,
            outbox: RefCell::default(),
            orders: order_sender,
            answers,
            handing_out: RefCell::default(),
            notices,
            rung,
            health,
            publisher,
            rendezvous: RefCell::new(None),
        })
    }

    /// Whether the thread runs, in this process.
    pub(crate) fn runs_here(&self) -> bool {
        self.is_own() && !self.thread.is_finished()
    }

    /// Whether this was started by this process and not by its parent.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Takes a request, which leaves with the next [`flush`](Self::flush); or says at
    /// once why it will have no decision.
    pub(crate) fn submit(&self, ask: Ask) -> Result<(), Refusal> {
        let mut outbox = self.outbox.borrow_mut();
        let refused = match self.health.link() {
            LinkState::Down => Refusal::Unreachable,
            _ if self.asks.is_closed() => Refusal::Stopped,
            _ if self.asks.room() <= outbox.len() => Refusal::QueueFull,
            LinkState::Up | LinkState::Connecting => {
                let is_late = |first: &Ask| ask.deadline > first.deadline + LATE;
                if outbox.first().is_some_and(is_late) {
                    self.send(&mut outbox);
                }
                outbox.push(ask);
                return Ok(());
            }
        };
        if ask.operation.is_decision() {
            self.health.failed.fetch_add(1, Relaxed);
            self.health.not_queued.fetch_add(1, Relaxed);
        }
        Err(refused)
    }

    /// Queues what was submitted, and wakes the thread if it sleeps.
    pub(crate) fn flush(&self) {
        self.send(&mut self.outbox.borrow_mut());
    }

    /// How long an answer may take counts from here: what is in the outbox for long was
    /// held up by the worker, and not by Redis.
    fn send(&self, outbox: &mut Vec<Ask>) {
        let Some(first) = outbox.first() else { return };
        let late = (Instant::now() + self.timeout).saturating_duration_since(first.deadline);
        let late = if late > LATE { late } else { Duration::ZERO };
        for mut ask in outbox.drain(..) {
            ask.deadline += late;
            // There was room, and nobody else queues. A thread that has ended answers
            // nobody, and the pump tells them.
            let _ = self.asks.push(ask);
        }
        self.asks.wake();
    }

    /// Makes a place for the pump to connect to, and tells the thread.
    pub(crate) fn meet(&self, runtime_dir: Option<&str>) -> io::Result<String> {
        let (rendezvous, listener) = Rendezvous::new(runtime_dir)?;
        self.orders
            .send(Order::Await(listener))
            .map_err(|_| io::Error::other("the I/O thread has ended"))?;
        let path = rendezvous.path();
        *self.rendezvous.borrow_mut() = Some(rendezvous);
        Ok(path)
    }

    /// The pump has connected, or failed to: it has served.
    pub(crate) fn met(&self) {
        *self.rendezvous.borrow_mut() = None;
    }

    /// Has the thread wake the pump.
    pub(crate) fn ring(&self) {
        // Without a thread the pump has been woken by the end of its socket.
        let _ = self.orders.send(Order::Ring);
    }

    /// Before looking for answers: see [`crate::bell`].
    pub(crate) fn clear(&self) {
        self.rung.clear();
    }

    /// The next answer that has come.
    pub(crate) fn next_answer(&self) -> Option<Answer> {
        let mut batch = self.handing_out.borrow_mut();
        loop {
            if let Some(answer) = batch.next() {
                return Some(answer);
            }
            *batch = self.answers.try_recv().ok()?.into_iter();
        }
    }

    /// The next line for the log.
    pub(crate) fn next_line(&self) -> Option<String> {
        self.notices.try_recv().ok()
    }

    /// Requests in the queue.
    pub(crate) fn queued(&self) -> usize {
        queued(self.asks.len() + self.outbox.borrow().len(), &self.health)
    }

    pub(crate) fn wakeups(&self) -> u64 {
        self.rung.wakeups()
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // At the process's exit nobody waits for the thread to do it.
        if self.is_own() {
            metrics::end(&self.publisher);
        }
    }
}

fn queued(in_queue: usize, health: &Health) -> usize {
    in_queue + health.waiting.load(Relaxed) as usize
}

/// The thread's end: puts things into the worker's queues and rings.
struct Mail {
    answers: Sender<Vec<Answer>>,
    notices: SyncSender<String>,
    bell: Arc<Bell>,
    /// Something has changed that the gauges tell of.
    news: Arc<Notify>,
}

impl Outlet for Mail {
    fn deliver(&self, answers: Vec<Answer>) {
        // Fails only when the worker has dropped its end, and nobody waits.
        let _ = self.answers.send(answers);
        self.bell.ring();
    }

    fn notify(&self, line: String) {
        // A full queue loses the newest line: the oldest tells what began it.
        let _ = self.notices.try_send(line);
        self.bell.ring();
        self.news.notify_one();
    }
}
