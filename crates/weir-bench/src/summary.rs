//! What the rounds come to: medians, spread, and ratios of what ran side by side.

use serde::Serialize;

use crate::contenders::{BASE, Contender, GLUE, Store};
use crate::measure::Figures;
use crate::plan::Group;

/// A figure over all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Of an even number of rounds the middle of the two in the middle.
    pub median: f64,
    /// The least of all rounds.
    pub least: f64,
    /// The most of all rounds.
    pub most: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        Self {
            median: f64::midpoint(values[(count - 1) / 2], values[count / 2]),
            least: values[0],
            most: values[count - 1],
        }
    }
}

/// All contenders under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The load.
    #[serde(flatten)]
    pub group: Group,
    /// One for each contender.
    pub rows: Vec<Row>,
}

/// What one contender has shown.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// [`Contender::id`].
    pub id: &'static str,
    /// [`Contender::name`].
    pub name: &'static str,
    /// Requests per second.
    pub rate: Spread,
    /// The same, of the requests per second without a limiter.
    pub rate_to_none: Spread,
    /// The same, of those of the glue with EVAL.
    pub rate_to_glue: Spread,
    /// What half of the requests took at most.
    pub p50_us: Spread,
    /// The same, of the glue's.
    pub p50_to_glue: Spread,
    /// What 99 of 100 requests took at most.
    pub p99_us: Spread,
    /// CPU of nginx's workers for each request.
    pub worker_us: Spread,
    /// CPU of Redis for each request.
    pub redis_us: Spread,
    /// Both, less the workers' without a limiter; of what does not ask Redis, without
    /// the CPU of Redis.
    pub limiter_us: Spread,
    /// The same, of the glue's; none for the first row.
    pub limiter_to_glue: Spread,
    /// Scripts that Redis was asked to run, for each request.
    pub script_calls: Spread,
    /// Commands that these ran, for each request.
    pub in_scripts: Spread,
    /// Each round by itself.
    pub rounds: Vec<Figures>,
}

impl Comparison {
    /// Of the rounds of all contenders, each of which has as many; those that they are
    /// compared with are among them. Ratios are of the same round: what slows the
    /// machine down slows both.
    pub fn new(group: Group, measured: Vec<(&'static Contender, Vec<Figures>)>) -> Self {
        let rounds_of = |id| {
            let found = measured.iter().find(|(contender, _)| contender.id == id);
            found.expect("it runs in any case").1.clone()
        };
        let (base, glue) = (rounds_of(BASE), rounds_of(GLUE));
        let rows =
            measured.into_iter().map(|(contender, rounds)| row(contender, rounds, &base, &glue));
        Self { group, rows: rows.collect() }
    }

    /// What the contender of this id has shown.
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }
}

fn row(contender: &Contender, rounds: Vec<Figures>, base: &[Figures], glue: &[Figures]) -> Row {
    let over = |figure: &dyn Fn(&Figures) -> f64| Spread::of(rounds.iter().map(figure));
    // With the same round of the two that it is compared with.
    let beside = |figure: &dyn Fn(&Figures, &Figures, &Figures) -> f64| {
        let all = rounds.iter().zip(base).zip(glue);
        Spread::of(all.map(|((own, base), glue)| figure(own, base, glue)))
    };
    let limiter = |own: &Figures, base: &Figures| own.worker_us + own.redis_us - base.worker_us;
    // What Redis does when nobody asks it is nobody's.
    let own_limiter = |own: &Figures, base: &Figures| match contender.store {
        Store::Redis => limiter(own, base),
        Store::Memory => own.worker_us - base.worker_us,
    };
    Row {
        id: contender.id,
        name: contender.name,
        rate: over(&|own| own.rate),
        rate_to_none: beside(&|own, base, _| own.rate / base.rate),
        rate_to_glue: beside(&|own, _, glue| own.rate / glue.rate),
        p50_us: over(&|own| own.p50_us),
        p50_to_glue: beside(&|own, _, glue| own.p50_us / glue.p50_us),
        p99_us: over(&|own| own.p99_us),
        worker_us: over(&|own| own.worker_us),
        redis_us: over(&|own| own.redis_us),
        limiter_us: beside(&|own, base, _| own_limiter(own, base)),
        limiter_to_glue: beside(&|own, base, glue| own_limiter(own, base) / limiter(glue, base)),
        script_calls: over(&|own| own.script_calls),
        in_scripts: over(&|own| own.in_scripts),
        rounds,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::contenders;

    fn figures(rate: f64, p50_us: f64, worker_us: f64, redis_us: f64) -> Figures {
        Figures { rate, p50_us, worker_us, redis_us, ..Figures::default() }
    }

    /// Two rounds, the second on a machine that is half as fast.
    pub fn comparison(group: Group) -> Comparison {
        let measured = [
            (BASE, figures(100_000.0, 100.0, 10.0, 0.1)),
            (GLUE, figures(20_000.0, 500.0, 30.0, 20.0)),
            ("sliding-log", figures(50_000.0, 250.0, 15.0, 5.0)),
        ];
        let halved = |figures: &Figures| Figures {
            rate: figures.rate / 2.0,
            p50_us: figures.p50_us * 2.0,
            worker_us: figures.worker_us * 2.0,
            redis_us: figures.redis_us * 2.0,
            ..*figures
        };
        let measured = measured
            .iter()
            .map(|(id, figures)| (contenders::find(id).unwrap(), vec![*figures, halved(figures)]));
        Comparison::new(group, measured.collect())
    }

    #[test]
    fn a_median_is_the_middle_and_the_spread_is_all_rounds() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        let odd = Spread { median: 2.0, least: 1.0, most: 9.0 };
        assert_eq!(spread(&[9.0, 1.0, 2.0]), odd);
        assert_eq!(spread(&[4.0, 1.0, 9.0, 2.0]).median, 3.0);
        assert_eq!(spread(&[7.0]), Spread { median: 7.0, least: 7.0, most: 7.0 });
    }

    #[test]
    fn a_slow_round_is_slow_for_what_it_is_compared_with_too() {
        let group = Group { workers: 1, clients: 1000, connections: 64 };
        let comparison = comparison(group);
        let row = comparison.row("sliding-log").unwrap();
        let steady = |ratio| Spread { median: ratio, least: ratio, most: ratio };
        assert_eq!(row.rate_to_none, steady(0.5));
        assert_eq!(row.rate_to_glue, steady(2.5));
        assert_eq!(row.p50_to_glue, steady(0.5));
        // 15 + 5 - 10 of 30 + 20 - 10.
        assert_eq!(row.limiter_to_glue, steady(0.25));
        assert_eq!(row.limiter_us, Spread { median: 15.0, least: 10.0, most: 20.0 });
        assert_eq!(comparison.row(BASE).unwrap().limiter_us, steady(0.0));
    }
}
