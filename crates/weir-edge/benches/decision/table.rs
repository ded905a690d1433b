//! What was measured, in one table.

use std::hint::black_box;
use std::time::{Duration, Instant};

use allocation_counter::AllocationInfo;
use criterion::{BenchmarkId, Criterion, Throughput};

/// How many inputs are made at a time, before the clock runs.
const AT_ONCE: u64 = 256;

/// A step of a decision, and the batch that it is one of.
pub(crate) type Step = (&'static str, usize);

/// Rows in the order in which they came.
#[derive(Default)]
pub(crate) struct Table(Vec<Row>);

#[derive(Default)]
struct Row {
    step: Step,
    /// Nanoseconds for a decision, one of each sample.
    times: Vec<f64>,
    counted: u64,
    allocations: u64,
    bytes: u64,
}

impl Table {
    fn row(&mut self, step: Step) -> &mut Row {
        let index = self.0.iter().position(|row| row.step == step).unwrap_or_else(|| {
            self.0.push(Row { step, ..Row::default() });
            self.0.len() - 1
        });
        &mut self.0[index]
    }

    /// So many decisions took so long.
    pub(crate) fn time(&mut self, step: Step, decisions: u64, took: Duration) {
        self.row(step).times.push(took.as_secs_f64() * 1e9 / decisions as f64);
    }

    /// So many decisions allocated so much.
    pub(crate) fn count(&mut self, step: Step, decisions: u64, info: &AllocationInfo) {
        let row = self.row(step);
        row.counted += decisions;
        row.allocations += info.count_total;
        row.bytes += info.bytes_total;
    }

    /// Measures a step of which `run` does a whole batch, with an input that is made
    /// before and an output that is dropped within.
    pub(crate) fn step<I, O>(
        &mut self,
        criterion: &mut Criterion,
        step: Step,
        mut prepare: impl FnMut() -> I,
        mut run: impl FnMut(I) -> O,
    ) {
        let (name, batch) = step;
        let mut group = criterion.benchmark_group("decision");
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(BenchmarkId::new(name, batch), |bencher| {
            bencher.iter_custom(|iterations| {
                let mut took = Duration::ZERO;
                let mut left = iterations;
                while left > 0 {
                    let inputs: Vec<I> = (0..left.min(AT_ONCE)).map(|_| prepare()).collect();
                    left -= inputs.len() as u64;
                    let begun = Instant::now();
                    for input in inputs {
                        black_box(run(black_box(input)));
                    }
                    took += begun.elapsed();
                }
                self.time(step, iterations * batch as u64, took);
                took
            });
        });
        group.finish();
        let inputs: Vec<I> = (0..AT_ONCE).map(|_| prepare()).collect();
        let counted = allocation_counter::measure(|| {
            for input in inputs {
                black_box(run(black_box(input)));
            }
        });
        self.count(step, AT_ONCE * batch as u64, &counted);
    }

    /// In Markdown. A step that was filtered out has no times, and no row.
    pub(crate) fn print(&self) {
        let measured: Vec<&Row> = self.0.iter().filter(|row| !row.times.is_empty()).collect();
        if measured.is_empty() {
            return;
        }
        println!("\n| for a decision | batch | time | allocations | bytes |");
        println!("|---|---|---|---|---|");
        for Row { step: (name, batch), times, counted, allocations, bytes } in measured {
            let each = |total: &u64| *total as f64 / *counted as f64;
            println!(
                "| {name} | {batch} | {:.0} ns | {:.2} | {:.0} |",
                median(times),
                each(allocations),
                each(bytes)
            );
        }
    }
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
