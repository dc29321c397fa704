//! Opening the wire that a specification names.

use std::net::IpAddr;
use std::path::PathBuf;

use dp::Port;
use dp::local::{self, LocalConfig};
use dp::packet::{self, PacketConfig};
use iwarp::engine::EngineConfig;
use iwarp::verbs::VerbsError;
use tcp_lite::AddressProbing;
use tcp_lite::facade::IpCidr;

use crate::spec::{Kind, Spec, SpecError};

/// The first two bytes of the addresses on a `local` wire: a part of 100.64.0.0/10, the shared address space
/// for carriers (RFC 6598), which hosts do not normally have on an interface.
const LOCAL_NETWORK: [u8; 2] = [100, 64];

/// The prefix length of that range. With 16, the last station would have the broadcast address.
pub const LOCAL_PREFIX: u8 = 10;

/// A wire, ready for an engine.
pub struct Wire {
    /// The port.
    pub port: Box<dyn Port>,
    /// The engine's configuration: addresses, and settings for the wire.
    pub config: EngineConfig,
    /// Our address.
    pub address: IpAddr,
}

/// Why a wire could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The specification lacks something.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The shared memory.
    #[error(transparent)]
    Local(#[from] local::LocalError),
    /// The interface.
    #[error(transparent)]
    Packet(#[from] packet::PacketError),
    /// A device of DPDK.
    #[error("{spec}: {why}")]
    Device {
        /// The specification.
        spec: String,
        /// One line that says what to do.
        why: String,
    },
    /// The configuration of the engine is invalid.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// The address of a station of a `local` wire.
pub fn address_of_station(station: u16) -> IpAddr {
    let [high, low] = station.to_be_bytes();
    IpAddr::from([LOCAL_NETWORK[0], LOCAL_NETWORK[1], high, low])
}

/// Opens the wire. The first DPDK device of a process starts EAL.
///
/// # Errors
/// [`OpenError`]: one line that says what to do.
pub fn open(spec: &Spec) -> Result<Wire, OpenError> {
    match &spec.kind {
        Kind::Local { name } => open_local(spec, local::default_folder(name)?),
        Kind::Packet { interface } => open_packet(spec, interface, own_address(spec)?),
        _ => open_dpdk(spec),
    }
}

/// Opens the wire in shared memory whose processes meet in `folder`.
///
/// # Errors
/// [`OpenError::Local`].
pub fn open_local(spec: &Spec, folder: PathBuf) -> Result<Wire, OpenError> {
    let mut config = LocalConfig::new(folder);
    if let Some(mtu) = spec.mtu {
        config.mtu = mtu;
    }
    if let Some(bytes) = spec.ring_bytes {
        config.ring_bytes = bytes;
    }
    let port = local::open(&config)?;
    let address = address_of_station(port.station());
    let mut config = EngineConfig::new(&port, &[&format!("{address}/{LOCAL_PREFIX}")])?;
    // Every neighbour is a station, whose Ethernet address is derived from its station number.
    config.stack.derived_neighbors = Some([0x02, 0x00]);
    config.stack.address_probing = AddressProbing::Off;
    // Frames never leave this machine's memory, and other contents of that memory have no MPA CRC either.
    config.crc = spec.crc.unwrap_or(false);
    Ok(Wire { port: Box::new(port), config, address })
}

/// Opens a kernel interface with this address, which other processes of the host can reach.
///
/// # Errors
/// [`OpenError::Packet`].
pub fn open_packet(spec: &Spec, interface: &str, address: IpCidr) -> Result<Wire, OpenError> {
    let mut config = PacketConfig::new(interface, [address.address().into()]);
    (config.mac, config.mtu) = (spec.mac, spec.mtu);
    config.sees_host = true;
    let port = packet::open(&config)?;
    let config = settings(spec, &port, address)?;
    Ok(Wire { port: Box::new(port), config, address: address.address().into() })
}

/// Opens a DPDK device. Its frames carry the Ethernet address of the specification, if any.
///
/// # Errors
/// [`OpenError::Device`], [`OpenError::Spec`] without an address.
#[cfg(feature = "dpdk")]
pub fn open_dpdk(spec: &Spec) -> Result<Wire, OpenError> {
    let own_address = own_address(spec)?;
    let address = own_address.address().into();
    let port = crate::dpdk::open(spec).map_err(|why| OpenError::Device { spec: spec.to_string(), why })?;
    let mut config = settings(spec, &*port, own_address)?;
    if let Some(mac) = spec.mac.or_else(|| crate::dpdk::mac(&spec.kind, address)) {
        config.stack.mac = tcp_lite::facade::EthernetAddress(mac);
    }
    Ok(Wire { port, config, address })
}

/// Fails: this build has no DPDK devices.
///
/// # Errors
/// [`OpenError::Device`].
#[cfg(not(feature = "dpdk"))]
pub fn open_dpdk(spec: &Spec) -> Result<Wire, OpenError> {
    let why = "this library was built without DPDK: build it with --features dpdk, or use local or packet:IF"
        .into();
    Err(OpenError::Device { spec: spec.to_string(), why })
}

fn own_address(spec: &Spec) -> Result<IpCidr, OpenError> {
    spec.address.ok_or_else(|| SpecError::NoAddress { spec: spec.to_string() }.into())
}

/// The engine's configuration for a wire on which we have this address.
fn settings(spec: &Spec, port: &dyn Port, address: IpCidr) -> Result<EngineConfig, OpenError> {
    let mut config = EngineConfig::new(port, &[&address.to_string()])?;
    config.stack.gateways.extend(spec.gateway);
    config.crc = spec.crc.unwrap_or(true);
    Ok(config)
}
