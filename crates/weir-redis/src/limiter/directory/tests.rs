use tokio::sync::mpsc::unbounded_channel;
use weir_core::config::Breaker as BreakerSettings;

use super::*;
use crate::testing::{connection, run};

const PATIENCE: Duration = Duration::from_millis(100);

fn access() -> Access {
    Access::new(None, None, None, None)
}

fn directory() -> Directory {
    let settings =
        Settings { connections: 1, patience: PATIENCE, breaker: BreakerSettings::default() };
    let seeds = vec![Place::Tcp { host: "seed".to_owned(), port: 1 }];
    let (listener, _) = unbounded_channel();
    Directory::new("cluster".to_owned(), seeds, access(), &settings, listener)
}

/// Who are asked, by their hosts.
fn hosts(sources: Vec<Source>) -> Vec<String> {
    let host = |source| match source {
        Source::Connection(_, host) => host,
        Source::Server(place, _) => place.host().to_owned(),
    };
    let mut hosts: Vec<String> = sources.into_iter().map(host).collect();
    hosts.sort();
    hosts
}

#[test]
fn the_map_is_asked_for_more_and_more_slowly_until_it_has_changed() {
    run(async {
        let mut directory = directory();
        let map = vec![Range { first: 0, last: 9, host: "a".to_owned(), port: 1 }];
        directory.enter("a", 1, NodeId(1));
        let mut pause_after = |found: Option<&[Range]>| {
            directory.ask(directory.due.expect("it is due"), std::iter::empty());
            directory.answered(&found.map(<[Range]>::to_vec).ok_or_else(String::new));
            found.map(|map| directory.apply(map));
            directory.doubt();
            directory.due.expect("it is due") - directory.last_asked.expect("it was asked for")
        };
        let longest = [50, 100, 200, 400, 800, 1_000, 1_000].map(Duration::from_millis);
        for longest in longest {
            let pause = pause_after(None);
            assert!(pause > longest.mul_f64(0.75) && pause <= longest, "{pause:?}, {longest:?}");
        }
        assert!(pause_after(Some(&map)) <= FIRST_PAUSE);
        assert!(pause_after(Some(&map)) > FIRST_PAUSE, "nothing has changed");
    });
}

/// Of many nodes those that are asked may be just those that do not answer.
#[test]
fn different_nodes_are_asked_in_turn() {
    run(async {
        let mut directory = directory();
        let connection = connection().await;
        let nodes = ["a", "b", "c", "d", "e"].into_iter().zip((1..).map(NodeId));
        nodes.clone().for_each(|(host, node)| directory.enter(host, 1, node));
        let connections: Vec<_> = nodes.map(|(_, node)| (node, connection.clone())).collect();
        let mut asked = std::collections::BTreeSet::new();
        for _ in 0..5 {
            let hosts = hosts(directory.sources(connections.clone()));
            assert_eq!(hosts.len(), ASKED, "{hosts:?}");
            asked.extend(hosts);
        }
        assert_eq!(asked.len(), 5, "{asked:?}");
    });
}

/// The seeds may be gone, and so may all nodes but the seeds.
#[test]
fn without_any_connection_all_that_have_been_known_are_asked_once() {
    let mut directory = directory();
    let hosts_of_nodes = ["a", "seed"].into_iter().zip((1..).map(NodeId));
    hosts_of_nodes.for_each(|(host, node)| directory.enter(host, 1, node));
    assert_eq!(hosts(directory.sources(Vec::new())), ["a", "seed"]);
}

/// The answer that is on its way may settle it.
#[test]
fn a_map_that_is_being_asked_for_is_not_doubted() {
    run(async {
        let mut directory = directory();
        directory.ask(Instant::now(), std::iter::empty());
        directory.doubt();
        assert_eq!(directory.due, None);
    });
}

#[test]
fn a_slot_that_a_map_leaves_out_is_served_by_nobody() {
    let mut directory = directory();
    directory.enter("a", 1, NodeId(1));
    let map = |last| vec![Range { first: 0, last, host: "a".to_owned(), port: 1 }];
    assert!(directory.apply(&map(9)) && directory.apply(&map(8)) && !directory.apply(&map(8)));
    assert_eq!([8, 9].map(|slot| directory.owner(slot)), [Some(NodeId(1)), None]);
}

/// Else it would be given up and begun anew each time, and never end.
#[test]
fn a_name_that_takes_long_to_look_up_is_looked_up_once() {
    let mut directory = directory();
    directory.enter("known.test", 1, NodeId(1));
    let asked = |directory: &mut Directory| directory.servers().collect::<HashMap<_, _>>();
    let (first, second) = (asked(&mut directory), asked(&mut directory));
    assert_eq!((first.len(), second.len()), (2, 2));
    assert!(first.iter().all(|(place, server)| server.shares_lookups(&second[place])));
    directory.strike(NodeId(1));
    assert_eq!(asked(&mut directory).into_keys().collect::<Vec<_>>(), directory.seeds);
}
