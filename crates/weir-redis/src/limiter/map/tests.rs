use std::time::Instant;

use super::*;
use crate::limiter::scene::{self, QUEUE, Seen};
use crate::news::Event;
use crate::rule::{Ask, Operation};
use crate::slots::Range;
use crate::testing::{asks, connection, error_reply, named, run};
use weir_core::Timestamp;

const HOST: &str = "127.0.0.1";

/// All slots at this port, where nobody listens.
fn all_at(port: u16) -> Vec<Range> {
    vec![Range { first: 0, last: SLOTS - 1, host: HOST.to_owned(), port }]
}

/// A limiter that knows this map.
fn knowing(seen: &Seen, map: Vec<Range>) -> Limiter<Seen> {
    let mut limiter = scene::cluster(seen);
    limiter.directory.as_mut().expect("a cluster").ask(Instant::now(), std::iter::empty());
    limiter.map_found(Ok(map));
    assert!(!is_doubted(&limiter));
    limiter
}

fn at(limiter: &Limiter<Seen>, port: u16) -> NodeId {
    let directory = limiter.directory.as_ref().expect("a cluster");
    directory.node_at(HOST, port).expect("a known node")
}

/// Whether the map is to be asked for.
fn is_doubted(limiter: &Limiter<Seen>) -> bool {
    limiter.directory.as_ref().is_some_and(|directory| directory.next_chore().is_some())
}

fn from(node: NodeId) -> From {
    From { node, connection: 1, current: true }
}

fn slot_of(limiter: &Limiter<Seen>, ask: &Ask) -> u16 {
    limiter.desk.rules[0].slot(&limiter.desk.prefix, ask.source, &ask.value, &mut Vec::new())
}

/// The tickets that wait for this node.
fn waiting(limiter: &Limiter<Seen>, node: NodeId) -> Vec<u64> {
    let node = limiter.nodes.get(node).expect("a node");
    let returned = node.returned.iter().flat_map(|call| &call.asks);
    returned.chain(node.queue.iter().map(|(_, ask)| ask)).map(|ask| ask.ticket).collect()
}

#[test]
fn whatever_does_not_fit_the_map_has_it_asked_for_again() {
    type Event = (&'static str, fn(&mut Limiter<Seen>, NodeId));
    fn told(limiter: &mut Limiter<Seen>, node: NodeId, error: &str) {
        limiter.refused(from(node), Call::new(0, asks(1)), &error_reply(error));
    }
    let events: [Event; 7] = [
        ("a slot elsewhere", |limiter, node| told(limiter, node, "MOVED 0 127.0.0.1:2")),
        ("slots without a primary", |limiter, node| told(limiter, node, "CLUSTERDOWN it is")),
        ("a replica", |limiter, node| told(limiter, node, "READONLY it is")),
        ("a server that starts", |limiter, node| told(limiter, node, "LOADING it is")),
        ("no connection", |limiter, node| limiter.no_connection(node)),
        ("a slot that nobody serves", |limiter, _| limiter.take(asks(1).into_iter())),
        ("no new map", |limiter, _| limiter.map_found(Err("no".to_owned()))),
    ];
    run(async {
        for (what, event) in events {
            let seen = Seen::default();
            // Of its one slot none of these requests is.
            let map = vec![Range { first: 0, last: 0, host: HOST.to_owned(), port: 1 }];
            let mut limiter = knowing(&seen, map);
            let node = at(&limiter, 1);
            event(&mut limiter, node);
            assert!(is_doubted(&limiter), "{what}");
        }
        let mut limiter = knowing(&Seen::default(), all_at(1));
        let node = at(&limiter, 1);
        limiter.refused(from(node), Call::new(0, asks(1)), &error_reply("ASK 0 127.0.0.1:2"));
        assert!(!is_doubted(&limiter), "a slot on its way is still there");
    });
}

#[test]
fn a_connection_that_is_lost_has_the_map_asked_for_again() {
    run(async {
        let mut limiter = knowing(&Seen::default(), all_at(1));
        let node = at(&limiter, 1);
        let connected = Event::Connected(connection().await, named("r:1").into());
        limiter.node_event(node, 1, connected);
        assert!(!is_doubted(&limiter));
        limiter.node_event(node, 1, Event::Lost);
        assert!(is_doubted(&limiter));
    });
}

/// One that is asked for and does not come is nothing against the last one.
#[test]
fn a_map_holds_until_there_is_another() {
    run(async {
        let mut limiter = knowing(&Seen::default(), all_at(1));
        limiter.map_found(Err("no".to_owned()));
        assert!(limiter.takes());
    });
}

#[test]
fn what_waits_goes_to_whoever_serves_its_slot_now() {
    run(async {
        let seen = Seen::default();
        let mut limiter = knowing(&seen, all_at(1));
        limiter.take(asks(2).into_iter());
        let mut came_back = asks(3);
        let slot = slot_of(&limiter, &came_back[0]);
        let old = at(&limiter, 1);
        limiter.return_to(old, Call::new(slot, vec![came_back.remove(2)]));
        limiter.map_found(Ok(all_at(2)));
        assert_eq!(waiting(&limiter, at(&limiter, 2)), [3, 1, 2]);
        assert_eq!(seen.answered(), [0; 0]);
    });
}

/// The node that a slot is on its way to has no slot yet, and would be let go of
/// with what was sent on to it.
#[test]
fn what_was_sent_on_to_the_next_owner_stays_there_whatever_the_map_says() {
    run(async {
        let seen = Seen::default();
        let mut limiter = knowing(&seen, all_at(1));
        let ask = asks(1);
        let slot = slot_of(&limiter, &ask[0]);
        let error = error_reply(&format!("ASK {slot} {HOST}:2"));
        limiter.refused(from(at(&limiter, 1)), Call::new(slot, ask), &error);
        let next = at(&limiter, 2);
        // Something else has changed.
        let mut map = all_at(3);
        map.push(Range { first: slot, last: slot, host: HOST.to_owned(), port: 1 });
        limiter.map_found(Ok(map));
        assert_eq!(waiting(&limiter, next), [1]);
        assert_eq!(seen.answered(), [0; 0]);
    });
}

#[test]
fn a_node_is_let_go_of_with_its_last_slot_and_made_anew_with_its_first() {
    run(async {
        let seen = Seen::default();
        let mut limiter = knowing(&seen, all_at(1));
        let old = at(&limiter, 1);
        (0..3).for_each(|_| limiter.no_connection(old));
        limiter.fail(old, asks(1), Failure::Unreachable);
        limiter.desk.fail(asks(2), Failure::Unreachable);
        limiter.map_found(Ok(all_at(2)));
        assert!(limiter.nodes.get(old).is_none());
        let lines = seen.lines.borrow();
        let last = lines.last().expect("a line");
        assert!(last.contains("is replaced after"), "{lines:?}");
        assert!(last.contains(" 1 requests meanwhile"), "those that were its own: {lines:?}");
        limiter.map_found(Ok(all_at(1)));
        limiter.take(asks(1).into_iter());
        assert_eq!(waiting(&limiter, at(&limiter, 1)), [1]);
    });
}

/// Redis leaves it out where it does not know it.
#[test]
fn a_redirection_without_a_host_leads_to_the_host_that_was_asked() {
    run(async {
        let mut limiter = knowing(&Seen::default(), all_at(1));
        let node = at(&limiter, 1);
        limiter.refused(from(node), Call::new(7, asks(1)), &error_reply("MOVED 7 :2"));
        assert_eq!(waiting(&limiter, at(&limiter, 2)), [1]);
    });
}

#[test]
fn servers_that_send_to_each_other_are_followed_so_often_and_no_more() {
    run(async {
        let seen = Seen::default();
        let mut limiter = knowing(&seen, all_at(1));
        let mut call = Call::new(7, asks(1));
        let mut sent = 0;
        for port in [2, 1].into_iter().cycle().take(100) {
            let error = error_reply(&format!("MOVED 7 {HOST}:{port}"));
            let node = at(&limiter, 3 - port);
            limiter.refused(from(node), call, &error);
            let next = limiter.nodes.get_mut(at(&limiter, port)).expect("a node");
            let Some(again) = next.returned.pop_front() else { break };
            (call, sent) = (again, sent + 1);
        }
        assert_eq!((sent, seen.answered()), (8, vec![1]));
        assert_eq!(limiter.desk.health.redirected.load(Relaxed), 8);
    });
}

#[test]
fn so_many_requests_wait_for_a_node_and_no_more() {
    run(async {
        let seen = Seen::default();
        let mut limiter = knowing(&seen, all_at(1));
        let mut asks = asks(QUEUE as u64 + 3);
        let charged_at = Timestamp::from_micros(7);
        asks[QUEUE].operation = Operation::Refund { cost: 1, charged_at };
        limiter.take(asks.into_iter());
        let node = limiter.nodes.get(at(&limiter, 1)).expect("a node");
        assert_eq!(node.waiting(), QUEUE);
        // What gives back is nobody's decision.
        assert_eq!((seen.answered().len(), node.failed), (3, 2));
        assert_eq!(limiter.desk.health.failed.load(Relaxed), 2);
        limiter.show_state();
        assert_eq!(limiter.desk.health.waiting.load(Relaxed), QUEUE as u64);
    });
}

/// Several clients of a slot on its way may be decided that together cannot; and
/// one whose slot nobody serves any more is told so.
#[test]
fn what_was_to_be_tried_again_is_tried_alone() {
    run(async {
        let seen = Seen::default();
        let mut limiter = knowing(&seen, all_at(1));
        let node = at(&limiter, 1);
        limiter.refused(from(node), Call::new(7, asks(2)), &error_reply("TRYAGAIN it moves"));
        assert_eq!(limiter.later.len(), 2);
        let later = Instant::now() + Duration::from_secs(1);
        limiter.directory.as_mut().expect("a cluster").strike(node);
        limiter.do_chores(later);
        assert_eq!(seen.answered(), [1, 2]);
    });
}

#[test]
fn the_slot_of_a_redirection_is_asked_for_there_from_then_on() {
    run(async {
        let mut limiter = knowing(&Seen::default(), all_at(1));
        let ask = asks(1);
        let slot = slot_of(&limiter, &ask[0]);
        let error = error_reply(&format!("MOVED {slot} {HOST}:2"));
        limiter.refused(from(at(&limiter, 1)), Call::new(slot, asks(1)), &error);
        limiter.take(ask.into_iter());
        assert_eq!(waiting(&limiter, at(&limiter, 2)), [1, 1]);
    });
}

#[test]
fn the_first_map_is_told_as_the_end_of_having_none() {
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::cluster(&seen);
        (0..3).for_each(|_| limiter.no_map(Some("nobody there".to_owned())));
        limiter.map_found(Ok(all_at(1)));
        limiter.map_found(Ok(all_at(2)));
        let lines = seen.lines.borrow();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("unreachable: nobody there"), "{lines:?}");
        assert!(lines[1].contains("is back after"), "{lines:?}");
    });
}

/// Its answer may be that it knows no script, or where the slot is now.
#[test]
fn a_node_is_kept_while_calls_are_under_way_with_it() {
    run(async {
        let mut limiter = knowing(&Seen::default(), all_at(1));
        let old = at(&limiter, 1);
        limiter.node_event(old, 1, Event::Connected(connection().await, named("r:1").into()));
        limiter.take(asks(1).into_iter());
        limiter.dispatch();
        limiter.map_found(Ok(all_at(2)));
        assert!(limiter.nodes.get(old).is_some());
        limiter.flights.take_overdue(Instant::now() + Duration::from_secs(100));
        limiter.map_found(Ok(all_at(2)));
        assert!(limiter.nodes.get(old).is_none());
    });
}
