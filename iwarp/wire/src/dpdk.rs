//! Wires on DPDK devices.
//!
//! DPDK's environment (EAL) starts in the process of the program when the program opens a DPDK wire. EAL does
//! not interfere with the program: it creates no shared files, starts no telemetry, and uses ordinary memory
//! (for the kind `dpdk`, hugepages if enough are free). EAL installs no signal handler, except for SIGBUS if
//! the device is a NIC, which may be unplugged. EAL is started on a temporary thread, so that no thread of
//! the program is pinned or becomes EAL's main thread.

use std::net::IpAddr;
use std::path::Path;

use dp::Port;
use dp::dpdk::{DeviceConfig, PortSpec};
use dp::eal::{Eal, EalConfig, Memory};

use crate::signals;
use crate::spec::{Kind, Spec};

/// The size of DPDK's memory in MiB, enough for pools of a few thousand jumbo buffers, and for rings. Unused
/// pages need no physical memory.
const MEMORY_MIB: u32 = 512;

/// The arguments for EAL, and the device to open.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    eal: EalConfig,
    device: PortSpec,
}

/// Starts EAL and opens the device.
pub(super) fn open(spec: &Spec) -> Result<Box<dyn Port>, String> {
    let wanted = Wanted::of(&spec.kind)?;
    let remedy = remedy(&spec.kind);
    let addresses = spec.address.map(|cidr| cidr.address().into()).into_iter().collect();
    let config = DeviceConfig { mtu: spec.mtu.unwrap_or(1500), addresses, ..DeviceConfig::default() };
    let start = move || {
        let eal = Eal::start(&wanted.eal).map_err(|error| error.to_string())?;
        let opened = signals::with_real_time_signals_taken(|| dp::dpdk::open(eal, &wanted.device, &config));
        let ports = opened.map_err(|error| format!("{remedy}: {error}"))?;
        ports.into_iter().next().ok_or_else(|| "the device has no queues".to_owned())
    };
    let thread = std::thread::Builder::new().name("uwarp-start".into()).spawn(start);
    let thread = thread.map_err(|error| format!("no thread can be started: {error}"))?;
    thread.join().unwrap_or_else(|_| Err("opening the device has failed".into()))
}

/// Returns the advice for a user whose device cannot be opened. DPDK's error is appended to the advice.
fn remedy(kind: &Kind) -> &'static str {
    match kind {
        Kind::Tap { .. } => "a tap interface needs CAP_NET_ADMIN: run as root",
        Kind::Xdp { .. } => "AF_XDP needs an interface that is there, CAP_NET_ADMIN and CAP_BPF: run as root",
        Kind::Vhost { .. } => "name a socket in a folder that can be written",
        Kind::Virtio { .. } => "start the program on vhost: with this socket first",
        Kind::Memif { .. } => {
            "name a socket in a folder that both ends can write, role=server at one of them"
        }
        _ => "name a device that DPDK can open",
    }
}

/// Returns the Ethernet address of our frames on a tap interface, and `None` for other kinds. The interface's
/// own address belongs to the kernel: a bridge would pass frames for this address to the kernel.
pub(super) fn mac(kind: &Kind, address: IpAddr) -> Option<[u8; 6]> {
    let Kind::Tap { .. } = kind else { return None };
    let mapped = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let [.., a, b, c, d] = mapped.octets();
    Some([0x02, b'u', a, b, c, d])
}

impl Wanted {
    fn of(kind: &Kind) -> Result<Self, String> {
        let vdev = |text: String| Self {
            eal: EalConfig { memory: Memory::Ordinary { mib: MEMORY_MIB }, ..EalConfig::default() },
            device: PortSpec::Vdev(text),
        };
        Ok(match kind {
            Kind::Tap { interface } => vdev(format!("net_tap0,iface={}", plain(interface)?)),
            Kind::Xdp { interface } => vdev(format!("net_af_xdp0,iface={}", plain(interface)?)),
            Kind::Vhost { path } => vdev(format!("net_vhost0,iface={}", plain_path(path)?)),
            Kind::Virtio { path } => vdev(format!("net_virtio_user0,path={}", plain_path(path)?)),
            Kind::Memif { path, server, id } => {
                let role = if *server { "server" } else { "client" };
                let path = plain_path(path)?;
                vdev(format!("net_memif0,role={role},id={id},socket={path},socket-abstract=no"))
            }
            Kind::Dpdk { arguments } => Self::of_arguments(arguments)?,
            Kind::Local { .. } | Kind::Packet { .. } => return Err("no device of DPDK".into()),
        })
    }

    /// Finds the device among EAL's arguments: `-a ADDRESS`, `--allow ADDRESS` or `--vdev DEVICE`.
    /// `--no-huge` selects ordinary memory. All other arguments are passed to EAL.
    fn of_arguments(arguments: &str) -> Result<Self, String> {
        let mut devices = Vec::new();
        let mut eal = EalConfig { memory: Memory::Auto { mib: MEMORY_MIB }, ..EalConfig::default() };
        let mut words = arguments.split_whitespace();
        while let Some(word) = words.next() {
            let (option, value) = match word.split_once('=') {
                Some((option @ ("--allow" | "--vdev"), value)) => (option, Some(value)),
                _ => (word, None),
            };
            match option {
                "-a" | "--allow" | "--vdev" => {
                    let value = value.or_else(|| words.next());
                    let value = value.ok_or_else(|| format!("'{option}' needs a device"))?;
                    devices.push(if option == "--vdev" {
                        PortSpec::Vdev(value.into())
                    } else {
                        eal.pci.push(value.into());
                        let (address, _) = value.split_once(',').unwrap_or((value, ""));
                        PortSpec::Pci(address.into())
                    });
                }
                "--no-huge" => eal.memory = Memory::Ordinary { mib: MEMORY_MIB },
                _ => eal.extra.push(word.into()),
            }
        }
        match <[PortSpec; 1]>::try_from(devices) {
            Ok([device]) => Ok(Self { eal, device }),
            Err(devices) => Err(format!(
                "the arguments name {} devices: name one, by -a 0000:03:00.0 or --vdev net_tap0,iface=uwarp0",
                devices.len()
            )),
        }
    }
}

/// Checks that a name has no comma, since commas separate DPDK's arguments.
fn plain(name: &str) -> Result<&str, String> {
    if name.contains(',') { Err(format!("'{name}' has a comma: use a name without one")) } else { Ok(name) }
}

/// Returns the absolute path, since some drivers refuse a relative path. Fails if the path has a comma or is
/// not UTF-8.
fn plain_path(path: &Path) -> Result<String, String> {
    let whole = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = whole.to_str().ok_or_else(|| format!("{} is no UTF-8 text", path.display()))?;
    plain(text).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(spec: &str) -> Result<Wanted, String> {
        Wanted::of(&spec.parse::<Spec>().unwrap().kind)
    }

    #[test]
    fn each_kind_is_a_device_of_dpdk() {
        for (spec, device) in [
            ("tap:uwarp0", "net_tap0,iface=uwarp0"),
            ("xdp:eth0", "net_af_xdp0,iface=eth0"),
            ("vhost:/s", "net_vhost0,iface=/s"),
            ("virtio:/s", "net_virtio_user0,path=/s"),
            ("memif:/s,role=server,id=3", "net_memif0,role=server,id=3,socket=/s,socket-abstract=no"),
            ("memif:/a/../s", "net_memif0,role=client,id=0,socket=/a/../s,socket-abstract=no"),
            ("memif:/s", "net_memif0,role=client,id=0,socket=/s,socket-abstract=no"),
        ] {
            let wanted = wanted(spec).unwrap();
            assert_eq!(wanted.device, PortSpec::Vdev(device.into()));
            assert_eq!(wanted.eal.memory, Memory::Ordinary { mib: MEMORY_MIB });
        }
    }

    #[test]
    fn the_arguments_of_eal_name_one_device() {
        let nic = wanted("dpdk:-a 0000:03:00.0,rx=4 --huge-unlink").unwrap();
        assert_eq!(nic.device, PortSpec::Pci("0000:03:00.0".into()));
        assert_eq!(
            (nic.eal.pci, nic.eal.extra),
            (vec!["0000:03:00.0,rx=4".into()], vec!["--huge-unlink".into()])
        );
        assert_eq!(nic.eal.memory, Memory::Auto { mib: MEMORY_MIB });
        let tap = wanted("dpdk:--vdev=net_tap0,iface=t --no-huge").unwrap();
        assert_eq!(tap.device, PortSpec::Vdev("net_tap0,iface=t".into()));
        assert_eq!((tap.eal.memory, tap.eal.extra), (Memory::Ordinary { mib: MEMORY_MIB }, vec![]));
        for (arguments, says) in [
            ("dpdk:--no-huge", "name 0 devices: name one"),
            ("dpdk:-a 03:00.0 -a 04:00.0", "name 2 devices: name one"),
            ("dpdk:-a", "'-a' needs a device"),
        ] {
            let line = wanted(arguments).unwrap_err();
            assert!(line.contains(says) && !line.contains('\n'), "{line}");
        }
    }

    /// Returns what the system reports about the calling thread: its allowed processors, and the blocked,
    /// ignored and handled signals.
    fn state_of_thread() -> Vec<String> {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let kept = ["SigBlk", "SigIgn", "SigCgt", "Cpus_allowed_list"];
        text.lines().filter(|line| kept.iter().any(|key| line.starts_with(key))).map(str::to_owned).collect()
    }

    fn opens_and_changes_nothing(spec: &str, name: &str) {
        let spec: Spec = spec.parse().unwrap();
        let before = state_of_thread();
        let port = open(&spec).unwrap();
        assert_eq!(port.info().name, name);
        assert_eq!(state_of_thread(), before);
        assert_eq!(before.len(), 4);
    }

    /// EAL can start only once in a process, so this is the only test in this process that starts EAL.
    #[test]
    fn eal_changes_neither_the_processors_of_the_program_nor_its_signal_handlers() {
        opens_and_changes_nothing("dpdk:--vdev net_null0 --no-huge", "net_null0");
        let in_a_namespace = std::thread::spawn(|| {
            // SAFETY: the flag gives this thread its own network namespace, which ends with the thread.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
                opens_and_changes_nothing("dpdk:--vdev net_tap0,iface=uwarp0 --no-huge", "net_tap0");
            } else {
                println!("skipped: tap (needs root and network namespaces)");
            }
        });
        in_a_namespace.join().unwrap();
    }

    #[test]
    fn a_tap_interface_and_we_have_different_ethernet_addresses() {
        let address = "10.0.0.2".parse().unwrap();
        assert_eq!(mac(&Kind::Tap { interface: "t".into() }, address), Some([2, b'u', 10, 0, 0, 2]));
        assert_eq!(mac(&Kind::Vhost { path: "/s".into() }, address), None);
    }
}
