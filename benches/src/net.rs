//! Makes the sides of a test from the options of the network, and pins threads to CPUs. An [`End`] is one
//! side: it has a context, an engine on a port, and a driver.

#[cfg(feature = "dpdk")]
mod device;
mod near;
#[cfg(target_os = "linux")]
mod packet;
#[cfg(all(feature = "vhost", target_os = "linux"))]
mod vhost;
#[cfg(target_os = "linux")]
mod wire;

use std::path::Path;
use std::time::Duration;

use dp::{DeviceStats, Port};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::verbs::{Context, ContextConfig};

use crate::cli::NetArgs;
use crate::driver::{Driver, Interrupt};
use crate::endpoint::Endpoint;
use crate::errors::Error;
use crate::shown::Shown;

/// One side of a test, with the properties of its port that the exchange needs.
pub struct End {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// IP MTU.
    pub mtu: u16,
    mac: [u8; 6],
    /// The statistics of this side's device, if the device has statistics.
    pub device_stats: Option<DeviceStats>,
    /// The CPU for the thread that polls the engine, if the thread is not pinned yet.
    cpu: Option<usize>,
}

/// A side of a test that uses several queues of a device.
pub struct Cores {
    /// One [`End`] for each queue. All of these values share one context and the same addresses.
    pub ends: Vec<End>,
    /// The CPU of each [`End`].
    pub cpus: Vec<usize>,
}

impl End {
    /// The GID of this side in a destination: the MAC address, followed by zeros, as with siw.
    pub fn gid(&self) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..6].copy_from_slice(&self.mac);
        gid
    }

    /// Pins the calling thread, which will poll this side's engine, to this side's CPU. Does nothing if this
    /// side has no CPU, or if the thread is pinned already.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if this process may not use that CPU.
    pub fn take_thread(&mut self) -> Result<(), Error> {
        self.cpu.take().map_or(Ok(()), pin)
    }
}

/// The parameters of an [`End`] on a port.
#[derive(Clone, Debug)]
pub struct EndConfig<'a> {
    /// Addresses with their prefix lengths.
    pub ips: Vec<String>,
    /// Addresses of routers.
    pub gateways: Vec<std::net::IpAddr>,
    /// VLAN id.
    pub vlan: Option<u16>,
    /// Traffic class of TCP's packets.
    pub tos: u8,
    /// Capture file.
    pub pcap: Option<&'a Path>,
    /// The CPU to which this thread or the engine's thread is pinned. `None` means that the thread is not
    /// pinned.
    pub cpu: Option<usize>,
    /// Whether the peer may run on the same CPU. In this case idle polls yield the CPU.
    pub shares_cpu: bool,
    /// Whether this side sleeps on completion events while the engine runs in its own thread.
    pub events: bool,
    /// Whether this side asks for CRCs.
    pub crc: bool,
    /// Time limit for a peer from which nothing arrives.
    pub timeout: Duration,
    /// How long connections survive without a link. `None` means the engine's default.
    pub link_timeout: Option<Duration>,
    /// Whether the wire is a local wire.
    pub is_local_wire: bool,
}

impl<'a> EndConfig<'a> {
    /// Returns the parameters for these options. Call this function before EAL starts, since EAL pins this
    /// thread to one CPU if `--cpu` is given. A process that may use only one CPU, and has no `--cpu`, may
    /// share the CPU with the peer.
    pub fn new(args: &'a NetArgs, events: bool, crc: bool) -> Self {
        Self {
            ips: args.ips.clone(),
            gateways: args.gateway.clone(),
            vlan: args.vlan,
            tos: args.tos.unwrap_or(0),
            pcap: args.pcap.as_deref(),
            cpu: args.cpu,
            shares_cpu: has_one_cpu() && args.cpu.is_none(),
            events,
            crc,
            timeout: args.timeout,
            link_timeout: args.link_timeout,
            is_local_wire: args.local_wire().is_some(),
        }
    }
}

/// Opens the device of `args`, and creates an [`End`] on the device.
///
/// # Errors
/// Returns [`Error::Usage`] for options that cannot be used, [`Error::Port`] if the device cannot be opened,
/// [`Error::System`] if a system call fails, or [`Error::Verbs`] if a verbs call fails.
pub fn open(args: &NetArgs, events: bool, crc: bool, interrupt: &Interrupt) -> Result<End, Error> {
    args.check()?;
    if let Some(node) = args.socket {
        near::of_node(Path::new("/sys"), node, &allowed_cpus()?)?;
    }
    let config = EndConfig::new(args, events, crc);
    make_end(open_port(args)?, &config, interrupt)
}

/// Opens the device of `args` with a queue for each of its cores, and creates an [`End`] on each queue.
///
/// # Errors
/// Returns [`Error::Usage`] for options that cannot be used, [`Error::Port`] if the device cannot be opened,
/// [`Error::System`] if a system call fails, or [`Error::Verbs`] if a verbs call fails.
pub fn open_cores(args: &NetArgs, crc: bool, interrupt: &Interrupt) -> Result<Cores, Error> {
    args.check()?;
    let mut allowed = allowed_cpus()?;
    match (args.socket, &args.pci) {
        (Some(node), _) => allowed = near::of_node(Path::new("/sys"), node, &allowed)?,
        (None, Some(address)) => allowed = near::first(Path::new("/sys"), address, &allowed),
        (None, None) => {}
    }
    let count = usize::from(args.cores);
    let cpus: Vec<usize> = match args.cpu {
        Some(first) => (first..first + count).collect(),
        None => (0..count).map(|core| allowed[core % allowed.len()]).collect(),
    };
    let mut config = EndConfig::new(args, false, crc);
    // Threads that share a CPU yield the CPU to each other.
    config.shares_cpu = args.cpu.is_none() && count > allowed.len();
    let ports = open_device(args)?;
    let (mtu, mac) = (ports[0].info().mtu, ports[0].info().mac);
    // The first end has the statistics of the whole device.
    let mut device_stats = ports[0].device_stats();
    let engine_config = engine_config(&*ports[0], &config)?;
    let context = Context::new(ContextConfig::default())?;
    let engines = Engine::on_queues(&context, ports, &engine_config, &cpus)?;
    let mut shown = Some(Shown::new(&context));
    let end = |(index, engine): (usize, Engine)| {
        let mut driver = Driver::inline(engine, interrupt.clone());
        if config.shares_cpu {
            driver.share_cpu();
        }
        let mut endpoint = Endpoint::new(context.clone(), driver, config.timeout)?;
        endpoint.engine = Some(index);
        endpoint.shown = shown.take();
        Ok(End { endpoint, mtu, mac, device_stats: device_stats.take(), cpu: Some(cpus[index]) })
    };
    let ends = engines.into_iter().enumerate().map(end).collect::<Result<_, Error>>()?;
    Ok(Cores { ends, cpus })
}

/// Creates an [`End`] on `port`.
///
/// # Errors
/// Returns [`Error::System`] if the capture file cannot be written, [`Error::Usage`] for parameters that
/// cannot be used, or [`Error::Verbs`] if a verbs call fails.
pub fn make_end(port: Box<dyn Port>, config: &EndConfig<'_>, interrupt: &Interrupt) -> Result<End, Error> {
    let port: Box<dyn Port> =
        match config.pcap {
            None => port,
            Some(path) => Box::new(dp::pcap::Tap::create(port, path).map_err(|source| Error::System {
                what: format!("cannot write {}", path.display()),
                source,
            })?),
        };
    let (info, device_stats) = (port.info().clone(), port.device_stats());
    let engine_config = engine_config(&*port, config)?;
    let context = Context::new(ContextConfig::default())?;
    let engine = Engine::new(&context, port, engine_config)?;
    let driver = if config.events {
        let channel = context.create_comp_channel()?;
        Driver::threaded(engine, channel, config.cpu, interrupt.clone())?
    } else {
        if let Some(cpu) = config.cpu {
            pin(cpu)?;
        }
        let mut driver = Driver::inline(engine, interrupt.clone());
        if config.shares_cpu {
            driver.share_cpu();
        }
        driver
    };
    let mut endpoint = Endpoint::new(context, driver, config.timeout)?;
    endpoint.shown = Some(Shown::new(&endpoint.context));
    Ok(End { endpoint, mtu: info.mtu, mac: info.mac, device_stats, cpu: None })
}

/// The configuration of the engines on the device of `port`.
fn engine_config(port: &dyn Port, config: &EndConfig<'_>) -> Result<EngineConfig, Error> {
    let ips: Vec<&str> = config.ips.iter().map(String::as_str).collect();
    let mut engine_config = EngineConfig::new(port, &ips)?;
    engine_config.crc = config.crc;
    engine_config.stack.vlan = config.vlan;
    engine_config.stack.tcp.traffic_class = config.tos;
    #[cfg(target_os = "linux")]
    if config.is_local_wire {
        // A local wire has no broadcasts, so Ethernet addresses follow from IP addresses, and addresses are
        // not probed.
        engine_config.stack.derived_neighbors = Some(wire::DERIVED_NEIGHBORS);
        engine_config.stack.address_probing = tcp_lite::AddressProbing::Off;
    }
    if let Some(timeout) = config.link_timeout {
        // The conversion loses nothing: the timeout is at most a day.
        engine_config.stack.tcp.link_timeout = tcp_lite::Duration::from_micros(timeout.as_micros() as u64);
    }
    for &gateway in &config.gateways {
        if engine_config.stack.gateways.try_push(gateway.into()).is_err() {
            return Err(Error::Usage("--gateway: give at most one for each address family".into()));
        }
    }
    Ok(engine_config)
}

/// Whether this thread may use only one CPU.
pub fn has_one_cpu() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1)
}

/// The CPUs that this process may use.
///
/// # Errors
/// Returns [`Error::System`] if the system call fails.
#[cfg(target_os = "linux")]
pub fn allowed_cpus() -> Result<Vec<usize>, Error> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let failed = |error: rustix::io::Errno| Error::System {
        what: "cannot read the CPUs of this process".into(),
        source: error.into(),
    };
    let set = sched_getaffinity(None).map_err(failed)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// The CPUs that this process may use.
///
/// # Errors
/// Returns [`Error::Usage`], since threads cannot be pinned on this system.
#[cfg(not(target_os = "linux"))]
pub fn allowed_cpus() -> Result<Vec<usize>, Error> {
    Err(Error::Usage("--cores works on Linux only".into()))
}

/// Pins the calling thread to `cpu`.
///
/// # Errors
/// Returns [`Error::Usage`] if this process may not use `cpu`.
#[cfg(target_os = "linux")]
pub fn pin(cpu: usize) -> Result<(), Error> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|error| Error::Usage(format!("--cpu {cpu}: {error}")))
}

/// Fails, since pinning is not supported on this system.
///
/// # Errors
/// Always returns [`Error::Usage`].
#[cfg(not(target_os = "linux"))]
pub fn pin(_cpu: usize) -> Result<(), Error> {
    Err(Error::Usage("--cpu works on Linux only".into()))
}

fn open_port(args: &NetArgs) -> Result<Box<dyn Port>, Error> {
    if let Some(path) = args.vhost_socket() {
        return open_vhost(args, path);
    }
    match (&args.packet, args.local_wire()) {
        (Some(interface), _) => open_packet(args, interface),
        (None, Some(name)) => open_wire(args, name),
        (None, None) => {
            let ports = open_device(args)?;
            ports.into_iter().next().ok_or_else(|| Error::Port("the device has no queues".into()))
        }
    }
}

#[cfg(target_os = "linux")]
fn open_packet(args: &NetArgs, interface: &str) -> Result<Box<dyn Port>, Error> {
    packet::open(args, interface)
}

#[cfg(target_os = "linux")]
fn open_wire(args: &NetArgs, name: &str) -> Result<Box<dyn Port>, Error> {
    wire::open(args, name)
}

#[cfg(all(feature = "vhost", target_os = "linux"))]
fn open_vhost(args: &NetArgs, path: &Path) -> Result<Box<dyn Port>, Error> {
    vhost::open(args, path)
}

#[cfg(not(all(feature = "vhost", target_os = "linux")))]
fn open_vhost(_args: &NetArgs, _path: &Path) -> Result<Box<dyn Port>, Error> {
    Err(Error::Usage("--wire vhost:PATH needs Linux, and iwperf with its feature vhost".into()))
}

#[cfg(not(target_os = "linux"))]
fn open_packet(_args: &NetArgs, _interface: &str) -> Result<Box<dyn Port>, Error> {
    Err(Error::Usage("--packet works on Linux only".into()))
}

#[cfg(not(target_os = "linux"))]
fn open_wire(_args: &NetArgs, _name: &str) -> Result<Box<dyn Port>, Error> {
    Err(Error::Usage("--wire works on Linux only".into()))
}

#[cfg(feature = "dpdk")]
fn open_device(args: &NetArgs) -> Result<Vec<Box<dyn Port>>, Error> {
    device::open(args)
}

#[cfg(not(feature = "dpdk"))]
fn open_device(_args: &NetArgs) -> Result<Vec<Box<dyn Port>>, Error> {
    Err(Error::Port(
        "this iwperf was built without DPDK: only --wire NAME, --packet IF and `iwperf local` work".into(),
    ))
}
