//! What the tests of failures stand on: a load that keeps its rate and its times,
//! a proxy and a network that do what they are told.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use weir_tests::load::Stream;
use weir_tests::wire::{Echo, connect};
use weir_tests::{Conf, Load, Network, Nginx, Proxy, Redis, process, wait_until};

const SECOND: Duration = Duration::from_secs(1);

fn plain(rate: u32) -> [Stream; 1] {
    [Stream { path: "/plain", rate }]
}

fn nginx() -> Nginx {
    // Where it is not allowed, a busy machine may be seen here.
    process::goes_first();
    Nginx::start(&Conf::new("redis://127.0.0.1:1/0", "api = { limit = \"1/1s\" }"))
}

/// Twice what the tests of failures ask of Weir, as those ask as much of `/plain`.
#[test]
fn a_load_keeps_its_rate_and_is_not_what_takes_the_time() {
    let nginx = nginx();
    let load = Load::start(nginx.port(), 400, &plain(4_000));
    let begun = Instant::now();
    sleep(SECOND * 3 / 2);
    let due = begun.elapsed().as_secs_f64() * 4_000.0;
    let answers = load.stop();
    let times = [0.5, 0.99, 1.0].map(|share| answers.quantile(share));
    println!("{} answers of {due:.0}; p50, p99 and worst: {times:?}", answers.count());
    assert_eq!(answers.statuses().into_keys().collect::<Vec<_>>(), [200]);
    assert!((due * 0.97..due * 1.03).contains(&(answers.count() as f64)), "{}", answers.count());
    // A load that cannot keep up is later and later; a machine that stands still for a
    // moment is late once.
    assert!(answers.quantile_since_due(0.5) < Duration::from_millis(5));
    // Two due times of 4,000 a second are a quarter of a millisecond apart.
    let due: Vec<Instant> = answers.iter().map(|asked| asked.due).collect();
    let (first, last) = (due.iter().min().unwrap(), due.iter().max().unwrap());
    let gap = (*last - *first).div_f64((due.len() - 1) as f64);
    assert_eq!(gap.as_micros(), 250);
}

/// What a client that waits for each answer would hide.
#[test]
fn a_stall_is_met_by_every_request_that_was_due_in_it() {
    let nginx = nginx();
    let load = Load::start(nginx.port(), 400, &plain(1_000));
    let [worker] = nginx.workers()[..] else { panic!("one worker") };
    wait_until("it runs", SECOND, || load.so_far().count() > 100);
    process::signal(worker, libc::SIGSTOP);
    let stopped = Instant::now();
    sleep(Duration::from_millis(200));
    let in_the_stall = load.so_far().since(stopped).count();
    process::signal(worker, libc::SIGCONT);
    let answers = load.stop().since(stopped);
    assert!(in_the_stall < 20, "{in_the_stall} were answered by a stopped worker");
    let late = answers.later_than(Duration::from_millis(100));
    assert!((80..=130).contains(&late), "{late} waited for more than half of it");
    assert!(answers.worst() > Duration::from_millis(190));
}

#[test]
fn a_broken_connection_is_told_as_no_answer() {
    let nginx = Nginx::start(
        &Conf::new("redis://127.0.0.1:1/0", "api = { limit = \"1/1s\" }")
            .server("location /broken { return 444; }"),
    );
    let streams = [Stream { path: "/broken", rate: 100 }, Stream { path: "/plain", rate: 100 }];
    let load = Load::start(nginx.port(), 10, &streams);
    wait_until("a few of each", SECOND, || load.so_far().count() > 40);
    let answers = load.stop();
    assert_eq!(answers.to("/broken").statuses().into_keys().collect::<Vec<_>>(), [0]);
    assert_eq!(answers.to("/plain").statuses().into_keys().collect::<Vec<_>>(), [200]);
}

/// A connection through a proxy to a server that sends back what it gets.
fn echoed(proxy: &Proxy) -> TcpStream {
    let mut stream = connect(proxy.port());
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    weir_tests::wire::read_head(&mut stream).unwrap();
    stream
}

/// More than fits into the delay's worth of any buffer comes in its order, after
/// the delay and not much later.
#[test]
fn a_proxy_delays_and_keeps_order_and_throughput() {
    process::goes_first();
    let proxy = Proxy::to(Echo::start().port());
    let mut stream = echoed(&proxy);
    proxy.set_round_trip(Duration::from_millis(40));
    let begun = Instant::now();
    let mut byte = [0];
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut byte).unwrap();
    let took = begun.elapsed();
    assert!((40..60).contains(&took.as_millis()), "{took:?}");

    let sent: Vec<u8> = (0..4_000_000_u32).map(|n| (n % 251) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let bytes = sent.clone();
    let begun = Instant::now();
    let writing = spawn(move || writer.write_all(&bytes).unwrap());
    let mut received = vec![0; sent.len()];
    stream.read_exact(&mut received).unwrap();
    writing.join().unwrap();
    assert!(received == sent, "in another order");
    // One buffer of 64 KiB for each 20 ms would take more than a second.
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    assert_eq!(proxy.accepted(), 1);
}

#[test]
fn a_proxy_is_silent_refuses_and_cuts_when_told() {
    let proxy = Proxy::to(Echo::start().port());
    let mut stream = echoed(&proxy);
    let mut byte = [0];

    proxy.go_silent();
    stream.write_all(b"x").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert_eq!(stream.read_exact(&mut byte).unwrap_err().kind(), ErrorKind::WouldBlock);
    let _accepted = connect(proxy.port());
    wait_until("it accepts", SECOND, || proxy.accepted() == 2);
    proxy.speak();
    stream.set_read_timeout(Some(SECOND)).unwrap();
    stream.read_exact(&mut byte).expect("what was held");

    proxy.refuse();
    let refused = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    stream.write_all(b"y").unwrap();
    stream.read_exact(&mut byte).expect("what is open stays open");
    proxy.cut();
    assert_eq!(stream.read(&mut byte).expect("the end, and no timeout"), 0);
    proxy.accept();
    echoed(&proxy);
}

#[test]
fn a_network_loses_what_it_is_told_to_and_leaves_nothing_behind() {
    let network = Network::start();
    let redis = Redis::start_in(&network);
    let asked = network.asked_to_connect();
    assert_eq!(redis.command::<String>("PING"), "PONG");
    assert_eq!(network.asked_to_connect(), asked + 1);
    network.drop_all();
    let address = (network.address(), redis.port());
    let address = address.to_socket_addrs().unwrap().next().unwrap();
    let lost = TcpStream::connect_timeout(&address, Duration::from_millis(100)).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::TimedOut);
    assert_eq!(network.asked_to_connect(), asked + 2, "counted before it was lost");
    network.heal();
    assert_eq!(redis.command::<String>("PING"), "PONG");
    let name = network.inside()[3].clone();
    drop((redis, network));
    let left = |what: &[&str]| {
        let output = std::process::Command::new("ip").args(what).output().expect("ip");
        String::from_utf8_lossy(&output.stdout).contains(&name.replace('-', ""))
            || String::from_utf8_lossy(&output.stdout).contains(&name)
    };
    assert!(!left(&["link"]) && !left(&["netns"]));
}
