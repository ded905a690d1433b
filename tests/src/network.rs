//! A network namespace behind a link of its own: a server in it is somewhere else
//! for nginx, and the link can lose packets. Needs root, `ip` and `iptables`.

use std::io::Result;
use std::process::{Command, Output};

/// A namespace, and the link to it; both are removed on drop.
pub struct Network {
    name: String,
    /// Our end of the link, by which it is removed.
    near: String,
    address: String,
}

/// Where all packets of the link pass, and are lost if a rule says so.
const CHAIN: &str = "LINK";

impl Network {
    /// Makes a namespace of the test's own.
    pub fn start() -> Self {
        let own = fastrand::u32(..);
        let network = Self {
            name: format!("weir-{own:08x}"),
            near: format!("weir{own:08x}"),
            address: free_address(),
        };
        network.build(&format!("weif{own:08x}"));
        network
    }

    fn build(&self, far: &str) {
        let Self { name, near, address } = self;
        ip(&format!("netns add {name}"));
        ip(&format!("link add {near} type veth peer name {far} netns {name}"));
        ip(&format!("addr add {} dev {near}", near_address(address)));
        ip(&format!("link set {near} up"));
        ip(&format!("-n {name} addr add {address}/30 dev {far}"));
        ip(&format!("-n {name} link set {far} up"));
        ip(&format!("-n {name} link set lo up"));
        // The first rule drops nothing: it counts who wants to connect.
        self.iptables("-A INPUT -p tcp --syn");
        self.iptables(&format!("-N {CHAIN}"));
        for direction in ["INPUT", "OUTPUT"] {
            self.iptables(&format!("-A {direction} -j {CHAIN}"));
        }
    }

    /// The address of whatever listens in it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What runs a program in it, in front of the program's name.
    pub fn inside(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].map(str::to_owned).to_vec()
    }

    /// Loses every packet, in both directions.
    pub fn drop_all(&self) {
        self.iptables(&format!("-A {CHAIN} -j DROP"));
    }

    /// Loses this share of the packets in each direction, by chance; an error if
    /// this kernel cannot.
    pub fn drop_share(&self, share: f64) -> std::result::Result<(), String> {
        let rule = format!("-A {CHAIN} -m statistic --mode random --probability {share} -j DROP");
        self.try_iptables(&rule).map(drop)
    }

    /// Loses nothing any more.
    pub fn heal(&self) {
        self.iptables(&format!("-F {CHAIN}"));
    }

    /// How many packets came in that ask for a connection, lost or not. One that
    /// is lost is sent again after a second.
    pub fn asked_to_connect(&self) -> u64 {
        let rules = self.iptables("-L INPUT -n -v -x");
        let packets = rules.lines().nth(2).and_then(|rule| rule.split_whitespace().next());
        packets.and_then(|packets| packets.parse().ok()).unwrap_or_else(|| panic!("{rules}"))
    }

    fn iptables(&self, rule: &str) -> String {
        self.try_iptables(rule).unwrap_or_else(|error| panic!("iptables {rule}: {error}"))
    }

    fn try_iptables(&self, rule: &str) -> std::result::Result<String, String> {
        let inside = self.inside();
        let mut command = Command::new(&inside[0]);
        command.args(&inside[1..]).args(["iptables", "-w"]).args(rule.split(' '));
        said(command.output())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Whatever of it was made. The far end goes with ours.
        for what in [format!("link del {}", self.near), format!("netns del {}", self.name)] {
            let _ = Command::new("ip").args(what.split(' ')).output();
        }
    }
}

/// Of 198.18.0.0/15, which RFC 2544 sets aside for tests, a network of four
/// addresses that nobody here uses yet: its second host.
fn free_address() -> String {
    let route = |address: &str| ip(&format!("route show match {address} scope link"));
    std::iter::repeat_with(|| {
        let [_, host_b, third, fourth] = fastrand::u32(..).to_be_bytes();
        format!("198.{}.{third}.{}", 18 + host_b % 2, (fourth & 0xfc) + 2)
    })
    .find(|address| !route(address).contains("198."))
    .expect("an endless number")
}

/// The first host of the same network, with its length.
fn near_address(far: &str) -> String {
    let (network, host) = far.rsplit_once('.').expect("an IPv4 address");
    let host: u8 = host.parse().expect("a number");
    format!("{network}.{}/30", host - 1)
}

fn ip(arguments: &str) -> String {
    said(Command::new("ip").args(arguments.split(' ')).output()).unwrap_or_else(|error| {
        panic!("ip {arguments}: {error}; a network of the test's own needs root and iproute2")
    })
}

/// What a program printed, or why it failed.
fn said(output: Result<Output>) -> std::result::Result<String, String> {
    let Output { status, stdout, stderr } = output.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if status.success() { Ok(text(&stdout)) } else { Err(text(&stderr)) }
}
