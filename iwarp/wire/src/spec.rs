//! The specification of a wire: `kind[:where][,key=value..]`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use tcp_lite::facade::{IpAddress, IpCidr};

use crate::impairment::Impairment;

/// The kinds of wires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Shared memory between processes of one user. Each wire has its own name.
    Local {
        /// The name of the wire, or `default` if the specification has no name.
        name: String,
    },
    /// An interface of the kernel, through a packet socket with rings.
    Packet {
        /// The name of the interface.
        interface: String,
    },
    /// A tap interface, which is created if it does not exist.
    Tap {
        /// The name of the interface.
        interface: String,
    },
    /// An interface of the kernel, through AF_XDP.
    Xdp {
        /// The name of the interface.
        interface: String,
    },
    /// The side of a vhost-user socket that creates the socket.
    Vhost {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The side of a vhost-user socket that connects to the socket.
    Virtio {
        /// The path of the socket.
        path: PathBuf,
    },
    /// Shared memory through DPDK's memif.
    Memif {
        /// The path of the socket.
        path: PathBuf,
        /// Whether this endpoint has the role `server`, and not `client`.
        server: bool,
        /// The number of the interface on the socket.
        id: u32,
    },
    /// A DPDK device that EAL arguments name.
    Dpdk {
        /// The arguments, for example `-a 0000:03:00.0`.
        arguments: String,
    },
}

/// A wire, and the settings of this endpoint of the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The kind of the wire, with its name, interface or path.
    pub kind: Kind,
    /// The address of this endpoint, with its prefix length. On a `local` wire this is `None`, since the wire
    /// chooses the address. On a `packet` wire it may be `None` if the caller of
    /// [`open_packet`](crate::open_packet) chooses the address.
    pub address: Option<IpCidr>,
    /// The last address of a range of which `address` is the first (`addr=10.0.0.2-10.0.0.9/24`): each
    /// process on the interface has another address of the range. Only a `packet` wire can have a range, and
    /// the caller of [`open_packet`](crate::open_packet) chooses the address.
    pub last_address: Option<IpAddress>,
    /// The gateway to addresses outside of this endpoint's network.
    pub gateway: Option<IpAddress>,
    /// The Ethernet address of this endpoint. `None`: the address of the device, or on a tap interface an
    /// address that is derived from the IP address.
    pub mac: Option<[u8; 6]>,
    /// Maximum number of bytes of an IP packet. `None`: the default of the kind of wire.
    pub mtu: Option<u16>,
    /// Whether this endpoint requests CRCs of MPA. `None`: it requests CRCs on every wire except `local`,
    /// whose frames never leave memory.
    pub crc: Option<bool>,
    /// Maximum number of bytes of a ring of a local wire
    /// ([`LocalConfig::ring_bytes`](dp::local::LocalConfig::ring_bytes)): a power of two from 256 KiB to 256
    /// MiB. `None`: 2 MiB.
    pub ring_bytes: Option<usize>,
    /// The loss and the delay of the frames that this endpoint sends. Frames of a process to itself do not
    /// cross the wire, if [`Loopback`](dp::Loopback) returns them.
    pub impairment: Impairment,
}

/// Why a specification was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The specification names an unknown kind.
    #[error("{spec}: there is no kind '{kind}': use one of {KINDS}")]
    Kind {
        /// The whole text of the specification.
        spec: String,
        /// The kind in the specification.
        kind: String,
    },
    /// The part after the kind is missing.
    #[error("{spec}: '{kind}' needs {what}, like {example}")]
    Where {
        /// The whole text of the specification.
        spec: String,
        /// The kind in the specification.
        kind: String,
        /// A description of the missing part.
        what: &'static str,
        /// A complete specification as an example.
        example: &'static str,
    },
    /// The specification has an unknown key.
    #[error("{spec}: there is no key '{key}' for this kind: use {known}")]
    Key {
        /// The whole text of the specification.
        spec: String,
        /// The key.
        key: String,
        /// The keys that this kind allows.
        known: &'static str,
    },
    /// The value of a key is invalid.
    #[error("{spec}: {key}={value} is no {what}")]
    Value {
        /// The whole text of the specification.
        spec: String,
        /// The key.
        key: String,
        /// The value of the key.
        value: String,
        /// A description of the valid values.
        what: &'static str,
    },
    /// The specification has a range of addresses, but this kind of wire or this program has one address.
    #[error("{spec}: one address is needed here: only programs on packet:IF share a range of addresses")]
    Range {
        /// The whole text of the specification.
        spec: String,
    },
    /// The specification has no address, but this kind of wire needs an address.
    #[error(
        "{spec}: this kind needs an address of its own: add addr=10.0.0.2/24 (one that the kernel does not have)"
    )]
    NoAddress {
        /// The whole text of the specification.
        spec: String,
    },
}

const KINDS: &str = "local[:name], packet:IF, tap:IF, xdp:IF, vhost:PATH, virtio:PATH, memif:PATH, dpdk:ARGS";

const LOCAL_KEYS: &str = "mtu, crc, ring, loss, delay, jitter, seed";
const DEVICE_KEYS: &str = "addr, gw, mac, mtu, crc, loss, delay, jitter, seed";
const MEMIF_KEYS: &str = "addr, gw, mac, mtu, crc, role, id, loss, delay, jitter, seed";

impl Default for Spec {
    /// Returns the specification `local`.
    fn default() -> Self {
        Self {
            kind: Kind::Local { name: "default".into() },
            address: None,
            last_address: None,
            gateway: None,
            mac: None,
            mtu: None,
            crc: None,
            ring_bytes: None,
            impairment: Impairment::default(),
        }
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        // EAL arguments contain commas and equals signs. The address is set separately (`set_address`).
        let mut parts = spec.splitn(if spec.starts_with("dpdk:") { 1 } else { usize::MAX }, ',');
        let head = parts.next().unwrap_or_default();
        let (kind, place) = head.split_once(':').unwrap_or((head, ""));
        let needs = |what, example| match place.is_empty() {
            true => Err(SpecError::Where { spec: spec.into(), kind: kind.into(), what, example }),
            false => Ok(place.to_owned()),
        };
        let mut parsed = Self::default();
        let known;
        (parsed.kind, known) = match kind {
            "local" => {
                let name = if place.is_empty() { "default" } else { place };
                let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
                if !is_plain {
                    let (key, value) = ("local".into(), name.into());
                    let what = "name of a wire: use letters, digits, '-' and '_'";
                    return Err(SpecError::Value { spec: spec.into(), key, value, what });
                }
                (Kind::Local { name: name.into() }, LOCAL_KEYS)
            }
            "packet" => {
                let interface = needs("an interface", "packet:eth0")?;
                (Kind::Packet { interface }, DEVICE_KEYS)
            }
            "tap" => {
                (Kind::Tap { interface: needs("an interface", "tap:uwarp0,addr=10.0.0.2/24")? }, DEVICE_KEYS)
            }
            "xdp" => {
                (Kind::Xdp { interface: needs("an interface", "xdp:eth0,addr=10.0.0.2/24")? }, DEVICE_KEYS)
            }
            "vhost" => {
                let path = needs("a socket", "vhost:/tmp/wire.sock,addr=10.0.0.1/24")?.into();
                (Kind::Vhost { path }, DEVICE_KEYS)
            }
            "virtio" => {
                let path = needs("a socket", "virtio:/tmp/wire.sock,addr=10.0.0.2/24")?.into();
                (Kind::Virtio { path }, DEVICE_KEYS)
            }
            "memif" => {
                let path =
                    needs("a socket", "memif:/tmp/memif.sock,role=server,id=0,addr=10.0.0.1/24")?.into();
                (Kind::Memif { path, server: false, id: 0 }, MEMIF_KEYS)
            }
            "dpdk" => (
                Kind::Dpdk { arguments: needs("arguments of the EAL", "dpdk:-a 0000:03:00.0")? },
                DEVICE_KEYS,
            ),
            _ => return Err(SpecError::Kind { spec: spec.into(), kind: kind.into() }),
        };
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            parsed.set(spec, key, value, known)?;
        }
        Ok(parsed)
    }
}

impl Spec {
    fn set(&mut self, spec: &str, key: &str, value: &str, known: &'static str) -> Result<(), SpecError> {
        if !known.split(", ").any(|other| other == key) {
            return Err(SpecError::Key { spec: spec.into(), key: key.into(), known });
        }
        let wrong = |what| SpecError::Value { spec: spec.into(), key: key.into(), value: value.into(), what };
        match (key, &mut self.kind) {
            ("addr", _) => {
                let (first, last) = parse_addresses(value).ok_or_else(|| wrong(ADDRESS))?;
                (self.address, self.last_address) = (Some(first), last);
            }
            ("gw", _) => {
                self.gateway = Some(value.parse().map_err(|()| wrong("address of a router, like 10.0.0.1"))?);
            }
            ("mac", _) => {
                self.mac =
                    Some(parse_mac(value).ok_or_else(|| wrong("Ethernet address, like 02:00:00:00:00:01"))?);
            }
            ("mtu", _) => {
                let (most, advice) = match self.kind {
                    Kind::Local { .. } => (65_000, "MTU: use 1280 to 65000"),
                    _ => (9_000, "MTU: use 1280 to 9000"),
                };
                let mtu = value.parse().ok().filter(|mtu| (1280..=most).contains(mtu));
                self.mtu = Some(mtu.ok_or_else(|| wrong(advice))?);
            }
            ("crc", _) => match value {
                "on" => self.crc = Some(true),
                "off" => self.crc = Some(false),
                _ => return Err(wrong("setting: use on or off")),
            },
            ("ring", _) => {
                let bytes =
                    parse_bytes(value).filter(|bytes| bytes.is_power_of_two() && RING.contains(bytes));
                self.ring_bytes = Some(bytes.ok_or_else(|| wrong("size: use 256K, 512K, 1M, ... or 256M"))?);
            }
            ("role", Kind::Memif { server, .. }) => match value {
                "server" => *server = true,
                "client" => *server = false,
                _ => return Err(wrong("role: use server or client")),
            },
            ("id", Kind::Memif { id, .. }) => *id = value.parse().map_err(|_| wrong("number"))?,
            _ => match self.impairment.set(key, value) {
                Some(outcome) => outcome.map_err(wrong)?,
                None => return Err(SpecError::Key { spec: spec.into(), key: key.into(), known }),
            },
        }
        Ok(())
    }

    /// Parses and sets the address or the range of addresses.
    ///
    /// # Errors
    /// [`SpecError::Value`] if the address is invalid.
    pub fn set_address(&mut self, value: &str) -> Result<(), SpecError> {
        let (spec, key, value) = (self.to_string(), "addr".into(), value);
        let (first, last) = parse_addresses(value).ok_or(SpecError::Value {
            spec,
            key,
            value: value.into(),
            what: ADDRESS,
        })?;
        (self.address, self.last_address) = (Some(first), last);
        Ok(())
    }

    /// Checks that the specification has an address if its kind needs an address, and a range of addresses
    /// only if its kind allows a range.
    ///
    /// # Errors
    /// [`SpecError::NoAddress`] if the address is missing. [`SpecError::Range`] if a range is not allowed.
    pub fn check(&self) -> Result<(), SpecError> {
        match (&self.kind, &self.address) {
            (kind, _) if self.last_address.is_some() && !matches!(kind, Kind::Packet { .. }) => {
                Err(SpecError::Range { spec: self.to_string() })
            }
            (Kind::Local { .. } | Kind::Packet { .. }, _) | (_, Some(_)) => Ok(()),
            (_, None) => Err(SpecError::NoAddress { spec: self.to_string() }),
        }
    }
}

const ADDRESS: &str = "address with a prefix length, like 10.0.0.2/24";

/// The maximum number of addresses of a range.
const MAX_RANGE: u128 = 1 << 16;

/// Parses an address with a prefix length, or a range of addresses with one, like 10.0.0.2-10.0.0.9/24.
fn parse_addresses(value: &str) -> Option<(IpCidr, Option<IpAddress>)> {
    let Some((first, rest)) = value.split_once('-') else { return Some((value.parse().ok()?, None)) };
    let last: IpCidr = rest.parse().ok()?;
    let first: IpAddress = first.parse().ok()?;
    if first.version() != last.address().version() {
        return None;
    }
    let first = IpCidr::new(first, last.prefix_len());
    let [from, to] = [first, last].map(|cidr| number_of(cidr.address().into()));
    let is_range = first.contains_addr(&last.address()) && from < to && to - from < MAX_RANGE;
    is_range.then(|| (first, Some(last.address())))
}

/// The number whose bytes are the address.
fn number_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The allowed number of bytes of a ring of a local wire.
const RING: std::ops::RangeInclusive<usize> = 256 << 10..=256 << 20;

/// Parses a number with an optional suffix K (times 1024) or M (times 1024 x 1024).
fn parse_bytes(value: &str) -> Option<usize> {
    let shift = |digits: &str, bits: u32| digits.parse::<usize>().ok()?.checked_mul(1 << bits);
    match (value.strip_suffix('K'), value.strip_suffix('M')) {
        (Some(digits), _) => shift(digits, 10),
        (_, Some(digits)) => shift(digits, 20),
        _ => shift(value, 0),
    }
}

fn parse_mac(value: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = value.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Local { name } => write!(f, "local:{name}")?,
            Kind::Packet { interface } => write!(f, "packet:{interface}")?,
            Kind::Tap { interface } => write!(f, "tap:{interface}")?,
            Kind::Xdp { interface } => write!(f, "xdp:{interface}")?,
            Kind::Vhost { path } => write!(f, "vhost:{}", path.display())?,
            Kind::Virtio { path } => write!(f, "virtio:{}", path.display())?,
            Kind::Memif { path, server, id } => {
                let role = if *server { "server" } else { "client" };
                write!(f, "memif:{},role={role},id={id}", path.display())?;
            }
            Kind::Dpdk { arguments } => return write!(f, "dpdk:{arguments}"),
        }
        if let Some(address) = &self.address {
            match &self.last_address {
                Some(last) => write!(f, ",addr={}-{last}/{}", address.address(), address.prefix_len())?,
                None => write!(f, ",addr={address}")?,
            }
        }
        if let Some(gateway) = &self.gateway {
            write!(f, ",gw={gateway}")?;
        }
        if let Some([a, b, c, d, e, g]) = self.mac {
            write!(f, ",mac={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, ",mtu={mtu}")?;
        }
        if let Some(crc) = self.crc {
            write!(f, ",crc={}", if crc { "on" } else { "off" })?;
        }
        if let Some(bytes) = self.ring_bytes {
            match bytes.is_multiple_of(1 << 20) {
                true => write!(f, ",ring={}M", bytes >> 20)?,
                false => write!(f, ",ring={}K", bytes >> 10)?,
            }
        }
        write!(f, "{}", self.impairment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_read_and_printed_alike() {
        for spec in [
            "local:default",
            "local:job-7,mtu=1500,crc=on",
            "local:default,mtu=65000",
            "local:default,ring=256K",
            "local:default,crc=off,ring=256M",
            "packet:eth0,addr=10.0.0.2/24,gw=10.0.0.1,mac=02:00:00:00:00:01,mtu=9000,crc=off",
            "tap:uwarp0,addr=fd00::2/64",
            "xdp:eth0,addr=10.0.0.2/24",
            "vhost:/tmp/wire.sock,addr=10.0.0.1/24",
            "virtio:/tmp/wire.sock,addr=10.0.0.2/24",
            "memif:/tmp/memif.sock,role=server,id=3,addr=10.0.0.1/24",
            "local:default,ring=1M,loss=0.01,delay=1ms,seed=7",
            "packet:eth0,addr=10.0.0.2/24,mtu=1500,loss=1,delay=10s,jitter=1500us,seed=18446744073709551615",
            "memif:/s,role=client,id=0,addr=10.0.0.1/24,loss=0.000001,delay=1us,jitter=1s",
            "dpdk:-a 0000:03:00.0,rx=4 --no-huge",
        ] {
            let parsed: Spec = spec.parse().unwrap();
            assert_eq!(parsed.to_string(), spec);
        }
        assert_eq!("local".parse::<Spec>().unwrap(), Spec::default());
        for (text, bytes) in [("262144", 256 << 10), ("1024K", 1 << 20), ("2M", 2 << 20), ("256M", 256 << 20)]
        {
            let spec: Spec = format!("local,ring={text}").parse().unwrap();
            assert_eq!(spec.ring_bytes, Some(bytes));
        }
        for kind in ["local", "packet:eth0", "tap:t", "xdp:eth0", "vhost:/s", "virtio:/s", "memif:/s"] {
            let spec: Spec = format!("{kind},loss=1%,delay=0.1s,jitter=0.5ms,seed=7").parse().unwrap();
            let expected = Impairment { loss_ppm: 10_000, delay_us: 100_000, jitter_us: 500, seed: Some(7) };
            assert_eq!(spec.impairment, expected, "{kind}");
        }
        // The arguments of EAL have commas, so they have no keys.
        let dpdk: Spec = "dpdk:-a 0000:03:00.0,loss=1%".parse().unwrap();
        assert_eq!(dpdk.impairment, Impairment::default());
    }

    #[test]
    fn each_mistake_has_one_line_that_says_what_to_do() {
        for (spec, says) in [
            ("", "use one of local[:name], packet:IF"),
            ("eth0", "there is no kind 'eth0'"),
            ("packet", "needs an interface, like packet:eth0"),
            ("vhost:", "needs a socket"),
            ("local:a/b", "use letters, digits"),
            ("local,addr=10.0.0.1/24", "use mtu, crc, ring"),
            ("local,ring=128K", "is no size: use 256K, 512K"),
            ("local,ring=512M", "is no size"),
            ("local,ring=300K", "is no size"),
            ("local,ring=99999999999999999999M", "is no size"),
            ("local,ring=K", "is no size"),
            ("local,ring=1G", "is no size"),
            ("packet:eth0,ring=1M", "there is no key 'ring'"),
            ("packet:eth0,adr=1", "there is no key 'adr' for this kind: use addr, gw, mac, mtu, crc"),
            ("packet:eth0,addr=10.0.0.1", "like 10.0.0.2/24"),
            ("packet:eth0,addr=10.0.0.2-10.0.0.9", "like 10.0.0.2/24"),
            ("packet:eth0,addr=10.0.0.9-10.0.0.2/24", "like 10.0.0.2/24"),
            ("packet:eth0,addr=10.0.0.2-10.0.0.2/24", "like 10.0.0.2/24"),
            ("packet:eth0,addr=10.0.0.2-10.0.1.2/24", "like 10.0.0.2/24"),
            ("packet:eth0,addr=10.0.0.2-fd00::2/64", "like 10.0.0.2/24"),
            ("packet:eth0,addr=10.0.0.0-10.255.0.0/8", "like 10.0.0.2/24"),
            ("packet:eth0,gw=x", "like 10.0.0.1"),
            ("packet:eth0,mac=02:00", "like 02:00:00:00:00:01"),
            ("packet:eth0,mtu=70", "use 1280 to 9000"),
            ("packet:eth0,mtu=9001", "use 1280 to 9000"),
            ("local,mtu=1279", "use 1280 to 65000"),
            ("local,mtu=65001", "use 1280 to 65000"),
            ("packet:eth0,role=server", "there is no key 'role'"),
            ("local,crc", "use on or off"),
            ("memif:/s,role=both", "use server or client"),
            ("memif:/s,id=x", "is no number"),
            (
                "local,lost=1%",
                "there is no key 'lost' for this kind: use mtu, crc, ring, loss, delay, jitter, seed",
            ),
            ("local,loss=2", "loss=2 is no probability: use 0 to 1, like 0.01, or 0% to 100%"),
            ("tap:t,loss=101%", "is no probability"),
            ("xdp:eth0,loss", "is no probability"),
            ("packet:eth0,delay=1", "delay=1 is no time: use us, ms or s and at most 10s, like 500us"),
            ("packet:eth0,delay=11s", "is no time"),
            ("vhost:/s,jitter=x", "jitter=x is no time"),
            ("virtio:/s,seed=-1", "seed=-1 is no number"),
        ] {
            let line = spec.parse::<Spec>().unwrap_err().to_string();
            assert!(line.contains(says) && !line.contains('\n'), "{line}");
        }
        let spec: Spec = "tap:uwarp0".parse().unwrap();
        assert!(spec.check().unwrap_err().to_string().contains("add addr="));
        assert_eq!("packet:eth0".parse::<Spec>().unwrap().check(), Ok(()));
        let mut spec: Spec = "tap:uwarp0,addr=10.0.0.2-10.0.0.9/24".parse().unwrap();
        assert!(spec.check().unwrap_err().to_string().contains("one address is needed"));
        spec.set_address("10.0.0.2/24").unwrap();
        assert_eq!((spec.check(), spec.last_address), (Ok(()), None));
        for text in ["packet:eth0,addr=10.0.0.2-10.0.0.9/24", "packet:eth0,addr=fd00::2-fd00::1:1/64"] {
            let spec: Spec = text.parse().unwrap();
            assert_eq!((spec.to_string(), spec.check()), (text.to_owned(), Ok(())));
            assert!(spec.last_address.is_some());
        }
        let mut spec: Spec = "dpdk:-a 0000:03:00.0".parse().unwrap();
        assert!(spec.check().is_err());
        assert!(spec.set_address("10.0.0.2").is_err());
        spec.set_address("10.0.0.2/24").unwrap();
        assert_eq!(spec.check(), Ok(()));
    }
}
