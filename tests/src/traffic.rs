//! Clients that each ask for their own path, one request after the other, while
//! something happens. ([`crate::load`] asks at a rate, and for few paths.)

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Answer, Client, wait_until};

/// The pause of a client between an answer and the next request.
const PAUSE: Duration = Duration::from_millis(2);

/// What was answered.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Which of the paths.
    pub path: usize,
    /// When the request was sent.
    pub at: Instant,
    /// How long the answer took.
    pub elapsed: Duration,
    /// Its status.
    pub status: u16,
    /// Whether it told of the limit: whether Redis decided.
    pub limited: bool,
}

/// Everything that the clients were answered.
pub struct Traffic {
    answers: Mutex<Vec<Asked>>,
    /// Of a location without a limit, asked at the same time: what the machine
    /// itself takes.
    plain: Mutex<Vec<Asked>>,
    stopped: AtomicBool,
}

impl Traffic {
    /// A client for each of these paths asks the server at this port while `work`
    /// is done, and one more asks for `/plain`.
    pub fn during<T>(port: u16, paths: &[String], work: impl FnOnce(&Self) -> T) -> (Self, T) {
        let traffic = Self {
            answers: Mutex::new(Vec::new()),
            plain: Mutex::new(Vec::new()),
            stopped: AtomicBool::new(false),
        };
        let result = std::thread::scope(|scope| {
            let traffic = &traffic;
            // Stops the clients also when `work` panics.
            let _stop = Stop(&traffic.stopped);
            scope.spawn(move || traffic.ask(port, 0, "/plain", &traffic.plain));
            for (index, path) in paths.iter().enumerate() {
                scope.spawn(move || traffic.ask(port, index, path, &traffic.answers));
            }
            work(traffic)
        });
        (traffic, result)
    }

    fn ask(&self, port: u16, path: usize, text: &str, answers: &Mutex<Vec<Asked>>) {
        let client = Client::new(port);
        while !self.stopped.load(Ordering::Relaxed) {
            let at = Instant::now();
            let answer = client.get(text);
            let Answer { status, elapsed, .. } = answer;
            let limited = answer.has_limit_headers();
            let asked = Asked { path, at, elapsed, status, limited };
            answers.lock().expect("no panic").push(asked);
            sleep(PAUSE);
        }
    }

    /// What was answered so far to those that this holds for.
    pub fn answers(&self, wanted: impl Fn(&Asked) -> bool) -> Vec<Asked> {
        let answers = self.answers.lock().expect("no panic");
        answers.iter().copied().filter(|asked| wanted(asked)).collect()
    }

    /// How many there are of these.
    pub fn count(&self, wanted: impl Fn(&Asked) -> bool) -> usize {
        self.answers.lock().expect("no panic").iter().filter(|asked| wanted(asked)).count()
    }

    /// Waits until each of the paths has been decided by Redis for a request that
    /// was sent from now on; returns how long that took.
    pub fn wait_until_limited(&self, paths: &[usize], limit: Duration) -> Duration {
        let now = Instant::now();
        wait_until("limits are back", limit, || {
            let answers = self.answers(|asked| asked.at >= now && asked.limited);
            paths.iter().all(|path| answers.iter().any(|asked| asked.path == *path))
        })
    }

    /// Asserts that each of these answers came within this time and what the
    /// machine held up a request without a limit at that moment; but for one, and
    /// one more in a thousand: of several servers on a machine each may be held up
    /// by itself.
    pub fn assert_within(&self, limit: Duration, wanted: impl Fn(&Asked) -> bool) {
        let plain = self.plain.lock().expect("no panic");
        let stall = |asked: &Asked| {
            let end = asked.at + asked.elapsed;
            let meanwhile =
                plain.iter().filter(|it| it.at <= end && it.at + it.elapsed >= asked.at);
            meanwhile.map(|it| it.elapsed).max().unwrap_or_default()
        };
        let answers = self.answers(wanted);
        assert!(!answers.is_empty(), "nobody asked");
        let late: Vec<&Asked> =
            answers.iter().filter(|asked| asked.elapsed > limit + stall(asked)).collect();
        let allowed = 1 + answers.len() / 1_000;
        assert!(late.len() <= allowed, "{} of {}: {late:?}", late.len(), answers.len());
        // A worker that waits for Redis would hold up both.
        let mut elapsed: Vec<Duration> = plain.iter().map(|asked| asked.elapsed).collect();
        elapsed.sort();
        let most = elapsed[elapsed.len() * 9 / 10];
        assert!(most <= limit, "one in ten without a limit took {most:?}");
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
