use weir_core::decision::Wait;
use weir_core::{Standing, Timestamp, Verdict};

use super::*;
use crate::limiter::scene::{self, Seen};
use crate::rule::Operation;
use crate::slots::Range;
use crate::testing::{asks, connection, error_reply, named, run, server};

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
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::single(&seen);
        let node = limiter.nodes.only().expect("a node").id;
        let from = From { node, connection: 1, current: true };
        let reply = Reply { at: Timestamp::from_micros(7), verdicts };
        limiter.answer(from, Call::new(0, asks(3)), reply);
        assert_eq!(seen.answered(), [2, 3]);
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
    run(async {
        for (text, nodes) in [("MOVED 16383 127.0.0.1:2", 1), ("MOVED 16384 127.0.0.1:2", 0)] {
            let seen = Seen::default();
            let mut limiter = scene::cluster(&seen);
            let from = From { node: NodeId(9), connection: 1, current: true };
            limiter.refused(from, Call::new(0, asks(1)), &error_reply(text));
            assert_eq!(limiter.nodes.iter().count(), nodes, "{text}");
            assert_eq!(seen.answers.borrow().len(), 1 - nodes, "{text}");
        }
    });
}

/// `on_error` decides for them, and without this no line would say why.
#[test]
fn slots_that_nobody_serves_are_told_of() {
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::cluster(&seen);
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
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::cluster(&seen);
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

const WITHIN: Duration = Duration::from_secs(100);

/// Has the only node connected.
async fn connect(limiter: &mut Limiter<Seen>, number: ConnectionId) {
    let node = limiter.nodes.only_mut().expect("a node");
    node.connect(Duration::ZERO);
    let id = node.id;
    limiter.node_event(id, number, Event::Connected(connection().await, named("r:1").into()));
}

/// A limiter with this many requests under way over connection 1.
async fn under_way(seen: &Seen, requests: u64) -> (Limiter<Seen>, Flight) {
    let mut limiter = scene::single(seen);
    connect(&mut limiter, 1).await;
    limiter.take(asks(requests).into_iter());
    limiter.dispatch();
    let flight = limiter.flights.take_overdue(Instant::now() + WITHIN).pop().expect("a batch");
    (limiter, flight)
}

fn state(limiter: &Limiter<Seen>) -> State {
    limiter.nodes.only().expect("a node").state()
}

/// The answer that the requests of a batch are allowed.
fn allowed(requests: usize) -> RedisResult<Vec<Value>> {
    let verdicts = [1, 4, 0, 1_000_000].repeat(requests);
    Ok(vec![Value::Array([7].into_iter().chain(verdicts).map(Value::Int).collect())])
}

fn error_answer(text: &str) -> RedisResult<Vec<Value>> {
    Ok(vec![redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("a reply")])
}

/// It may have been decided.
#[test]
fn a_batch_that_broke_is_a_loss_and_never_sent_again() {
    run(async {
        for broken in [Err(RedisError::from(std::io::Error::other("broken"))), Ok(Vec::new())] {
            let seen = Seen::default();
            let (mut limiter, flight) = under_way(&seen, 2).await;
            limiter.land(flight, broken);
            assert_eq!(state(&limiter), State::Connecting);
            assert!(!limiter.nodes.only().expect("a node").has_waiting());
            assert_eq!(seen.answered(), [1, 2]);
            assert!(seen.lines.borrow()[0].contains("lost: "), "{:?}", seen.lines.borrow());
        }
    });
}

#[test]
fn a_batch_that_landed_leaves_its_place_to_the_next() {
    run(async {
        let seen = Seen::default();
        let (mut limiter, flight) = under_way(&seen, 1).await;
        assert!(!limiter.takes(), "the place is taken");
        limiter.land(flight, allowed(1));
        assert!(limiter.takes());
        // Nor does one of which nothing is left to be sent keep it.
        let mut overdue = asks(1);
        overdue[0].deadline = Instant::now();
        limiter.take(overdue.into_iter());
        limiter.dispatch();
        assert!(limiter.takes() && limiter.flights.is_empty());
        assert_eq!(limiter.desk.health.failed.load(Relaxed), 1);
    });
}

/// Whoever asked has an answer by then; what is counted is how many had none.
#[test]
fn a_batch_that_is_overdue_is_a_loss() {
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::single(&seen);
        connect(&mut limiter, 1).await;
        let mut asks = asks(3);
        asks.iter_mut().for_each(|ask| ask.deadline = Instant::now() + Duration::from_millis(5));
        limiter.take(asks.into_iter());
        limiter.dispatch();
        while limiter.flights.next_deadline().is_some_and(|deadline| Instant::now() < deadline) {}
        limiter.give_up_overdue();
        assert_eq!((state(&limiter), seen.answered()), (State::Connecting, vec![1, 2, 3]));
        assert_eq!(limiter.desk.health.failed.load(Relaxed), 3);
    });
}

/// A late reply would have to meet somebody.
#[test]
fn the_connection_of_a_batch_that_is_overdue_is_closed() {
    run(async {
        let mut limiter = scene::single(&Seen::default());
        let (server, ended) = server("+OK", ":0");
        let live = server.connect(|| {}).await.expect("a connection");
        let node = limiter.nodes.only_mut().expect("a node");
        node.connect(Duration::ZERO);
        let id = node.id;
        limiter.node_event(id, 1, Event::Connected(live, server.into()));
        let mut asks = asks(1);
        asks[0].deadline = Instant::now() + Duration::from_millis(5);
        limiter.take(asks.into_iter());
        limiter.dispatch();
        // It is under way, with a hold on the connection.
        tokio::time::sleep(Duration::from_millis(10)).await;
        limiter.give_up_overdue();
        let closed = async {
            while !ended.is_finished() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), closed).await.expect("it is closed");
    });
}

/// The others on it may still be answered in time.
#[test]
fn a_batch_is_waited_for_as_long_as_any_of_its_requests() {
    run(async {
        let mut limiter = scene::single(&Seen::default());
        connect(&mut limiter, 1).await;
        let mut asks = asks(2);
        let (soon, later) = (Instant::now() + WITHIN, Instant::now() + 2 * WITHIN);
        (asks[0].deadline, asks[1].deadline) = (later, soon);
        limiter.take(asks.into_iter());
        limiter.dispatch();
        assert_eq!(limiter.flights.next_deadline(), Some(later));
        assert!(limiter.flights.take_overdue(soon).is_empty());
    });
}

/// The connection that it came over has been given up, for another one or none.
#[test]
fn a_late_reply_says_nothing_about_the_server_of_now() {
    run(async {
        for text in ["READONLY a replica", "LOADING the data set", "NOAUTH no"] {
            let seen = Seen::default();
            let (mut limiter, flight) = under_way(&seen, 1).await;
            limiter.nodes.only_mut().expect("a node").drop_all();
            // The second was under way already.
            connect(&mut limiter, 3).await;
            limiter.land(flight, error_answer(text));
            assert_eq!(state(&limiter), State::Up, "{text}");
            assert!(seen.lines.borrow().is_empty(), "{:?}", seen.lines.borrow());
        }
        let seen = Seen::default();
        let (mut limiter, flight) = under_way(&seen, 1).await;
        let node = limiter.nodes.only().expect("a node").id;
        limiter.lose(node, 1, "closed", true);
        limiter.land(flight, allowed(1));
        assert_eq!(seen.answered(), [1]);
        assert_eq!(seen.lines.borrow().len(), 1, "nobody is back");
    });
}

/// There is nobody else to ask, and the server has said what it has to say.
#[test]
fn an_error_of_a_single_server_is_an_answer_at_once() {
    run(async {
        for text in
            ["MOVED 7 127.0.0.1:2", "ASK 7 127.0.0.1:2", "TRYAGAIN no", "NOAUTH no", "ERR no"]
        {
            let seen = Seen::default();
            let (mut limiter, flight) = under_way(&seen, 1).await;
            limiter.land(flight, error_answer(text));
            assert_eq!(seen.answered(), [1], "{text}");
            assert_eq!(seen.answers.borrow()[0].outcome.as_ref().err(), Some(&Failure::Refused));
        }
    });
}

/// What gives back is nobody's decision.
#[test]
fn only_decisions_are_counted_as_left_to_on_error() {
    run(async {
        let seen = Seen::default();
        let (mut limiter, mut flight) = under_way(&seen, 2).await;
        let charged_at = Timestamp::from_micros(7);
        flight.calls[0].asks[1].operation = Operation::Refund { cost: 1, charged_at };
        let error = [Value::Int(-1), Value::SimpleString("ERR no".to_owned())];
        let reply = [Value::Int(7)].into_iter().chain([error.clone(), error].concat());
        limiter.land(flight, Ok(vec![Value::Array(reply.collect())]));
        assert_eq!(seen.answered(), [1, 2]);
        assert_eq!(limiter.desk.health.failed.load(Relaxed), 1);
        assert_eq!(limiter.nodes.only().expect("a node").failed, 1);
    });
}

/// Others decide meanwhile.
#[test]
fn one_of_several_connections_is_lost_or_refused_without_a_word() {
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::single(&seen);
        connect(&mut limiter, 1).await;
        connect(&mut limiter, 2).await;
        let node = limiter.nodes.only().expect("a node").id;
        limiter.lose(node, 1, "closed", true);
        for number in 3..10 {
            let refused = Event::AttemptFailed("refused".to_owned(), Duration::ZERO);
            limiter.node_event(node, number, refused);
        }
        assert_eq!(limiter.desk.health.failed_attempts.load(Relaxed), 7);
        assert_eq!(limiter.desk.health.opened.load(Relaxed), 0);
        assert!(seen.lines.borrow().is_empty(), "{:?}", seen.lines.borrow());
    });
}

#[test]
fn refused_attempts_are_failures_while_there_is_no_connection() {
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::single(&seen);
        let node = limiter.nodes.only().expect("a node").id;
        for attempt in 1..=3 {
            assert_eq!(state(&limiter), State::Connecting);
            limiter.nodes.only_mut().expect("a node").connect(Duration::ZERO);
            let refused = Event::AttemptFailed("refused".to_owned(), Duration::ZERO);
            limiter.node_event(node, attempt, refused);
        }
        assert_eq!(state(&limiter), State::Down);
        assert!(seen.lines.borrow()[0].contains("unreachable: refused"));
    });
}

/// Nobody waits for it, and it is not asked again at once.
#[test]
fn a_server_that_says_that_it_cannot_serve_is_left_in_peace() {
    run(async {
        let seen = Seen::default();
        let (mut limiter, flight) = under_way(&seen, 1).await;
        limiter.land(flight, allowed(1));
        limiter.take(asks(1).into_iter());
        limiter.dispatch();
        let flight = limiter.flights.take_overdue(Instant::now() + WITHIN).pop().expect("a batch");
        limiter.land(flight, error_answer("LOADING the data set"));
        assert_eq!(state(&limiter), State::Down);
        assert_eq!(limiter.desk.health.opened.load(Relaxed), 1);
        // The next attempt was the second of a row, not its first.
        let first = weir_core::config::Breaker::default().pause;
        let next = limiter.nodes.only_mut().expect("a node").breaker.next_pause();
        assert!(next > first, "{next:?}");
    });
}

/// What it was asked waits for the server that decides by now.
#[test]
fn a_replica_is_left_with_what_it_was_asked() {
    run(async {
        let seen = Seen::default();
        let (mut limiter, mut flight) = under_way(&seen, 1).await;
        for attempt in 2..=3 {
            limiter.land(flight, error_answer("READONLY a replica"));
            assert_eq!(state(&limiter), State::Connecting);
            assert!(limiter.nodes.only().expect("a node").has_waiting());
            // The one of before was under way, and is given up.
            connect(&mut limiter, attempt * 2 - 1).await;
            limiter.dispatch();
            let overdue = limiter.flights.take_overdue(Instant::now() + WITHIN);
            flight = overdue.into_iter().next().expect("a batch");
        }
        limiter.land(flight, error_answer("READONLY a replica"));
        assert_eq!(state(&limiter), State::Down, "the third failure in a row");
        assert_eq!(seen.answered(), [0; 0]);
    });
}

#[test]
fn a_script_that_is_not_known_is_brought_once_and_counted_as_the_same_request() {
    run(async {
        let seen = Seen::default();
        let (mut limiter, flight) = under_way(&seen, 1).await;
        limiter.land(flight, error_answer("NOSCRIPT no"));
        limiter.dispatch();
        let flight = limiter.flights.take_overdue(Instant::now() + WITHIN).pop().expect("a batch");
        assert!(flight.calls[0].brings_script);
        limiter.land(flight, error_answer("NOSCRIPT no"));
        assert_eq!(seen.answered(), [1]);
        let count = |count: &std::sync::atomic::AtomicU64| count.load(Relaxed);
        let health = &limiter.desk.health;
        assert_eq!((count(&health.batches), count(&health.batched)), (2, 1));
        assert_eq!(count(&health.in_batches), 2, "it was in both calls");
    });
}

/// Whatever becomes of the node that it came back to.
#[test]
fn what_came_back_waits_like_the_rest_and_is_answered() {
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::single(&seen);
        let node = limiter.nodes.only().expect("a node").id;
        limiter.return_to(node, Call::new(0, asks(2)));
        assert_eq!(limiter.nodes.only().expect("a node").waiting(), 2);
        (0..3).for_each(|_| limiter.no_connection(node));
        limiter.dispatch();
        assert_eq!(seen.answered(), [1, 2]);
        assert_eq!(limiter.nodes.only().expect("a node").failed, 2);
        limiter.return_to(NodeId(99), Call::new(0, asks(1)));
        assert_eq!(seen.answered(), [1, 2, 1]);
    });
}

#[test]
fn replicas_are_left_so_often_and_no_more() {
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::single(&seen);
        let node = limiter.nodes.only().expect("a node").id;
        let from = From { node, connection: 1, current: false };
        let mut call = Call::new(0, asks(1));
        let mut sent = 0;
        for _ in 0..100 {
            limiter.refused(from, call, &error_reply("READONLY a replica"));
            let node = limiter.nodes.only_mut().expect("a node");
            let Some(again) = node.returned.pop_front() else { break };
            (call, sent) = (again, sent + 1);
        }
        assert_eq!((sent, seen.answered()), (8, vec![1]));
    });
}

#[test]
fn a_primary_that_is_named_anew_is_connected_to_at_once() {
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::single(&seen);
        connect(&mut limiter, 1).await;
        let node = limiter.nodes.only().expect("a node").id;
        limiter.node_event(node, 1, Event::Primary(Ok("new:1".to_owned())));
        assert_eq!(state(&limiter), State::Connecting);
        assert!(seen.lines.borrow()[0].contains("Sentinel names new:1 now"));
        let live = Event::Connected(connection().await, named("new:1").into());
        limiter.node_event(node, 3, live);
        assert_eq!(state(&limiter), State::Up);
    });
}
