//! A limiter whose answers and lines a test can look at.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_core::config::{Breaker, Deployment as Place, RedisConfig, SecretString, Tls};
use weir_core::{Limit, Policy};

use super::{Answer, Health, Limiter, Outlet};
use crate::Deployment;
use crate::rule::Rule;

/// How many requests may wait for one node of a cluster.
pub(super) const QUEUE: usize = 10;

#[derive(Clone, Default)]
pub(super) struct Seen {
    pub(super) answers: Rc<RefCell<Vec<Answer>>>,
    pub(super) lines: Rc<RefCell<Vec<String>>>,
}

impl Outlet for Seen {
    fn deliver(&self, answers: Vec<Answer>) {
        self.answers.borrow_mut().extend(answers);
    }

    fn notify(&self, line: String) {
        self.lines.borrow_mut().push(line);
    }
}

impl Seen {
    /// The tickets that have been answered.
    pub(super) fn answered(&self) -> Vec<u64> {
        self.answers.borrow().iter().map(|answer| answer.ticket).collect()
    }
}

/// With one server.
pub(super) fn single(seen: &Seen) -> Limiter<Seen> {
    limiter(seen, Place::Single { url: SecretString::new("redis://127.0.0.1:1") })
}

/// With a cluster of which nothing is known yet.
pub(super) fn cluster(seen: &Seen) -> Limiter<Seen> {
    limiter(seen, Place::Cluster { nodes: vec!["redis://127.0.0.1:1".to_owned()] })
}

fn limiter(seen: &Seen, deployment: Place) -> Limiter<Seen> {
    let config = RedisConfig {
        deployment,
        user: None,
        password: None,
        database: None,
        tls: Tls::default(),
        connections: 2,
        breaker: Breaker::default(),
        timeout: Duration::from_secs(60),
        queue: QUEUE,
        prefix: "weir".to_owned(),
    };
    let policy = Policy::new("api", vec![Limit::SlidingLog("5/1s".parse().expect("a rate"))]);
    let rules = [Rule::new(&policy, &policy.limits)];
    let deployment = Deployment::new(&config).expect("a deployment");
    Limiter::new(deployment, &config, Arc::new(rules), seen.clone(), Arc::new(Health::default()))
}
