//! Wires other than `local`: interfaces in network namespaces, and DPDK's devices that are connected by a
//! socket.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernels' addresses at the two ends.
const KERNEL_ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const KERNEL_IPV6_ADDRESSES: [&str; 2] = ["fd77::1", "fd77::2"];
/// The library's addresses at the two ends. The kernels do not have these addresses.
const OWN_ADDRESSES: [&str; 2] = ["10.77.0.11", "10.77.0.12"];

/// The privileges of the programs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privileges {
    /// An ordinary user without any capability.
    None,
    /// An ordinary user with only the capability CAP_NET_RAW.
    RawSockets,
    /// The privileges of the test.
    #[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
    All,
}

/// The two ends of a wire. The namespaces of the ends are removed when the value is dropped.
pub(crate) struct Interfaces {
    namespaces: Vec<String>,
    /// For each end, the command prefix that runs a program at that end, and the wire without its address.
    ends: [(Vec<String>, String); 2],
    pub(crate) privileges: Privileges,
    /// True if programs use the kernels' addresses.
    of_kernel: bool,
}

impl Interfaces {
    /// Makes two namespaces with one interface each. The two interfaces are connected to each other.
    pub(crate) fn new() -> Result<Self, String> {
        let mut interfaces = Self::connected()?;
        interfaces.ends = [0, 1].map(|end| interfaces.inside(end, "packet:v"));
        Ok(interfaces)
    }

    /// Makes two namespaces like [`new`](Self::new), in which programs use the kernels' addresses.
    pub(crate) fn hosts() -> Result<Self, String> {
        let mut interfaces = Self::new()?;
        interfaces.of_kernel = true;
        Ok(interfaces)
    }

    /// Adds keys to the wires of both ends.
    pub(crate) fn with_keys(mut self, keys: &str) -> Self {
        self.ends.iter_mut().for_each(|(_, net)| *net = format!("{net},{keys}"));
        self
    }

    /// Makes two namespaces like [`new`](Self::new), in which programs use AF_XDP. libxdp pins its maps in
    /// the BPF file system, which `ip netns exec` does not mount, so each command mounts it first.
    #[cfg(feature = "dpdk")]
    pub(crate) fn xdp() -> Result<Self, String> {
        let mut interfaces = Self::connected()?;
        interfaces.privileges = Privileges::All;
        interfaces.ends = [0, 1].map(|end| {
            let (mut words, net) = interfaces.inside(end, "xdp:v");
            let mount = "mount -t bpf bpf /sys/fs/bpf && exec \"$@\"";
            words.extend(["sh", "-c", mount, "sh"].map(str::to_owned));
            (words, net)
        });
        Ok(interfaces)
    }

    /// Makes a namespace with a bridge between two tap interfaces.
    #[cfg(feature = "dpdk")]
    pub(crate) fn taps() -> Result<Self, String> {
        let mut interfaces = Self::empty(Privileges::All);
        interfaces.add_namespace()?;
        let name = interfaces.namespaces[0].clone();
        ip(&format!("-n {name} link add bridge type bridge"))?;
        ip(&format!("-n {name} link set bridge up"))?;
        for link in ["va", "vb"] {
            ip(&format!("-n {name} tuntap add dev {link} mode tap multi_queue"))?;
            ip(&format!("-n {name} link set {link} master bridge"))?;
            ip(&format!("-n {name} link set {link} up"))?;
        }
        let words = ["ip", "netns", "exec", &name].map(str::to_owned);
        interfaces.ends = ["tap:va", "tap:vb"].map(|net| (words.to_vec(), net.to_owned()));
        Ok(interfaces)
    }

    /// Makes two devices that are connected by a socket. Programs run as an ordinary user.
    #[cfg(feature = "dpdk")]
    pub(crate) fn sockets(nets: [&str; 2]) -> Self {
        let mut interfaces = Self::empty(Privileges::None);
        interfaces.ends = nets.map(|net| (Vec::new(), net.to_owned()));
        interfaces
    }

    fn empty(privileges: Privileges) -> Self {
        Self { namespaces: Vec::new(), ends: Default::default(), privileges, of_kernel: false }
    }

    fn add_namespace(&mut self) -> Result<(), String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("uwp{}-{number}", std::process::id());
        ip(&format!("netns add {name}"))?;
        self.namespaces.push(name);
        Ok(())
    }

    fn connected() -> Result<Self, String> {
        let mut interfaces = Self::empty(Privileges::RawSockets);
        interfaces.add_namespace()?;
        interfaces.add_namespace()?;
        let [a, b] = [0, 1].map(|end| interfaces.namespaces[end].clone());
        ip(&format!("link add va netns {a} type veth peer name vb netns {b}"))?;
        for (name, link, end) in [(&a, "va", 0), (&b, "vb", 1)] {
            ip(&format!("-n {name} addr add {}/24 dev {link}", KERNEL_ADDRESSES[end]))?;
            // With `nodad`, the address can be used at once, without duplicate address detection.
            ip(&format!("-n {name} addr add {}/64 dev {link} nodad", KERNEL_IPV6_ADDRESSES[end]))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set {link} up"))?;
        }
        Ok(interfaces)
    }

    /// Returns the command prefix that runs a program in the namespace of an end, and the wire of that end
    /// without its address.
    fn inside(&self, end: usize, kind: &str) -> (Vec<String>, String) {
        let words = ["ip", "netns", "exec", &self.namespaces[end]].map(str::to_owned);
        (words.into(), format!("{kind}{}", ["a", "b"][end]))
    }

    /// Sets the link of an end's interface down.
    pub(crate) fn take_link(&self, end: usize) -> Result<(), String> {
        ip(&format!("-n {} link set v{} down", self.namespaces[end], ["a", "b"][end]))
    }

    /// Removes an end's interface, and with it the interface of the other end.
    pub(crate) fn remove_link(&self, end: usize) -> Result<(), String> {
        ip(&format!("-n {} link del v{}", self.namespaces[end], ["a", "b"][end]))
    }

    /// Returns the command prefix that runs a program at an end, and the wire of that end. The wire has an
    /// address unless programs use the kernel's address.
    pub(crate) fn end(&self, end: usize) -> (Vec<String>, String) {
        let (words, net) = &self.ends[end];
        let own = if self.of_kernel { String::new() } else { format!(",addr={}/24", OWN_ADDRESSES[end]) };
        (words.clone(), format!("{net}{own}"))
    }

    /// Returns the command of a pair, with the server's IPv4 or IPv6 address in place of the loopback
    /// address.
    pub(crate) fn at_server(&self, command: &str) -> String {
        command.replace("127.0.0.1", self.address(0)).replace("::1", KERNEL_IPV6_ADDRESSES[0])
    }

    /// Returns the kernel's IPv4 address at an end.
    pub(crate) fn kernel_address(end: usize) -> &'static str {
        KERNEL_ADDRESSES[end]
    }

    /// Returns the address that programs use at an end.
    pub(crate) fn address(&self, end: usize) -> &'static str {
        (if self.of_kernel { KERNEL_ADDRESSES } else { OWN_ADDRESSES })[end]
    }
}

impl Drop for Interfaces {
    fn drop(&mut self) {
        for name in &self.namespaces {
            // Errors are ignored: `drop` cannot return them.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

pub(crate) fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim_end())),
    }
}

/// Whether namespaces can be made.
pub(crate) fn can_be_made() -> bool {
    Interfaces::new().is_ok()
}
