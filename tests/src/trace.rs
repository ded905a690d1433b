//! Random traces of requests, which every store must decide as the reference does.

use proptest::prelude::*;
use weir_core::algorithm::{State, charge_afterwards, decide, give_back};
use weir_core::limit::BucketRate;
use weir_core::rate::MAX_LIMIT;
use weir_core::{Limit, Rate, Timestamp, Verdict};
use weir_redis::Operation;

/// How far the clock moves before a request, in microseconds.
pub fn clock() -> impl Strategy<Value = i64> {
    let second = 1_000_000i64;
    prop_oneof![
        40 => Just(0i64),
        20 => 0..1_000i64,
        60 => 0..4 * second,
        // Whole seconds meet every boundary.
        30 => (0i64..6).prop_map(move |seconds| seconds * second),
        8 => (0i64..50).prop_map(move |hours| hours * 3_600 * second),
        2 => (0i64..70).prop_map(move |days| days * 86_400 * second),
        10 => -3 * second..0,
        2 => -59 * second..0,
        1 => Just(-60 * second),
        1 => Just(-70 * second),
        1 => Just(70 * second),
    ]
}

/// Limits that are reached, and the largest.
fn rate() -> impl Strategy<Value = Rate> {
    let limit = prop_oneof![8 => 1u64..8, 3 => 8u64..200, 1 => (1u64 << 53) - 3..1 << 53];
    let window = prop::sample::select(vec!["1ms", "999ms", "1s", "4s", "7s", "1h", "366d"]);
    (limit, window).prop_map(|(limit, window)| format!("{limit}/{window}").parse().expect("a rate"))
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let bucket = (rate(), prop_oneof![Just(None), (1u64..20).prop_map(Some)]).prop_filter_map(
        "a bucket that refills in time",
        |(rate, burst)| {
            let terms = BucketRate::new(rate, burst.unwrap_or(rate.limit()));
            terms.ok().map(Limit::TokenBucket)
        },
    );
    let period = prop::sample::select(vec!["hour", "day", "month"]);
    let quota = (rate(), period).prop_map(|(rate, period)| {
        Limit::Quota(format!("{}/{period}", rate.limit()).parse().expect("a quota"))
    });
    prop_oneof![
        rate().prop_map(Limit::SlidingLog),
        rate().prop_map(Limit::CompactLog),
        rate().prop_map(Limit::SlidingCounter),
        bucket,
        quota,
    ]
}

/// Rules that share keys where algorithm and window are the same, so that a
/// trace also is one of limits and plans that change.
pub fn rules() -> impl Strategy<Value = Vec<Vec<Limit>>> {
    let limits = prop::collection::vec(any_limit(), 1..4).prop_map(|mut limits| {
        let mut seen = Vec::new();
        limits.retain(|limit| {
            let suffix = limit.key_suffix();
            let is_new = !seen.contains(&suffix);
            seen.push(suffix);
            is_new
        });
        limits
    });
    prop::collection::vec(limits, 1..5)
}

/// A request.
#[derive(Clone, Debug)]
pub struct Step {
    /// Modulo the number of rules.
    pub rule: usize,
    /// One of two.
    pub client: usize,
    /// What is asked for.
    pub kind: Kind,
    /// Of how many units.
    pub cost: Cost,
    /// How far the clock moves before it.
    pub clock_us: i64,
}

/// What a step asks for.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A decision.
    Decide,
    /// A charge after the fact.
    Charge,
    /// To give back.
    Refund(Charged),
}

/// Which time is given back.
#[derive(Clone, Copy, Debug)]
pub enum Charged {
    /// That of the charge so many before the last: its cost, and so many units
    /// more. It may be of another client or rule, have been given back, or have
    /// left long ago.
    Earlier(usize, i64),
    /// So many microseconds from now.
    FromNow(i64),
}

/// Of how many units a step is.
#[derive(Clone, Copy, Debug)]
pub enum Cost {
    /// So many.
    Units(u64),
    /// The first limit's capacity, less or more a few.
    NearCapacity(i64),
}

/// Any step.
pub fn step() -> impl Strategy<Value = Step> {
    let cost = prop_oneof![
        8 => (0u64..4).prop_map(Cost::Units),
        2 => (4u64..60).prop_map(Cost::Units),
        1 => (-4i64..3).prop_map(Cost::NearCapacity),
    ];
    let charged = prop_oneof![
        8 => (0usize..3, -1i64..3).prop_map(|(back, more)| Charged::Earlier(back, more)),
        2 => (3usize..40, -3i64..60).prop_map(|(back, more)| Charged::Earlier(back, more)),
        1 => clock().prop_map(|clock_us| Charged::FromNow(-clock_us)),
        1 => (-1i64..2).prop_map(Charged::FromNow),
    ];
    let kind = prop_oneof![
        6 => Just(Kind::Decide),
        2 => Just(Kind::Charge),
        4 => charged.prop_map(Kind::Refund),
    ];
    (0usize..4, 0usize..2, kind, cost, clock()).prop_map(|(rule, client, kind, cost, clock_us)| {
        Step { rule, client, kind, cost, clock_us }
    })
}

impl Step {
    /// What it does under these limits at `now_us`, where these were charged before:
    /// time and cost.
    pub fn operation(&self, limits: &[Limit], now_us: u64, charges: &[(u64, u64)]) -> Operation {
        let cost = match self.cost {
            Cost::Units(units) => units,
            Cost::NearCapacity(more) => {
                limits[0].capacity().saturating_add_signed(more).min(MAX_LIMIT)
            }
        };
        let (cost, charged_us) = match self.kind {
            Kind::Decide => return Operation::Decide { cost },
            Kind::Charge => return Operation::Charge { cost: cost.max(1) },
            Kind::Refund(Charged::FromNow(later_us)) => {
                (cost, now_us.saturating_add_signed(later_us))
            }
            Kind::Refund(Charged::Earlier(back, more)) => match charges.iter().rev().nth(back) {
                Some((charged_us, cost)) => (cost.saturating_add_signed(more), *charged_us),
                None => (cost, now_us),
            },
        };
        let cost = cost.clamp(1, MAX_LIMIT);
        Operation::Refund { cost, charged_at: Timestamp::from_micros(charged_us) }
    }
}

/// What the reference says of an operation, and does to these states; `None` if it
/// is a charge of too much.
pub fn perform(
    operation: Operation,
    limits: &[Limit],
    states: &mut [State],
    now: Timestamp,
) -> Option<Verdict> {
    match operation {
        Operation::Decide { cost } => Some(decide(limits, states, now, cost)),
        Operation::Charge { cost } => charge_afterwards(limits, states, now, cost),
        Operation::Refund { cost, charged_at } => {
            Some(give_back(limits, states, now, cost, charged_at))
        }
    }
}
