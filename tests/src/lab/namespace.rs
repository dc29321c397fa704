//! Network namespaces and the wires between them.
//!
//! A namespace's name consists of the name of the run, the process id of its owner, and a number
//! (`uw1234-1250-0`). Therefore the next run and `scripts/test` can remove the namespaces of a killed run.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::process::{Process, Run};
use super::scratch::{ordinal, run_name};
use super::{LabError, Result};
use crate::ensure;

/// Maximum duration of one `ip` or `ethtool`. Concurrent runs of these tools wait for each other, and the
/// removal of devices waits for the kernel's RCU grace periods.
const TOOL_TIMEOUT: Duration = Duration::from_secs(60);

/// A network namespace whose loopback device is up. When the value is dropped, the namespace's processes are
/// killed and its devices are removed.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace whose loopback device is up.
    ///
    /// # Errors
    /// If `ip` fails, for example because the privilege or the program is missing.
    pub fn new() -> Result<Self> {
        sweep_dead_runs();
        let name = format!("{}-{}-{}", run_name(), std::process::id(), ordinal());
        Run::new("ip").args(["netns", "add", &name]).check(TOOL_TIMEOUT)?;
        let made = Self { name };
        made.ip(["link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// Returns the name of the namespace, for `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip ARGS` in the namespace, and returns what it printed.
    ///
    /// # Errors
    /// If `ip` fails, with its output.
    pub fn ip(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<String> {
        Run::new("ip").args(["-n", &self.name]).args(args).check(TOOL_TIMEOUT)
    }

    /// Returns a run of a program in the namespace.
    pub fn run(&self, program: impl AsRef<Path>) -> Run {
        Run::new(program).within(self.name.clone())
    }

    /// Gives an address to a device of the namespace. Duplicate address detection is off, so the address is
    /// usable at once.
    ///
    /// # Errors
    /// If `ip` fails, with its output.
    pub fn address(&self, dev: &str, address: &str) -> Result<()> {
        let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        self.ip(["addr", "add", address, "dev", dev].into_iter().chain(nodad.iter().copied()))?;
        Ok(())
    }

    /// Sets a device's MTU and brings the device up, without a link-local address and router solicitations.
    ///
    /// # Errors
    /// If `ip` fails, with its output.
    pub fn up(&self, dev: &str, mtu: u16) -> Result<()> {
        self.ip(["link", "set", dev, "addrgenmode", "none"])?;
        self.ip(["link", "set", dev, "mtu", &mtu.to_string(), "up"])?;
        Ok(())
    }

    /// Turns off the offloads of a device. With offloads, the kernel would send superframes and unfilled
    /// checksums through a veth or tap to a packet socket or DPDK at the other side.
    ///
    /// # Errors
    /// If `ethtool` fails, with its output.
    pub fn offloads_off(&self, dev: &str) -> Result<()> {
        self.run("ethtool")
            .args(["-K", dev, "tx", "off", "tso", "off", "gso", "off", "gro", "off"])
            .check(TOOL_TIMEOUT)?;
        Ok(())
    }

    /// Turns on the offloads that [`veth`] turns off: frames of up to 64 KiB pass the device, without
    /// checksums.
    ///
    /// # Errors
    /// If `ethtool` fails, with its output.
    pub fn offloads_on(&self, dev: &str) -> Result<()> {
        self.run("ethtool")
            .args(["-K", dev, "tx", "on", "tso", "on", "gso", "on", "gro", "on"])
            .check(TOOL_TIMEOUT)?;
        Ok(())
    }

    /// Runs `act` on a thread in the namespace. A socket belongs to the namespace of the thread that created
    /// it.
    ///
    /// # Errors
    /// If the thread may not enter the namespace.
    ///
    /// # Panics
    /// If `act` panics.
    pub fn enter<T: Send>(&self, act: impl FnOnce() -> T + Send) -> Result<T> {
        let entered = || {
            let namespace = std::fs::File::open(Path::new("/run/netns").join(&self.name))?;
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).map_err(std::io::Error::from)?;
            Ok(act())
        };
        std::thread::scope(|scope| scope.spawn(entered).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Turns on GRO at a device. GRO waits a fraction of a millisecond for the next segment.
    ///
    /// # Errors
    /// If `ethtool` or the kernel fails, with the output.
    pub fn gro_on(&self, dev: &str) -> Result<()> {
        self.run("ethtool").args(["-K", dev, "gro", "on"]).check(TOOL_TIMEOUT)?;
        // The time-out is in nanoseconds. Without a time-out, GRO never joins segments of separate frames.
        let set = format!("echo 300000 > /sys/class/net/{dev}/gro_flush_timeout");
        self.run("sh").args(["-c", &set]).check(TOOL_TIMEOUT)?;
        Ok(())
    }

    /// Sets a parameter of the namespace's TCP. `name` is its name below `net.ipv4`.
    ///
    /// # Errors
    /// If the kernel rejects the name or the value.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        let set = format!("echo {value} > /proc/sys/net/ipv4/{name}");
        self.run("sh").args(["-c", &set]).check(TOOL_TIMEOUT)?;
        Ok(())
    }

    /// Creates a bridge with this MTU, and brings it up.
    ///
    /// # Errors
    /// If `ip` fails, with its output.
    pub fn bridge(&self, dev: &str, mtu: u16) -> Result<()> {
        self.ip(["link", "add", dev, "type", "bridge"])?;
        self.up(dev, mtu)
    }

    /// Waits until the kernel of the namespace can connect to `address`, at which the process `server` is
    /// about to listen. The connection ends before an MPA Request, so a verbs program does not see it.
    ///
    /// # Errors
    /// If the server ends, or does not listen after `limit`.
    pub fn wait_for_listener(
        &self,
        address: SocketAddr,
        server: &mut Process,
        limit: Duration,
    ) -> Result<()> {
        let started = Instant::now();
        while self.enter(|| TcpStream::connect_timeout(&address, Duration::from_secs(1)))?.is_err() {
            ensure!(server.is_running()?, "the server ended: {}", server.text());
            ensure!(started.elapsed() < limit, "the server does not listen: {}", server.text());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Waits until the kernel of the namespace and `host` have resolved each other's address: until the host
    /// refuses a connection to a port without a listener. A machine that has just booted may be silent for
    /// longer than neighbour resolution lasts, which is 3 s.
    ///
    /// # Errors
    /// If the host has not answered after `limit`.
    pub fn wait_for_host(&self, host: IpAddr, limit: Duration) -> Result<()> {
        const NOBODY: u16 = 9;
        let connect = || TcpStream::connect_timeout(&(host, NOBODY).into(), Duration::from_secs(1));
        let started = Instant::now();
        loop {
            match self.enter(connect)? {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(()),
                other => ensure!(started.elapsed() < limit, "{host} does not answer: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a device exists, such as the tap device of a DPDK process.
    ///
    /// # Errors
    /// If the device does not exist after `limit`.
    pub fn wait_for_device(&self, dev: &str, limit: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            match self.ip(["link", "show", "dev", dev]) {
                Ok(_) => return Ok(()),
                Err(error) if started.elapsed() > limit => {
                    return Err(LabError(format!("no device {dev} after {limit:?}: {error}")));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// One side of a wire.
#[derive(Clone, Copy, Debug)]
pub struct Wire<'a> {
    /// The namespace of this side.
    pub namespace: &'a Namespace,
    /// The device of the wire in the namespace.
    pub dev: &'a str,
}

/// Connects two namespaces (or a namespace with itself) by a veth pair. Both devices are up, with offloads
/// off and without addresses.
///
/// # Errors
/// If `ip` or `ethtool` fails, with its output.
pub fn veth(a: Wire<'_>, b: Wire<'_>, mtu: u16) -> Result<()> {
    a.namespace.ip([
        "link",
        "add",
        a.dev,
        "type",
        "veth",
        "peer",
        "name",
        b.dev,
        "netns",
        b.namespace.name(),
    ])?;
    for end in [a, b] {
        end.namespace.offloads_off(end.dev)?;
        end.namespace.up(end.dev, mtu)?;
    }
    Ok(())
}

/// Kills the processes in a namespace by their ids, and deletes the namespace. Errors are ignored, since the
/// namespace may no longer exist.
fn remove(name: &str) {
    if let Ok(pids) = Run::new("ip").args(["netns", "pids", name]).check(TOOL_TIMEOUT) {
        let pids = pids.split_whitespace().filter_map(|word| word.parse().ok());
        for pid in pids.filter_map(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    let _ = Run::new("ip").args(["netns", "del", name]).check(TOOL_TIMEOUT);
}

/// Removes the namespaces of runs whose process no longer exists. Does so once in each process.
fn sweep_dead_runs() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            if owner(&name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                remove(&name);
            }
        }
    });
}

/// Returns the process id in a namespace's name, or `None` if the namespace does not belong to these tests.
fn owner(name: &str) -> Option<u32> {
    let (run, rest) = name.strip_prefix("uw")?.split_once('-')?;
    run.parse::<u32>().ok()?;
    rest.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn a_namespace_tells_who_made_it_and_foreign_ones_are_left_alone() {
        assert_eq!(owner("uw12-34-5"), Some(34));
        for foreign in ["uw12-try", "lab", "uwxyz-1-2", "uw12", "br-uw1-2-3", "uw-1-2"] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }
}
