//! The report on what a decision costs as the work grows, made as short as can be.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Runs it; what it has written of the growth and in all.
fn shortest(output: &Path) -> (Value, Value) {
    let run = Command::new(env!("CARGO_BIN_EXE_weir-bench"))
        .args(["growth", "--rounds", "1", "--calls", "2", "--most-units", "10"])
        .args(["--most-clients", "1000", "--delays-ms", "1", "--connections", "1"])
        .args(["--delay-rounds", "1", "--seconds", "1", "--output"])
        .arg(output)
        .output()
        .expect("the bench runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let told = String::from_utf8(run.stdout).expect("text");
    for title in ["By the limit", "By the batch", "By limits", "By clients", "By the distance"] {
        assert!(told.contains(&format!("\n{title}")), "{title}: {told}");
    }
    let said = String::from_utf8(run.stderr).expect("text");
    for (nth, part) in ["limits", "batches", "several", "clients", "delay"].iter().enumerate() {
        let line = format!("{} of 5: growth, {part}\n", nth + 1);
        assert!(said.contains(&line), "{line}: {said}");
    }
    let json = std::fs::read_to_string(output.join("results.json")).expect("results.json");
    let results: Value = serde_json::from_str(&json).expect("JSON");
    (results["growth"].clone(), results)
}

fn list<'a>(growth: &'a Value, part: &str) -> &'a [Value] {
    growth[part].as_array().expect(part)
}

fn number(value: &Value, field: &str) -> f64 {
    value[field]["median"]
        .as_f64()
        .or_else(|| value[field].as_f64())
        .unwrap_or_else(|| panic!("{field} of {value}"))
}

#[test]
fn every_part_is_measured_told_and_painted() {
    let output = tempfile::TempDir::new().expect("a directory");
    let (growth, results) = shortest(output.path());
    // The part alone.
    assert!(results.get("comparisons").is_none(), "{results}");
    assert!(results["options"].get("compare").is_none(), "{results}");
    assert!(!output.path().join("throughput.svg").exists());
    for part in ["memory", "delay"] {
        assert!(output.path().join(format!("growth-{part}.svg")).exists(), "{part}");
    }
    // Algorithms, and where they decide, times what grows.
    let points = [("limits", 5), ("batches", 5 * 8), ("several", 5 * 4 - 1), ("clients", 10 * 2)];
    for (part, count) in points {
        let points = list(&growth, part);
        assert_eq!(points.len(), count, "{part}");
        for point in points {
            assert!(number(point, "time_us") > 0.0, "{point}");
            assert!(number(point, "bytes_per_client") >= 100.0, "{point}");
        }
        assert!(output.path().join(format!("growth-{part}.svg")).exists(), "{part}");
    }

    // A request waits for the way there and back, whatever else it waits for, and
    // whoever limits it.
    let distances = list(&growth, "delay");
    let ids: Vec<_> = distances.iter().filter_map(|distance| distance["id"].as_str()).collect();
    assert_eq!(ids, ["glue-evalsha", "sliding-log", "token-bucket"]);
    for distance in distances {
        // One connection has no batches.
        let calls = number(distance, "script_calls");
        assert!((1.0..1.1).contains(&calls), "{distance}");
        assert!(number(distance, "away_us") >= 1_000.0, "{distance}");
        let added = number(distance, "limited_us") - number(distance, "none_us");
        assert!(added >= 1_000.0, "{distance}");
    }

    // Sizes, unlike times, are the same on any machine.
    let (name, limit) = ("of a sorted set's with members of 50", 0.06);
    let targets = list(&results, "targets");
    let target = targets
        .iter()
        .find(|target| target["figure"].as_str().is_some_and(|figure| figure.contains(name)));
    let target = target.expect("a target");
    assert_eq!(target["target"]["at-most"].as_f64(), Some(limit));
    assert!((0.01..=limit).contains(&number(target, "measured")), "{target}");
}

#[test]
fn a_part_that_fails_takes_nothing_from_the_others_and_fails_the_run_at_its_end() {
    let (glue, output) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
    let none = "return { redis_at = function() end, evalsha = function() end }";
    std::fs::write(glue.path().join("glue.lua"), none).expect("a file");
    let run = Command::new(env!("CARGO_BIN_EXE_weir-bench"))
        .env("LUALIB", glue.path())
        .args(["growth", "--quick", "--parts", "limits,delay", "--calls", "1"])
        .args(["--most-units", "10", "--delays-ms", "0", "--connections", "1", "--output"])
        .arg(output.path())
        .output()
        .expect("the bench runs");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success(), "{said}");
    let fault = "growth, delay: glue, EVALSHA, Redis 0 ms away, 1 connection";
    assert!(said.contains(fault) && said.contains("RateLimit-Limit"), "{said}");
    let json = std::fs::read_to_string(output.path().join("results.json")).expect("results.json");
    let results: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(list(&results["growth"], "limits").len(), 5);
    assert_eq!(list(&results["growth"], "delay").len(), 0);
    assert_eq!(list(&results, "faults").len(), 1);
}
