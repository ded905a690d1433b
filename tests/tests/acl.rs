//! The user that docs/redis.md makes: it suffices for all that Weir does, and
//! there is no command of it that nothing needs.

use std::time::Duration;

use weir_tests::acl::{PASSWORD, additions, assert_nothing_refused, line, log, refused, set_user};
use weir_tests::every_algorithm::{self, POLICIES};
use weir_tests::{Conf, Nginx, Redis, wait_until};

fn url(redis: &Redis) -> String {
    redis.url().replace("127.0.0.1", &format!("weir:{PASSWORD}@127.0.0.1"))
}

fn conf(url: &str) -> Conf {
    every_algorithm::conf(&format!("url = \"{url}\""))
}

fn wait_until_up(nginx: &Nginx) {
    wait_until("it is up", Duration::from_secs(3), || nginx.stat("redis") == "up");
}

/// One connection's life with all that may be asked of it. Returns what was not as
/// it should be: a user who may not do something does not get that far.
fn core(redis: &Redis, nginx: &Nginx, may_connect: bool) -> Vec<String> {
    let (before, refused) = (nginx.count("connects"), log(redis).len());
    let settled = |nginx: &Nginx| nginx.count("settled") + nginx.count("unsettled");
    let (mut sent, mut amiss) = (settled(nginx), Vec::new());
    let client = nginx.client();
    redis.command::<()>("FLUSHALL");
    redis.command::<()>("CLIENT KILL TYPE normal");
    wait_until("it is connected again or may not be", Duration::from_secs(5), || {
        nginx.count("connects") > before || !may_connect && log(redis).len() > refused
    });

    let mut step = |policy: &str, rest: &str, status: u16| {
        let answer = client.get(&format!("/run?policy={policy}&{rest}"));
        let afterwards = rest.split_once("refund=").or(rest.split_once("charge="));
        let body = afterwards.map_or("nil", |(_, units)| units);
        if status == 200 && answer.status == 200 && answer.body == body && body != "nil" {
            sent += 1;
        }
        if answer.status != status || status == 200 && answer.body != body {
            amiss.push(format!("{policy} {rest}: {} {}", answer.status, answer.body));
        }
    };
    for policy in POLICIES {
        // A log of 60 becomes a ring of slots above 32.
        let most = if policy == "ring" { 60 } else { 5 };
        step(policy, &format!("cost={}", most - 4), 200);
        step(policy, "cost=1", 200);
        step(policy, "cost=4", 429);
        step(policy, "cost=0", 200);
        step(policy, "cost=2&refund=2", 200);
        step(policy, "cost=1&charge=9", 200);
        step(policy, "cost=1", 429);
        redis.command::<()>("SCRIPT FLUSH");
    }

    // A log with entries that have left, beside one that has not, and alone; and
    // what is given back to the last unit.
    redis.command::<()>("FLUSHALL");
    let log = "weir:{=k}:log:log:366d";
    step("log", "cost=1", 200);
    redis.command::<()>(&format!("ZADD {log} 1 left"));
    step("log", "cost=1", 200);
    redis.command::<()>(&format!("DEL {log}"));
    redis.command::<()>(&format!("ZADD {log} 1 left"));
    step("log", "cost=1", 200);
    for policy in POLICIES {
        redis.command::<()>("FLUSHALL");
        step(policy, "cost=2&refund=2", 200);
    }

    wait_until("all is settled or lost", Duration::from_secs(6), || settled(nginx) == sent);
    amiss
}

#[test]
fn the_documented_user_suffices() {
    let redis = Redis::start();
    set_user(&redis, &line(&redis));
    redis.command::<()>("CONFIG RESETSTAT");
    let nginx = Nginx::start(&conf(&url(&redis)));
    wait_until_up(&nginx);
    for _ in 0..2 {
        assert_eq!(core(&redis, &nginx, true), Vec::<String>::new());
    }
    assert_nothing_refused(&redis);
    assert_eq!(nginx.count("unsettled"), 0);
    assert!(nginx.count("settled") >= 2 * 18);
    assert_eq!(nginx.log_lines("answers with an error"), Vec::<String>::new());
    nginx.assert_calm_log();
}

/// Without any one of its commands something is refused, and it is that command.
#[test]
fn no_command_of_it_is_superfluous() {
    let redis = Redis::start();
    let line = line(&redis);
    set_user(&redis, &line);
    let nginx = Nginx::start(&conf(&url(&redis)));
    wait_until_up(&nginx);
    let commands: Vec<&String> = line.iter().filter(|rule| rule.starts_with('+')).collect();
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        let without: Vec<String> = line.iter().filter(|rule| *rule != command).cloned().collect();
        set_user(&redis, &without);
        refused(&redis);
        let lost = nginx.count("unsettled");
        let amiss = core(&redis, &nginx, command != "+script|load");
        let refused = refused(&redis);
        assert!(!refused.is_empty(), "nothing needs {command}");
        // Of a command with subcommands 6.2 names the command.
        let word = |name: &str| name.split('|').next().unwrap_or_default().to_owned();
        for (_, object) in &refused {
            assert_eq!(word(object), word(&command[1..]), "{command}: {refused:?}");
        }
        let is_needed = command != "+client|setinfo";
        assert_eq!(!amiss.is_empty() || nginx.count("unsettled") > lost, is_needed, "{command}");
        set_user(&redis, &line);
        wait_until_up(&nginx);
    }
    assert_eq!(core(&redis, &nginx, true), Vec::<String>::new(), "with all of them");
    nginx.assert_calm_log();
}

/// Counters and quotas did not need it before 0.5.0: a user of then still suffices.
#[test]
fn counters_and_quotas_do_without_setrange() {
    let redis = Redis::start();
    let mut line = line(&redis);
    line.retain(|rule| rule != "+setrange");
    set_user(&redis, &line);
    let policies = "counter = { limit = \"5/1h\", algorithm = \"sliding-counter\" }, \
                    quota = { limit = \"5/month\", algorithm = \"quota\" }";
    let conf = Conf::new(&url(&redis), policies)
        .limited("/counter", "counter")
        .limited("/quota", "quota")
        .stats();
    let nginx = Nginx::start(&conf);
    wait_until_up(&nginx);
    let client = nginx.client();
    for path in ["/counter", "/quota"] {
        let statuses: Vec<u16> = (0..7).map(|_| client.get(path).status).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429], "{path}");
    }
    assert_eq!(refused(&redis), [("lua".to_owned(), "setrange".to_owned())]);
    nginx.assert_calm_log();
}

#[test]
fn other_keys_are_out_of_its_reach() {
    let redis = Redis::start();
    set_user(&redis, &line(&redis));
    let mut conf = conf(&url(&redis));
    conf.setup = conf.setup.replacen("redis = {", "redis = { prefix = \"weirs\",", 1);
    let nginx = Nginx::start(&conf);
    for policy in POLICIES {
        assert_eq!(nginx.client().get(&format!("/run?policy={policy}&cost=1")).status, 503);
    }
    assert_eq!(redis.command::<usize>("DBSIZE"), 0);
    let refused = refused(&redis);
    assert!(refused.iter().any(|(_, key)| key == "weirs:{=k}:log:log:366d"), "{refused:?}");
    assert_eq!(nginx.log_lines("NOPERM").len(), 1, "{}", nginx.error_log());
}

#[test]
fn another_database_takes_select_and_no_more() {
    let redis = Redis::start();
    let line = line(&redis);
    set_user(&redis, &line);
    let url = url(&redis).replace("/0", "/3");
    let without = Nginx::start(&conf(&url));
    assert_eq!(without.client().get("/run?policy=log&cost=1").status, 503);
    let selects = refused(&redis);
    assert!(!selects.is_empty() && selects.iter().all(|(_, object)| object == "select"));
    drop(without);

    set_user(&redis, &[line, additions("A database other than 0")].concat());
    redis.command::<()>("ACL LOG RESET");
    redis.command::<()>("CONFIG RESETSTAT");
    let with = Nginx::start(&conf(&url));
    assert_eq!(with.client().get("/run?policy=log&cost=1").status, 200);
    assert_nothing_refused(&redis);
}
