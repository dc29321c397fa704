//! The options of the network, such as the device, addresses, offloads, cores and time limits.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::errors::Error;

/// Options of the network.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Network")]
pub struct NetArgs {
    /// Our address with its prefix length, as 10.0.0.1/24 or fd00::1/64. One address of each family may be
    /// given.
    #[arg(long = "ip", value_name = "ADDR/LEN", value_parser = parse_cidr, required = true)]
    pub ips: Vec<String>,
    /// Router for other networks: at most one router for each family.
    #[arg(long, value_name = "ADDR")]
    pub gateway: Vec<IpAddr>,
    /// VLAN tag of all frames.
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Type of service (IPv4) or traffic class (IPv6) of all TCP packets: DSCP times 4. TCP sets the lowest
    /// two bits, which are the ECN bits.
    #[arg(short = 'T', long, alias = "tclass", value_name = "0-255", value_parser = clap::value_parser!(u8))]
    pub tos: Option<u8>,
    /// A NIC by its PCI address, as 0000:03:00.0 or 03:00.0, bound to vfio-pci or uio_pci_generic
    /// (docs/NIC.md). Tested with NICs that QEMU emulates (e1000, e1000e, igb, virtio, vmxnet3), not with
    /// hardware.
    #[arg(long, value_name = "ADDR", conflicts_with = "vdev")]
    pub pci: Option<String>,
    /// A virtual device by its DPDK string, as net_af_packet0,iface=eth0.
    #[arg(long, value_name = "STRING")]
    pub vdev: Option<String>,
    /// An ordinary interface, as eth0, shared with the kernel: needs CAP_NET_RAW, but not DPDK. The addresses
    /// (--ip) must not be addresses of the kernel.
    #[arg(long, value_name = "IF", conflicts_with_all = ["vdev", "pci", "no_huge", "eal"])]
    pub packet: Option<String>,
    /// With --packet: an Ethernet address of our own, as 02:00:00:00:00:01, for networks that deliver frames
    /// to more than one address of the interface.
    #[arg(long, value_name = "MAC", requires = "packet", conflicts_with_all = ["vdev", "pci"], value_parser = parse_mac)]
    pub mac: Option<[u8; 6]>,
    /// A wire in shared memory between processes of this user, by its name: needs no device and no privilege.
    /// Addresses on the wire are in 100.64.0.0/16. Or vhost:PATH: a vhost-user socket for the driver of
    /// another process or of a virtual machine. This side makes the socket, without DPDK.
    #[arg(long, value_name = "NAME|vhost:PATH", conflicts_with_all = ["vdev", "pci", "packet", "mac", "vlan", "no_huge", "eal"])]
    pub wire: Option<String>,
    /// Run without hugepages (slower; needs no privilege).
    #[arg(long)]
    pub no_huge: bool,
    /// IP MTU, up to 9698, and with --wire NAME up to 65000. Without this option: 1500, with --packet the MTU
    /// of the interface, and with --wire NAME 65000.
    #[arg(long, value_parser = clap::value_parser!(u16).range(576..=65_000))]
    pub mtu: Option<u16>,
    /// Receive descriptors, 1024 by default. Use few descriptors if a full ring makes the sender wait, as on
    /// a vhost-user wire without a switch: the packet buffers then stay in the cache. On other wires, bursts
    /// need many descriptors.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(32..=32768))]
    pub rx_desc: Option<u16>,
    /// Offloads to use, if the device has them: tx-checksum, rx-checksum, tso, lro, multi-segment, scatter,
    /// rss, external, none, all. The default is all. Separate several offloads by commas. With '-' before
    /// each name, use all offloads except these: -tso,-lro.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true, conflicts_with = "wire")]
    pub offloads: Option<dp::Offloads>,
    /// More arguments for DPDK's EAL, which are passed unchanged.
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub eal: Option<String>,
    /// CPU to run on. With --cores, the first of that many CPUs.
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// NUMA node of the packet buffers (by default that of the device). If --cores is given without --cpu,
    /// also the node of the CPUs.
    #[arg(long, value_name = "NODE", conflicts_with_all = ["packet", "wire"])]
    pub socket: Option<u32>,
    /// Use this many queues of the device, each with its own engine and its own CPU. Without --cpu and
    /// --socket, iwperf first uses the CPUs near the NIC. All engines share the addresses of --ip. The server
    /// listens on this many ports, and each core of the client connects to one of these ports.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["packet", "wire", "pcap"], value_parser = clap::value_parser!(u16).range(1..=64))]
    pub cores: u16,
    /// Seconds to wait for a connection, or for a peer from which nothing arrives.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub timeout: Duration,
    /// Seconds that connections survive without a link. Without this option: 10, or half a second if the wire
    /// has only one peer (vhost-user).
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub link_timeout: Option<Duration>,
    /// Write the frames of the port to this file (pcapng).
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}

/// Maximum MTU of devices other than a wire in shared memory.
const MAX_DEVICE_MTU: u16 = 9698;

impl NetArgs {
    /// Checks that a device is given, and that the MTU is not too large for the device.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if one of these is not so.
    pub fn check(&self) -> Result<(), Error> {
        let devices = [&self.pci, &self.vdev, &self.packet, &self.wire];
        if devices.iter().all(|device| device.is_none()) {
            return Err(Error::Usage(
                "no device: give --wire NAME, --packet IF, --vdev STRING or --pci ADDR (or use `iwperf local`)"
                    .into(),
            ));
        }
        if self.local_wire().is_none() && self.mtu.is_some_and(|mtu| mtu > MAX_DEVICE_MTU) {
            return Err(Error::Usage(format!("an MTU above {MAX_DEVICE_MTU} needs --wire")));
        }
        Ok(())
    }

    /// The name of the wire in shared memory.
    pub fn local_wire(&self) -> Option<&str> {
        self.wire.as_deref().filter(|_| self.vhost_socket().is_none())
    }

    /// The path of the vhost-user socket. The names of other wires have no colon.
    pub fn vhost_socket(&self) -> Option<&Path> {
        self.wire.as_ref()?.strip_prefix("vhost:").map(Path::new)
    }

    /// Returns the addresses of `--ip`, without their prefix lengths.
    pub fn addresses(&self) -> Vec<IpAddr> {
        // The values were parsed as addresses with prefix lengths.
        self.ips.iter().filter_map(|ip| ip.split_once('/')?.0.parse().ok()).collect()
    }

    /// The arguments of `--eal`, one per element.
    pub fn eal_args(&self) -> Vec<String> {
        self.eal.as_deref().unwrap_or("").split_whitespace().map(str::to_owned).collect()
    }
}

fn parse_cidr(text: &str) -> Result<String, String> {
    let wrong = || "not ADDR/LEN, such as 10.0.0.1/24 or fd00::1/64".to_string();
    let (address, length) = text.split_once('/').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let length: u8 = length.parse().map_err(|_| wrong())?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    if length > longest {
        return Err(format!("a prefix of {length} bits is longer than the address"));
    }
    Ok(text.to_owned())
}

fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Vec<u8> = text.split(':').map_while(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let mac = <[u8; 6]>::try_from(bytes).ok().filter(|_| text.split(':').count() == 6);
    mac.ok_or_else(|| "not an Ethernet address, such as 02:00:00:00:00:01".to_string())
}

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err("must be from 0.01 to 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}
