//! Opening the wire that a specification names.

use std::net::IpAddr;
use std::time::Duration;

use dp::Port;
use dp::local::{self, LocalConfig};
use dp::pcap::Tap;
use iwarp::engine::EngineConfig;
use tcp_lite::AddressProbing;

use super::address::{LOCAL_PREFIX, address_of_station};
use super::end::Net;
use super::names::Names;
use super::spec::{Kind, Spec};

/// A wire, ready for an engine.
type Opened = (Box<dyn Port>, EngineConfig, Net);

/// Opens the wire. An error is one line that says what to do.
pub(crate) fn open(spec: &Spec) -> Result<Opened, String> {
    let (port, config, net) = match &spec.kind {
        Kind::Local { name } => open_local(spec, name)?,
        Kind::Packet { interface } => open_packet(spec, interface)?,
        _ => return Err(needs_dpdk(spec)),
    };
    Ok((captured(port)?, config, net))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// How long a connection that was closed waits for its peer, on a wire within one machine.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

fn open_local(spec: &Spec, name: &str) -> Result<Opened, String> {
    let folder = local::default_folder(name).map_err(text)?;
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
    Ok((Box::new(port), config, Net::new(address, Some(names))))
}

fn open_packet(spec: &Spec, interface: &str) -> Result<Opened, String> {
    use dp::packet::{self, PacketConfig};
    let address = spec.address.ok_or_else(|| spec.check().err().map(text).unwrap_or_default())?;
    let ip = IpAddr::from(address.address());
    let mut config = PacketConfig::new(interface, [ip]);
    (config.mac, config.mtu) = (spec.mac, spec.mtu);
    let port = packet::open(&config).map_err(text)?;
    let mut config = EngineConfig::new(&port, &[&address.to_string()]).map_err(text)?;
    if let Some(gateway) = spec.gateway {
        config.stack.gateways.try_push(gateway).map_err(|_| "too many gateways".to_owned())?;
    }
    config.crc = spec.crc.unwrap_or(true);
    Ok((Box::new(port), config, Net::new(ip, None)))
}

/// DPDK's devices need its EAL in the process of the program, which this library does not start.
fn needs_dpdk(spec: &Spec) -> String {
    format!("UWARP_NET={spec}: this library has no devices of DPDK: use local or packet:IF,addr=A/N")
}

/// The port with a capture on it, if `UWARP_PCAP` asks for one.
fn captured(port: Box<dyn Port>) -> Result<Box<dyn Port>, String> {
    let Some(path) = std::env::var_os("UWARP_PCAP").filter(|path| !path.is_empty()) else { return Ok(port) };
    let path = std::path::PathBuf::from(path);
    let tap = Tap::create(port, &path)
        .map_err(|error| format!("UWARP_PCAP={}: it cannot be written: {error}", path.display()))?;
    Ok(Box::new(tap))
}
