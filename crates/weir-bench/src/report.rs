//! A run from its start to its report: what is measured, told, and written.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use weir_tests::Redis;

use crate::growth::{self, Growth};
use crate::json::{self, Machine, Report, Rounds, Settings};
use crate::options::Compare;
use crate::plan::Group;
use crate::plot::{self, Plot};
use crate::progress::{Progress, minutes};
use crate::summary::Comparison;
use crate::table::Table;
use crate::{plan, run, targets};

/// What is measured, and where it is written.
pub struct Wanted {
    /// The comparison, if it is wanted.
    pub compare: Option<Compare>,
    /// The growth, if it is wanted.
    pub growth: Option<growth::Options>,
    /// Where results.json and the plots are written.
    pub output: PathBuf,
    /// Where the page and its plots are written.
    pub docs: Option<PathBuf>,
}

/// Measures, prints, and writes what was measured.
///
/// # Errors
///
/// If a contender does not answer as it should, if something was not as it should be in
/// what is reported all the same, or if a file cannot be written.
pub fn run(wanted: &Wanted) -> Result<()> {
    let Wanted { compare, growth, output, docs } = wanted;
    fs::create_dir_all(output).with_context(|| format!("{} is not made", output.display()))?;
    let groups = compare.as_ref().map(plan::groups).unwrap_or_default();
    let growth = growth.as_ref().map(growth::Options::settings);
    let mut progress = Progress::new(expected(compare.as_ref(), &groups, growth.as_ref()));
    let machine = Machine::this(&Redis::start());
    let how = how(compare.as_ref(), groups.len(), growth.as_ref());
    println!("{}", machine.text());
    println!("{how}. It takes about {} minutes", minutes(progress.expected()));

    let mut faults = Vec::new();
    let mut comparisons = None;
    if let Some(options) = compare {
        let (measured, found) = run::compare(options, &groups, &mut progress)?;
        faults.extend(found);
        comparisons = Some(measured);
    }
    let mut grown = None;
    if let Some(settings) = &growth {
        let (measured, found) = growth::measure(settings, &mut progress);
        faults.extend(found);
        grown = Some(measured);
    }
    progress.ends();

    let targets = targets::judge(comparisons.as_deref().unwrap_or_default(), grown.as_ref());
    let compared = comparisons.as_deref().map(Section::of_comparisons);
    let sections: Vec<Section<'_>> =
        compared.into_iter().chain(grown.as_ref().map(Section::of_growth)).collect();
    let last = (!targets.is_empty()).then(|| Table::of_targets(&targets));
    for table in sections.iter().flat_map(|section| &section.tables).chain(&last) {
        print!("{}", table.terminal());
    }
    let settings = Settings { compare: compare.as_ref().map(Rounds::of), growth };
    let report = Report {
        machine: &machine,
        options: settings,
        comparisons: comparisons.as_deref(),
        growth: grown.as_ref(),
        targets: &targets,
        faults: &faults,
    };
    json::write(&report, &output.join("results.json"))?;
    for section in &sections {
        section.plot(output)?;
    }
    println!("\nWritten to {}: results.json and plots (SVG)", output.display());
    if !faults.is_empty() {
        bail!("not all was as it should be:\n{}", faults.join("\n"));
    }
    if let Some(docs) = docs {
        write_page(docs, &format!("{}. {how}", machine.text()), &sections, last.as_ref())?;
    }
    Ok(())
}

/// How long each group of the comparison and each part of the growth takes.
fn expected(
    compare: Option<&Compare>,
    groups: &[Group],
    growth: Option<&growth::Settings>,
) -> Vec<Duration> {
    let compared = compare.map(plan::expected).into_iter().cycle().take(groups.len());
    let grown = growth
        .into_iter()
        .flat_map(|settings| settings.parts.iter().map(|&part| settings.expected(part)));
    compared.chain(grown).collect()
}

/// How much is measured, in one line.
fn how(compare: Option<&Compare>, groups: usize, growth: Option<&growth::Settings>) -> String {
    let compared = compare.map(|options| {
        let (contenders, rounds, seconds) =
            (options.contenders().len(), options.rounds(), options.seconds());
        format!("Contenders: {contenders}; loads: {groups}; rounds: {rounds} of {seconds} s")
    });
    let grown = growth.map(|growth::Settings { rounds, calls, delay_rounds, seconds, .. }| {
        format!(
            "Growth: rounds: {rounds} of {calls} calls, by the distance {delay_rounds} of \
             {seconds} s"
        )
    });
    let both: Vec<String> = compared.into_iter().chain(grown).collect();
    both.join(". ")
}

/// A part of the report.
struct Section<'a> {
    title: &'static str,
    tables: Vec<Table>,
    plotted: Plotted<'a>,
}

enum Plotted<'a> {
    Comparisons(&'a [Comparison]),
    Growth(&'a Growth),
}

impl<'a> Section<'a> {
    fn of_comparisons(comparisons: &'a [Comparison]) -> Self {
        Self {
            title: "Side by side",
            tables: comparisons.iter().map(Table::of_comparison).collect(),
            plotted: Plotted::Comparisons(comparisons),
        }
    }

    fn of_growth(growth: &'a Growth) -> Self {
        Self {
            title: "As the work grows",
            tables: growth::tables(growth),
            plotted: Plotted::Growth(growth),
        }
    }

    /// Writes its plots into this directory.
    fn plot(&self, directory: &Path) -> Result<Vec<Plot>> {
        match self.plotted {
            Plotted::Comparisons(comparisons) => plot::write(comparisons, directory),
            Plotted::Growth(growth) => growth::paint(directory, growth),
        }
    }
}

/// Writes results.md with all tables and plots, and the plots.
fn write_page(
    docs: &Path,
    machine_and_how: &str,
    sections: &[Section<'_>],
    targets: Option<&Table>,
) -> Result<()> {
    fs::create_dir_all(docs)?;
    let mut page = format!(
        "# One run of the bench\n\nWritten by `make bench BENCH=\"--docs\"`; [how to read it]\
         (../bench.md#how-to-read-it).\n\n{machine_and_how}.\n"
    );
    for section in sections {
        page.push_str(&format!("\n## {}\n", section.title));
        for Plot { file, title } in section.plot(docs)? {
            page.push_str(&format!("\n![{title}]({file})\n"));
        }
        page.extend(section.tables.iter().map(|table| table.markdown(3)));
    }
    page.extend(targets.map(|table| table.markdown(2)));
    fs::write(docs.join("results.md"), page)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::options::tests::wanted;

    fn expected_minutes(arguments: &[&str]) -> f64 {
        let Wanted { compare, growth, .. } = wanted(arguments);
        let groups = compare.as_ref().map(plan::groups).unwrap_or_default();
        let growth = growth.as_ref().map(growth::Options::settings);
        let all = expected(compare.as_ref(), &groups, growth.as_ref());
        all.iter().sum::<Duration>().as_secs_f64() / 60.0
    }

    #[test]
    fn a_run_takes_less_than_half_an_hour_and_a_first_look_less_than_four_minutes() {
        let (all, quick) = (expected_minutes(&[]), expected_minutes(&["--quick"]));
        assert!((15.0..25.0).contains(&all) && (2.0..4.0).contains(&quick), "{all} {quick}");
        let parts = expected_minutes(&["compare"]) + expected_minutes(&["growth"]);
        assert!((all - parts).abs() < 1e-6, "{all} is not {parts}");
    }

    /// Both parts with as little of each as has targets.
    fn shortest(output: &Path, docs: &Path) -> Wanted {
        let compare = ["compare", "--quick", "--contenders", "sliding-log", "--connections", "64"];
        let growth = ["growth", "--quick", "--parts", "limits", "--calls", "1"];
        Wanted {
            compare: wanted(&compare).compare,
            growth: wanted(&growth).growth,
            output: output.to_owned(),
            docs: Some(docs.to_owned()),
        }
    }

    #[test]
    fn a_whole_run_is_one_report_and_one_page_of_both_parts() {
        let output = tempfile::tempdir().unwrap();
        let docs = output.path().join("docs");
        run(&shortest(output.path(), &docs)).unwrap();

        let results = fs::read_to_string(output.path().join("results.json")).unwrap();
        let results: Value = serde_json::from_str(&results).unwrap();
        assert_eq!(results["options"]["compare"]["rounds"], 1);
        assert_eq!(results["options"]["growth"]["calls"], 1);
        assert_eq!(results["comparisons"][0]["rows"].as_array().map(Vec::len), Some(3));
        assert_eq!(results["growth"]["limits"].as_array().map(Vec::len), Some(5 * 3));
        assert_eq!(results["faults"], Value::Array(Vec::new()));
        let targets = results["targets"].as_array().unwrap();
        let has = |figure: &str| targets.iter().any(|target| target["figure"] == figure);
        assert!(has("script calls per decision"), "{targets:?}");
        assert!(has("script time, µs (of the same machine only)"), "{targets:?}");

        let page = fs::read_to_string(docs.join("results.md")).unwrap();
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with('#')).collect();
        let memory = "### Memory in Redis of a client with 1000 requests in its window";
        assert_eq!(
            headings,
            [
                "# One run of the bench",
                "## Side by side",
                "### 64 connections, 1000 clients, 1 worker",
                "## As the work grows",
                "### By the limit, in units an hour",
                memory,
                "## Targets; the median counts",
            ]
        );
        let plots = ["throughput", "cpu", "latency", "growth-limits", "growth-memory"];
        for plot in plots.map(|name| format!("{name}.svg")) {
            assert!(page.contains(&format!("]({plot})")), "{plot}: {page}");
            assert!(docs.join(&plot).exists() && output.path().join(&plot).exists(), "{plot}");
        }
    }
}
