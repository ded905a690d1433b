//! A cluster decides as one server does, and what befalls a shard is felt by its
//! own clients only.

use std::time::{Duration, Instant};

use weir_tests::cluster::{slot, slot_of};
use weir_tests::{
    Asked, Client, Cluster, Conf, Nginx, Redis, Traffic, in_parallel, is_torture, wait_until,
};

/// Longer than what the machine does to a shard that is well.
const TIMEOUT: &str = "300ms";

/// The timeout, and what is allowed on top.
const DEADLINE: Duration = Duration::from_millis(350);

/// What needs nothing of a shard that fails does not wait for it.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Limits are back within this time of the shard.
const RECOVERY: Duration = Duration::from_secs(2);

/// A location for each of these policies, for a client that `k` names.
fn conf_on(nodes: &str, timeout: &str, policies: &str) -> Conf {
    let redis = format!("cluster = {nodes}, timeout = \"{timeout}\"");
    let names = policies.lines().filter_map(|line| line.trim().split_once(" = "));
    names
        .fold(Conf::on(&redis, policies), |conf, (name, _)| {
            let lua =
                format!("require(\"resty.weir\").access(\"{name}\", {{ key = ngx.var.arg_k }})");
            conf.access(&format!("/{name}"), &lua)
        })
        .stats()
}

/// What most of these tests ask for. All fails closed, so that no failure hides.
const POLICIES: &str = "free = { limit = \"1000000/1h\", on_error = \"closed\" },
    some = { limit = \"300/1h\", on_error = \"closed\" },
    both = { limits = { { limit = \"300/1h\" }, { limit = \"300/30d\", \
             algorithm = \"token-bucket\" } }, on_error = \"closed\" },";

/// An nginx on this cluster, whose limits have begun at every shard.
fn start(cluster: &Cluster) -> Nginx {
    let nginx = Nginx::start(&conf_on(&cluster.addresses(), TIMEOUT, POLICIES));
    wait_for_limits(&nginx.client());
    nginx
}

fn wait_for_limits(client: &Client) {
    for node in 0..3 {
        let path = format!("/free?k={}", Cluster::keys_of(node, 1)[0]);
        wait_until("limits have begun", RECOVERY, || client.get(&path).status == 200);
    }
}

/// The paths of this policy for so many keys of each primary.
fn paths(policy: &str, keys: usize) -> Vec<String> {
    let of_node = |node| Cluster::keys_of(node, keys);
    (0..3).flat_map(of_node).map(|key| format!("/{policy}?k={key}")).collect()
}

/// Asserts what a shard's failure may do: to its own clients what the policy says,
/// in time, to all others nothing.
fn assert_felt_only_by(traffic: &Traffic, hit: impl Fn(&Asked) -> bool) {
    let is_well = |asked: &Asked| asked.status == 200 && asked.limited;
    let harmed = traffic.answers(|asked| !hit(asked) && !is_well(asked));
    assert!(harmed.is_empty(), "{} of other shards, such as {:?}", harmed.len(), harmed[0]);
    traffic.assert_within(AT_ONCE, |asked| !hit(asked));
    let is_policy = |asked: &Asked| asked.status == 503 && !asked.limited;
    let wrong = traffic.answers(|asked| !is_well(asked) && !is_policy(asked));
    assert!(wrong.is_empty(), "{} answers, such as {:?}", wrong.len(), wrong[0]);
    assert!(traffic.count(is_policy) > 3, "nobody noticed");
    traffic.assert_within(DEADLINE, hit);
}

/// C32.
#[test]
fn a_thousand_clients_are_counted_exactly_by_every_algorithm() {
    const CLIENTS: usize = 1_000;
    const LIMIT: usize = 2;
    let policies = "log = { limit = \"2/30d\" },
        ring = { limit = \"2/30d\", algorithm = \"compact-log\" },
        counter = { limit = \"2/30d\", algorithm = \"sliding-counter\" },
        bucket = { limit = \"2/30d\", algorithm = \"token-bucket\" },
        quota = { limit = \"2/month\", algorithm = \"quota\" },
        several = { limits = { { limit = \"2/30d\" }, { limit = \"9/1h\", \
                    algorithm = \"token-bucket\" }, { limit = \"9/month\", algorithm = \"quota\" } } },";
    let names = ["log", "ring", "counter", "bucket", "quota", "several"];
    let cluster = Cluster::start();
    let nginx = Nginx::start(&conf_on(&cluster.addresses(), "5s", policies).workers(2));
    let client = nginx.client();
    wait_until("limits have begun", RECOVERY, || client.get("/log?k=0").has_limit_headers());
    let before = cluster.questions();
    let ids: Vec<u64> = (0..CLIENTS).map(|_| fastrand::u64(..)).collect();
    let admitted = in_parallel(8, |thread| {
        let client = Client::without_keepalive(nginx.port());
        let mine = ids.iter().skip(thread).step_by(8);
        mine.flat_map(|id| names.map(|name| format!("/{name}?k={id}")))
            .map(|path| {
                let answers = [0; LIMIT + 1].map(|_| client.get(&path));
                assert!(answers.iter().all(|answer| answer.has_limit_headers()), "{answers:?}");
                answers.iter().filter(|answer| answer.status == 200).count()
            })
            .filter(|&count| count == LIMIT)
            .count()
    });
    assert_eq!(admitted.iter().sum::<usize>(), CLIENTS * names.len());
    assert_eq!(cluster.errors("CROSSSLOT"), 0);
    let (moved, questions) = (cluster.errors("MOVED"), cluster.questions() - before);
    println!("{moved} MOVED, {questions} questions about the slots");
    assert!(moved <= 6, "{moved} MOVED");
    nginx.assert_calm_log();
}

#[test]
fn a_killed_primary_is_felt_only_by_its_own_clients_until_its_replica_takes_over() {
    let mut cluster = Cluster::start();
    let nginx = start(&cluster);
    let paths = paths("free", 2);
    let (traffic, took) = Traffic::during(nginx.port(), &paths, |traffic| {
        traffic.wait_until_limited(&[0, 1, 2, 3, 4, 5], RECOVERY);
        cluster.kill(1);
        cluster.wait_for_promotion(slot_of(&Cluster::keys_of(1, 1)[0]), 1);
        let took = traffic.wait_until_limited(&[2, 3], RECOVERY);
        traffic.wait_until_limited(&[0, 1, 2, 3, 4, 5], RECOVERY);
        took
    });
    println!("limits are back {took:?} after all nodes agree");
    assert_felt_only_by(&traffic, |asked| [2, 3].contains(&asked.path));
    let slow = traffic.answers(|asked| asked.path == 2);
    println!(
        "{} of {} answers by the policy",
        slow.iter().filter(|a| !a.limited).count(),
        slow.len()
    );
    nginx.assert_calm_log();
}

#[test]
fn a_slow_shard_delays_only_its_own_clients() {
    let cluster = Cluster::start();
    let nginx = start(&cluster);
    let (traffic, ()) = Traffic::during(nginx.port(), &paths("free", 2), |traffic| {
        traffic.wait_until_limited(&[0, 1, 2, 3, 4, 5], RECOVERY);
        cluster.nodes[2].freeze();
        // Shorter than what it takes to be called dead.
        wait_until("its clients go by the policy", RECOVERY, || {
            traffic.count(|asked| asked.status == 503) > 10
        });
        cluster.nodes[2].thaw();
        traffic.wait_until_limited(&[4, 5], RECOVERY);
    });
    assert_felt_only_by(&traffic, |asked| [4, 5].contains(&asked.path));
    assert_eq!(cluster.node_of(slot_of(&Cluster::keys_of(2, 1)[0])), Some(2));
    nginx.assert_calm_log();
}

#[test]
fn slots_that_move_under_load_fail_nobody_and_exceed_no_limit() {
    let cluster = Cluster::start();
    let nginx = start(&cluster);
    // Different clients under each policy: what is moved is not what was asked
    // for just before.
    let (free, some) = (paths("free", 1), paths("some", 3));
    let paths = [free, some].concat();
    let moving = Cluster::keys_of(0, 3);
    let (traffic, ()) = Traffic::during(nginx.port(), &paths, |traffic| {
        let share = |share: usize| {
            traffic.count(|asked| asked.path >= 3 && asked.status == 200) >= 9 * 300 * share / 100
        };
        for (index, key) in moving.iter().enumerate() {
            let begin = 20 + 20 * index;
            wait_until("so much is used", RECOVERY * 10, || share(begin));
            for slot in slot_of(key)..slot_of(key) + 5 {
                cluster.begin_move(slot, 0, 1);
                if slot == slot_of(key) {
                    // New clients of the slot go to the other node meanwhile.
                    wait_until("some more is used", RECOVERY * 10, || share(begin + 5));
                }
                cluster.finish_move(slot, 0, 1);
            }
        }
        wait_until("every limit is reached", RECOVERY * 10, || {
            (3..12).all(|path| traffic.count(|it| it.path == path && it.status == 429) > 20)
        });
        traffic.wait_until_limited(&[0, 1, 2], RECOVERY);
    });
    let failed = traffic.answers(|asked| !asked.limited || ![200, 429].contains(&asked.status));
    assert!(failed.is_empty(), "{} failed, such as {:?}", failed.len(), failed[0]);
    for (path, name) in paths.iter().enumerate().skip(3) {
        let admitted = traffic.count(|asked| asked.path == path && asked.status == 200);
        assert_eq!(admitted, 300, "{name}");
    }
    for key in &moving {
        assert_eq!(cluster.node_of(slot_of(key)), Some(1));
    }
    let (moved, asks) = (cluster.errors("MOVED"), cluster.errors("ASK"));
    println!("{moved} MOVED, {asks} ASK for 15 slots moved");
    assert!(moved <= 15 * 3, "{moved} MOVED");
    nginx.assert_calm_log();
}

/// The keys of a slot that a node holds and that contain this.
fn keys_in(cluster: &Cluster, node: usize, slot: u16, part: &str) -> Vec<String> {
    let list = format!("CLUSTER GETKEYSINSLOT {slot} 100");
    let keys: Vec<String> = cluster.nodes[node].command(&list);
    keys.into_iter().filter(|key| key.contains(part)).collect()
}

/// Two keys of one slot that were given by requests.
fn pair_of_one_slot() -> (String, String) {
    let first = Cluster::keys_of(0, 1).remove(0);
    let same = |key: &String| slot_of(key) == slot_of(&first);
    let second = (0..).map(|index| format!("other{index}")).find(same).expect("endless");
    (first, second)
}

/// While a slot is under way, one node answers for the keys that it still has and
/// the other for new ones, which knows no script yet.
#[test]
fn a_slot_that_is_half_moved_is_served_exactly() {
    let cluster = Cluster::start();
    let nginx = start(&cluster);
    let (old, new) = pair_of_one_slot();
    let slot = slot_of(&old);
    assert_eq!(nginx.client().get(&format!("/some?k={old}")).status, 200);
    cluster.nodes[1].command::<()>("SCRIPT FLUSH");
    cluster.begin_move(slot, 0, 1);
    // Both at once: what shares a slot may be asked for in one call.
    let paths: Vec<String> =
        [&old, &new].repeat(4).iter().map(|k| format!("/some?k={k}")).collect();
    let (traffic, ()) = Traffic::during(nginx.port(), &paths, |traffic| {
        let begun = Instant::now();
        wait_until("both limits are reached, a second later", RECOVERY * 10, || {
            let reached =
                |path| traffic.count(|asked| asked.path % 2 == path && asked.status == 429) > 20;
            reached(0) && reached(1) && begun.elapsed() > Duration::from_secs(1)
        });
    });
    let failed = traffic.answers(|asked| !asked.limited || ![200, 429].contains(&asked.status));
    assert!(failed.is_empty(), "{} failed, such as {:?}", failed.len(), failed[0]);
    let admitted = [0, 1].map(|path| traffic.count(|it| it.path % 2 == path && it.status == 200));
    assert_eq!(admitted, [299, 300]);
    let (asks, tryagain) = (cluster.errors("ASK"), cluster.errors("TRYAGAIN"));
    println!("{asks} ASK, {tryagain} TRYAGAIN, {} MOVED", cluster.errors("MOVED"));
    let held = |node: usize| keys_in(&cluster, node, slot, ":some:");
    assert!(held(0)[0].contains(&old) && held(1)[0].contains(&new), "{:?}", [held(0), held(1)]);
    cluster.finish_move(slot, 0, 1);
    assert_eq!(nginx.client().get(&format!("/some?k={old}")).status, 429);
    assert_eq!(nginx.client().get(&format!("/some?k={new}")).status, 429);
    nginx.assert_calm_log();
}

/// A request of several limits whose keys are apart cannot be decided until they
/// are together again; that is a failure, and never a decision.
#[test]
fn limits_of_one_request_that_are_apart_go_by_the_policy() {
    let cluster = Cluster::start();
    let nginx = start(&cluster);
    let client = nginx.client();
    let key = Cluster::keys_of(0, 1).remove(0);
    let (path, slot) = (format!("/both?k={key}"), slot_of(&key));
    assert_eq!(client.get(&path).status, 200);
    cluster.begin_move(slot, 0, 1);
    let keys = keys_in(&cluster, 0, slot, ":both:");
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert_eq!(client.get(&path).status, 200, "both are where they were");
    cluster.move_key(&keys[0], 0, 1);
    let answer = client.get(&path);
    assert_eq!((answer.status, answer.has_limit_headers()), (503, false));
    assert!(answer.elapsed <= DEADLINE, "{answer:?}");
    let told = format!("slot {slot} is being moved: TRYAGAIN");
    wait_until("the log says why", RECOVERY, || nginx.log_lines(&told).len() == 1);
    cluster.finish_move(slot, 0, 1);
    wait_until("limits are back", RECOVERY, || client.get(&path).status == 200);
    nginx.assert_calm_log();
}

/// C31.
#[test]
fn a_script_that_one_shard_forgot_is_brought_there_without_asking_for_the_slots() {
    let cluster = Cluster::start();
    let nginx = start(&cluster);
    let client = nginx.client();
    let ask_all = || {
        for path in paths("free", 3) {
            assert_eq!(client.get(&path).status, 200, "{path}");
        }
    };
    ask_all();
    let brought = |node: usize| {
        let node: &Redis = &cluster.nodes[node];
        node.calls("eval") + node.calls("script|load") + node.calls("script")
    };
    let before = ([0, 1, 2].map(brought), cluster.questions());
    cluster.nodes[1].command::<()>("SCRIPT FLUSH");
    ask_all();
    let after = ([0, 1, 2].map(brought), cluster.questions());
    assert_eq!((after.0[0], after.0[2]), (before.0[0], before.0[2]));
    let times = after.0[1] - before.0[1];
    assert!((1..=3).contains(&times), "brought {times} times");
    assert_eq!(after.1, before.1, "the slots were asked for");
    assert_eq!(cluster.nodes[1].errors("NOSCRIPT"), 1);
    // Of a slot of its own is also what a node is asked when it is connected to.
    assert_eq!(cluster.errors("MOVED"), 0);
    nginx.assert_calm_log();
}

/// Of the addresses one is enough.
#[test]
fn wrong_addresses_among_right_ones_are_passed_over() {
    let cluster = Cluster::start();
    let (alone, absent) = (Redis::start(), Redis::absent());
    for wrong in [absent.address(), alone.address(), "redis://no-such-host.invalid".to_owned()] {
        let nodes = format!("{{ \"{wrong}\", \"{}\" }}", cluster.nodes[4].address());
        let nginx = Nginx::start(&conf_on(&nodes, TIMEOUT, POLICIES));
        wait_for_limits(&nginx.client());
        nginx.assert_calm_log();
    }
    assert_eq!(alone.calls("evalsha") + alone.calls("eval"), 0);
}

#[test]
fn limits_begin_by_themselves_when_the_cluster_comes_after_nginx() {
    let mut cluster = Cluster::start();
    (0..6).for_each(|node| cluster.kill(node));
    let nginx = Nginx::start(&conf_on(&cluster.addresses(), TIMEOUT, POLICIES));
    let client = nginx.client();
    for path in paths("free", 1) {
        let answer = client.get(&path);
        assert_eq!((answer.status, answer.has_limit_headers()), (503, false));
        assert!(answer.elapsed <= DEADLINE, "{answer:?}");
    }
    cluster.nodes.iter_mut().for_each(Redis::launch);
    cluster.wait_until_ok();
    wait_for_limits(&client);
    nginx.assert_calm_log();
}

/// Also with a timeout that is shorter than three attempts take.
#[test]
fn why_there_is_no_map_is_told() {
    let (single, absent) = (Redis::start(), Redis::absent());
    for (server, reason) in [(&single, "cluster support disabled"), (&absent, "refused")] {
        let nodes = format!("{{ \"{}\" }}", server.address());
        let nginx = Nginx::start(&conf_on(&nodes, "100ms", POLICIES));
        wait_until("the reason is told", RECOVERY, || !nginx.log_lines("unreachable").is_empty());
        let lines = nginx.log_lines("weir: redis cluster");
        assert!(lines.len() == 1 && lines[0].contains(reason), "{lines:?}");
        assert!(nginx.count("failed_attempts") >= 2);
        assert_eq!(nginx.count("servers_away"), 1);
        assert_eq!(nginx.client().get("/some?k=1").status, 503);
    }
}

#[test]
fn keys_are_in_the_slots_that_these_tests_take_them_for() {
    let redis = Redis::absent().with(&["--cluster-enabled", "yes"]);
    let mut redis = redis.on_port(weir_tests::process::free_port_of_a_node());
    redis.launch();
    for key in ["weir:{=alice}:api:log:1m", "alice", "{}alice", "a{b}c{d}", "{a"] {
        assert_eq!(redis.command::<u16>(&format!("CLUSTER KEYSLOT {key}")), slot(key), "{key}");
    }
    assert_eq!(slot_of("alice"), slot("weir:{=alice}:api:log:1m"));
}

/// For a few seconds; under `make torture` for a minute.
#[test]
fn slots_that_move_back_and_forth_fail_nobody_and_exceed_no_limit() {
    let span = Duration::from_secs(if is_torture() { 60 } else { 5 });
    let cluster = Cluster::start();
    let nginx = start(&cluster);
    let keys = Cluster::keys_of(0, 12);
    let (free, some) = keys.split_at(6);
    let named = |policy: &str, keys: &[String]| -> Vec<String> {
        keys.iter().map(|key| format!("/{policy}?k={key}")).collect()
    };
    let paths = [named("free", free), named("some", some)].concat();
    let (traffic, moves) = Traffic::during(nginx.port(), &paths, |_| {
        let begun = Instant::now();
        let mut moves = 0;
        while begun.elapsed() < span {
            for key in &keys {
                let slot = slot_of(key);
                let (from, to) = (moves / keys.len() % 3, (moves / keys.len() + 1) % 3);
                cluster.begin_move(slot, from, to);
                std::thread::sleep(Duration::from_millis(fastrand::u64(..50)));
                cluster.finish_move(slot, from, to);
                moves += 1;
            }
        }
        moves
    });
    let failed = traffic.answers(|asked| !asked.limited || ![200, 429].contains(&asked.status));
    assert!(failed.is_empty(), "{} failed, such as {:?}", failed.len(), failed[0]);
    for (path, name) in paths.iter().enumerate().skip(6) {
        let admitted = traffic.count(|asked| asked.path == path && asked.status == 200);
        assert_eq!(admitted, 300, "{name}");
    }
    let asked = traffic.count(|_| true);
    println!("{moves} moves, {asked} requests, {} MOVED", cluster.errors("MOVED"));
    assert!(cluster.errors("MOVED") <= 3 * moves as u64);
    nginx.assert_calm_log();
}
