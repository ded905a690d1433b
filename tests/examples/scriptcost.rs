use weir_tests::{Redis, script::Script};
fn main() {
    let redis = Redis::start();
    for limit in ["100/1m", "1000000/1m"] {
        for size in [1usize, 16, 64] {
            redis.command::<()>("FLUSHALL");
            let mut script = Script::new(redis.connect(), &[&[limit]]);
            let total = 60_000usize;
            redis.command::<()>("CONFIG RESETSTAT");
            let cpu = weir_tests::process::cpu(redis.pid());
            let mut n = 0;
            while n < total {
                let asks: Vec<_> = (0..size)
                    .map(|i| script.ask(0, &format!("c{}", ((n + i) * 7919) % 1000), 1))
                    .collect();
                script.batch(None, &asks);
                n += size;
            }
            let cpu = weir_tests::process::cpu(redis.pid()) - cpu;
            let info: String = redis.command("INFO commandstats");
            let line = info.lines().find(|l| l.starts_with("cmdstat_eval")).unwrap();
            let usec: f64 =
                line.split("usec=").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
            println!(
                "{limit} batch {size}: script {:.2} us/decision, redis cpu {:.2} us/decision",
                usec / n as f64,
                cpu.as_secs_f64() * 1e6 / n as f64
            );
        }
    }
}
