//! Tests of EAL: for example, EAL starts once, reports each error in one line, and handles threads and forks.

#[path = "dpdk/support.rs"]
mod support;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use dp::dpdk::{self, DeviceConfig, DeviceError, PciProblem, PortSpec};
use dp::eal::{Eal, EalConfig, EalError, register_thread};
use dp::{Burst, LinkState, Loopback, Port, Statistics};

fn vdev(spec: &str) -> Result<Vec<Box<dyn Port>>, DeviceError> {
    dpdk::open(support::eal(), &PortSpec::Vdev(spec.into()), &DeviceConfig::default())
}

#[test]
fn eal_runs_once_and_devices_come_and_go() {
    assert!(Eal::running().is_none());
    assert!(!register_thread(), "nothing to register with");
    let pci = EalConfig { pci: vec!["eth0".into()], ..EalConfig::ordinary(256) };
    assert_eq!(Eal::start(&pci).unwrap_err(), EalError::PciAddress { text: "eth0".into() });
    support::eal();
    support::eal();
    assert_eq!(Eal::start(&EalConfig::ordinary(128)).unwrap_err(), EalError::AlreadyStarted);
    assert!(Eal::version().starts_with("DPDK"));

    // The device is opened, opened a second time while it is open, and opened again after it is closed.
    let mut ports = vdev("net_null0").unwrap();
    assert_eq!(ports[0].info().name, "net_null0");
    assert_eq!(ports[0].link_state(), LinkState::Up);
    assert!(matches!(vdev("net_null0"), Err(DeviceError::InUse { .. })));
    drop(ports);
    let mut ports = vdev("net_null0,size=100").unwrap();

    // net_null generates frames. If another thread uses the port, that thread is registered with EAL.
    let mut port = ports.remove(0);
    std::thread::spawn(move || {
        let mut frames = Burst::new();
        assert!(port.rx_burst(0, &mut frames) > 0);
        assert!(frames.iter().all(|frame| frame.len() == 100));
        let taken = frames.len();
        assert_eq!(port.tx_burst(0, &mut frames), taken);
        assert!(frames.is_empty() && register_thread());
        assert_eq!(port.counters().tx_bytes, 100 * taken as u64);
        // The driver's own counts are available through a wrapper. The list of counts is empty after the
        // device is closed.
        let port = Loopback::new(port);
        let stats = port.device_stats().unwrap();
        let told = stats.read();
        let count = |name: &str| told.iter().find(|stat| stat.name == name).map(|stat| stat.value);
        assert_eq!(count("tx_good_packets"), Some(taken as u64), "{told:?}");
        assert_eq!(count("rx_missed_errors"), Some(0));
        drop(port);
        assert!(stats.read().is_empty());
    })
    .join()
    .unwrap();

    // The message of each error is one line.
    for (spec, says) in [
        ("no_such_driver0", "one of net_af_packet"),
        ("net_e1000", "no such device"),
        ("net_virtio_user0,path=/nowhere/at.all", "start the server first"),
        ("net_virtio_user0", "net_virtio_user0 needs path"),
        ("net_af_packet0,iface=nope0", "there is no interface nope0"),
        ("net_null1,copy=maybe\0", "no such device"),
    ] {
        let told = vdev(spec).err().unwrap().to_string();
        assert!(told.contains(says) && !told.contains('\n'), "{told}");
    }
    for (address, expected) in [("99:00.0", PciProblem::Absent), ("eth0", PciProblem::Address)] {
        let pci = dpdk::open(support::eal(), &PortSpec::Pci(address.into()), &DeviceConfig::default());
        let Err(DeviceError::Pci { device, problem }) = pci else { panic!("{address} opens") };
        assert_eq!((device.as_str(), problem), (address, expected));
    }
    let queues = DeviceConfig { queues: 0, ..DeviceConfig::default() };
    let none = dpdk::open(support::eal(), &PortSpec::Vdev("net_null2".into()), &queues);
    assert!(matches!(none, Err(DeviceError::Queues { .. })));

    a_fork_is_noticed();
}

/// Checks that a forked child detects the fork. The closure runs in the child, so it can report a failure
/// only by an error number.
fn a_fork_is_noticed() {
    let mut command = Command::new("true");
    let config = EalConfig::ordinary(256);
    let is_noticed = move || match Eal::start(&config) {
        Err(EalError::Forked) => Ok(()),
        _ => Err(io::Error::from_raw_os_error(1)),
    };
    // SAFETY: in a child of a process with several threads, the closure must not lock or allocate. The
    // closure only loads the atomic by which `start` detects the fork, and makes an error from a number.
    unsafe { command.pre_exec(is_noticed) };
    assert!(command.status().unwrap().success());
}
