//! What is told of a server in the log: changes, never what one request met.

use std::time::{Duration, Instant};

/// How often at most the same kind of thing is told.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// A loss this short that follows another closely is counted, not told.
const SHORT: Duration = Duration::from_secs(1);

/// How often an absence that lasts is told again.
const REMINDED_EVERY: Duration = Duration::from_secs(600);

const AT_ONCE: &str = "; breaker open, on_error decides at once until it is back";

/// What has been told of a server.
#[derive(Debug, Default)]
pub(crate) struct Report {
    away: Option<Away>,
    was_there: bool,
    last_back: Option<Instant>,
    /// Short losses since the last that was told, and the requests that they cost.
    untold: (u32, u64),
    /// When it was told of an error, and the requests left to `on_error` by then.
    complained: Option<(Instant, u64)>,
}

#[derive(Debug)]
struct Away {
    since: Instant,
    /// How many requests had been left to `on_error` by then.
    failed_before: u64,
    told: bool,
    last_told: Instant,
    /// The reasons told since the breaker is open, by their codes.
    told_open: Vec<String>,
}

/// How many reasons of one absence are told.
const MAX_REASONS: usize = 8;

/// A server's state at a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment<'a> {
    /// The server.
    pub(crate) name: &'a str,
    pub(crate) now: Instant,
    /// Requests left to `on_error` so far.
    pub(crate) failed: u64,
}

impl Report {
    /// Has `tell` look at this moment, which it is also told whether the breaker
    /// is open.
    pub(crate) fn tell(
        &mut self,
        name: &str,
        failed: u64,
        open: bool,
        tell: impl FnOnce(&mut Self, Moment<'_>, bool) -> Option<String>,
    ) -> Option<String> {
        tell(self, Moment { name, now: Instant::now(), failed }, open)
    }

    /// A connection was lost, with requests that waited on it or that the server
    /// could not decide. `open`: that opened the breaker.
    pub(crate) fn lost(&mut self, moment: Moment<'_>, why: &str, open: bool) -> Option<String> {
        if self.away.is_some() {
            return if open { self.opened(moment, why) } else { self.late(moment, why) };
        }
        let told = !self.follows_closely(moment.now);
        self.begin(moment, told);
        if told && open {
            self.told_open(why);
        }
        let then = if open { AT_ONCE } else { "" };
        told.then(|| format!("redis {} lost: {why}{then}", moment.name))
    }

    /// There is no connection, and cannot be made. `open`: that opened the
    /// breaker, now or before.
    pub(crate) fn failing(&mut self, moment: Moment<'_>, why: &str, open: bool) -> Option<String> {
        if self.away.is_none() {
            self.begin(moment, false);
        }
        if open { self.opened(moment, why) } else { None }
    }

    fn opened(&mut self, moment: Moment<'_>, why: &str) -> Option<String> {
        let close = self.follows_closely(moment.now);
        let away = self.away.as_mut()?;
        let short = moment.now.duration_since(away.since) < SHORT;
        let is_told = match &away.told_open[..] {
            [] => false,
            told => told.iter().any(|told| told == code(why)) || told.len() == MAX_REASONS,
        };
        if is_told && moment.now >= away.last_told + REMINDED_EVERY {
            away.last_told = moment.now;
            return Some(format!(
                "redis {} still away after {:.0} s: {why}; on_error decided {} requests so far",
                moment.name,
                moment.now.duration_since(away.since).as_secs_f64(),
                moment.failed - away.failed_before,
            ));
        }
        if is_told || (!away.told && close && short) {
            return None;
        }
        away.last_told = moment.now;
        away.told_open.push(code(why).to_owned());
        let what = match (away.told, self.was_there) {
            (true, _) => "still away",
            (false, true) => "lost",
            (false, false) => "unreachable",
        };
        away.told = true;
        let more = self.take_untold();
        Some(format!("redis {} {what}: {why}{AT_ONCE}{more}", moment.name))
    }

    /// The server decides again.
    pub(crate) fn back(&mut self, moment: Moment<'_>) -> Option<String> {
        self.end(moment, "is back")
    }

    /// Others decide in the server's place.
    pub(crate) fn replaced(&mut self, moment: Moment<'_>) -> Option<String> {
        self.end(moment, "is replaced")
    }

    fn end(&mut self, moment: Moment<'_>, how: &str) -> Option<String> {
        self.was_there = true;
        let away = self.away.take()?;
        if !away.told {
            self.untold.0 += 1;
            self.untold.1 += moment.failed - away.failed_before;
            return None;
        }
        self.last_back = Some(moment.now);
        Some(format!(
            "redis {} {how} after {:.1} s; on_error decided {} requests meanwhile",
            moment.name,
            moment.now.duration_since(away.since).as_secs_f64(),
            moment.failed - away.failed_before,
        ))
    }

    /// When the short losses are to be told of that were not told one by one.
    pub(crate) fn summary_due(&self) -> Option<Instant> {
        let last_back = self.last_back.filter(|_| self.untold.0 > 0 && self.away.is_none());
        last_back.map(|back| back + TOLD_EVERY)
    }

    /// Tells of them, if that is due.
    pub(crate) fn summary(&mut self, moment: Moment<'_>) -> Option<String> {
        self.summary_due().filter(|due| *due <= moment.now)?;
        self.last_back = Some(moment.now);
        let (times, failed) = std::mem::take(&mut self.untold);
        Some(format!(
            "redis {} was lost {times} times more, each for less than {} s; on_error decided \
             {failed} requests meanwhile (told every {} s)",
            moment.name,
            SHORT.as_secs(),
            TOLD_EVERY.as_secs(),
        ))
    }

    /// The server answers with an error.
    pub(crate) fn complaint(&mut self, moment: Moment<'_>, what: &str) -> Option<String> {
        if self.complained.is_some_and(|(at, _)| moment.now < at + TOLD_EVERY) {
            return None;
        }
        let since = match self.complained.replace((moment.now, moment.failed)) {
            Some((_, before)) => {
                format!("{} requests since the last such line; ", moment.failed - before)
            }
            None => String::new(),
        };
        Some(format!(
            "redis {} answers with an error: {what}; on_error decides ({since}told at most every \
             {} s)",
            moment.name,
            TOLD_EVERY.as_secs(),
        ))
    }

    fn begin(&mut self, moment: Moment<'_>, told: bool) {
        let failed_before = moment.failed;
        let (since, last_told) = (moment.now, moment.now);
        self.away = Some(Away { since, failed_before, told, last_told, told_open: Vec::new() });
    }

    fn told_open(&mut self, why: &str) {
        if let Some(away) = &mut self.away {
            away.told_open.push(code(why).to_owned());
        }
    }

    /// Tells of an absence that was thought short and is not.
    fn late(&mut self, moment: Moment<'_>, why: &str) -> Option<String> {
        let away = self.away.as_mut()?;
        let lasts = moment.now.duration_since(away.since);
        if away.told || lasts < SHORT {
            return None;
        }
        away.told = true;
        let more = self.take_untold();
        Some(format!("redis {} lost {:.1} s ago: {why}{more}", moment.name, lasts.as_secs_f64()))
    }

    fn follows_closely(&self, now: Instant) -> bool {
        self.last_back.is_some_and(|back| now < back + TOLD_EVERY)
    }

    fn take_untold(&mut self) -> String {
        match std::mem::take(&mut self.untold) {
            (0, _) => String::new(),
            (times, failed) => {
                format!(" (and {times} short losses before that, with {failed} requests)")
            }
        }
    }
}

/// What a reason is known by: Redis's own by their codes, and all others, of
/// which one is as good as another, by none.
fn code(why: &str) -> &str {
    let first = why.split(' ').next().unwrap_or_default();
    let is_code = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_uppercase());
    if is_code { first } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, millis: u64, failed: u64) -> Moment<'static> {
        Moment { name: "r:1", now: start + Duration::from_millis(millis), failed }
    }

    #[test]
    fn a_loss_its_breaker_and_its_end_are_a_line_each() {
        let (start, mut report) = (Instant::now(), Report::default());
        let lost = report.lost(at(start, 0, 5), "closed", false);
        assert_eq!(lost.as_deref(), Some("redis r:1 lost: closed"));
        assert_eq!(report.failing(at(start, 10, 6), "refused", false), None);
        let open = report.failing(at(start, 60, 7), "refused", true).expect("a line");
        assert_eq!(
            open,
            "redis r:1 still away: refused; breaker open, on_error decides at once until it is back"
        );
        assert_eq!(report.failing(at(start, 160, 9), "refused", true), None, "told");
        let back = report.back(at(start, 3_000, 25)).expect("a line");
        assert_eq!(back, "redis r:1 is back after 3.0 s; on_error decided 20 requests meanwhile");
        assert_eq!(report.back(at(start, 3_100, 25)), None);
    }

    #[test]
    fn what_was_never_there_is_unreachable() {
        let (start, mut report) = (Instant::now(), Report::default());
        assert_eq!(report.failing(at(start, 0, 0), "refused", false), None);
        let open = report.failing(at(start, 50, 0), "refused", true).expect("a line");
        assert!(open.starts_with("redis r:1 unreachable: refused; breaker open"), "{open}");
        assert!(report.back(at(start, 100, 0)).is_some());
        assert_eq!(report.failing(at(start, 20_000, 0), "refused", false), None);
        let open = report.failing(at(start, 20_050, 0), "refused", true).expect("a line");
        assert!(open.starts_with("redis r:1 lost: refused; breaker open"), "{open}");
    }

    #[test]
    fn a_server_that_says_no_is_one_line() {
        let (start, mut report) = (Instant::now(), Report::default());
        let lost = report.lost(at(start, 0, 0), "LOADING", true).expect("a line");
        assert!(lost.starts_with("redis r:1 lost: LOADING; breaker open"), "{lost}");
        assert_eq!(report.failing(at(start, 60, 0), "LOADING", true), None);
    }

    /// It was stopped, then it reads its data set, and then somebody has changed
    /// the password: the last is what the operator has to know.
    #[test]
    fn each_reason_of_an_absence_is_told_once() {
        let (start, mut report) = (Instant::now(), Report::default());
        report.lost(at(start, 0, 0), "closed", true).expect("a line");
        for (millis, why) in [(900, "LOADING it"), (950, "NOAUTH no")] {
            let line = report.failing(at(start, millis, 0), why, true).expect(why);
            assert!(line.starts_with(&format!("redis r:1 still away: {why}; ")), "{line}");
            assert_eq!(report.failing(at(start, millis + 1, 0), why, true), None);
        }
        for why in ["LOADING it", "refused", "broken pipe"] {
            assert_eq!(report.failing(at(start, 1_000, 0), why, true), None);
        }
    }

    /// A server that makes up its codes fills no log.
    #[test]
    fn so_many_reasons_of_an_absence_are_told_and_no_more() {
        let (start, mut report) = (Instant::now(), Report::default());
        report.lost(at(start, 0, 0), "A no", true).expect("a line");
        let reasons = ('B'..='Z').map(|code| format!("{code} no"));
        let told = reasons.filter_map(|why| report.failing(at(start, 900, 0), &why, true));
        assert_eq!(told.count(), MAX_REASONS - 1);
    }

    /// A link that loses a packet now and then is no page of log lines.
    #[test]
    fn short_losses_in_close_succession_are_counted() {
        let (start, mut report) = (Instant::now(), Report::default());
        assert!(report.lost(at(start, 0, 0), "late", false).is_some());
        assert!(report.back(at(start, 100, 0)).is_some());
        for round in 1..=3 {
            assert_eq!(report.lost(at(start, round * 1_000, 0), "late", false), None);
            assert_eq!(report.failing(at(start, round * 1_000 + 300, 0), "late", true), None);
            assert_eq!(report.back(at(start, round * 1_000 + 500, 2 * round)), None);
        }
        assert_eq!(report.lost(at(start, 5_000, 0), "late", false), None);
        let long = report.lost(at(start, 6_200, 0), "late", false).expect("it lasts");
        assert_eq!(
            long,
            "redis r:1 lost 1.2 s ago: late (and 3 short losses before that, with 12 requests)"
        );
        assert!(report.back(at(start, 7_000, 0)).is_some());
        assert!(report.lost(at(start, 17_001, 0), "late", false).is_some(), "long after");
    }

    #[test]
    fn what_was_not_told_one_by_one_is_summed_up_soon() {
        let (start, mut report) = (Instant::now(), Report::default());
        report.lost(at(start, 0, 0), "late", false).expect("a line");
        report.back(at(start, 100, 5)).expect("a line");
        assert_eq!(report.summary_due(), None);
        for round in 1..=3 {
            assert_eq!(report.lost(at(start, round * 1_000, 5), "late", false), None);
            assert_eq!(report.back(at(start, round * 1_000 + 200, 9)), None);
        }
        let due = start + Duration::from_millis(10_100);
        assert_eq!(report.summary_due(), Some(due));
        assert_eq!(report.summary(at(start, 10_099, 9)), None);
        let line = report.summary(at(start, 10_100, 9)).expect("it is due");
        assert_eq!(
            line,
            "redis r:1 was lost 3 times more, each for less than 1 s; on_error decided 12 requests \
             meanwhile (told every 10 s)"
        );
        assert_eq!(report.summary_due(), None);
    }

    #[test]
    fn an_absence_that_lasts_is_told_again_now_and_then() {
        let (start, mut report) = (Instant::now(), Report::default());
        report.failing(at(start, 0, 3), "refused", true).expect("a line");
        assert_eq!(report.failing(at(start, 599_999, 50), "refused", true), None);
        let line = report.failing(at(start, 600_000, 53), "refused", true).expect("a line");
        assert_eq!(
            line,
            "redis r:1 still away after 600 s: refused; on_error decided 50 requests so far"
        );
        assert_eq!(report.failing(at(start, 600_001, 53), "refused", true), None);
    }

    #[test]
    fn a_complaint_is_made_every_ten_seconds_with_its_number() {
        let (start, mut report) = (Instant::now(), Report::default());
        let first = report.complaint(at(start, 0, 1), "OOM").expect("a line");
        assert_eq!(
            first,
            "redis r:1 answers with an error: OOM; on_error decides (told at most every 10 s)"
        );
        assert!(report.complaint(at(start, 9_999, 40), "OOM").is_none());
        let second = report.complaint(at(start, 10_000, 43), "OOM").expect("a line");
        assert!(second.contains("(42 requests since the last such line; told"), "{second}");
    }
}
