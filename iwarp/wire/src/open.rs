//! Opens the wire that a specification names.

use std::net::IpAddr;
use std::path::PathBuf;

use dp::local::{self, LocalConfig};
use dp::packet::{self, PacketConfig};
#[cfg(feature = "vhost")]
use dp::vhost::{self, VhostConfig};
use dp::{Impaired, Port};
use iwarp::engine::EngineConfig;
use iwarp::verbs::VerbsError;
use tcp_lite::facade::IpCidr;
use tcp_lite::{AddressProbing, Duration};

use crate::impairment::Impairment;
use crate::spec::{Kind, Spec, SpecError};

/// The first two bytes of the addresses on a `local` wire: a part of 100.64.0.0/10, the shared address space
/// for carriers (RFC 6598), which hosts do not normally have on an interface.
const LOCAL_NETWORK: [u8; 2] = [100, 64];

/// The prefix length of 100.64.0.0/10. With the prefix length 16, the last station would have the broadcast
/// address.
pub const LOCAL_PREFIX: u8 = 10;

/// The time for which a connection waits for a silent peer on a `local` wire: as long as a user may keep a
/// process in a debugger.
const PATIENCE: Duration = Duration::from_secs(60 * 60);

/// The interval between probes of a silent peer on a `local` wire.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);

/// The maximum time until lost data are sent again on a `local` wire, after a peer was silent for long.
const MOST_RTO: Duration = Duration::from_secs(2);

/// A wire, ready for an engine.
pub struct Wire {
    /// The port.
    pub port: Box<dyn Port>,
    /// The engine's configuration: addresses, and settings for the wire.
    pub config: EngineConfig,
    /// The address of this endpoint.
    pub address: IpAddr,
}

/// Why a wire could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The specification is incomplete or invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The shared memory of a `local` wire could not be opened.
    #[error(transparent)]
    Local(#[from] local::LocalError),
    /// The interface of a `packet` wire could not be opened.
    #[error(transparent)]
    Packet(#[from] packet::PacketError),
    /// The socket of a `vhost` wire could not be made.
    #[cfg(feature = "vhost")]
    #[error(transparent)]
    Vhost(#[from] vhost::VhostError),
    /// A DPDK device could not be opened.
    #[error("{spec}: {why}")]
    Device {
        /// The specification.
        spec: String,
        /// One line that says what the user can do.
        why: String,
    },
    /// The configuration of the engine is invalid.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// Returns the address of a station of a `local` wire.
pub fn address_of_station(station: u16) -> IpAddr {
    let [high, low] = station.to_be_bytes();
    IpAddr::from([LOCAL_NETWORK[0], LOCAL_NETWORK[1], high, low])
}

/// Opens the wire. Opening the first DPDK device of a process starts EAL.
///
/// # Errors
/// [`OpenError`], whose text is one line that says what the user can do.
pub fn open(spec: &Spec) -> Result<Wire, OpenError> {
    match &spec.kind {
        Kind::Local { name } => open_local(spec, local::default_folder(name)?),
        Kind::Packet { interface } => open_packet(spec, interface, own_address(spec)?, false),
        #[cfg(feature = "vhost")]
        Kind::Vhost { path } => open_vhost(spec, path),
        _ => open_dpdk(spec),
    }
}

/// Opens the wire in shared memory whose processes meet in `folder`.
///
/// # Errors
/// [`OpenError::Local`] if the shared memory cannot be opened, [`OpenError::Verbs`] if the engine's
/// configuration is invalid.
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
    let port = impaired(spec, Box::new(port));
    let mut config = EngineConfig::new(&*port, &[&format!("{address}/{LOCAL_PREFIX}")])?;
    // Every neighbour is a station, whose Ethernet address is derived from its station number.
    config.stack.derived_neighbors = Some([0x02, 0x00]);
    config.stack.address_probing = AddressProbing::Off;
    // By default a local wire has no MPA CRC: its frames never leave this machine's memory.
    config.crc = spec.crc.unwrap_or(false);
    // A wire that loses frames on purpose behaves like a network, where a silent peer may be gone.
    if !spec.impairment.is_some() {
        outlast_silence(&mut config);
    }
    Ok(Wire { port, config, address })
}

/// Makes connections wait for a peer that is silent. The port reports at once when a peer's process ends. So
/// the process of a silent peer exists, but is stopped, is in a debugger, or waits for a processor. The
/// device of such a process would still answer.
fn outlast_silence(config: &mut EngineConfig) {
    let tcp = &mut config.stack.tcp;
    (tcp.user_timeout, tcp.rto_max) = (PATIENCE, MOST_RTO);
    tcp.keepalive_interval = PROBE_INTERVAL;
    tcp.keepalive_probes = (PATIENCE.total_micros() / PROBE_INTERVAL.total_micros()) as u8;
}

/// Opens a kernel interface, on which this endpoint has the address `address`. Ports of other processes of
/// the host on the same interface can reach this address. If `ends_with_interface` is true, the port ends
/// when the interface is removed. Otherwise it waits for a new interface with the same name.
///
/// # Errors
/// [`OpenError::Packet`] if the interface cannot be opened, [`OpenError::Verbs`] if the engine's
/// configuration is invalid.
pub fn open_packet(
    spec: &Spec,
    interface: &str,
    address: IpCidr,
    ends_with_interface: bool,
) -> Result<Wire, OpenError> {
    let mut config = PacketConfig::new(interface, [address.address().into()]);
    (config.mac, config.mtu) = (spec.mac, spec.mtu);
    config.sees_host = true;
    config.ends_with_interface = ends_with_interface;
    let port = impaired(spec, Box::new(packet::open(&config)?));
    let config = settings(spec, &*port, address)?;
    Ok(Wire { port, config, address: address.address().into() })
}

/// Opens the wire on the vhost-user socket at `path`, which this endpoint makes.
///
/// # Errors
/// [`OpenError::Vhost`] if the socket cannot be made, [`OpenError::Spec`] if the specification has no
/// address, [`OpenError::Verbs`] if the engine's configuration is invalid.
#[cfg(feature = "vhost")]
fn open_vhost(spec: &Spec, path: &std::path::Path) -> Result<Wire, OpenError> {
    let address = own_address(spec)?;
    let usual = VhostConfig::new(path);
    let port = vhost::open(&VhostConfig { mac: spec.mac, mtu: spec.mtu.unwrap_or(usual.mtu), ..usual })?;
    let port = impaired(spec, Box::new(port));
    let config = settings(spec, &*port, address)?;
    Ok(Wire { port, config, address: address.address().into() })
}

/// Opens a DPDK device. If the specification has an Ethernet address, our frames have this address. Otherwise
/// they have the address of the device, or, on a tap interface, an address that is derived from the IP
/// address.
///
/// # Errors
/// [`OpenError::Device`] if the device cannot be opened, [`OpenError::Spec`] if the specification has no
/// address, [`OpenError::Verbs`] if the engine's configuration is invalid.
#[cfg(feature = "dpdk")]
pub fn open_dpdk(spec: &Spec) -> Result<Wire, OpenError> {
    let own_address = own_address(spec)?;
    let address = own_address.address().into();
    let port = crate::dpdk::open(spec).map_err(|why| OpenError::Device { spec: spec.to_string(), why })?;
    let port = impaired(spec, port);
    let mut config = settings(spec, &*port, own_address)?;
    if let Some(mac) = spec.mac.or_else(|| crate::dpdk::mac(&spec.kind, address)) {
        config.stack.mac = tcp_lite::facade::EthernetAddress(mac);
    }
    Ok(Wire { port, config, address })
}

/// Returns an error, since this build has no DPDK devices.
///
/// # Errors
/// Always [`OpenError::Device`].
#[cfg(not(feature = "dpdk"))]
pub fn open_dpdk(spec: &Spec) -> Result<Wire, OpenError> {
    let why = "this library was built without DPDK: build it with --features dpdk, or use local or packet:IF"
        .into();
    Err(OpenError::Device { spec: spec.to_string(), why })
}

fn own_address(spec: &Spec) -> Result<IpCidr, OpenError> {
    if spec.last_address.is_some() {
        return Err(SpecError::Range { spec: spec.to_string() }.into());
    }
    spec.address.ok_or_else(|| SpecError::NoAddress { spec: spec.to_string() }.into())
}

/// Wraps the port of a wire that loses or delays frames on purpose.
fn impaired(spec: &Spec, port: Box<dyn Port>) -> Box<dyn Port> {
    let mut wanted = spec.impairment;
    if !wanted.is_some() {
        return port;
    }
    let seed = wanted.choose_seed().unwrap_or_default();
    let Impairment { loss_ppm, delay_us, jitter_us, .. } = wanted;
    Box::new(Impaired::new(port, dp::Impairment { loss_ppm, delay_us, jitter_us, seed }))
}

/// Returns the engine's configuration for a wire on which this endpoint has the address `address`.
fn settings(spec: &Spec, port: &dyn Port, address: IpCidr) -> Result<EngineConfig, OpenError> {
    let mut config = EngineConfig::new(port, &[&address.to_string()])?;
    config.stack.gateways.extend(spec.gateway);
    config.crc = spec.crc.unwrap_or(true);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_wire_waits_for_a_silent_peer_unless_it_loses_frames() {
        let folder = std::env::temp_dir().join(format!("iwarp-wire-{}", std::process::id()));
        let patience = |spec: &str| {
            let tcp = open_local(&spec.parse().unwrap(), folder.clone()).unwrap().config.stack.tcp;
            let probes = u64::from(tcp.keepalive_probes) * tcp.keepalive_interval.total_micros();
            [tcp.user_timeout, Duration::from_micros(probes)].map(|time| time.total_micros() / 1_000_000)
        };
        let found = ["local", "local,loss=0.01", "local,delay=1ms"].map(patience);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [[3600, 3600], [10, 4], [10, 4]]);
    }

    #[test]
    #[cfg(feature = "vhost")]
    fn a_vhost_wire_is_a_socket_of_one_process() {
        let path = std::env::temp_dir().join(format!("iwarp-wire-{}.sock", std::process::id()));
        let text = format!("vhost:{},addr=10.0.0.1/24,mtu=9000,mac=02:00:00:00:00:09", path.display());
        let spec: Spec = text.parse().unwrap();
        let wire = open(&spec).unwrap();
        let info = wire.port.info();
        assert_eq!((info.mtu, info.mac, wire.config.crc), (9000, [2, 0, 0, 0, 0, 9], true));
        assert_eq!(wire.address, IpAddr::from([10, 0, 0, 1]));
        let line = open(&spec).err().unwrap().to_string();
        assert!(line.contains("is in use") && !line.contains('\n'), "{line}");
        drop(wire);
        assert!(!path.exists());
    }
}
