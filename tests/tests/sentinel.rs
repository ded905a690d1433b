//! Sentinel names the primary: limits follow it, and what a failover costs is what
//! Redis had not replicated.

use std::time::{Duration, Instant};

use weir_tests::sentinel_set::MASTER;
use weir_tests::{Asked, Client, Conf, Nginx, Redis, SentinelSet, Traffic, is_torture, wait_until};

/// The timeout of 100 ms, and what is allowed on top.
const DEADLINE: Duration = Duration::from_millis(150);

/// Limits are back within this time of the new primary.
const RECOVERY: Duration = Duration::from_secs(2);

/// How often Sentinel is asked while all seems well, and the longest that this
/// takes with what is left to chance.
const ASKED_EVERY: Duration = Duration::from_secs(15);

/// Under which every answer is known: who is asked for, and what for.
const OPEN: usize = 0;
const CLOSED: usize = 1;
const TIGHT: usize = 2;

fn paths() -> [String; 3] {
    ["/open", "/closed", "/tight"].map(str::to_owned)
}

fn conf(set: &SentinelSet, timeout: &str, more: &str) -> Conf {
    let redis = format!(
        "sentinels = {}, master = \"{MASTER}\", timeout = \"{timeout}\", {more}",
        set.addresses()
    );
    let policies = "open = { limit = \"1000000/1h\" }, \
                    closed = { limit = \"1000000/1h\", on_error = \"closed\" }, \
                    tight = { limit = \"3/1h\", on_error = \"closed\" }, \
                    hundred = { limit = \"100/1h\", on_error = \"closed\", remember_denials = false }, \
                    thousands = { limit = \"3000/1h\", on_error = \"closed\" }";
    let location = |conf: Conf, policy: &&str| {
        let key = "{ key = ngx.var.arg_k or \"one\" }";
        let lua = format!("require(\"resty.weir\").access(\"{policy}\", {key})");
        conf.access(&format!("/{policy}"), &lua)
    };
    let names = ["open", "closed", "tight", "hundred", "thousands"];
    names.iter().fold(Conf::on(&redis, policies), location).stats()
}

/// An nginx on this set, whose limits have begun.
fn start(set: &SentinelSet, more: &str) -> Nginx {
    start_with(set, "100ms", more)
}

/// The same with another timeout: what counts requests one by one is not about
/// what a busy machine makes of a short one.
fn start_with(set: &SentinelSet, timeout: &str, more: &str) -> Nginx {
    let nginx = Nginx::start(&conf(set, timeout, more));
    let client = nginx.client();
    wait_until("limits have begun", RECOVERY, || client.get("/open").has_limit_headers());
    nginx
}

/// Every answer is Redis's, or that of the policy.
fn assert_by_policy(traffic: &Traffic) {
    let is_right = |asked: &Asked| match (asked.path % 3, asked.status) {
        (OPEN, 200) => true,
        (CLOSED | TIGHT, 503) => !asked.limited,
        (CLOSED, 200) | (TIGHT, 200 | 429) => asked.limited,
        _ => false,
    };
    let wrong = traffic.answers(|asked| !is_right(asked));
    assert!(wrong.is_empty(), "{} answers, such as {:?}", wrong.len(), wrong[0]);
    traffic.assert_within(DEADLINE, |_| true);
}

/// What a server holds of the client that names itself so, or of the one who does
/// not.
fn held_of(server: &Redis, client: &str, policy: &str) -> usize {
    server.command(&format!("ZCARD weir:{{={client}}}:{policy}:log:1h"))
}

fn held(server: &Redis, policy: &str) -> usize {
    held_of(server, "one", policy)
}

/// Connections on which decisions were asked for.
fn edges(server: &Redis) -> usize {
    let clients: String = server.command("CLIENT LIST");
    clients.lines().filter(|line| line.contains("cmd=evalsha")).count()
}

/// Asks so often, one after the other; returns how many were admitted.
fn admitted(client: &Client, path: &str, requests: usize) -> usize {
    let statuses = (0..requests).map(|_| client.get(path).status);
    statuses
        .inspect(|status| assert!([200, 429].contains(status), "{status}"))
        .filter(|&status| status == 200)
        .count()
}

#[test]
fn a_killed_primary_fails_by_policy_until_another_is_named() {
    let mut set = SentinelSet::start();
    let nginx = start(&set, "");
    let (traffic, new) = Traffic::during(nginx.port(), &paths(), |traffic| {
        traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
        set.servers[0].kill();
        let new = set.wait_for_another_primary(0);
        let took = traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
        println!("limits are back {took:?} after all sentinels agree");
        new
    });
    assert_by_policy(&traffic);
    assert!(traffic.count(|asked| asked.status == 503) > 10, "nobody noticed");
    let before = held(&set.servers[new], "closed");
    assert_eq!(nginx.client().get("/closed").status, 200);
    assert_eq!(held(&set.servers[new], "closed"), before + 1);
    assert_eq!(nginx.log_lines("is back after").len(), 1, "{}", nginx.error_log());
    nginx.assert_calm_log();
}

/// A server that has become a replica says so to the next call on a connection
/// that it left open.
#[test]
fn a_demoted_primary_that_keeps_its_connections_is_left() {
    let set = SentinelSet::start();
    let nginx = start(&set, "connections = 3");
    // Whoever is refused needs no write, and would hear nothing of it.
    let paths = ["/open", "/closed", "/closed"].repeat(3);
    let paths: Vec<String> = paths.into_iter().map(str::to_owned).collect();
    let (traffic, (new, calls)) = Traffic::during(nginx.port(), &paths, |traffic| {
        traffic.wait_until_limited(&[OPEN, CLOSED], RECOVERY);
        wait_until("all connections are made", RECOVERY, || edges(&set.servers[0]) == 3);
        let (new, calls) = set.demote(0);
        assert_eq!(set.wait_for_another_primary(0), new);
        traffic.wait_until_limited(&[OPEN, CLOSED], RECOVERY);
        (new, calls)
    });
    assert_by_policy(&traffic);
    let calls = set.servers[0].calls("evalsha") - calls;
    println!("{calls} calls on 3 connections after it was demoted");
    assert!((1..=3).contains(&calls), "{calls} calls on 3 connections");
    assert!(!nginx.log_lines(" lost: READONLY").is_empty(), "{}", nginx.error_log());
    assert_eq!(edges(&set.servers[0]), 0, "a connection to a replica is still used");
    let before = held(&set.servers[new], "closed");
    assert_eq!(nginx.client().get("/closed").status, 200);
    assert_eq!(held(&set.servers[new], "closed"), before + 1);
    nginx.assert_calm_log();
}

/// Cut off from everybody, and back with what it believed then.
#[test]
fn a_primary_behind_a_cut_link_is_left_and_not_believed_when_it_is_back() {
    let set = SentinelSet::start_gated();
    let nginx = start(&set, "");
    let (traffic, new) = Traffic::during(nginx.port(), &paths(), |traffic| {
        traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
        set.part_from_all();
        let new = set.wait_for_another_primary(0);
        traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
        let healed = Instant::now();
        set.heal();
        set.wait_for_replica(0);
        traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
        (new, healed)
    });
    let (new, healed) = new;
    assert_by_policy(&traffic);
    let after = |asked: &Asked| asked.at >= healed;
    assert_eq!(traffic.count(|asked| after(asked) && asked.status == 503), 0);
    // What it was sent meanwhile came too late, and is gone.
    let held = [0, new].map(|index| held(&set.servers[index], "tight"));
    assert_eq!(held, [3, 3]);
    nginx.assert_calm_log();
}

/// Frozen and thawed, it is an old primary that does not know of the new one yet.
#[test]
fn a_frozen_primary_is_left() {
    let set = SentinelSet::start();
    let nginx = start(&set, "");
    let (traffic, thawed) = Traffic::during(nginx.port(), &paths(), |traffic| {
        traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
        set.servers[0].freeze();
        wait_until("another server is the primary", Duration::from_secs(30), || {
            set.named().is_some_and(|named| named != 0)
        });
        traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
        let thawed = Instant::now();
        set.servers[0].thaw();
        set.wait_for_replica(0);
        traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
        thawed
    });
    assert_by_policy(&traffic);
    assert_eq!(traffic.count(|asked| asked.at >= thawed && asked.status == 503), 0);
    assert_eq!(edges(&set.servers[0]), 0, "the old primary is still used");
    nginx.assert_calm_log();
}

/// The edges still reach the old primary, which knows of nothing; the sentinels do
/// not, and have named another.
#[test]
fn a_primary_parted_from_its_sentinels_is_left_while_it_still_answers() {
    let set = SentinelSet::start_gated();
    let nginx = start(&set, "");
    let client = nginx.client();
    assert_eq!(admitted(&client, "/hundred", 30), 30);
    wait_until("all have the 30", RECOVERY, || {
        set.servers.iter().all(|server| held(server, "hundred") == 30)
    });
    set.part_from_the_others();
    assert_eq!(admitted(&client, "/hundred", 40), 40);
    let (traffic, again) = Traffic::during(nginx.port(), &paths(), |traffic| {
        traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
        let new = set.wait_for_another_primary(0);
        // Sentinel is asked every 10 s.
        let took = wait_until("limits are with the new primary", RECOVERY + ASKED_EVERY, || {
            edges(&set.servers[new]) > 0
        });
        println!("the edges left the old primary {took:?} after all sentinels agreed");
        let again = admitted(&client, "/hundred", 200);
        set.heal();
        set.wait_for_replica(0);
        traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
        again
    });
    assert_by_policy(&traffic);
    println!("limit 100: 30 replicated, 40 lost, {again} admitted by the new primary");
    assert_eq!(again, 70);
    // A stall of the machine for longer than the timeout has Sentinel asked too.
    let [named, lost] = ["Sentinel names", " lost: "].map(|text| nginx.log_lines(text).len());
    assert!(named == 1 || (named == 0 && lost > 0), "{}", nginx.error_log());
    nginx.assert_calm_log();
}

#[test]
fn a_failover_under_load_admits_no_more_than_was_not_replicated() {
    const LIMIT: usize = 3_000;
    let mut set = SentinelSet::start();
    let nginx = start(&set, "");
    let paths = vec!["/thousands".to_owned(); 8];
    let (traffic, (killed, kept)) = Traffic::during(nginx.port(), &paths, |traffic| {
        wait_until("a third is used", Duration::from_secs(30), || {
            traffic.count(|asked| asked.status == 200) >= LIMIT / 3
        });
        set.servers[0].kill();
        let killed = Instant::now();
        let replicas = [1, 2].map(|index| {
            let replica = &set.servers[index];
            wait_until("the replica has read all that there was", RECOVERY, || {
                let told: String = replica.command("INFO replication");
                told.contains("master_link_status:down")
            });
            held(replica, "thousands")
        });
        let new = set.wait_for_another_primary(0);
        let kept = replicas[new - 1];
        wait_until("the limit is reached", Duration::from_secs(60), || {
            traffic.count(|asked| asked.at > killed && asked.status == 429) > 100
        });
        (killed, kept)
    });
    let admitted = traffic.answers(|asked| asked.status == 200);
    // Between the last of the old and the first of the new is a second or more.
    let is_old = |asked: &&Asked| asked.at + asked.elapsed < killed + Duration::from_millis(300);
    let old = admitted.iter().filter(is_old).count();
    let new = admitted.len() - old;
    println!(
        "limit {LIMIT}: {old} admitted before, {kept} of them replicated, {new} after: \
         {} too many",
        admitted.len().saturating_sub(LIMIT)
    );
    assert!(old >= LIMIT / 3 && kept <= old + paths.len(), "{old} admitted, {kept} kept");
    assert!(new <= LIMIT - kept, "{new} admitted by the new primary, which had {kept}");
    // Nothing is lost on top either: whatever the new primary charged was answered.
    assert_eq!(new, LIMIT - kept);
    assert!(traffic.count(|asked| asked.status == 503) > 10, "nobody noticed");
    nginx.assert_calm_log();
}

/// The worst that replication can do: of what was admitted since it stopped,
/// nothing is left.
#[test]
fn what_was_not_replicated_is_admitted_again_and_nothing_on_top() {
    let set = SentinelSet::start_gated();
    let nginx = start_with(&set, "1s", "");
    let client = nginx.client();
    assert_eq!(admitted(&client, "/hundred?k=some", 30), 30);
    wait_until("all have what was admitted", RECOVERY, || {
        set.servers.iter().all(|server| held_of(server, "some", "hundred") == 30)
    });
    set.stop_replication();
    assert_eq!(admitted(&client, "/hundred?k=some", 40), 40);
    assert_eq!(admitted(&client, "/hundred?k=all", 200), 100);
    set.part_from_all();
    set.wait_for_another_primary(0);
    wait_until("limits are back", RECOVERY, || client.get("/open").has_limit_headers());
    let again = ["some", "all"].map(|k| admitted(&client, &format!("/hundred?k={k}"), 200));
    println!("limit 100: 30 kept and 40 lost, then {}; 100 lost, then {}", again[0], again[1]);
    assert_eq!(again, [70, 100]);
    nginx.assert_calm_log();
}

#[test]
fn sentinels_and_servers_with_passwords_of_their_own() {
    let password = |password: &'static str| move |server: Redis| server.with_password(password);
    let mut set = SentinelSet::start_as(false, password("of-the-data"), password("of-the-watch"));
    let right = "password = \"of-the-data\", sentinel_password = \"of-the-watch\"";
    let nginx = start(&set, right);
    let swapped = "password = \"of-the-watch\", sentinel_password = \"of-the-data\"";
    for (wrong, whose) in [
        (swapped, "no sentinel answers"),
        ("password = \"of-the-data\"", "no sentinel answers"),
        ("sentinel_password = \"of-the-watch\"", "which Sentinel names: "),
    ] {
        let refused = Nginx::start(&conf(&set, "100ms", wrong));
        wait_until("the reason is logged", RECOVERY, || {
            !refused.log_lines("unreachable: ").is_empty()
        });
        let lines = refused.log_lines("weir: redis");
        println!("{wrong}: {lines:?}");
        assert_eq!(lines.len(), 1);
        let reasons = ["WRONGPASS", "NOAUTH", "authentication failed"];
        assert!(reasons.iter().any(|reason| lines[0].contains(reason)), "{lines:?}");
        assert!(lines[0].contains(whose), "{lines:?}");
        let client = refused.client();
        assert_eq!(client.get("/closed").status, 503, "{wrong}");
        assert!(!client.get("/open").has_limit_headers());
        let log = refused.error_log();
        assert!(!log.contains("of-the-data") && !log.contains("of-the-watch"), "{log}");
        refused.assert_calm_log();
    }
    set.servers[0].kill();
    set.wait_for_another_primary(0);
    let client = nginx.client();
    wait_until("limits are back", RECOVERY, || client.get("/closed").status == 200);
    nginx.assert_calm_log();
}

/// Which of the servers it is that refuses is half of what there is to tell.
#[test]
fn sentinels_and_servers_with_users_of_their_own() {
    let password = |server: Redis| server.with_password("of-the-default-user");
    let set = SentinelSet::start_as(false, password, password);
    let add = |servers: &[Redis], user: &str| {
        servers.iter().for_each(|server| server.command(&format!("ACL SETUSER {user}")));
    };
    add(&set.sentinels, "watcher on >of-w ~* +@all");
    add(&set.servers, "edge on >of-d ~* +@all");
    add(&set.servers, "weak on >of-d ~* +@all -script");
    let watcher = "sentinel_user = \"watcher\", sentinel_password = \"of-w\", password = \"of-d\"";
    start(&set, &format!("{watcher}, user = \"edge\"")).assert_calm_log();
    let refused = Nginx::start(&conf(&set, "100ms", &format!("{watcher}, user = \"weak\"")));
    wait_until("the reason is logged", RECOVERY, || !refused.log_lines("NOPERM").is_empty());
    let whose = format!("unreachable: {}:", set.servers[0].host());
    assert_eq!(refused.log_lines(&whose).len(), 1, "{}", refused.error_log());
}

/// Sentinels that cannot be asked are passed over; one is enough.
#[test]
fn one_sentinel_of_three_is_enough_to_begin_with() {
    let mut set = SentinelSet::start();
    set.sentinels[0].kill();
    set.sentinels[1].freeze();
    let nginx = Nginx::start(&conf(&set, "100ms", ""));
    let client = nginx.client();
    wait_until("limits have begun", Duration::from_secs(5), || {
        client.get("/open").has_limit_headers()
    });
    set.sentinels[1].thaw();
    nginx.assert_calm_log();
}

#[test]
fn a_name_that_no_sentinel_knows_fails_by_policy_and_is_told() {
    let set = SentinelSet::start();
    let redis =
        format!("sentinels = {}, master = \"nobody\", timeout = \"100ms\"", set.addresses());
    let policies = "closed = { limit = \"10/1h\", on_error = \"closed\" }";
    let nginx = Nginx::start(&Conf::on(&redis, policies).limited("/closed", "closed").stats());
    let reason = "no sentinel knows \"nobody\"";
    wait_until("the reason is in the log", RECOVERY, || !nginx.log_lines(reason).is_empty());
    assert_eq!(nginx.client().get("/closed").status, 503);
    assert_eq!(nginx.log_lines("weir: redis").len(), 1, "{}", nginx.error_log());
    nginx.assert_calm_log();
}

/// They are needed only to find a primary; who reloads without them finds none.
#[test]
fn sentinels_that_are_gone_are_told_of_before_they_are_needed() {
    let mut set = SentinelSet::start();
    let nginx = start(&set, "");
    set.sentinels.iter_mut().for_each(Redis::kill);
    wait_until("they are missed", ASKED_EVERY, || {
        !nginx.log_lines("no sentinel answers").is_empty()
    });
    let client = nginx.client();
    wait_until("it decides as before", RECOVERY, || client.get("/closed").status == 200);
    let late = Nginx::start(&conf(&set, "100ms", ""));
    wait_until("who comes now is told why", Duration::from_secs(5), || {
        !late.log_lines("unreachable: no sentinel answers").is_empty()
    });
    assert_eq!(late.client().get("/closed").status, 503);
    set.sentinels.iter_mut().for_each(Redis::launch);
    wait_until("they are seen again", ASKED_EVERY, || {
        !nginx.log_lines("the sentinels answer again").is_empty()
    });
    assert_eq!(nginx.log_lines("no sentinel answers").len(), 1, "{}", nginx.error_log());
    let client = late.client();
    wait_until("limits begin", Duration::from_secs(5), || client.get("/closed").status == 200);
}

/// Two; under `make torture` ten.
#[test]
fn failovers_in_a_row_end_with_limits() {
    let failovers = if is_torture() { 10 } else { 2 };
    let mut set = SentinelSet::start();
    let nginx = start(&set, "");
    let (traffic, ()) = Traffic::during(nginx.port(), &paths(), |traffic| {
        for _ in 0..failovers {
            // A replica that has just come back is news to them.
            wait_until("they agree", Duration::from_secs(10), || set.named().is_some());
            let old = set.named().expect("they agree");
            set.servers[old].kill();
            set.wait_for_another_primary(old);
            traffic.wait_until_limited(&[OPEN, CLOSED, TIGHT], RECOVERY);
            set.servers[old].launch();
            set.wait_for_replica(old);
        }
    });
    assert_by_policy(&traffic);
    let slowest = traffic.answers(|_| true).iter().map(|asked| asked.elapsed).max();
    println!("{} requests, the slowest {slowest:?}", traffic.count(|_| true));
    // Short ones are not told one by one.
    let [lost, back] = [" lost: ", "is back after"].map(|text| nginx.log_lines(text).len());
    assert!(lost == back && (1..=failovers).contains(&back), "{}", nginx.error_log());
    nginx.assert_calm_log();
}
