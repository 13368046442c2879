//! The addresses at which a destination may be reached. A name is resolved for each connection, and its owner
//! decides what it resolves to. So the controller judges the address instead of the name.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Addresses of cloud metadata services outside the link-local range. They hand out the machine's
/// credentials.
const METADATA: [IpAddr; 5] = [
    // Alibaba Cloud
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    // Azure's host
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Oracle Cloud
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    // AWS
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // Google Cloud
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// A range of addresses, as an operator writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AddressRange {
    Public,
    Private,
    Loopback,
    LinkLocal,
    Net(IpNet),
}

/// The use of an address. The first four have a word of their own in the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    Public,
    Private,
    Loopback,
    LinkLocal,
    Metadata,
    Reserved,
}

impl AddressKind {
    pub fn of(address: IpAddr) -> Self {
        let address = embedded_ipv4(address);
        if METADATA.contains(&address) {
            return Self::Metadata;
        }
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }
}

impl fmt::Display for AddressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "a public address",
            Self::Private => "a private address",
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "the address of a cloud's metadata",
            Self::Reserved => "a reserved address",
        })
    }
}

fn of_v4(address: Ipv4Addr) -> AddressKind {
    match address.octets() {
        [127, ..] => AddressKind::Loopback,
        // EC2, GCE, Azure and OpenStack; ECS and EKS.
        [169, 254, 169, 254] | [169, 254, 170, 2 | 23] => AddressKind::Metadata,
        [169, 254, ..] => AddressKind::LinkLocal,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressKind::Private,
        // Used between a provider and its customers. Clusters assign it to pods.
        [100, 64..=127, ..] => AddressKind::Private,
        [0 | 224..=255, ..] | [192, 0, 0 | 2, _] | [192, 88, 99, _] => AddressKind::Reserved,
        [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => AddressKind::Reserved,
        _ => AddressKind::Public,
    }
}

fn of_v6(address: Ipv6Addr) -> AddressKind {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressKind::Loopback,
        [0xfe80..=0xfebf, ..] => AddressKind::LinkLocal,
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] | [0x64, 0xff9b, 1, ..] => AddressKind::Private,
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] => AddressKind::Reserved,
        // Globally routed addresses are in 2000::/3.
        [0x2000..=0x3fff, ..] => AddressKind::Public,
        _ => AddressKind::Reserved,
    }
}

/// The IPv4 address that an IPv6 address leads to: mapped, translated (NAT64) or tunnelled (6to4).
fn embedded_ipv4(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let v4 = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => address,
    }
}

impl AddressRange {
    /// A cloud's metadata is in a range only if the range is that one address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let kind = AddressKind::of(address);
        match self {
            Self::Public => kind == AddressKind::Public,
            Self::Private => kind == AddressKind::Private,
            Self::Loopback => kind == AddressKind::Loopback,
            Self::LinkLocal => kind == AddressKind::LinkLocal,
            Self::Net(net) => {
                let is_one = net.prefix_len() == net.max_prefix_len();
                (kind != AddressKind::Metadata || is_one)
                    && (net.contains(&address) || net.contains(&embedded_ipv4(address)))
            }
        }
    }
}

/// A text is no range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is no range of addresses: write `public`, `private`, `loopback`, `linkLocal`, or a range such as \
     10.20.0.0/16"
)]
pub struct RangeFormError(String);

/// An address of a kind that the settings do not name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("is {kind}, which `addresses` does not name: add `{address}` there if this is meant")]
pub struct UnnamedAddress {
    pub(super) kind: AddressKind,
    pub(super) address: IpAddr,
}

impl FromStr for AddressRange {
    type Err = RangeFormError;

    fn from_str(text: &str) -> Result<Self, RangeFormError> {
        let net = || text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        match text {
            "public" => Ok(Self::Public),
            "private" => Ok(Self::Private),
            "loopback" => Ok(Self::Loopback),
            "linkLocal" => Ok(Self::LinkLocal),
            _ => net().map(Self::Net).ok_or_else(|| RangeFormError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for AddressRange {
    type Error = RangeFormError;

    fn try_from(text: String) -> Result<Self, RangeFormError> {
        text.parse()
    }
}

impl From<AddressRange> for String {
    fn from(range: AddressRange) -> Self {
        match range {
            AddressRange::Public => "public".into(),
            AddressRange::Private => "private".into(),
            AddressRange::Loopback => "loopback".into(),
            AddressRange::LinkLocal => "linkLocal".into(),
            AddressRange::Net(net) => net.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> AddressKind {
        AddressKind::of(text.parse().unwrap())
    }

    #[test]
    fn an_address_is_of_the_kind_that_it_leads_to() {
        use AddressKind::{LinkLocal, Loopback, Metadata, Private, Public, Reserved};
        for (expected, addresses) in [
            (Public, &["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8"][..]),
            (Private, &["10.0.0.1", "172.16.0.1", "172.31.9.9", "192.168.1.1", "100.64.0.1"]),
            (Private, &["fc00::1", "fd12:3456::1", "fec0::1", "64:ff9b:1::a00:1"]),
            (Private, &["::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "2002:0a00:0001::1"]),
            (Loopback, &["127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"]),
            (LinkLocal, &["169.254.1.1", "fe80::1", "febf::1", "::ffff:169.254.1.1"]),
            (Metadata, &["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16"]),
            (Metadata, &["fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"]),
            (Reserved, &["0.0.0.0", "0.1.2.3", "224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1"]),
            (Reserved, &["::", "::7f00:1", "ff02::1", "2001:db8::1", "2001::1", "192.0.2.1", "4000::1"]),
        ] {
            for address in addresses {
                assert_eq!(kind(address), expected, "{address}");
            }
        }
    }

    #[test]
    fn a_range_holds_what_it_names_and_no_metadata_but_by_its_own_address() {
        let holds = |range: &str, address: &str| {
            range.parse::<AddressRange>().unwrap().contains(address.parse().unwrap())
        };
        for (range, inside, outside) in [
            ("public", "8.8.8.8", "10.0.0.1"),
            ("private", "10.0.0.1", "127.0.0.1"),
            ("loopback", "::1", "8.8.8.8"),
            ("linkLocal", "169.254.0.1", "169.254.169.254"),
            ("10.20.0.0/16", "10.20.3.4", "10.21.0.1"),
            ("10.20.0.0/16", "::ffff:10.20.3.4", "::ffff:10.21.0.1"),
            ("fd00::/8", "fd00::1", "fd00:ec2::254"),
            ("0.0.0.0/0", "10.0.0.1", "169.254.169.254"),
            ("169.254.169.254/32", "169.254.169.254", "169.254.169.253"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
        ] {
            assert!(holds(range, inside), "{range} {inside}");
            assert!(!holds(range, outside), "{range} {outside}");
        }
    }

    #[test]
    fn a_range_is_written_as_it_is_read() {
        for text in ["public", "private", "loopback", "linkLocal", "10.0.0.0/8", "fd00::/8"] {
            assert_eq!(String::from(text.parse::<AddressRange>().unwrap()), text);
        }
        let error = "privat".parse::<AddressRange>().unwrap_err();
        assert!(error.to_string().contains("`privat` is no range of addresses: write `public`"), "{error}");
        assert!("10.0.0.0/33".parse::<AddressRange>().is_err());
    }
}
