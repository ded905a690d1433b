//! The comparison, as `make bench` runs it, for as short as it can be.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn bench(arguments: &[&str], lualib: Option<&TempDir>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-bench"));
    if let Some(directory) = lualib {
        command.env("LUALIB", directory.path());
    }
    command.args(arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The ids of all contenders.
fn listed() -> Vec<String> {
    let list = text(&bench(&["--list"], None).stdout);
    list.lines().map(|line| line.split(' ').next().expect("an id").to_owned()).collect()
}

#[test]
fn a_run_measures_every_contender_and_writes_what_it_found() {
    let output = TempDir::new().expect("a directory");
    let to = output.path().display().to_string();
    let ran = bench(
        &[
            &["compare", "--rounds", "1", "--seconds", "1", "--connections", "2"],
            &["--clients", "10", "--workers", "1", "--output", &to][..],
        ]
        .concat(),
        None,
    );
    assert!(ran.status.success(), "{}", text(&ran.stderr));

    let results = fs::read_to_string(output.path().join("results.json")).expect("results.json");
    let results: Value = serde_json::from_str(&results).expect("JSON");
    let rows = results["comparisons"][0]["rows"].as_array().expect("rows");
    let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str().expect("an id")).collect();
    assert_eq!(ids, listed());
    for (row, id) in rows.iter().zip(ids) {
        let median = |figure: &str| row[figure]["median"].as_f64().expect(figure);
        assert!(median("rate") > 100.0 && median("p50_us") > 1.0, "{id}: {row}");
        assert!(median("worker_us") > 0.0, "{id}: {row}");
        let calls = median("script_calls");
        match id {
            // Those under way at the end are asked for and not counted.
            "glue-eval" | "glue-evalsha" | "glue-refused" => {
                assert!((1.0..1.1).contains(&calls), "{id}: {calls}");
                assert!(median("in_scripts") > 3.0, "{id}: {row}");
            }
            "none" | "refused" | "dict" | "dict-refused" => assert_eq!(calls, 0.0, "{id}"),
            _ if id.starts_with("embedded-") || id.starts_with("limit-req") => {
                assert_eq!(calls, 0.0, "{id}");
            }
            // One for each batch, of two at most.
            _ => assert!((0.4..1.1).contains(&calls), "{id}: {calls}"),
        }
    }

    // The part alone.
    assert!(results["options"].get("compare").is_some(), "{}", results["options"]);
    assert!(results.get("growth").is_none() && results["options"].get("growth").is_none());
    assert!(!output.path().join("growth-limits.svg").exists());
    // Elsewhere than on a terminal it is told where it is, too.
    let told = text(&ran.stderr);
    assert!(told.contains("1 of 1: 2 connections, 10 clients, 1 worker"), "{told}");

    let said = text(&ran.stdout);
    for plot in ["throughput.svg", "cpu.svg", "latency.svg"] {
        let plot = fs::read_to_string(output.path().join(plot)).expect(plot);
        assert!(plot.starts_with("<svg") && plot.contains("Weir, sliding-log"), "{plot}");
    }
    assert!(said.contains("2 connections, 10 clients, 1 worker"), "{said}");
}

/// A run of no limiter and of a glue whose `eval` does this; what it says on stderr,
/// and its results.json.
fn with_glue(eval: &str) -> (Output, Option<Value>) {
    let (glue, output) = (TempDir::new().expect("a directory"), TempDir::new().expect("another"));
    let text = format!("return {{ redis_at = function() end, eval = function() {eval} end }}");
    fs::write(glue.path().join("glue.lua"), text).expect("a file");
    let to = output.path().display().to_string();
    let arguments =
        ["compare", "--quick", "--connections", "1", "--contenders", "none", "--output", &to];
    let ran = bench(&arguments, Some(&glue));
    let results = fs::read_to_string(output.path().join("results.json"));
    (ran, results.ok().map(|text| serde_json::from_str(&text).expect("JSON")))
}

const HEADERS: &str = r#"
    ngx.header["RateLimit-Limit"] = 1
    ngx.header["RateLimit-Remaining"] = 1
    ngx.header["RateLimit-Reset"] = 1"#;

#[test]
fn a_contender_that_does_not_limit_ends_the_run() {
    let (ran, results) = with_glue("");
    let said = text(&ran.stderr);
    assert!(!ran.status.success(), "{said}");
    assert!(said.contains("glue, EVAL") && said.contains("RateLimit-Limit"), "{said}");
    assert!(results.is_none());
}

#[test]
fn what_is_not_as_it_should_be_in_a_round_fails_the_run_at_its_end() {
    // Not in a global, of which nginx warns.
    let asked = "ngx.asked = (ngx.asked or 0) + 1  if ngx.asked % 100 == 0 then";
    for (fault, told) in [
        ("return ngx.exit(429) end", "answers were refusals, in place of 0"),
        (r#"ngx.log(ngx.ERR, "no decision") end"#, "no decision"),
    ] {
        let (ran, results) = with_glue(&format!("{HEADERS} {asked} {fault}"));
        let said = text(&ran.stderr);
        assert!(!ran.status.success(), "{said}");
        assert!(said.contains("glue, EVAL, 1 connection") && said.contains(told), "{said}");
        let results = results.expect("results.json");
        assert_eq!(results["faults"].as_array().map(Vec::len), Some(1), "{results}");
        assert!(results["comparisons"][0]["rows"][1]["rate"]["median"].as_f64() > Some(0.0));
    }
}
