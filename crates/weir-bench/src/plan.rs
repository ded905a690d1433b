//! What is measured in one run, and how long it takes.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::options::Compare;

/// With how many connections the hot client and the second worker are looked at.
const ASIDE: u32 = 64;

/// What a round takes beside the load: starting wrk, emptying Redis, and having each
/// client refused once where refusals are measured.
pub const AROUND_A_ROUND: Duration = Duration::from_millis(300);

/// Under what load all contenders are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Workers of nginx.
    pub workers: u32,
    /// Clients that the requests are of.
    pub clients: u32,
    /// Connections that are kept busy.
    pub connections: u32,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (connections, workers) =
            (plural(self.connections, "connection"), plural(self.workers, "worker"));
        write!(f, "{connections}, {}, {workers}", plural(self.clients, "client"))
    }
}

/// As `1 worker` or `2 workers`.
pub fn plural(count: u32, one: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        many => format!("{many} {one}s"),
    }
}

/// All groups of a run, those of one number of workers together.
pub fn groups(options: &Compare) -> Vec<Group> {
    let all_connections = options.connections();
    let (all_workers, all_clients) = (options.workers(), options.clients());
    let most = all_connections.iter().copied().max().unwrap_or(ASIDE);
    let aside = if all_connections.contains(&ASIDE) { ASIDE } else { most };
    let mut groups: Vec<Group> = Vec::new();
    for (nth_workers, &workers) in all_workers.iter().enumerate() {
        for (nth_clients, &clients) in all_clients.iter().enumerate() {
            for &connections in &all_connections {
                let measured = match (nth_workers, nth_clients) {
                    (0, 0) => true,
                    (0, _) | (_, 0) => options.full || connections == aside,
                    _ => options.full,
                };
                let group = Group { workers, clients, connections };
                if measured && !groups.contains(&group) {
                    groups.push(group);
                }
            }
        }
    }
    groups
}

/// How long a group takes.
pub fn expected(options: &Compare) -> Duration {
    let round = Duration::from_secs(options.seconds().into()) + AROUND_A_ROUND;
    round * options.rounds() * options.contenders().len() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::compare;

    fn of(arguments: &[&str]) -> Vec<(u32, u32, u32)> {
        let groups = groups(&compare(arguments));
        groups.iter().map(|group| (group.workers, group.clients, group.connections)).collect()
    }

    #[test]
    fn the_hot_client_and_the_second_worker_are_looked_at_with_64_connections() {
        let main = [(1, 1000, 1), (1, 1000, 16), (1, 1000, 64), (1, 1000, 256)];
        assert_eq!(of(&[]), [&main[..], &[(1, 1, 64), (2, 1000, 64)]].concat());
        assert_eq!(of(&["--connections", "2"]), [(1, 1000, 2), (1, 1, 2), (2, 1000, 2)]);
        assert_eq!(of(&["--quick"]), main);
    }

    #[test]
    fn a_full_run_has_every_combination_once() {
        assert_eq!(of(&["--full"]).len(), 16);
        assert_eq!(of(&["--full", "--workers", "1,1", "--connections", "4,4"]).len(), 2);
    }
}
