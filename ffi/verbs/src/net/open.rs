//! Opening the wire that a specification names.

use std::net::IpAddr;
use std::time::Duration;

use dp::local::{self, LocalConfig};
use dp::pcap::Tap;
use dp::{Loopback, Port};
use iwarp::engine::EngineConfig;
use tcp_lite::AddressProbing;

use super::address::{LOCAL_PREFIX, address_of_station};
use super::end::{Net, Service};
use super::hosts::{self, Hosts};
use super::names::Names;
use super::spec::{Kind, Spec};
use super::wanted::folder;
use crate::settings::{self, Key};

/// A wire, ready for an engine.
type Opened = (Box<dyn Port>, EngineConfig, Net);

/// Opens the wire. An error is one line that says what to do.
pub(crate) fn open(spec: &Spec) -> Result<Opened, String> {
    let (port, mut config, mut net) = match &spec.kind {
        Kind::Local { name } => open_local(spec, name)?,
        Kind::Packet { interface } => open_packet(spec, interface)?,
        _ => open_dpdk(spec)?,
    };
    if !matches!(spec.kind, Kind::Local { .. }) {
        net.show(&spec.to_string());
    }
    // Programs connect queue pairs of one process.
    let port = Box::new(match &spec.kind {
        // Other processes of the host have its Ethernet address, too.
        Kind::Packet { .. } => Loopback::of_address(port, net.address()),
        _ => Loopback::new(port),
    });
    config.stack.loopback = true;
    config.stack.offloads = port.info().offloads;
    Ok((captured(port)?, config, net))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// How long a connection that was closed waits for its peer, on a wire within one machine.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The same on a network between ends of this library: some round trips, and some segments that get lost.
const CLOSE_TIMEOUT_OF_HOSTS: Duration = Duration::from_secs(2);

fn open_local(spec: &Spec, name: &str) -> Result<Opened, String> {
    let folder = folder(name)?;
    let mut config = LocalConfig::new(folder.clone());
    if let Some(mtu) = spec.mtu {
        config.mtu = mtu;
    }
    let port = local::open(&config).map_err(text)?;
    let address = address_of_station(port.station());
    let mut config = EngineConfig::new(&port, &[&format!("{address}/{LOCAL_PREFIX}")]).map_err(text)?;
    // Every neighbour is a station, whose Ethernet address follows from its number.
    config.stack.derived_neighbors = Some([0x02, 0x00]);
    config.stack.address_probing = AddressProbing::Off;
    // A peer that is told of the end takes no time to answer. One that stopped to receive does not answer:
    // its program waits for the end of the connection.
    config.close_timeout = CLOSE_TIMEOUT;
    // The frames never leave the memory of this machine, which no CRC of TCP's users covers either.
    config.crc = spec.crc.unwrap_or(false);
    let names = Names::new(&folder)
        .map_err(|error| format!("{}: no folder for names can be made: {error}", folder.display()))?;
    Ok((Box::new(port), config, Net::new(address, Service::Local(names))))
}

/// An interface: with an address of our own that programs use, or with the addresses of the kernels between
/// processes of this library.
fn open_packet(spec: &Spec, interface: &str) -> Result<Opened, String> {
    use dp::packet::{self, PacketConfig};
    let open = |address: IpAddr| {
        let mut config = PacketConfig::new(interface, [address]);
        (config.mac, config.mtu) = (spec.mac, spec.mtu);
        // Several processes of the host may be on the interface.
        config.sees_host = true;
        packet::open(&config).map_err(text)
    };
    let Some(address) = spec.address else {
        let hosts = Hosts::open(interface)?;
        let address = hosts.address();
        let port = open(address.into())?;
        let mut config = settings(spec, &port, &format!("{address}/{}", hosts::PREFIX))?;
        // No other process has it.
        config.stack.address_probing = AddressProbing::Off;
        config.close_timeout = CLOSE_TIMEOUT_OF_HOSTS;
        return Ok((Box::new(port), config, Net::new(address.into(), Service::Hosts(hosts))));
    };
    let port = open(address.address().into())?;
    let config = settings(spec, &port, &address.to_string())?;
    Ok((Box::new(port), config, Net::new(address.address().into(), Service::None)))
}

/// A device of DPDK, whose frames carry the Ethernet address of the specification, if it has one.
#[cfg(feature = "dpdk")]
fn open_dpdk(spec: &Spec) -> Result<Opened, String> {
    let own_address = own_address(spec)?;
    let port = super::dpdk::open(spec)?;
    let mut config = settings(spec, &*port, &own_address.to_string())?;
    let net = Net::new(own_address.address().into(), Service::None);
    if let Some(mac) = spec.mac.or_else(|| super::dpdk::mac(&spec.kind, own_address.address().into())) {
        config.stack.mac = tcp_lite::facade::EthernetAddress(mac);
    }
    Ok((port, config, net))
}

/// This build has no devices of DPDK.
#[cfg(not(feature = "dpdk"))]
fn open_dpdk(spec: &Spec) -> Result<Opened, String> {
    Err(format!(
        "UWARP_NET={spec}: this libuwarp.so was built without DPDK: build it with --features dpdk, or use \
         local or packet:IF"
    ))
}

#[cfg(feature = "dpdk")]
fn own_address(spec: &Spec) -> Result<tcp_lite::facade::IpCidr, String> {
    spec.address.ok_or_else(|| spec.check().err().map(text).unwrap_or_default())
}

/// The engine's settings on a wire where we have this address.
fn settings(spec: &Spec, port: &dyn Port, address: &str) -> Result<EngineConfig, String> {
    let mut config = EngineConfig::new(port, &[address]).map_err(text)?;
    if let Some(gateway) = spec.gateway {
        config.stack.gateways.try_push(gateway).map_err(|_| "too many gateways".to_owned())?;
    }
    // A host whose process was killed is silent. Connections end early enough for programs to end within ten
    // seconds.
    config.stack.tcp.keepalive_idle = Some(tcp_lite::Duration::from_secs(4));
    config.stack.tcp.user_timeout = tcp_lite::Duration::from_secs(8);
    config.crc = spec.crc.unwrap_or(true);
    Ok(config)
}

/// The port with a capture on it, if `UWARP_PCAP` asks for one.
fn captured(port: Box<dyn Port>) -> Result<Box<dyn Port>, String> {
    let Some(setting) = settings::get(Key::Pcap)? else { return Ok(port) };
    let failed = |error| setting.refused(format!("name a file that can be written ({error})"));
    Ok(Box::new(Tap::create(port, std::path::Path::new(&setting.text)).map_err(failed)?))
}
