use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use weir_core::config::{Breaker as Settings, Deployment as Place, RedisConfig, SecretString, Tls};
use weir_core::decision::Wait;
use weir_core::{Limit, Policy, Standing, Timestamp, Verdict};

use super::*;
use crate::limiter::Health;
use crate::rule::{Operation, Rule, Source};
use crate::slots::Range;
use crate::{Deployment, Outlet};

#[derive(Clone, Default)]
struct Seen {
    answers: Rc<RefCell<Vec<Answer>>>,
    lines: Rc<RefCell<Vec<String>>>,
}

impl Outlet for Seen {
    fn deliver(&self, answers: Vec<Answer>) {
        self.answers.borrow_mut().extend(answers);
    }

    fn notify(&self, line: String) {
        self.lines.borrow_mut().push(line);
    }
}

fn single() -> Place {
    Place::Single { url: SecretString::new("redis://127.0.0.1:1") }
}

fn cluster() -> Place {
    Place::Cluster { nodes: vec!["redis://127.0.0.1:1".to_owned()] }
}

fn limiter(seen: &Seen, deployment: Place) -> Limiter<Seen> {
    let config = RedisConfig {
        deployment,
        user: None,
        password: None,
        database: None,
        tls: Tls::default(),
        connections: 1,
        breaker: Settings::default(),
        timeout: Duration::from_secs(1),
        queue: 10,
        prefix: "weir".to_owned(),
    };
    let policy = Policy::new("api", vec![Limit::SlidingLog("5/1s".parse().expect("a rate"))]);
    let rules = [Rule::new(&policy, &policy.limits)];
    let deployment = Deployment::new(&config).expect("a deployment");
    Limiter::new(deployment, &config, Arc::new(rules), seen.clone(), Arc::new(Health::default()))
}

fn asks(count: u64) -> Vec<Ask> {
    let ask = |ticket| Ask {
        ticket,
        rule: 0,
        source: Source::Given,
        value: b"x"[..].into(),
        operation: Operation::Decide { cost: 1 },
        deadline: Instant::now() + Duration::from_secs(1),
    };
    (1..=count).map(ask).collect()
}

/// What a batch is answered by a server that has become a replica: it says of
/// whom it would charge that it cannot, and of the others what it knows.
#[test]
fn what_a_replica_cannot_decide_is_asked_again_whatever_it_says_of_others() {
    let standing = Standing {
        limit: 5,
        remaining: 0,
        wait: Wait::For(Duration::from_secs(1)),
        reset: Duration::from_secs(1),
    };
    let refused = Verdict { allowed: false, limits: vec![standing] };
    let error = |text: &str| Err(text.to_owned());
    let verdicts = vec![
        error("READONLY You can't write against a read only replica."),
        Ok(refused),
        error("the value of weir:{=x}:api:log:1s is not a sliding log"),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let seen = Seen::default();
        let mut limiter = limiter(&seen, single());
        let node = limiter.nodes.only().expect("a node").id;
        let from = From { node, connection: 1, current: true };
        let reply = Reply { at: Timestamp::from_micros(7), verdicts };
        limiter.answer(from, Call::new(0, asks(3)), reply);
        let answered: Vec<u64> = seen.answers.borrow().iter().map(|answer| answer.ticket).collect();
        assert_eq!(answered, [2, 3]);
        let returned = &limiter.nodes.only().expect("a node").returned;
        let again: Vec<u64> =
            returned.iter().flat_map(|call| &call.asks).map(|ask| ask.ticket).collect();
        assert_eq!(again, [1]);
        let lines = seen.lines.borrow();
        assert!(lines.iter().any(|line| line.contains("lost: READONLY")), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("is back")), "{lines:?}");
    });
}

/// It would be looked for among the slots, for ever.
#[test]
fn a_redirection_of_a_slot_that_does_not_exist_is_an_error() {
    let error = |text: &str| {
        let error = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        error::of_value(error.expect("a reply")).expect_err("an error")
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for (text, nodes) in [("MOVED 16383 127.0.0.1:2", 1), ("MOVED 16384 127.0.0.1:2", 0)] {
            let seen = Seen::default();
            let mut limiter = limiter(&seen, cluster());
            let from = From { node: NodeId(9), connection: 1, current: true };
            limiter.refused(from, Call::new(0, asks(1)), &error(text));
            assert_eq!(limiter.nodes.iter().count(), nodes, "{text}");
            assert_eq!(seen.answers.borrow().len(), 1 - nodes, "{text}");
        }
    });
}

/// `on_error` decides for them, and without this no line would say why.
#[test]
fn slots_that_nobody_serves_are_told_of() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let seen = Seen::default();
        let mut limiter = limiter(&seen, cluster());
        let told = || seen.lines.borrow().join("\n");
        limiter.take(asks(1).into_iter());
        assert_eq!(told(), "", "that there is no map yet is told by itself");
        let range = Range { first: 0, last: 0, host: "127.0.0.1".to_owned(), port: 2 };
        limiter.map_found(Ok(vec![range]));
        limiter.take(asks(2).into_iter());
        limiter.take(asks(2).into_iter());
        assert_eq!(seen.answers.borrow().len(), 5);
        assert!(told().contains("redis cluster 127.0.0.1:1 answers with an error: by its map"));
        assert_eq!(seen.lines.borrow().len(), 1, "{}", told());
    });
}

/// While all of a cluster is away nothing is queued, and so nothing comes to be
/// a node's.
#[test]
fn what_was_not_even_queued_is_among_what_on_error_decided() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let seen = Seen::default();
        let mut limiter = limiter(&seen, cluster());
        let range = Range { first: 0, last: 16_383, host: "127.0.0.1".to_owned(), port: 2 };
        limiter.map_found(Ok(vec![range]));
        let node = limiter.nodes.iter().next().expect("a node").id;
        let from = From { node, connection: 1, current: true };
        limiter.condemn(from, "LOADING");
        limiter.desk.health.not_queued.fetch_add(7, Relaxed);
        limiter.back(node);
        let lines = seen.lines.borrow();
        assert!(lines[1].ends_with("on_error decided 7 requests meanwhile"), "{lines:?}");
    });
}
