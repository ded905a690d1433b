//! What Lua is told of a decision.

use std::ffi::{c_char, c_void};
use std::ptr;

use weir_core::config::MAX_LIMITS;
use weir_core::decision::{Standing, Wait};
use weir_core::fields::{self, Presenter};
use weir_core::refusal::{Media, Refusal};
use weir_core::texts::Texts;
use weir_redis::Decided;

/// More headers than all styles have together.
const MAX_VALUES: usize = 8;

const _: () = assert!(BEFORE_VALUES + MAX_VALUES == 10 && MAX_LIMITS == 8, "see DECLARATION");

/// The texts before the headers': `Retry-After` and the names of the limits without
/// room; of a failure its word, and more to say to the log.
const BEFORE_VALUES: usize = 2;

/// The last decision or failure, as Lua reads it: [`Telling::DECLARATION`].
#[repr(C)]
#[derive(Debug)]
struct Told {
    ticket: f64,
    at: f64,
    remaining: f64,
    texts: *const c_char,
    serial: i32,
    allowed: i32,
    source: i32,
    /// How many of the texts are headers' values.
    values: i32,
    begins: [i32; BEFORE_VALUES + MAX_VALUES],
    lengths: [i32; BEFORE_VALUES + MAX_VALUES],
    limits: i32,
    tightest: i32,
    standings: [ToldStanding; MAX_LIMITS],
}

/// Where a limit stands. Times are in seconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ToldStanding {
    limit: f64,
    remaining: f64,
    retry_after: f64,
    reset: f64,
}

impl From<&Standing> for ToldStanding {
    fn from(standing: &Standing) -> Self {
        Self {
            limit: standing.limit as f64,
            remaining: standing.remaining as f64,
            retry_after: match standing.wait {
                Wait::For(wait) => wait.as_secs_f64(),
                Wait::None | Wait::Forever => NO_WAIT,
            },
            reset: standing.reset.as_secs_f64(),
        }
    }
}

/// Tells Lua of one decision at a time, in memory that stays where it is.
#[derive(Debug)]
pub(crate) struct Telling {
    told: Box<Told>,
    texts: Texts,
}

impl Default for Telling {
    fn default() -> Self {
        Self {
            told: Box::new(Told {
                ticket: 0.0,
                at: 0.0,
                remaining: 0.0,
                texts: ptr::null(),
                serial: 0,
                allowed: 0,
                source: 0,
                values: 0,
                begins: [0; BEFORE_VALUES + MAX_VALUES],
                lengths: [ABSENT; BEFORE_VALUES + MAX_VALUES],
                limits: 0,
                tightest: 0,
                standings: [ToldStanding::default(); MAX_LIMITS],
            }),
            texts: Texts::default(),
        }
    }
}

/// In place of a length: there is no such text.
const ABSENT: i32 = -1;

/// In place of a wait: there is none that ends.
const NO_WAIT: f64 = -1.0;

impl Telling {
    /// [`Told`] in C.
    ///
    /// `ticket` names an answer that is to come, or has come now; `at` is when it was
    /// decided, in microseconds since the epoch; `remaining` the units left of the
    /// tightest limit; `serial` another each time that something is told; `allowed`
    /// 1 or 0; `source` an index of [`weir_metrics::SOURCES`]; `values` how many headers
    /// there are. The length of a text that is absent is -1. The texts are: the wait in
    /// whole seconds; the names of the limits without room, between commas; and the
    /// values of the policy's headers in their order. Of what failed: the reason in one
    /// word, and more to say about it to the log. Of an answer: `Content-Type` and body.
    /// `limits` is how many the decision was made under, 0 of anything else; `tightest`
    /// the index of the one that the client is told of; and `standings` where each stands,
    /// in seconds, with a wait of -1 where there is none that ends.
    pub(crate) const DECLARATION: &'static str = "struct { double ticket; double at; \
        double remaining; const char *texts; int32_t serial; int32_t allowed; \
        int32_t source; int32_t values; int32_t begins[10]; int32_t lengths[10]; \
        int32_t limits; int32_t tightest; \
        struct { double limit; double remaining; double retry_after; double reset; } \
        standings[8]; }";

    /// Where Lua finds it: as long as this lives, and written by the methods below.
    pub(crate) fn address(&self) -> *const c_void {
        ptr::from_ref::<Told>(&self.told).cast()
    }

    /// Tells the ticket of what is under way, or has come.
    pub(crate) fn name(&mut self, ticket: u64) {
        self.told.ticket = ticket as f64;
    }

    /// Tells a decision, with the partition key if the headers tell it.
    pub(crate) fn tell(
        &mut self,
        presenter: &Presenter,
        decided: Decided,
        source: usize,
        partition_key: &[u8],
    ) {
        let Decided { at, verdict } = decided;
        self.begin();
        self.texts.push_number(fields::retry_after(&verdict));
        if verdict.allowed {
            self.texts.push_absent();
        } else {
            self.texts.push(|text| {
                for (index, name) in presenter.violated(&verdict).enumerate() {
                    if index > 0 {
                        text.push(',');
                    }
                    text.push_str(name);
                }
            });
        }
        presenter.write(&verdict, partition_key, &mut self.texts);
        self.told.at = at.as_micros() as f64;
        self.told.allowed = i32::from(verdict.allowed);
        self.told.source = source as i32;
        self.told.limits = verdict.limits.len().min(MAX_LIMITS) as i32;
        for (told, standing) in self.told.standings.iter_mut().zip(&verdict.limits) {
            *told = standing.into();
        }
        let tightest = verdict.tightest_index().unwrap_or_default();
        self.told.tightest = tightest as i32;
        self.told.remaining = self.told.standings.get(tightest).map_or(0.0, |told| told.remaining);
        self.show_texts();
    }

    /// Tells why there is no decision.
    pub(crate) fn fail(&mut self, reason: &str, detail: Option<&str>) {
        self.begin();
        self.texts.push(|text| text.push_str(reason));
        match detail {
            Some(detail) => self.texts.push(|text| text.push_str(detail)),
            None => self.texts.push_absent(),
        }
        self.show_texts();
    }

    /// Tells a line for the log.
    pub(crate) fn tell_line(&mut self, line: &str) {
        self.begin();
        self.texts.push(|text| text.push_str(line));
        self.show_texts();
    }

    /// Tells `Content-Type` and body of an answer.
    pub(crate) fn tell_refusal(&mut self, media: Media, refusal: Refusal) {
        self.begin();
        self.texts.push(|text| text.push_str(media.content_type()));
        self.texts.push(|text| refusal.write(media, text));
        self.show_texts();
    }

    /// Takes back what was told: whatever happens until it is told anew, nobody reads
    /// texts that are not there any more.
    fn begin(&mut self) {
        self.told.limits = 0;
        self.told.serial = self.told.serial.wrapping_add(1);
        self.told.lengths = [ABSENT; BEFORE_VALUES + MAX_VALUES];
        self.texts.clear();
    }

    fn show_texts(&mut self) {
        let Self { told, texts, .. } = self;
        told.texts = texts.text().as_ptr().cast();
        let ranges = texts.ranges();
        told.values = ranges.len().saturating_sub(BEFORE_VALUES) as i32;
        let shown = told.begins.iter_mut().zip(&mut told.lengths);
        let ranges = ranges.iter().chain(std::iter::repeat(&None));
        for ((begin, length), range) in shown.zip(ranges) {
            (*begin, *length) = match range {
                Some(range) => (range.start as i32, range.len() as i32),
                None => (0, ABSENT),
            };
        }
    }
}
