//! The users that docs/redis.md makes for Sentinel and for a cluster: they suffice
//! for all that Weir does there, and nothing is added that nothing needs.

use std::time::Duration;

use weir_tests::acl::{self, PASSWORD, additions, refused, set_user};
use weir_tests::cluster::slot_of;
use weir_tests::every_algorithm::{self, POLICIES};
use weir_tests::sentinel_set::MASTER;
use weir_tests::{Cluster, Conf, Nginx, Redis, SentinelSet, wait_until};

const PATIENCE: Duration = Duration::from_secs(10);

/// Sentinel is asked this often, and a little more.
const ASKED_EVERY: Duration = Duration::from_secs(15);

/// Has a client, who must be new, decided by these policies in every way there is.
fn decide(nginx: &Nginx, key: &str, policies: &[&str]) {
    let client = nginx.client();
    for policy in policies {
        let settled = nginx.count("settled");
        let ask = |rest: &str| {
            let answer = client.get(&format!("/run?policy={policy}&key={key}&{rest}"));
            assert!(answer.has_limit_headers(), "{key} {policy} {rest}: {answer:?}");
            (answer.status, answer.body)
        };
        assert_eq!(ask("cost=2&refund=2"), (200, "2".to_owned()), "{key} {policy}");
        assert_eq!(ask("cost=1&charge=99"), (200, "99".to_owned()), "{key} {policy}");
        wait_until("both are settled", PATIENCE, || nginx.count("settled") == settled + 2);
        assert_eq!(ask("cost=1").0, 429, "{key} {policy}");
    }
}

/// The status of a decision that charges nobody.
fn look(nginx: &Nginx, key: &str) -> u16 {
    nginx.client().get(&format!("/run?policy=log&key={key}&cost=0")).status
}

fn wait_for_limits(nginx: &Nginx) {
    wait_until("limits are there", PATIENCE, || look(nginx, "nobody") == 200);
}

fn set_users<'a>(servers: impl IntoIterator<Item = &'a Redis>, line: &[String]) {
    servers.into_iter().for_each(|server| set_user(server, line));
}

/// What all of these have refused since the last time.
fn refused_by<'a>(servers: impl IntoIterator<Item = &'a Redis>) -> Vec<String> {
    servers.into_iter().flat_map(refused).map(|(_, object)| object).collect()
}

fn without(line: &[String], command: &str) -> Vec<String> {
    line.iter().filter(|rule| *rule != command).cloned().collect()
}

/// Asserts that this command was refused, and nothing but it and `also`.
fn assert_refused(refused: &[String], command: &str, also: &[&str]) {
    // Of a command with subcommands 6.2 names the command.
    let word = |name: &str| name.split('|').next().unwrap_or_default().to_owned();
    let missing = word(&command[1..]);
    let objects: Vec<String> = refused.iter().map(|object| word(object)).collect();
    assert!(objects.contains(&missing), "nothing needs {command}: {refused:?}");
    let is_expected = |object: &String| *object == missing || also.contains(&object.as_str());
    assert!(objects.iter().all(is_expected), "{command}: {refused:?}");
}

/// Starts an nginx that must get nowhere.
fn assert_in_vain(conf: &Conf, command: &str) {
    let nginx = Nginx::start(conf);
    wait_until(&format!("without {command} there is a complaint"), PATIENCE, || {
        nginx.log_lines("unreachable: ").iter().any(|line| line.contains("NOPERM"))
    });
    assert_eq!(look(&nginx, "nobody"), 503, "{command}");
    nginx.assert_calm_log();
}

#[test]
fn servers_and_sentinels_take_what_is_documented_and_no_less() {
    let set = SentinelSet::start();
    let (servers, sentinels) = (&set.servers, &set.sentinels);
    let line = [acl::line(&servers[0]), additions("Sentinel")].concat();
    let sentinel_line = acl::sentinel_line(&sentinels[0]);
    set_users(servers, &line);
    set_users(sentinels, &sentinel_line);
    refused_by(servers.iter().chain(sentinels));
    let conf = every_algorithm::conf(&format!(
        "sentinels = {}, master = \"{MASTER}\", user = \"weir\", password = \"{PASSWORD}\", \
         sentinel_user = \"weir\", sentinel_password = \"{PASSWORD}\"",
        set.addresses()
    ));

    let nginx = Nginx::start(&conf);
    wait_for_limits(&nginx);
    decide(&nginx, "before", &POLICIES);
    let (new, _) = set.demote(0);
    assert_eq!(set.wait_for_another_primary(0), new);
    wait_for_limits(&nginx);
    let calls = servers[new].calls("evalsha");
    decide(&nginx, "after", &POLICIES);
    assert!(servers[new].calls("evalsha") > calls, "the new primary decides");
    assert_eq!(refused_by(servers.iter().chain(sentinels)), Vec::<String>::new());
    nginx.assert_calm_log();
    drop(nginx);

    for command in additions("Sentinel") {
        set_users(servers, &without(&line, &command));
        assert_in_vain(&conf, &command);
        // The crate asks INFO where it may not ask ROLE.
        assert_refused(&refused_by(servers), &command, &["info"]);
    }
    set_users(servers, &line);
    let commands: Vec<&String> =
        sentinel_line.iter().filter(|rule| rule.starts_with('+')).collect();
    assert!(commands.len() >= 2, "{commands:?}");
    for command in commands {
        set_users(sentinels, &without(&sentinel_line, command));
        if command == "+sentinel|get-master-addr-by-name" {
            // What is asked while all is well.
            let nginx = Nginx::start(&conf);
            wait_for_limits(&nginx);
            let mut refused = Vec::new();
            wait_until("a sentinel has been asked", ASKED_EVERY, || {
                refused = refused_by(sentinels);
                !refused.is_empty()
            });
            assert_refused(&refused, command, &[]);
            continue;
        } else if command == "+client|setinfo" {
            wait_for_limits(&Nginx::start(&conf));
        } else {
            assert_in_vain(&conf, command);
        }
        assert_refused(&refused_by(sentinels), command, &[]);
    }
    assert_eq!(refused_by(servers), Vec::<String>::new());
}

#[test]
fn the_nodes_of_a_cluster_take_what_is_documented_and_no_less() {
    let cluster = Cluster::start();
    let nodes = &cluster.nodes;
    let line = [acl::line(&nodes[0]), additions("Cluster")].concat();
    set_users(nodes, &line);
    refused_by(nodes);
    let conf = every_algorithm::conf(&format!(
        "cluster = {}, user = \"weir\", password = \"{PASSWORD}\"",
        cluster.addresses()
    ));
    let [moving, again] = [0, 1].map(|index| Cluster::keys_of(0, 2).remove(index));
    let single = &POLICIES[..5];

    let nginx = Nginx::start(&conf);
    wait_for_limits(&nginx);
    for node in 0..3 {
        decide(&nginx, &Cluster::keys_of(node, 3)[2], &POLICIES);
    }
    // Of several keys at once one that is new cannot be asked for on the way.
    cluster.begin_move(slot_of(&moving), 0, 1);
    decide(&nginx, &moving, single);
    assert!(cluster.errors("ASK") > 0 && nodes[1].calls("asking") > 0);
    cluster.finish_move(slot_of(&moving), 0, 1);
    decide(&nginx, &moving, &POLICIES[5..]);
    assert!(cluster.errors("MOVED") > 0);
    assert_eq!(refused_by(nodes), Vec::<String>::new());
    nginx.assert_calm_log();
    drop(nginx);

    let commands = additions("Cluster");
    assert_eq!(commands, ["+cluster|slots", "+cluster|info", "+asking"]);
    set_users(nodes, &without(&line, &commands[0]));
    assert_in_vain(&conf, &commands[0]);
    assert_refused(&refused_by(nodes), &commands[0], &[]);
    // Then one map is as good as another.
    set_users(nodes, &without(&line, &commands[1]));
    wait_for_limits(&Nginx::start(&conf));
    assert_refused(&refused_by(nodes), &commands[1], &[]);

    set_users(nodes, &without(&line, &commands[2]));
    let nginx = Nginx::start(&conf);
    wait_for_limits(&nginx);
    cluster.begin_move(slot_of(&again), 0, 1);
    assert_eq!(look(&nginx, &again), 503);
    assert_refused(&refused_by(nodes), &commands[2], &[]);
    set_users(nodes, &line);
    assert_eq!(look(&nginx, &again), 200);
    assert_eq!(refused_by(nodes), Vec::<String>::new());
    nginx.assert_calm_log();
}
