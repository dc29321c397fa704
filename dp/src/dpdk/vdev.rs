//! Parses the arguments of virtual devices, removes stale socket files, and finds out why a driver has
//! refused a device.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::DeviceError;

/// The drivers of virtual devices. The name of a virtual device begins with the name of the device's driver.
const DRIVERS: &[&str] = &[
    "net_af_packet",
    "net_af_xdp",
    "net_memif",
    "net_null",
    "net_ring",
    "net_tap",
    "net_vhost",
    "net_virtio_user",
];

/// The names of the linked drivers of virtual devices. The library of `net_virtio_user` is `net_virtio`.
pub(super) fn drivers() -> impl Iterator<Item = &'static str> {
    let is_linked = |name: &&str| dpdk_sys::DRIVERS.iter().any(|library| name.starts_with(library));
    DRIVERS.iter().copied().filter(is_linked)
}

/// The device's name: the part before the first comma.
pub(super) fn name(spec: &str) -> &str {
    spec.split_once(',').map_or(spec, |(name, _)| name)
}

fn argument<'a>(spec: &'a str, key: &str) -> Option<&'a str> {
    spec.split(',')
        .skip(1)
        .find_map(|pair| pair.split_once('=').filter(|(name, _)| *name == key))
        .map(|(_, value)| value)
}

/// The path of the unix socket on which the device will listen. `None` if the device does not listen on a
/// path.
fn listens_on(spec: &str) -> Option<&str> {
    let name = name(spec);
    if name.starts_with("net_vhost") || name.starts_with("eth_vhost") {
        argument(spec, "iface").filter(|_| argument(spec, "client").is_none_or(|value| value == "0"))
    } else if is_virtio_user(spec) {
        argument(spec, "path").filter(|_| argument(spec, "server").is_some_and(|value| value != "0"))
    } else if is_memif(spec) {
        let is = |key, wanted| argument(spec, key) == Some(wanted);
        argument(spec, "socket").filter(|_| is("role", "server") && is("socket-abstract", "no"))
    } else {
        None
    }
}

pub(super) fn is_virtio_user(spec: &str) -> bool {
    let name = name(spec);
    name.starts_with("net_virtio_user") || name.starts_with("virtio_user")
}

/// Whether the device is a memif device. Several memif devices of a process may listen on one socket.
fn is_memif(spec: &str) -> bool {
    name(spec).starts_with("net_memif")
}

/// Returns the vhost-user socket between a `net_virtio_user` device and its backend, and whether the device
/// listens on the socket. Returns `None` for other devices, and if the path of the socket is missing.
pub(super) fn vhost_user_backend(spec: &str) -> Option<(&str, bool)> {
    let path = argument(spec, "path").filter(|_| is_virtio_user(spec))?;
    Some((path, listens_on(spec).is_some()))
}

/// Returns the interface and the number of sockets of a `net_af_packet` device. Returns `None` for other
/// devices, and if the interface is missing or the number cannot be parsed.
pub(super) fn packet_sockets(spec: &str) -> Option<(&str, usize)> {
    let interface = argument(spec, "iface").filter(|_| is_af_packet(spec))?;
    Some((interface, argument(spec, "qpairs").map_or(Some(1), |count| count.parse().ok())?))
}

fn is_af_packet(spec: &str) -> bool {
    name(spec).starts_with("net_af_packet")
}

/// Minimum number of bytes of a receive buffer that the driver requires at any MTU. `net_af_packet` requires
/// the frame size of its ring (`framesz`). Returns 0 for other drivers, and if `framesz` is not given.
pub(super) fn least_mbuf_bytes(spec: &str) -> usize {
    let framesz = argument(spec, "framesz").filter(|_| is_af_packet(spec));
    framesz.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Removes the socket file of a killed process. While the file exists, no other process can listen on the
/// path. Fails if the file cannot be removed, or if a process may already listen on the socket. (If the
/// device is a memif device, another listener is no error.)
pub(super) fn clear_stale_socket(spec: &str) -> Result<(), DeviceError> {
    let Some(path) = listens_on(spec) else { return Ok(()) };
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        // If there is no file, there is nothing to remove. If the file is not a socket, the driver reports an
        // error.
        _ => return Ok(()),
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|error| DeviceError::StaleSocket { path: path.to_owned(), cause: error.to_string() }),
        _ if is_memif(spec) => Ok(()),
        _ => Err(DeviceError::SocketInUse { path: path.to_owned() }),
    }
}

/// The drivers that need an argument, each with the name of the argument and an example of a value.
const NEEDED: &[(&str, &str, &str)] = &[
    ("net_vhost", "iface", "/tmp/wire.sock"),
    ("net_virtio_user", "path", "/tmp/wire.sock"),
    ("net_af_packet", "iface", "eth0"),
];

/// Checks that the device has the argument and the folder that it needs. The device's driver would not report
/// what is missing.
pub(super) fn check(spec: &str) -> Result<(), DeviceError> {
    let needed = NEEDED.iter().find(|(driver, ..)| name(spec).starts_with(driver));
    if let Some(&(_, argument, example)) = needed
        && self::argument(spec, argument).is_none()
    {
        return Err(DeviceError::MissingArgument { device: name(spec).to_owned(), argument, example });
    }
    let folder = listens_on(spec).map(Path::new).and_then(Path::parent);
    match (listens_on(spec), folder) {
        (Some(path), Some(folder)) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(DeviceError::NoFolder { path: path.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Finds out why the driver has refused the device. Returns `None` if no cause outside of the driver is
/// found.
pub(super) fn problem(spec: &str) -> Option<DeviceError> {
    lacks_server(spec).or_else(|| lacks_interface(spec)).or_else(|| lacks_privilege(spec, capabilities()))
}

fn lacks_interface(spec: &str) -> Option<DeviceError> {
    let (interface, _) = packet_sockets(spec)?;
    // The interface is looked up by a socket, since sysfs may show another network namespace.
    let socket = UnixDatagram::unbound().ok()?;
    let is_absent = rustix::net::netdevice::name_to_index(socket, interface) == Err(Errno::NODEV);
    is_absent
        .then(|| DeviceError::NoInterface { device: name(spec).to_owned(), interface: interface.to_owned() })
}

fn lacks_privilege(spec: &str, held: CapabilitySet) -> Option<DeviceError> {
    let (needed, capability) = match name(spec) {
        name if name.starts_with("net_af_packet") => (CapabilitySet::NET_RAW, "cap_net_raw"),
        name if name.starts_with("net_tap") => (CapabilitySet::NET_ADMIN, "cap_net_admin"),
        _ => return None,
    };
    let is_missing = !held.contains(needed);
    is_missing.then(|| DeviceError::NoPrivilege { device: name(spec).to_owned(), capability })
}

fn capabilities() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective)
}

/// Returns the error for a device that connects to a unix socket on which nobody listens, and otherwise
/// `None`. The caller calls this function only after the driver has failed, since one more connection would
/// disturb a server.
fn lacks_server(spec: &str) -> Option<DeviceError> {
    let (path, false) = vhost_user_backend(spec)? else { return None };
    let error = UnixStream::connect(path).err()?;
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
        .then(|| DeviceError::NoServer { path: path.to_owned(), cause: error.to_string() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_virtual_device_is_driven_by_no_driver_of_nics() {
        let linked: Vec<_> = drivers().collect();
        assert!(linked.contains(&"net_vhost") && linked.contains(&"net_virtio_user"), "{linked:?}");
        assert!(!linked.iter().any(|name| ["net_virtio", "net_e1000", "net_i40e"].contains(name)));
    }

    #[test]
    fn only_the_side_that_listens_has_a_socket_to_clear() {
        assert_eq!(listens_on("net_vhost0,iface=/a,queues=1"), Some("/a"));
        assert_eq!(listens_on("net_vhost0,iface=/a,client=0"), Some("/a"));
        assert_eq!(listens_on("net_vhost0,iface=/a,client=1"), None);
        assert_eq!(listens_on("net_virtio_user0,path=/a"), None);
        assert_eq!(listens_on("net_virtio_user0,path=/a,server=1"), Some("/a"));
        assert_eq!(listens_on("net_af_packet0,iface=eth0"), None);
        assert_eq!(listens_on("net_memif0,role=server,socket=/a,socket-abstract=no"), Some("/a"));
        assert_eq!(listens_on("net_memif0,role=client,socket=/a,socket-abstract=no"), None);
        assert_eq!(listens_on("net_memif0,role=server,socket=a"), None);
        assert_eq!(name("net_null0"), "net_null0");
        assert_eq!(vhost_user_backend("net_virtio_user0,path=/a,server=1"), Some(("/a", true)));
        assert_eq!(vhost_user_backend("net_virtio_user0,path=/a"), Some(("/a", false)));
        assert_eq!(vhost_user_backend("net_vhost0,iface=/a"), None);
    }

    #[test]
    fn a_packet_sockets_ring_frame_decides_the_size_of_a_buffer() {
        assert_eq!(least_mbuf_bytes("net_af_packet0,iface=v0,blocksz=65536,framesz=16384"), 16_384);
        assert_eq!(least_mbuf_bytes("net_af_packet0,iface=v0"), 0);
        assert_eq!(least_mbuf_bytes("net_tap0,framesz=9"), 0);
    }

    #[test]
    fn a_packet_device_has_a_socket_for_each_pair_of_queues() {
        assert_eq!(packet_sockets("net_af_packet0,iface=v0"), Some(("v0", 1)));
        assert_eq!(packet_sockets("net_af_packet0,iface=v0,qpairs=4"), Some(("v0", 4)));
        assert_eq!(packet_sockets("net_af_packet0,iface=v0,qpairs=many"), None);
        assert_eq!(packet_sockets("net_vhost0,iface=/a"), None);
    }

    #[test]
    fn a_socket_without_a_server_is_told_from_one_with() {
        let path = std::env::temp_dir().join(format!("dp-server-{}.sock", std::process::id()));
        let connects = format!("net_virtio_user0,path={}", path.display());
        let told = |spec: &str| lacks_server(spec).map(|error| error.to_string()).unwrap_or_default();
        assert!(told(&connects).contains("start the server first"), "{}", told(&connects));
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(lacks_server(&connects), None);
        drop(listener);
        assert!(told(&connects).contains("refused"), "{}", told(&connects));
        let error = std::io::Error::from(lacks_server(&connects).unwrap());
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        for other in [format!("{connects},server=1"), format!("net_vhost0,iface={}", path.display())] {
            assert_eq!(lacks_server(&other), None, "{other}");
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_a_device_needs_is_named() {
        let told = |spec: &str| check(spec).err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(told("net_vhost1"), "net_vhost1 needs iface: give net_vhost1,iface=/tmp/wire.sock");
        assert!(told("net_virtio_user0,queues=1").contains("needs path"));
        assert!(told("net_af_packet0").contains("needs iface"));
        assert!(told("net_vhost0,iface=/no/such/folder/s").contains("make it, or use another path"));
        for fine in ["net_null0", "net_vhost0,iface=s", "net_vhost0,iface=/tmp/s", "net_tap0"] {
            assert_eq!(told(fine), "", "{fine}");
        }
        let absent = lacks_interface("net_af_packet0,iface=nope0").unwrap().to_string();
        assert!(absent.contains("there is no interface nope0"), "{absent}");
        assert_eq!(lacks_interface("net_af_packet0,iface=lo"), None);
        for (spec, capability) in [("net_af_packet0,iface=lo", "cap_net_raw"), ("net_tap0", "cap_net_admin")]
        {
            let refused = lacks_privilege(spec, CapabilitySet::empty()).unwrap().to_string();
            assert!(refused.contains(&format!("needs {capability}: run as root")), "{refused}");
            assert_eq!(lacks_privilege(spec, CapabilitySet::all()), None);
        }
    }

    #[test]
    fn a_dead_socket_goes_and_a_live_one_stays() {
        let dir = std::env::temp_dir().join(format!("dp-vdev-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("s");
        let spec = format!("net_vhost0,iface={}", path.display());
        clear_stale_socket(&spec).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(clear_stale_socket(&spec), Err(DeviceError::SocketInUse { .. })));
        drop(listener);
        assert!(path.exists());
        clear_stale_socket(&spec).unwrap();
        assert!(!path.exists());
        let memif = format!("net_memif0,role=server,socket={},socket-abstract=no", path.display());
        let listener = UnixListener::bind(&path).unwrap();
        clear_stale_socket(&memif).unwrap();
        assert!(path.exists(), "another device of the process may listen there");
        drop(listener);
        clear_stale_socket(&memif).unwrap();
        assert!(!path.exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
