use super::scene::{self, Seen};
use super::*;
use crate::testing::{asks, run};

/// When the first wait is over, or the second, or the third.
fn after(waits: u32, limiter: &Limiter<Seen>) -> Instant {
    Instant::now() + limiter.nodes.patience() * waits
}

/// `redis.queue` is how many wait there.
#[test]
fn what_cannot_leave_yet_is_left_in_the_queue() {
    run(async {
        let seen = Seen::default();
        let mut limiter = scene::single(&seen);
        assert!(!limiter.takes(), "there is no connection yet");
        for wait in 1..=3 {
            limiter.do_chores(after(wait, &limiter));
        }
        assert!(limiter.takes(), "there will be none soon");
        limiter.take(asks(2).into_iter());
        limiter.dispatch();
        assert_eq!(seen.answered(), [1, 2]);

        let mut limiter = scene::cluster(&seen);
        assert!(!limiter.takes(), "there is no map yet");
        for wait in 1..=3 {
            limiter.do_chores(after(wait, &limiter));
        }
        assert!(limiter.takes());
    });
}

/// An attempt may take longer than a request can wait.
#[test]
fn waiting_in_vain_is_a_failure_each_time() {
    run(async {
        for make in [scene::single as fn(&Seen) -> _, scene::cluster] {
            let seen = Seen::default();
            let mut limiter: Limiter<Seen> = make(&seen);
            let first = after(1, &limiter);
            limiter.do_chores(first);
            assert!(limiter.next_chore().is_some_and(|next| next >= first), "it begins anew");
            limiter.do_chores(after(2, &limiter));
            limiter.show_state();
            assert_eq!(limiter.desk.health.link(), LinkState::Connecting);
            limiter.do_chores(after(3, &limiter));
            limiter.show_state();
            assert_eq!(limiter.desk.health.link(), LinkState::Down);
            assert_eq!(limiter.desk.health.opened.load(Relaxed), 1);
            let lines = seen.lines.borrow();
            assert!(lines.len() == 1 && lines[0].contains("unreachable: no answer"), "{lines:?}");
        }
    });
}
