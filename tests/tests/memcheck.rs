//! Valgrind's memcheck over a whole nginx, through all that Redis does to it, with
//! reloads: no invalid access, and nothing of ours is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roxmltree::{Document, Node};
use tempfile::TempDir;
use weir_tests::{Client, Conf, Nginx, Redis, in_parallel, process, wait_until};

/// Whatever is slow, under valgrind it is slower.
const SLOW: Duration = Duration::from_secs(60);

const LIBRARY: &str = "weir_edge.so";

/// nginx under valgrind: a report for each process, written when that ends.
struct Memcheck {
    nginx: Nginx,
    reports: TempDir,
}

impl Memcheck {
    fn start(conf: &Conf) -> Self {
        let reports = TempDir::new().unwrap();
        let mut valgrind = Command::new("valgrind");
        valgrind
            .args(["--tool=memcheck", "--leak-check=full", "--num-callers=80"])
            .args(["--error-limit=no", "--keep-debuginfo=yes", "--vgdb=no", "-q"])
            // LuaJIT writes code and runs it.
            .arg("--smc-check=all-non-file")
            // The worker's thread has its turns beside the event loop.
            .arg("--fair-sched=yes")
            .arg("--xml=yes")
            .arg(format!("--xml-file={}/%p.xml", reports.path().display()));
        Self { nginx: Nginx::start_under(valgrind, conf), reports }
    }

    /// Reloads, and waits for the new worker; the old one may still be there.
    fn reload(&self, conf: &Conf) {
        let started = self.nginx.log_lines("start worker process ").len();
        self.nginx.reload(conf);
        wait_until("the next worker has been started", SLOW, || {
            self.nginx.log_lines("start worker process ").len() > started
        });
    }

    /// Ends it so, and reads what valgrind found.
    fn end(mut self, signal: libc::c_int) -> Vec<Finding> {
        if signal == libc::SIGQUIT {
            self.nginx.quit(SLOW);
        } else {
            process::signal(self.nginx.pid(), signal);
            wait_until("nginx has ended", SLOW, || !process::runs(self.nginx.pid()));
        }
        self.nginx.assert_calm_log();
        let mut pids: BTreeSet<String> = self
            .nginx
            .log_lines("start worker process ")
            .iter()
            .map(|line| line.rsplit(' ').next().unwrap().to_owned())
            .collect();
        pids.insert(self.nginx.pid().to_string());
        let findings = pids
            .iter()
            .flat_map(|pid| read(&self.reports.path().join(format!("{pid}.xml"))))
            .collect();
        println!("{} processes", pids.len());
        findings
    }
}

/// An error that valgrind tells of, with its stacks: where it is, and where that
/// memory was allocated or freed.
struct Finding {
    kind: String,
    frames: Vec<String>,
    bytes: u64,
}

impl Finding {
    fn is_leak(&self) -> bool {
        self.kind.starts_with("Leak_")
    }

    fn is_ours(&self) -> bool {
        self.frames.iter().any(|frame| frame.contains(LIBRARY))
    }

    /// What no run may have. nginx and Lua lose a few bytes when they end, which is
    /// not for us to judge; what they read amiss may be ours all the same.
    fn is_fault(&self) -> bool {
        if self.is_leak() { self.kind == "Leak_DefinitelyLost" && self.is_ours() } else { true }
    }
}

/// The elements of this name within.
fn all<'a>(node: Node<'a, 'a>, name: &str) -> Vec<Node<'a, 'a>> {
    node.descendants().filter(|node| node.has_tag_name(name)).collect()
}

/// What stands in the first of them.
fn first(node: Node<'_, '_>, name: &str) -> String {
    let found = node.descendants().find(|node| node.has_tag_name(name));
    found.and_then(|node| node.text()).unwrap_or_default().to_owned()
}

/// A report, which is whole only if the process came to its end.
fn read(report: &Path) -> Vec<Finding> {
    let text = std::fs::read_to_string(report).unwrap_or_default();
    let document = Document::parse(&text)
        .unwrap_or_else(|error| panic!("{}: {error}: {text}", report.display()));
    let states = all(document.root_element(), "state");
    assert!(states.iter().any(|state| state.text() == Some("FINISHED")), "{text}");
    let frame = |frame: &Node<'_, '_>| {
        let [function, file, line, object] =
            ["fn", "file", "line", "obj"].map(|f| first(*frame, f));
        let object = object.rsplit('/').next().unwrap_or_default();
        format!("{function} ({file}:{line}, {object})")
    };
    all(document.root_element(), "error")
        .into_iter()
        .map(|error| Finding {
            kind: first(error, "kind"),
            frames: all(error, "frame").iter().map(frame).collect(),
            bytes: first(error, "leakedbytes").parse().unwrap_or(0),
        })
        .collect()
}

/// Prints the totals, and panics with the stacks of what is a fault.
fn judge(findings: &[Finding]) {
    let mut totals = BTreeMap::new();
    for finding in findings {
        let whose = if finding.is_ours() { "with frames of ours" } else { "of others" };
        let total: &mut (u64, u64) = totals.entry((&finding.kind, whose)).or_default();
        *total = (total.0 + 1, total.1 + finding.bytes);
    }
    for ((kind, whose), (count, bytes)) in totals {
        println!("{kind} {whose}: {count}, {bytes} bytes");
    }
    let faults: Vec<String> = findings
        .iter()
        .filter(|finding| finding.is_fault())
        .map(|finding| format!("{}\n    {}", finding.kind, finding.frames.join("\n    ")))
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// With Redis, and with a memory of this size.
fn conf(redis: &Redis, size: &str) -> Conf {
    let redis = format!("redis = {{ url = \"{}\", timeout = \"1s\" }}", redis.url());
    conf_with(&redis, size)
}

fn conf_with(redis: &str, size: &str) -> Conf {
    let setup = format!(
        r#"{{
        {redis}, memory = {{ size = "{size}" }}, local_share = 2, secret = "sixteen bytes or more",
        policies = {{
            log     = {{ limit = "20/1m" }},
            ring    = {{ limit = "90/1m", algorithm = "compact-log" }},
            counter = {{ limit = "20/1m", algorithm = "sliding-counter", headers = "x" }},
            bucket  = {{ limit = "20/1m", algorithm = "token-bucket", burst = 5, expose = true }},
            quota   = {{ limit = "20/day", algorithm = "quota", on_error = "closed" }},
            several = {{ limits = {{ {{ limit = "9/1m" }}, {{ limit = "99/hour", algorithm = "quota" }} }},
                        headers = {{ "draft-11", "separate" }}, partition_key = true,
                        plans = {{ gold = {{ limits = {{ {{ limit = "30/1m" }},
                            {{ limit = "500/hour", algorithm = "quota" }} }} }} }} }},
            hashed  = {{ limit = "10/1m", hash_keys = true,
                        key = {{ {{ parts = {{ "$host", "$arg_k" }} }}, "$arg_k" }} }},
            login   = {{ limit = "9/1m", charge = {{ 401 }}, on_error = "closed", key = "$arg_k" }},
            dry     = {{ limit = "3/1m", dry_run = true, dry_run_header = "X-Dry" }},
            alone   = {{ limits = {{ {{ limit = "9/1m" }}, {{ limit = "99/hour", algorithm = "quota" }} }},
                        on_error = "local" }},
        }} }}"#,
    );
    let mut conf = Conf::with_setup(&setup).stats();
    // Older than what setup() makes, it is finalized when that is gone.
    conf.init = "package.loaded.last = newproxy(true)
            getmetatable(package.loaded.last).__gc = function()
                require(\"resty.weir.calls\").flush()
            end"
    .to_owned();
    conf.http = "log_by_lua_block {
            local weir, arg = require \"resty.weir\", ngx.req.get_uri_args()
            if arg.charge then weir.charge(tonumber(arg.charge)) end
            if arg.refund then weir.refund(tonumber(arg.refund)) end
            weir.log()
        }
        header_filter_by_lua_block { require(\"resty.weir\").header_filter() }"
        .to_owned();
    conf.content("/metrics", "require(\"resty.weir\").metrics()")
        .content("/forget", "require(\"resty.weir\").forget_denials()")
        .access(
            "/run",
            "local arg = ngx.req.get_uri_args()
        require(\"resty.weir\").access(arg.policy,
            { key = arg.key, cost = tonumber(arg.cost), plan = arg.plan })",
        )
}

const POLICIES: [&str; 10] =
    ["log", "ring", "counter", "bucket", "quota", "several", "hashed", "alone", "login", "dry"];

/// Asks once for whatever there is to ask: admissions, refusals, mistakes.
fn ask_for_all(client: &Client) -> BTreeMap<u16, usize> {
    let long = "x".repeat(600);
    let mut statuses = BTreeMap::new();
    for path in ["/metrics", "/forget"] {
        let _ = client.try_ask("GET", path, &[]);
    }
    for policy in POLICIES {
        for rest in [
            "k=a",
            "k=a&cost=0",
            "k=a&cost=5",
            "k=a&cost=1000",
            "k=a&cost=3&refund=2",
            "k=a&cost=1&charge=4",
            "k=a&cost=-1",
            "key=%00%FF%20&cost=2&plan=gold",
            "plan=none",
            &format!("key={long}"),
        ] {
            // While nginx ends or reloads it may answer nobody.
            if let Ok(answer) = client.try_ask("GET", &format!("/run?policy={policy}&{rest}"), &[])
            {
                *statuses.entry(answer.status).or_default() += 1;
            }
        }
    }
    statuses
}

fn wait_until_limited(nginx: &Nginx) {
    let client = Client::without_keepalive(nginx.port());
    wait_until("limits are there", SLOW, || {
        let answer = client.try_ask("GET", "/run?policy=log&key=probe&cost=0", &[]);
        answer.is_ok_and(|answer| answer.has_limit_headers())
    });
}

#[test]
fn no_access_is_invalid_and_nothing_is_lost() {
    let mut redis = Redis::start();
    let conf = conf(&redis, "1m");
    let conf_of_another_size = self::conf(&redis, "2m");
    let memcheck = Memcheck::start(&conf);
    let nginx = &memcheck.nginx;
    let client = || Client::without_keepalive(nginx.port());

    wait_until_limited(nginx);
    let mut statuses = ask_for_all(&client());
    for (status, count) in ask_for_all(&client()) {
        *statuses.entry(status).or_default() += count;
    }
    assert!(statuses[&200] > 30 && statuses[&429] > 30, "{statuses:?}");

    // Frozen past the timeout, with requests that wait.
    redis.freeze();
    in_parallel(8, |index| client().get(&format!("/run?policy={}", POLICIES[index])));
    assert!(nginx.count("errors.timeout") > 0);
    redis.thaw();
    wait_until_limited(nginx);

    redis.kill();
    ask_for_all(&client());
    assert!(nginx.count("errors.unreachable") > 0);
    redis.launch();
    wait_until_limited(nginx);

    // Reloads under load, one of them refused, one with Redis gone.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    ask_for_all(&client());
                }
            });
        }
        for round in 0..4 {
            let mut refused = conf.clone();
            refused.setup = refused.setup.replace("20/1m", "no limit");
            match round {
                1 => {
                    nginx.reload(&refused);
                    wait_until("it is refused", SLOW, || {
                        !nginx.log_lines("init_by_lua error").is_empty()
                    });
                }
                2 => {
                    redis.freeze();
                    memcheck.reload(&conf);
                    redis.thaw();
                }
                3 => memcheck.reload(&conf_of_another_size),
                _ => memcheck.reload(&conf),
            }
            wait_until_limited(nginx);
        }
        done.store(true, Ordering::Relaxed);
    });
    redis.command::<()>("SCRIPT FLUSH");
    ask_for_all(&client());
    assert_eq!(nginx.log_lines("start worker process ").len(), 4);
    judge(&memcheck.end(libc::SIGQUIT));
}

/// With requests that wait, and nobody who waits for them.
#[test]
fn an_end_at_once_is_none_in_the_middle_of_anything() {
    let redis = Redis::start();
    let memcheck = Memcheck::start(&conf(&redis, "1m"));
    wait_until_limited(&memcheck.nginx);
    ask_for_all(&memcheck.nginx.client());
    redis.freeze();
    let port = memcheck.nginx.port();
    let waiting = std::thread::spawn(move || {
        in_parallel(8, |index| {
            let path = format!("/run?policy={}&cost=1", POLICIES[index]);
            let _ = Client::without_keepalive(port).try_ask("GET", &path, &[]);
        });
    });
    wait_until("requests wait", SLOW, || memcheck.nginx.count("waiting") > 4);
    let findings = memcheck.end(libc::SIGTERM);
    waiting.join().unwrap();
    judge(&findings);
}

/// Without Redis: everything is decided in memory that the workers share.
#[test]
fn nor_is_any_where_the_workers_share_the_limits() {
    let memory = |size| conf_with("store = \"memory\"", size);
    let memcheck = Memcheck::start(&memory("1m"));
    let client = || Client::without_keepalive(memcheck.nginx.port());
    wait_until_limited(&memcheck.nginx);
    let mut statuses = ask_for_all(&client());
    for (status, count) in ask_for_all(&client()) {
        *statuses.entry(status).or_default() += count;
    }
    assert!(statuses[&200] > 30 && statuses[&429] > 30, "{statuses:?}");
    for size in ["1m", "2m"] {
        memcheck.reload(&memory(size));
        wait_until_limited(&memcheck.nginx);
        ask_for_all(&client());
    }
    judge(&memcheck.end(libc::SIGQUIT));
}
