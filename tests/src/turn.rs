//! Several decisions that are asked for in one turn of nginx's event loop.

use crate::{Conf, Nginx};

/// How many.
pub const TURN: u64 = 8;

/// With a location that has the policy `api` decide [`TURN`] times, all asked for in
/// one turn: see [`ask`].
pub fn with_turn(conf: Conf) -> Conf {
    conf.content(
        "/turn",
        &format!(
            "local weir = require('resty.weir')
            local clock = require('resty.weir.calls').clock
            local began, threads = clock(), {{}}
            for i = 1, {TURN} do
                threads[i] = ngx.thread.spawn(function() return weir.check('api').source end)
            end
            ngx.print(math.floor((clock() - began) * 1000))
            for i = 1, {TURN} do
                local _, source = ngx.thread.wait(threads[i])
                ngx.print(' ', source)
            end"
        ),
    )
}

/// Asks, and sees that Redis decides. Returns in how many calls more than one that may
/// have left: in one for each millisecond that the asking took.
pub fn ask(nginx: &Nginx) -> u64 {
    let answer = nginx.client().get("/turn").body;
    let mut words = answer.split(' ');
    let more = words.next().and_then(|millis| millis.parse().ok());
    assert_eq!(words.collect::<Vec<_>>(), ["redis"; TURN as usize], "{answer}");
    more.expect(&answer)
}

/// Asks so many times, and sees that each time is a call of its own, or a few more where
/// it was slow. The first after others may have left before anybody knew of the rest.
pub fn assert_shared(nginx: &Nginx, times: u64) {
    let calls = || (nginx.count("batches"), nginx.count("batched"));
    let before = calls();
    let more: u64 = (0..times).map(|_| ask(nginx)).sum();
    let (batches, batched) = (calls().0 - before.0, calls().1 - before.1);
    assert_eq!(batched, times * TURN);
    assert!((times..=times + more).contains(&batches), "{batches} calls, and {more} may be more");
}
