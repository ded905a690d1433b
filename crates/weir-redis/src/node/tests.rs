use tokio::sync::mpsc::unbounded_channel;
use weir_core::{Limit, Policy};

use super::*;
use crate::access::Access;
use crate::address::Place;
use crate::sentinel::Sentinels;
use crate::testing::{asks, connection, named, run};

const PATIENCE: Duration = Duration::from_secs(60);
const MAX_PAUSE: Duration = Duration::from_secs(600);

fn access() -> Access {
    Access::new(None, None, None, None)
}

/// Nobody listens there.
fn place() -> Place {
    Place::Tcp { host: "127.0.0.1".to_owned(), port: 1 }
}

fn server() -> Target {
    Target::Server(access().server(&place()).expect("a server"))
}

fn node(target: Target, connections: usize) -> Node {
    let settings = Settings {
        connections,
        patience: PATIENCE,
        breaker: BreakerSettings { failures: 3, pause: MAX_PAUSE / 2, max_pause: MAX_PAUSE },
    };
    let (listener, _) = unbounded_channel();
    Node::new(
        NodeId(1),
        "r:1".to_owned(),
        target,
        "weir:{probe}:probe".to_owned(),
        settings,
        listener,
    )
}

/// Has it connect; whether that is news.
async fn connect(node: &mut Node, name: &str) -> Option<bool> {
    node.connect(Duration::ZERO);
    let attempt = node.last_connection;
    node.connected(attempt, connection().await, named(name))
}

fn ids(node: &Node) -> Vec<ConnectionId> {
    node.live.iter().map(|live| live.id).collect()
}

fn rules() -> Vec<Rule> {
    let policy = Policy::new("api", vec![Limit::SlidingLog("5/1s".parse().expect("a rate"))]);
    vec![Rule::new(&policy, &policy.limits)]
}

fn tickets<'a>(asks: impl IntoIterator<Item = &'a Ask>) -> Vec<u64> {
    asks.into_iter().map(|ask| ask.ticket).collect()
}

#[test]
fn what_was_given_up_meanwhile_is_not_sent() {
    let mut node = node(server(), 1);
    let now = Instant::now();
    let half_overdue = || {
        let mut asks = asks(2);
        asks[0].deadline = now;
        asks
    };
    node.queue.extend(half_overdue().into_iter().map(|ask| (7, ask)));
    node.returned.push_back(Call::new(7, half_overdue()));
    for _ in 0..2 {
        let (calls, overdue) = node.next_calls(&rules(), now);
        assert_eq!(tickets(calls.iter().flat_map(|call| &call.asks)), [2]);
        assert_eq!(tickets(&overdue), [1]);
    }
    assert!(!node.has_waiting());
}

#[test]
fn a_batch_is_a_call_for_each_slot_and_keeps_the_order_within() {
    let mut node = node(server(), 1);
    node.queue.extend([9, 7, 9, 7].into_iter().zip(asks(4)));
    let (calls, _) = node.next_calls(&rules(), Instant::now());
    let calls: Vec<_> = calls.iter().map(|call| (call.slot, tickets(&call.asks))).collect();
    assert_eq!(calls, [(7, vec![2, 4]), (9, vec![1, 3])]);
}

#[test]
fn what_came_back_leaves_before_the_others_and_not_all_at_once() {
    let mut node = node(server(), 1);
    node.queue.extend(asks(1).into_iter().map(|ask| (7, ask)));
    let half = MAX_BATCH as u64 / 2;
    node.returned.extend([half, half, half].map(|count| Call::new(7, asks(count))));
    let batches = [(); 3].map(|()| {
        let (calls, _) = node.next_calls(&rules(), Instant::now());
        calls.iter().map(|call| call.asks.len() as u64).collect::<Vec<_>>()
    });
    assert_eq!(batches, [vec![half, half], vec![half], vec![1]]);
}

#[test]
fn batches_leave_on_the_connection_with_the_most_places_and_no_more_than_there_are() {
    run(async {
        let mut node = node(server(), 2);
        for _ in 0..2 {
            connect(&mut node, "r:1").await.expect("it is ours");
        }
        let take = |node: &mut Node| node.take_place().map(|(id, _)| id);
        let mut taken = [take(&mut node).expect("a place"), take(&mut node).expect("another")];
        taken.sort();
        assert_eq!(taken[..], ids(&node)[..]);
        assert!(!node.has_room() && take(&mut node).is_none());
        assert!(node.give_place_back(taken[1]));
        assert_eq!(take(&mut node), Some(taken[1]));
        node.drop_connection(taken[0], false);
        assert!(!node.give_place_back(taken[0]), "it is not ours any more");
    });
}

/// What it has found is told of after all, by then.
#[test]
fn an_attempt_that_was_given_up_leads_to_no_connection() {
    run(async {
        let mut node = node(server(), 1);
        node.connect(Duration::ZERO);
        let given_up = node.last_connection;
        node.drop_all();
        node.connect(Duration::ZERO);
        assert!(node.connected(given_up, connection().await, named("r:1")).is_none());
        assert!(!node.attempt_failed(given_up, "too late".to_owned()));
        assert_eq!(ids(&node), [0; 0]);
    });
}

#[test]
fn there_is_one_attempt_at_a_time() {
    run(async {
        let mut node = node(server(), 2);
        node.connect(Duration::ZERO);
        node.connect(Duration::ZERO);
        assert_eq!(node.last_connection, 1);
    });
}

/// Each has a budget of its own.
#[test]
fn there_are_never_connections_to_two_primaries() {
    run(async {
        let sentinels = Sentinels::new(&[place()], "main", None, None, access()).expect("one");
        let mut node = node(Target::Primary(sentinels), 3);
        let next = |node: &Node| match node.new_attempt(9).target {
            Target::Server(server) => server.name().to_owned(),
            Target::Primary(_) => "whom Sentinel names".to_owned(),
        };
        let watch = |node: &Node| node.watch.as_ref().map(AbortHandle::id);
        node.connect(Duration::ZERO);
        assert!(!node.is_elsewhere("new:1") && node.attempt.is_some(), "it is being looked for");
        assert_eq!(next(&node), "whom Sentinel names");
        assert_eq!(connect(&mut node, "old:1").await, Some(true));
        let first_watch = watch(&node);
        assert_eq!(next(&node), "old:1");
        assert_eq!(connect(&mut node, "old:1").await, Some(true));
        assert!(first_watch.is_some() && watch(&node) == first_watch, "one asks for all");
        assert_eq!(ids(&node), [1, 2]);
        assert_eq!(node.name, "main (old:1)");
        assert!(!node.is_elsewhere("old:1"));
        assert!(node.is_elsewhere("new:1"));
        assert_eq!(ids(&node), [0; 0]);
        assert_eq!(next(&node), "whom Sentinel names");
        assert_eq!(connect(&mut node, "new:1").await, Some(true), "it is not doubted");
        assert_eq!(node.name, "main (new:1)");
    });
}

/// The pause before the next attempt.
fn pause(node: &mut Node) -> Duration {
    node.breaker.next_pause()
}

/// What an older connection decides says nothing about whether another can be had.
#[test]
fn pauses_end_with_a_decision_over_a_connection_made_since() {
    run(async {
        let mut node = node(server(), 3);
        connect(&mut node, "r:1").await.expect("it is ours");
        assert!(node.attempt_failed(2, "refused".to_owned()));
        node.decided(1);
        assert!(pause(&mut node) > Duration::ZERO, "a failed attempt");

        connect(&mut node, "r:1").await.expect("it is ours");
        node.decided(3);
        assert_eq!(pause(&mut node), Duration::ZERO);
    });
    run(async {
        let mut node = node(server(), 3);
        for _ in 0..3 {
            connect(&mut node, "r:1").await.expect("it is ours");
        }
        node.drop_connection(2, true);
        node.decided(1);
        assert!(pause(&mut node) > Duration::ZERO, "one that ended and had decided nothing");
        node.decided(3);
        assert_eq!(pause(&mut node), Duration::ZERO);
    });
}

/// Redis closes what is idle, and that is nothing against it.
#[test]
fn pauses_end_with_a_connection_that_lasted() {
    run(async {
        let mut node = node(server(), 1);
        for (lasted, is_paused) in [(1, true), (2, false)] {
            connect(&mut node, "r:1").await.expect("it is ours");
            let live = &mut node.live[0];
            live.since -= MAX_PAUSE * lasted - MAX_PAUSE / 2;
            let id = live.id;
            node.drop_connection(id, false);
            assert_eq!(pause(&mut node) > Duration::ZERO, is_paused, "{lasted}");
        }
    });
}

#[test]
fn decisions_keep_the_breaker_closed() {
    run(async {
        let mut node = node(server(), 1);
        for _ in 0..4 {
            connect(&mut node, "r:1").await.expect("it is ours");
            node.decided(node.last_connection);
            assert!(!node.breaker.failed());
            node.drop_connection(node.last_connection, true);
        }
        (0..2).for_each(|_| _ = node.breaker.failed());
        assert_eq!(node.state(), State::Down);
        connect(&mut node, "r:1").await.expect("it is ours");
        node.drop_connection(node.last_connection, false);
        assert_eq!(node.state(), State::Connecting, "it took writes: requests may try");
    });
}

/// A server that takes connections and decides nothing would be back each time.
#[test]
fn a_connection_is_no_news_after_one_that_decided_nothing() {
    run(async {
        let mut node = node(server(), 1);
        for (decides, is_used, is_news) in
            [(false, true, false), (true, true, true), (false, false, true)]
        {
            connect(&mut node, "r:1").await.expect("it is ours");
            let id = node.last_connection;
            if decides {
                node.decided(id);
            }
            if is_used {
                node.take_place().expect("a place");
            }
            assert_eq!(node.drop_connection(id, false), Some(is_used));
            assert_eq!(connect(&mut node, "r:1").await, Some(is_news));
            node.decided(node.last_connection);
            node.drop_connection(node.last_connection, false);
        }
        connect(&mut node, "r:1").await.expect("it is ours");
        node.drop_all();
        assert_eq!(connect(&mut node, "r:1").await, Some(false), "the server said no");
    });
}

/// What ends one ends the others, each in its turn.
#[test]
fn connections_that_are_lost_together_are_one_failure() {
    let mut node = node(server(), 3);
    node.last_connection = 3;
    assert_eq!([2, 1, 3].map(|id| node.is_another_failure(id)), [true, false, false]);
    node.last_connection = 4;
    assert!(node.is_another_failure(4));
}

/// A wait that began before the connection did is nobody's.
#[test]
fn a_loss_begins_a_wait_of_its_own() {
    run(async {
        for lose in [(|node| _ = node.drop_connection(1, true)) as fn(&mut Node), Node::drop_all] {
            let mut node = node(server(), 1);
            connect(&mut node, "r:1").await.expect("it is ours");
            assert_eq!(node.hope_until(), None);
            let before = Instant::now();
            lose(&mut node);
            assert!(node.hope_until().is_some_and(|until| until >= before + PATIENCE));
        }
    });
}

#[test]
fn the_reason_is_that_of_the_last_attempt() {
    run(async {
        let mut node = node(server(), 1);
        assert_eq!(node.problem(), "no answer within 60s");
        node.connect(Duration::ZERO);
        assert!(node.attempt_failed(1, "refused".to_owned()));
        assert_eq!(node.problem(), "refused");
        connect(&mut node, "r:1").await.expect("it is ours");
        assert_eq!(node.problem(), "no answer within 60s");
    });
}
