//! The options for opening an interface.

use std::net::IpAddr;

use crate::Offloads;

/// The options of [`open`](super::open).
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// The name of the interface, for example `eth0`.
    pub interface: String,
    /// The port's IP addresses on the interface: 1 to 64 addresses that the kernel does not have. Other IP
    /// packets are not received, except Neighbor Discovery.
    pub addresses: Vec<IpAddr>,
    /// A separate Ethernet address for the port, for networks that deliver frames to more than one Ethernet
    /// address of an interface (container bridges do; most clouds do not). `None` means the address of the
    /// interface. Default: `None`.
    pub mac: Option<[u8; 6]>,
    /// Maximum number of bytes of an IP packet: at least 576 (1280 with an IPv6 address), and at most the MTU
    /// of the interface and 9000. `None` means the largest of these values. Default: `None`.
    pub mtu: Option<u16>,
    /// Number of packet buffers, 64 to 2^20. Default: 8192.
    pub mbufs: usize,
    /// Number of large packet buffers for bulk sending, at most 2^20. Default: 512.
    pub bulk_mbufs: usize,
    /// Number of slots of the receive ring, 1 to 65,536, rounded up to whole blocks of memory. Each slot has
    /// room for a frame of the MTU, and has at least 8 KiB of the kernel's memory. Default: 1024.
    pub rx_slots: usize,
    /// Number of bytes of kernel memory for received superframes, at most 512 MiB. Without `CAP_NET_ADMIN`
    /// the kernel grants at most twice `net.core.rmem_max`. Default: 4 MiB.
    pub rx_bytes: usize,
    /// Number of bytes of kernel memory for frames that are being sent, at most 512 MiB. Without
    /// `CAP_NET_ADMIN` the kernel grants at most twice `net.core.wmem_max`. Default: 4 MiB.
    pub tx_bytes: usize,
    /// Offloads to use. Offloads that the kernel does not have are ignored. Default: all.
    pub offloads: Offloads,
    /// `true` if the port also receives frames that this host sends on the interface, so that several ports
    /// on the interface can reach each other. A port never receives its own frames. With this option the
    /// filter runs for each frame that the host sends. Default: `false`.
    pub sees_host: bool,
    /// `true` if the port ends with its interface: when the interface is removed, the link state is
    /// [`Gone`](crate::LinkState::Gone). Otherwise the port waits for a new interface with the same name.
    /// Default: `false`.
    pub ends_with_interface: bool,
}

impl PacketConfig {
    /// Makes the default options for these addresses on an interface.
    pub fn new(interface: impl Into<String>, addresses: impl Into<Vec<IpAddr>>) -> Self {
        Self {
            interface: interface.into(),
            addresses: addresses.into(),
            mac: None,
            mtu: None,
            mbufs: 8192,
            bulk_mbufs: 512,
            rx_slots: 1024,
            rx_bytes: 4 << 20,
            tx_bytes: 4 << 20,
            offloads: Offloads::all(),
            sees_host: false,
            ends_with_interface: false,
        }
    }
}
