use super::*;
use crate::limit::BucketRate;

const SECOND: Duration = Duration::from_secs(1);

fn log(rate: &str) -> Limit {
    Limit::SlidingLog(rate.parse().expect(rate))
}

fn presenter(styles: &[HeaderStyle], limits: &[Limit]) -> Presenter {
    let mut policy = Policy::new("api", limits.to_vec());
    policy.answers.headers = styles.to_vec();
    Presenter::new(&policy, limits)
}

fn standing(limit: u64, remaining: u64, wait: Wait, reset: Duration) -> Standing {
    Standing { limit, remaining, wait, reset }
}

fn verdict(limits: &[Standing]) -> Verdict {
    let allowed = limits.iter().all(|limit| limit.wait.is_none());
    Verdict { allowed, limits: limits.to_vec() }
}

fn values(presenter: &Presenter, verdict: &Verdict, partition_key: &[u8]) -> Vec<Option<String>> {
    let mut values = Texts::default();
    presenter.write(verdict, partition_key, &mut values);
    values.iter().map(|value| value.map(str::to_owned)).collect()
}

/// The values, in one text.
fn told(presenter: &Presenter, verdict: &Verdict) -> String {
    let values = values(presenter, verdict, b"");
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    values.into_iter().map(shown).collect::<Vec<_>>().join(" | ")
}

fn separate(standing: Standing) -> String {
    told(&presenter(&[HeaderStyle::Separate], &[log("1/1s")]), &verdict(&[standing]))
}

#[test]
fn numbers_are_plain_digits_however_large() {
    let most = 9_007_199_254_740_991;
    let standing = standing(most, most - 1, Wait::None, Duration::from_secs(31_622_400));
    assert_eq!(separate(standing), "9007199254740991 | 9007199254740990 | 31622400");
    // A structured field's integers end at 15 digits.
    let limits = [log("9007199254740991/366d")];
    assert_eq!(
        told(&presenter(&[HeaderStyle::Draft11], &limits), &verdict(&[standing])),
        "\"api\";q=999999999999999;w=31622400 | \"api\";r=999999999999999;t=31622400"
    );
}

#[test]
fn seconds_are_rounded_up_and_a_wait_is_never_zero() {
    for (micros, seconds) in [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)] {
        let wait = Wait::For(Duration::from_micros(micros));
        let verdict = verdict(&[standing(1, 0, wait, 60 * SECOND)]);
        assert_eq!(retry_after(&verdict), Some(seconds), "{micros}");
    }
    assert_eq!(retry_after(&verdict(&[standing(1, 0, Wait::None, SECOND)])), None);
}

/// C16: on a 429 the reset is the instant of Retry-After.
#[test]
fn on_a_refusal_the_reset_is_the_wait() {
    let refused = standing(2, 0, Wait::For(50 * SECOND), 51 * SECOND);
    assert_eq!(separate(refused), "2 | 0 | 50");
    assert_eq!(retry_after(&verdict(&[refused])), Some(50));
}

#[test]
fn a_cost_that_never_fits_is_told_no_time() {
    for reset in [0, 9] {
        let refused = standing(5, 3, Wait::Forever, reset * SECOND);
        assert_eq!(separate(refused), "5 | 3 | -");
        assert_eq!(retry_after(&verdict(&[refused])), None);
        let draft = presenter(&[HeaderStyle::Draft11], &[log("5/1s")]);
        assert_eq!(told(&draft, &verdict(&[refused])), "\"api\";q=5;w=1 | \"api\";r=3");
    }
}

#[test]
fn each_limit_is_a_member_of_the_draft_11_lists() {
    let bucket = |rate: &str, burst| {
        Limit::TokenBucket(BucketRate::new(rate.parse().expect(rate), burst).expect("a bucket"))
    };
    let quota = |text: &str| Limit::Quota(text.parse().expect(text));
    let limits = [
        log("100/1m"),
        log("5/1500ms"),
        bucket("10/1s", 40),
        bucket("3/2s", 5),
        quota("7/hour"),
        quota("8/day"),
        quota("9/month"),
    ];
    let presenter = presenter(&[HeaderStyle::Draft11], &limits);
    let standings: Vec<Standing> = limits
        .iter()
        .map(|limit| standing(limit.capacity(), 1, Wait::None, Duration::from_millis(16_001)))
        .collect();
    let told = told(&presenter, &verdict(&standings));
    let (policy, limit) = told.split_once(" | ").expect("two fields");
    assert_eq!(
        policy,
        "\"api:log:1m\";q=100;w=60, \"api:log:1500ms\";q=5, \"api:bucket:1s\";q=40;w=4, \
         \"api:bucket:2s\";q=5, \"api:quota:hour\";q=7;w=3600, \"api:quota:day\";q=8;w=86400, \
         \"api:quota:month\";q=9"
    );
    assert!(limit.starts_with("\"api:log:1m\";r=1;t=17, \"api:log:1500ms\";r=1;t=17, "), "{limit}");
    assert_eq!(limit.matches(";t=17").count(), 7);
}

/// The draft wants no time in RateLimit after that of Retry-After.
#[test]
fn a_refusal_tells_no_time_after_retry_after() {
    let limits = [log("9/1h"), log("5/1m"), log("1/1s")];
    let presenter = presenter(&[HeaderStyle::Draft11], &limits);
    let verdict = verdict(&[
        standing(9, 4, Wait::None, 3_600 * SECOND),
        standing(5, 0, Wait::For(30 * SECOND), 60 * SECOND),
        standing(1, 0, Wait::For(SECOND), SECOND),
    ]);
    let told = told(&presenter, &verdict);
    assert!(
        told.ends_with("\"api:log:1h\";r=4, \"api:log:1m\";r=0;t=30, \"api:log:1s\";r=0;t=1"),
        "{told}"
    );
    assert_eq!(retry_after(&verdict), Some(30));
    let violated: Vec<&str> = presenter.violated(&verdict).collect();
    assert_eq!(violated, ["api:log:1m", "api:log:1s"]);
}

#[test]
fn styles_stand_one_behind_the_other() {
    let styles = [HeaderStyle::X, HeaderStyle::Draft11, HeaderStyle::Separate];
    let presenter = presenter(&styles, &[log("5/1s")]);
    let values = values(&presenter, &verdict(&[standing(5, 4, Wait::None, SECOND)]), b"");
    let headers: Vec<_> = styles.iter().flat_map(|style| style.headers()).collect();
    assert_eq!(values.len(), headers.len());
    assert_eq!(values[1].as_deref(), Some("4"));
    assert_eq!(values[4].as_deref(), Some("\"api\";r=4;t=1"));
    assert_eq!(values[6].as_deref(), Some("4"));
}

#[test]
fn the_partition_key_is_told_only_where_it_is_asked_for() {
    let mut policy = Policy::new("api", vec![log("5/1s")]);
    policy.answers.headers = vec![HeaderStyle::Draft11];
    policy.answers.partition_key = true;
    let presenter = Presenter::new(&policy, &policy.limits);
    let verdict = verdict(&[standing(5, 4, Wait::None, SECOND)]);
    let values = values(&presenter, &verdict, b"alice");
    assert_eq!(values[0].as_deref(), Some("\"api\";q=5;w=1;pk=:YWxpY2U=:"));
    assert_eq!(values[1].as_deref(), Some("\"api\";r=4;t=1;pk=:YWxpY2U=:"));
}
