//! Opens the wire that a specification names.

use std::time::Duration;

use dp::pcap::Tap;
use dp::{Loopback, Port};
use iwarp::engine::EngineConfig;
use iwarp_wire::{Kind, OpenError, Spec, Wire, address_of_station};
use tcp_lite::AddressProbing;
use tcp_lite::facade::IpCidr;

use super::address_lease;
use super::end::{NameService, Net};
use super::hosts::{self, Hosts};
use super::local_names::LocalNames;
use super::port_space::PerSpace;
use super::wire_spec::folder;
use crate::ffi::abi::{self, StartError};
use crate::ffi::settings::{self, Key};

/// Maximum number of ports at which a process listens. The kernel has no such limit.
const LISTENERS: usize = 4096;

/// An opened wire: its port, the engine's configuration, and the addresses on the wire.
type Opened = (Box<dyn Port>, EngineConfig, Net);

/// Opens the wire. If the wire cannot be opened, the error has one line that tells the user what to do.
pub(crate) fn open(spec: &Spec) -> Result<Opened, StartError> {
    let spec = &with_seed(spec);
    let (port, mut config, mut net) = match &spec.kind {
        Kind::Local { name } => open_local(spec, name)?,
        Kind::Packet { interface } => open_packet(spec, interface)?,
        _ => {
            let failed = |error: OpenError| StartError::with_line(format!("UWARP_NET={error}"), &error);
            on_a_network(iwarp_wire::open_dpdk(spec).map_err(failed)?)
        }
    };
    match &spec.kind {
        Kind::Packet { interface } => net.set_interface(interface),
        Kind::Local { .. } => net.set_local(),
        _ => {}
    }
    net.set_mtu(config.stack.mtu);
    if !matches!(spec.kind, Kind::Local { .. }) {
        net.show(&spec.to_string());
    }
    // Programs may connect two queue pairs of one process, so the port also delivers frames that are sent to
    // this process.
    let port = Box::new(match &spec.kind {
        // Other processes of the host may have the same Ethernet address, so the IP address decides.
        Kind::Packet { .. } => Loopback::of_address(port, net.address()),
        _ => Loopback::new(port),
    });
    config.stack.loopback = true;
    config.stack.limits.listeners = LISTENERS;
    config.stack.offloads = port.info().offloads;
    Ok((captured(port)?, config, net))
}

/// Chooses the seed of a wire that loses frames at random, unless the user has chosen the seed, and tells it.
fn with_seed(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    if spec.impairment.choose_seed().is_some() {
        abi::log(|| format!("frames are lost or delayed at random: UWARP_NET={spec} does the same again"));
    }
    spec
}

/// This process's end of the wire as it is known before the wire is opened. The end has no name service, and
/// the part of its address that is chosen when the wire is opened is 0. Making it opens nothing.
pub(crate) fn before_start(spec: &Spec) -> Net {
    let address = match (&spec.kind, spec.address) {
        (_, Some(own)) => own.address().into(),
        (Kind::Packet { interface }, None) => hosts::address_without_port(interface).into(),
        _ => address_of_station(0),
    };
    let mut net = Net::new(address, NameService::None);
    match &spec.kind {
        Kind::Packet { interface } => net.set_interface(interface),
        Kind::Local { .. } => net.set_local(),
        _ => {}
    }
    net
}

fn text(error: OpenError) -> StartError {
    StartError::new(&error)
}

/// Maximum time that a closing connection waits for its peer on a `local` wire.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time that a closing connection waits for its peer on a wire between hosts. This time is enough for
/// some round trips and some lost segments.
const CLOSE_TIMEOUT_OF_HOSTS: Duration = Duration::from_secs(2);

fn open_local(spec: &Spec, name: &str) -> Result<Opened, StartError> {
    let folder = folder(name)?;
    let Wire { port, mut config, address } = iwarp_wire::open_local(spec, folder.clone()).map_err(text)?;
    // A peer on this wire usually answers the close at once, so a short timeout is enough.
    config.close_timeout = if spec.impairment.is_some() { CLOSE_TIMEOUT_OF_HOSTS } else { CLOSE_TIMEOUT };
    let tcp = LocalNames::new(&folder).map_err(|error| {
        let line = format!("{}: no folder for names can be made: {error}", folder.display());
        StartError::with_line(line, &error)
    })?;
    let names = PerSpace { udp: tcp.of_datagrams(), tcp };
    Ok((port, config, Net::new(address, NameService::Local(names))))
}

/// Opens an interface. If the specification has an address, programs use this address on the wire. Otherwise
/// programs use the kernels' addresses, and all peers use this library.
fn open_packet(spec: &Spec, interface: &str) -> Result<Opened, StartError> {
    // As with a kernel device, the device is removed with its interface.
    let open = |address: IpCidr| iwarp_wire::open_packet(spec, interface, address, true).map_err(text);
    if let Some((address, lease)) = address_lease::take(spec, interface)? {
        let (port, config, mut net) = on_a_network(open(address)?);
        net.hold(lease);
        return Ok((port, config, net));
    }
    let hosts = Hosts::open(interface)?;
    let own = hosts.address();
    let Wire { port, mut config, .. } = open(IpCidr::new(own.into(), hosts::PREFIX))?;
    notice_silence(&mut config);
    // No other process has the same address, so no probe is needed.
    config.stack.address_probing = AddressProbing::Off;
    config.close_timeout = CLOSE_TIMEOUT_OF_HOSTS;
    Ok((port, config, Net::new(own.into(), NameService::Hosts(hosts))))
}

fn on_a_network(wire: Wire) -> Opened {
    let Wire { port, mut config, address } = wire;
    notice_silence(&mut config);
    (port, config, Net::new(address, NameService::None))
}

/// Sets the keepalive timer and the user timeout. The peer of a killed process receives no further segments.
/// These timers close the connection early enough for the peer's program to notice within ten seconds.
fn notice_silence(config: &mut EngineConfig) {
    config.stack.tcp.keepalive_idle = Some(tcp_lite::Duration::from_secs(4));
    config.stack.tcp.user_timeout = tcp_lite::Duration::from_secs(8);
}

/// Wraps the port in a capture if `UWARP_PCAP` is set.
fn captured(port: Box<dyn Port>) -> Result<Box<dyn Port>, StartError> {
    let Some(setting) = settings::get(Key::Pcap)? else { return Ok(port) };
    let failed = |error: std::io::Error| {
        StartError::with_line(setting.refused(format!("name a file that can be written ({error})")), &error)
    };
    Ok(Box::new(Tap::create(port, std::path::Path::new(&setting.text)).map_err(failed)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_start_the_chosen_part_of_an_address_is_0() {
        for (spec, address, gid, last) in [
            ("local:job7", "100.64.0.0", "::ffff:127.64.0.0", 5),
            ("packet:nowhere", "fd75:7761:7270::", "fd75:7761:7270::", 3),
            ("packet:nowhere,addr=10.0.0.2/24", "10.0.0.2", "::ffff:10.0.0.2", 3),
            ("packet:nowhere,addr=fd00::2/64", "fd00::2", "fd00::2", 3),
        ] {
            let net = before_start(&spec.parse().unwrap());
            assert_eq!(net.address(), address.parse::<std::net::IpAddr>().unwrap(), "{spec}");
            assert_eq!(net.gid(3), Some(gid.parse::<std::net::Ipv6Addr>().unwrap().octets()), "{spec}");
            assert_eq!(net.gid_index_of(net.address()), Some(last), "{spec}");
            assert_eq!(net.link(), dp::LinkState::Up);
        }
        let own = before_start(&"packet:lo".parse().unwrap());
        // 127.0.0.1 with port 0.
        assert_eq!(own.address(), "fd75:7761:7270::7f00:1:0".parse::<std::net::IpAddr>().unwrap());
        assert_ne!(own.interface_index(), 0);
    }

    /// A group has an address on a wire of its own version of IP. The IPv6 form of an IPv4 group is the same
    /// group. Before the start, no wire of IPv6 has a name service, which would give an IPv4 group an
    /// address.
    #[test]
    fn a_group_has_an_address_on_a_wire_of_its_version() {
        for (spec, of_ipv4, of_ipv6) in [
            ("local:job7", Some("239.1.2.3"), None),
            ("packet:nowhere", None, Some("ff0e::1")),
            ("packet:nowhere,addr=10.0.0.2/24", Some("239.1.2.3"), None),
            ("packet:nowhere,addr=fd00::2/64", None, Some("ff0e::1")),
        ] {
            let net = before_start(&spec.parse().unwrap());
            let on_wire =
                |group: &str| net.group_on_wire(group.parse().unwrap()).map(|group| group.to_string());
            assert_eq!(on_wire("239.1.2.3").as_deref(), of_ipv4, "{spec}");
            assert_eq!(on_wire("::ffff:239.1.2.3").as_deref(), of_ipv4, "{spec}");
            assert_eq!(on_wire("ff0e::1").as_deref(), of_ipv6, "{spec}");
        }
    }
}
