//! Client addresses: by what prefix they count, and which are exempt.
//!
//! One subscriber of IPv6 has a /64 or more, and may use any address of it: so
//! a network counts, not an address. `::ffff:a.b.c.d` is `a.b.c.d` (RFC 4291,
//! section 2.5.5.2).

use std::net::IpAddr;

use ipnet::IpNet;

/// How many leading bits of an address name a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    v4: u8,
    v6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { v4: Self::MAX_V4, v6: 64 }
    }
}

impl Prefixes {
    /// The bits of an IPv4 address.
    pub const MAX_V4: u8 = 32;
    /// The bits of an IPv6 address.
    pub const MAX_V6: u8 = 128;

    /// `None` unless `v4` is from 1 to 32 and `v6` from 1 to 128.
    pub fn new(v4: u8, v6: u8) -> Option<Self> {
        let in_range = (1..=Self::MAX_V4).contains(&v4) && (1..=Self::MAX_V6).contains(&v6);
        in_range.then_some(Self { v4, v6 })
    }

    /// Whether an IPv4 address stands for itself.
    pub const fn is_whole_v4(self) -> bool {
        self.v4 == Self::MAX_V4
    }

    /// The client of an address, as text: `192.0.2.7`, `192.0.2.0/24`,
    /// `2001:db8::/64`. What is no address, such as nginx's `unix:`, stays as
    /// it is.
    pub fn client(self, address: &str) -> String {
        let Ok(address) = address.parse::<IpAddr>() else { return address.to_owned() };
        let address = address.to_canonical();
        let (prefix, whole) = match address {
            IpAddr::V4(_) => (self.v4, Self::MAX_V4),
            IpAddr::V6(_) => (self.v6, Self::MAX_V6),
        };
        match IpNet::new(address, prefix) {
            Ok(network) if prefix < whole => network.trunc().to_string(),
            _ => address.to_string(),
        }
    }
}

/// A set of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// Adds a network, such as `10.0.0.0/8` or `2001:db8::/32`, or a single
    /// address. Returns whether it is one; bits behind the prefix must be zero.
    pub fn add(&mut self, text: &str) -> bool {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        match text.parse::<IpNet>().or(address) {
            Ok(network) if network.trunc() == network => {
                self.0.push(canonical(network));
                true
            }
            _ => false,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this address is in one of them. What is no address is in none.
    pub fn contains(&self, address: &str) -> bool {
        let Ok(address) = address.parse::<IpAddr>() else { return false };
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// The same network, of IPv4 addresses if it is one of those within IPv6.
fn canonical(network: IpNet) -> IpNet {
    let bits_before = Prefixes::MAX_V6 - Prefixes::MAX_V4;
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(bits_before)) {
        (address @ IpAddr::V4(_), Some(prefix)) if network.addr().is_ipv6() => {
            IpNet::new(address, prefix).unwrap_or(network)
        }
        _ => network,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(v4: u8, v6: u8, address: &str) -> String {
        Prefixes::new(v4, v6).expect("in range").client(address)
    }

    /// C22: a /64 is one client.
    #[test]
    fn an_ipv6_network_is_one_client() {
        let default = Prefixes::default();
        for address in ["2001:db8:1:2::", "2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2:0::9"] {
            assert_eq!(default.client(address), "2001:db8:1:2::/64");
        }
        assert_eq!(default.client("2001:db8:1:3::1"), "2001:db8:1:3::/64");
        assert_eq!(client(32, 48, "2001:db8:1:3::1"), "2001:db8:1::/48");
        assert_eq!(client(32, 128, "2001:DB8:0:0::1"), "2001:db8::1");
    }

    #[test]
    fn an_ipv4_address_is_one_client_however_it_is_written() {
        let default = Prefixes::default();
        assert_eq!(default.client("192.0.2.7"), "192.0.2.7");
        assert_eq!(default.client("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(client(24, 64, "::ffff:192.0.2.7"), "192.0.2.0/24");
        assert_eq!(client(1, 1, "200.0.2.7"), "128.0.0.0/1");
        assert_eq!(default.client("unix:"), "unix:");
        assert_eq!(default.client("192.0.2.7, 192.0.2.8"), "192.0.2.7, 192.0.2.8");
    }

    #[test]
    fn a_prefix_is_in_range() {
        for (v4, v6) in [(0, 64), (33, 64), (32, 0), (32, 129)] {
            assert_eq!(Prefixes::new(v4, v6), None, "{v4} {v6}");
        }
    }

    #[test]
    fn networks_hold_their_addresses_and_no_others() {
        let mut networks = Networks::default();
        for text in ["10.0.0.0/8", "2001:db8::/32", "192.0.2.7", "::1"] {
            assert!(networks.add(text), "{text}");
        }
        for inside in ["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3", "2001:db8::9", "192.0.2.7"]
        {
            assert!(networks.contains(inside), "{inside}");
        }
        for outside in ["11.0.0.0", "9.255.255.255", "2001:db9::", "192.0.2.8", "::2", "unix:", ""]
        {
            assert!(!networks.contains(outside), "{outside}");
        }
        let mut mapped = Networks::default();
        assert!(mapped.add("::ffff:10.0.0.0/104") && mapped.add("::ffff:192.0.2.7"));
        for inside in ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7"] {
            assert!(mapped.contains(inside), "{inside}");
        }
        assert!(!mapped.contains("11.0.0.0") && !mapped.contains("192.0.2.8"));
        // A mistake as likely as not: is 10.1.2.3 meant, or all of 10?
        for text in ["10.1.2.3/8", "10.0.0.0/33", "10.0.0", "10.0.0.0/", "all", ""] {
            assert!(!networks.add(text), "{text}");
        }
    }
}
