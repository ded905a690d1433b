//! Processes and ports.

use std::iter;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Where ports to listen at are taken from: below those that the kernel gives out
/// (from 32768 on). A connection that is bound to an address without
/// `SO_REUSEADDR`, as a sentinel's are, keeps its port from every listener at that
/// address for a minute after its end.
const LISTENING: Range<u16> = 26_000..32_000;

/// Where nodes of a cluster take theirs from; the port 10000 above is below
/// [`LISTENING`] too.
const NODES: Range<u16> = 10_000..16_000;

/// A port that is free now at every address, and that this process has not given
/// out lately.
pub fn free_port() -> u16 {
    static NEXT: Turn = Turn::new();
    in_turn(&NEXT, LISTENING).find(|&port| is_free(port)).expect("an endless iterator")
}

/// The same, and with it the port 10000 above, which a node of a cluster speaks to
/// the others on.
pub fn free_port_of_a_node() -> u16 {
    static NEXT: Turn = Turn::new();
    in_turn(&NEXT, NODES)
        .find(|&port| is_free(port) && is_free(port + 10_000))
        .expect("an endless iterator")
}

/// Which port of a range is next. Whoever is given one listens there only later:
/// if it were drawn by chance another could be given the same.
type Turn = OnceLock<AtomicUsize>;

/// The ports of a range, one after the other and round and round, from anywhere on.
fn in_turn(next: &'static Turn, range: Range<u16>) -> impl Iterator<Item = u16> {
    let next = next.get_or_init(|| AtomicUsize::new(fastrand::usize(..range.len())));
    iter::repeat_with(move || {
        range.start + (next.fetch_add(1, Ordering::Relaxed) % range.len()) as u16
    })
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

/// Sends a signal. A process that is gone already is no fault.
pub fn signal(pid: u32, signal: libc::c_int) {
    // SAFETY: kill takes numbers and touches no memory of ours.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// Has the calling thread, and all that it starts from now on, run before
/// everything else on this machine, so that what is measured is not somebody
/// else's work. False if that is not allowed.
pub fn goes_first() -> bool {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: sched_setscheduler reads the parameters, which outlive the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest) == 0 }
}

/// Has a command take Ctrl-C as one in a terminal does: what a shell runs in the
/// background ignores it, and its children cannot do otherwise.
pub fn heed_ctrl_c(command: &mut Command) -> &mut Command {
    let heed = || {
        // SAFETY: signal is async-signal-safe, as what runs between fork and
        // exec must be, and installs no handler of ours.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(heed) }
}

/// Whether the process is there and not a zombie.
pub fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or("Z").starts_with('Z'))
}

/// The pids of a process's children.
pub fn children(pid: u32) -> Vec<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .map(|child| child.parse().expect("a pid"))
        .collect()
}

/// The names of a process's threads, with their ids.
pub fn threads(pid: u32) -> Vec<(u32, String)> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks
        .filter_map(|task| {
            let task = task.ok()?;
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            Some((task.file_name().to_str()?.parse().ok()?, name.trim().to_owned()))
        })
        .collect()
}

/// A field of `/proc/PID/status`, such as `VmRSS`.
pub fn status(pid: u32, field: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
        .unwrap_or_else(|| panic!("no {field} of process {pid}"))
}

/// Waits for a child to end by itself; false if it is still there after
/// `limit`.
pub fn ends_within(child: &mut Child, limit: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Ends a child with `how`, or by force if it takes longer than 5 s.
pub fn end(child: &mut Child, how: libc::c_int) {
    signal(child.id(), how);
    if !ends_within(child, Duration::from_secs(5)) {
        signal(child.id(), libc::SIGKILL);
        let _ = child.wait();
    }
}

/// The CPU time a process has used, all its threads together.
pub fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    // The name, in parentheses, may hold anything; the fields are behind it.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    // Fields 14 and 15 of proc(5), counted from 3 here, in ticks.
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum();
    // SAFETY: sysconf takes a number and touches no memory of ours.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Duration::from_secs_f64(ticks as f64 / per_second as f64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_port_is_not_given_out_again_before_somebody_listens_there() {
        for give in [free_port, free_port_of_a_node] {
            let ports: Vec<u16> = (0..500).map(|_| give()).collect();
            assert_eq!(ports.iter().collect::<HashSet<_>>().len(), ports.len(), "{ports:?}");
        }
    }
}
