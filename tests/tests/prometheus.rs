//! What operators build on the metrics: a real Prometheus reads them, the alert
//! rules and the dashboard know nothing that is not there.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_tests::prometheus::Job;
use weir_tests::{Conf, Nginx, Prometheus, Redis, run, wait_until};

/// Longer than several scrapes, and than whatever else a busy machine does.
const A_WHILE: Duration = Duration::from_secs(30);

fn holds_within_a_while(mut condition: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if begun.elapsed() > A_WHILE {
            return false;
        }
        sleep(Duration::from_millis(50));
    }
}

/// A host with two workers that is read in both forms, by two jobs.
struct Edge {
    redis: Redis,
    nginx: Nginx,
    prometheus: Prometheus,
}

/// The form of the text that each job is answered in.
const FORMS: [(&str, &str); 2] = [
    ("openmetrics", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ("text", "text/plain; version=0.0.4; charset=utf-8"),
];

impl Edge {
    fn start() -> Self {
        let redis = Redis::start();
        let policies = "api = { limit = \"3/1h\" }, \
                        dry = { limit = \"1/1h\", dry_run = true }, \
                        own = { limit = \"1/1h\", exempt = \"127.0.0.1\" }, \
                        idle = { limit = \"1/1h\" }";
        let mut conf = Conf::new(&redis.url(), policies)
            .limited("/api", "api")
            .limited("/dry", "dry")
            .limited("/own", "own")
            .server(
                "location = /metrics { access_log scrapes scrape; \
                     content_by_lua_block { require(\"resty.weir\").metrics() } }
                 # As a Prometheus asks that does not know OpenMetrics.
                 location = /text { access_log scrapes scrape; content_by_lua_block { \
                     ngx.req.set_header(\"Accept\", \"text/plain;version=0.0.4\") \
                     require(\"resty.weir\").metrics() } }",
            )
            .workers(2);
        conf.http = "log_format scrape '$uri $status $sent_http_content_type';".to_owned();
        let nginx = Nginx::start(&conf);
        nginx.wait_for_workers(2);
        let jobs = [("openmetrics", "/metrics"), ("text", "/text")].map(|(name, path)| Job {
            name,
            port: nginx.port(),
            path,
        });
        let prometheus = Prometheus::start(&jobs, &alerts());
        wait_until("both jobs have been scraped", A_WHILE, || {
            prometheus.number("sum(up)") == Some(2.0)
        });
        Self { redis, nginx, prometheus }
    }

    /// Waits until both jobs give this value.
    fn wait_for(&self, expression: &str, value: f64) {
        for (job, _) in FORMS {
            let expression = format!("({expression}) and on (job) up{{job=\"{job}\"}}");
            let mut seen = Vec::new();
            let is_seen = holds_within_a_while(|| {
                seen = self.prometheus.query(&expression);
                matches!(&seen[..], [sample] if sample.value == value)
            });
            assert!(is_seen, "{expression} is not {value} but {seen:?}");
        }
    }
}

impl Edge {
    /// The names of all that has been scraped of Weir.
    fn names(&self) -> BTreeSet<String> {
        let samples = self.prometheus.query("group by (__name__) ({__name__=~\"weir_.+\"})");
        samples.into_iter().filter_map(|mut sample| sample.labels.remove("__name__")).collect()
    }
}

fn alerts() -> PathBuf {
    run::directory().join("alerts.yml")
}

fn dashboard() -> Value {
    let text = read_to_string(run::directory().join("grafana/weir.json")).expect("the dashboard");
    serde_json::from_str(&text).expect("JSON")
}

/// The metrics that a text names.
fn named_in(text: &str) -> BTreeSet<String> {
    let is_inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_inside(c))
        .filter(|word| word.starts_with("weir_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_prometheus_reads_exact_totals_in_both_forms_of_the_text() {
    let edge = Edge::start();
    let client = edge.nginx.client();
    // Two workers, whichever takes them.
    let told: u64 = (0..5)
        .map(|_| client.get("/api"))
        .filter(|answer| answer.status == 429)
        .map(|answer| answer.number("Retry-After"))
        .sum();
    (0..4).for_each(|_| _ = client.get("/dry"));
    (0..2).for_each(|_| _ = client.get("/own"));

    let by = |policy: &str, outcomes: &str| {
        format!(
            "sum by (job) (weir_decisions_total{{policy=\"{policy}\", outcome=~\"{outcomes}\"}})"
        )
    };
    edge.wait_for(&by("api", "allowed"), 3.0);
    edge.wait_for(&by("api", "denied|remembered"), 2.0);
    edge.wait_for(&by("api", ".*"), 5.0);
    edge.wait_for(&by("dry", "allowed"), 1.0);
    edge.wait_for(&by("dry", "dry_run_denied"), 3.0);
    edge.wait_for(&by("dry", ".*"), 4.0);
    edge.wait_for(&by("own", "exempt"), 2.0);
    edge.wait_for(&by("own", ".*"), 2.0);
    edge.wait_for(&by("idle", ".*"), 0.0);
    // Outcomes that have not happened are there, at 0.
    edge.wait_for("count by (job) (weir_decisions_total)", 4.0 * 9.0);
    edge.wait_for("sum by (job) (weir_errors_total)", 0.0);

    // Both were told a little less than an hour: between 900 and 3,600.
    let waits = "sum by (job, le) (weir_wait_seconds_bucket{policy=\"api\"})";
    edge.wait_for(&format!("histogram_quantile(0.5, {waits})"), 2_250.0);
    edge.wait_for("sum by (job) (weir_wait_seconds_sum)", told as f64);
    edge.wait_for("sum by (job) (weir_wait_seconds_count)", 2.0);

    edge.wait_for("weir_redis_up", 1.0);
    edge.wait_for("weir_workers", 2.0);
    // What was asked of Redis, once each: three refusals were remembered.
    edge.wait_for(
        "weir_redis_batch_size_sum == on (job, instance) weir_redis_batch_size_bucket{le=\"+Inf\"}",
        6.0,
    );
    edge.wait_for(
        "weir_redis_batch_size_count == on (job, instance) weir_redis_batches_total",
        6.0,
    );
    edge.wait_for("sum by (job) (weir_decision_seconds_count{source=\"redis\"})", 6.0);
    edge.wait_for("sum by (job) (weir_decision_seconds_count{source=\"remembered\"})", 3.0);

    for target in edge.prometheus.targets() {
        assert_eq!((&target["health"], &target["lastError"]), (&"up".into(), &"".into()));
    }
    let scrapes = edge.nginx.file("scrapes");
    for ((_, form), path) in FORMS.iter().zip(["/metrics", "/text"]) {
        assert!(scrapes.contains(&format!("{path} 200 {form}\n")), "{scrapes}");
    }
    // Neither knows a metric or a label that the other does not. (OpenMetrics
    // writes the bound 60 as 60.0.)
    let [one, other] = FORMS.map(|(job, _)| {
        let all = format!("{{__name__=~\"weir_.+\", job=\"{job}\"}}");
        let mut labels: Vec<_> =
            edge.prometheus.query(&all).into_iter().map(|sample| sample.labels).collect();
        for labels in &mut labels {
            labels.remove("job");
            if let Some(bound) = labels.get_mut("le").filter(|bound| *bound != "+Inf") {
                *bound = bound.parse::<f64>().expect("a bound").to_string();
            }
        }
        labels.into_iter().collect::<BTreeSet<_>>()
    });
    let differ: Vec<_> = one.symmetric_difference(&other).collect();
    assert!(differ.is_empty() && !one.is_empty(), "{differ:?}");
    assert_eq!(edge.prometheus.log(), "");
}

#[test]
fn a_prometheus_sees_redis_go_and_come_back() {
    let mut edge = Edge::start();
    let client = edge.nginx.client();
    edge.wait_for("weir_redis_up", 1.0);
    edge.wait_for("weir_redis_servers_away", 0.0);
    edge.redis.kill();
    edge.wait_for("weir_redis_up", 0.0);
    edge.wait_for("weir_redis_servers_away", 2.0);
    edge.wait_for("weir_redis_breaker_opened_total", 2.0);
    edge.wait_for("weir_redis_failed_attempts_total > bool 0", 1.0);
    (0..5).for_each(|_| assert_eq!(client.get("/api").status, 200));
    edge.wait_for(
        "sum by (job) (weir_decisions_total{policy=\"api\", outcome=\"error_open\"})",
        5.0,
    );
    edge.wait_for("sum by (job) (weir_errors_total{reason=\"unreachable\"})", 5.0);
    edge.redis.launch();
    edge.wait_for("weir_redis_up", 1.0);
    edge.wait_for("weir_redis_servers_away", 0.0);
}

/// What is told of the host's own store, where there is one.
const OF_THE_STORE: [&str; 5] = [
    "weir_memory_size_bytes",
    "weir_memory_used_bytes",
    "weir_memory_entries",
    "weir_memory_evictions_total",
    "weir_memory_resets_total",
];

#[test]
fn every_alert_rule_is_evaluated_and_says_what_to_do() {
    let edge = Edge::start();
    wait_until("all rules have been evaluated", A_WHILE, || {
        edge.prometheus.rules().iter().all(|rule| rule["health"] == "ok")
    });
    let rules = edge.prometheus.rules();
    assert!(!rules.is_empty());
    let scraped = edge.names();
    for rule in &rules {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        assert_eq!(rule["type"], "alerting");
        assert_eq!(text(&rule["lastError"]), "");
        let severity = text(&rule["labels"]["severity"]);
        assert!(["critical", "warning"].contains(&severity.as_str()), "{rule}");
        let notes = &rule["annotations"];
        assert!(!text(&notes["summary"]).is_empty() && !text(&notes["description"]).is_empty());
        assert!(is_a_section(&text(&notes["runbook"])), "{rule}");
        let unknown: Vec<_> = named_in(&text(&rule["query"]))
            .into_iter()
            .filter(|name| !OF_THE_STORE.contains(&name.as_str()) && !scraped.contains(name))
            .collect();
        assert_eq!(unknown, [""; 0], "{}", rule["name"]);
    }
}

/// Whether this, `docs/FILE.md#HEADING`, is there.
fn is_a_section(link: &str) -> bool {
    let Some((file, anchor)) = link.split_once('#') else { return false };
    let text = read_to_string(run::directory().join("..").join(file)).unwrap_or_default();
    let anchor_of = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.replace(|c: char| !c.is_alphanumeric() && c != '-' && c != '_', "")
    };
    text.lines().any(|line| line.starts_with('#') && anchor_of(line) == anchor)
}

#[test]
fn every_panel_of_the_dashboard_shows_what_is_there_and_together_they_show_all() {
    let edge = Edge::start();
    let client = edge.nginx.client();
    (0..5).for_each(|_| _ = client.get("/api"));
    (0..4).for_each(|_| _ = client.get("/dry"));
    let dashboard = dashboard();
    let has_store = edge.names().contains(OF_THE_STORE[0]);
    let mut shown = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        assert!(panel["type"] == "row" || !targets.is_empty(), "{panel}");
        for target in targets {
            let expression = target["expr"].as_str().expect("an expression");
            let names = named_in(expression);
            let is_of_the_store = names.iter().all(|name| OF_THE_STORE.contains(&name.as_str()));
            let expression = substituted(expression);
            let mut samples = Vec::new();
            // A rate needs two scrapes.
            let has_data = holds_within_a_while(|| {
                samples = edge.prometheus.query(&expression);
                !samples.is_empty() || is_of_the_store && !has_store
            });
            assert!(has_data, "{}: {expression}", panel["title"]);
            let legend = target["legendFormat"].as_str().expect("a legend");
            for label in legend.split("{{").skip(1).filter_map(|part| part.split("}}").next()) {
                let has_it = samples.iter().all(|sample| sample.labels.contains_key(label));
                assert!(has_it, "{}: no {label} in {samples:?}", panel["title"]);
            }
            shown.extend(names);
        }
    }
    let unseen: Vec<_> = edge
        .names()
        .into_iter()
        .filter(|name| !shown.contains(name))
        // The parts of a histogram stand for each other.
        .filter(|name| {
            let part =
                ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            !part.is_some_and(|family| shown.contains(&format!("{family}_bucket")))
        })
        .collect();
    assert_eq!(unseen, [""; 0]);
    for annotation in dashboard["annotations"]["list"].as_array().expect("annotations") {
        edge.prometheus.query(annotation["expr"].as_str().expect("an expression"));
    }
}

#[test]
fn the_documented_job_is_one_that_prometheus_takes() {
    let page = read_to_string(run::directory().join("../docs/monitoring.md")).expect("the page");
    let (_, rest) = page.split_once("```yaml\n").expect("a job");
    let (job, _) = rest.split_once("```").expect("its end");
    let dir = tempfile::TempDir::new().expect("a directory");
    std::fs::copy(alerts(), dir.path().join("alerts.yml")).expect("the rules");
    let conf = dir.path().join("prometheus.yml");
    std::fs::write(&conf, job).expect("prometheus.yml");
    let output = Command::new("promtool").args(["check", "config"]).arg(&conf).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 rule files found"), "{output:?}");
}

/// With what Grafana puts in place of its variables.
fn substituted(expression: &str) -> String {
    let expression = ["$policy", "$instance"]
        .iter()
        .fold(expression.to_owned(), |text, variable| text.replace(variable, ".*"))
        .replace("$__rate_interval", "1m")
        .replace("$__range", "1h");
    assert!(!expression.contains('$'), "an unknown variable in {expression}");
    expression
}

#[test]
fn the_dashboard_names_no_data_source_and_its_panels_have_their_own_place() {
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<_> = variables.iter().map(|it| it["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["datasource", "policy", "instance"]);
    assert_eq!(
        (&variables[0]["type"], &variables[0]["query"]),
        (&"datasource".into(), &"prometheus".into())
    );
    assert_eq!(data_sources(&dashboard), BTreeSet::from(["${datasource}".to_owned()]));

    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> =
        panels.iter().map(|panel| panel["id"].as_u64().expect("an id")).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let place = |side: &str| panel["gridPos"][side].as_u64().expect("a place");
        for x in place("x")..place("x") + place("w") {
            assert!(x < 24, "{panel}");
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "two at {x}, {y}: {}", panel["title"]);
            }
        }
    }
}

/// The uids of the data sources that a part of the dashboard names.
fn data_sources(part: &Value) -> BTreeSet<String> {
    let of_all = |parts: Vec<&Value>| parts.into_iter().flat_map(data_sources).collect();
    match part {
        Value::Array(parts) => of_all(parts.iter().collect()),
        Value::Object(fields) => match fields.get("datasource") {
            Some(source) => {
                let mut sources: BTreeSet<String> = of_all(
                    fields
                        .iter()
                        .filter(|(name, _)| *name != "datasource")
                        .map(|(_, part)| part)
                        .collect(),
                );
                sources.insert(source["uid"].as_str().unwrap_or("none").to_owned());
                sources
            }
            None => of_all(fields.values().collect()),
        },
        _ => BTreeSet::new(),
    }
}
