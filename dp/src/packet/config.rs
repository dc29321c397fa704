//! Which interface to open, and how.

use std::net::IpAddr;

use crate::Offloads;

/// An interface to open, and how [`open`](super::open) does it.
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// The interface: `eth0`.
    pub interface: String,
    /// The port's IP addresses on the interface: at least one, and none that the kernel has. Frames to other
    /// addresses are not received.
    pub addresses: Vec<IpAddr>,
    /// A separate Ethernet address for the port, for networks that deliver frames to more than one address
    /// of an interface (container bridges do; most clouds do not). `None`: that of the interface.
    /// Default: `None`.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet, bytes; `None`: that of the interface. At most 9000. Default: `None`.
    pub mtu: Option<u16>,
    /// Packet buffers. Default: 8192.
    pub mbufs: usize,
    /// Large packet buffers for bulk sending. Default: 512.
    pub bulk_mbufs: usize,
    /// Slots of the receive ring, rounded up to whole blocks of memory. Each slot holds a frame of the MTU,
    /// and takes at least 8 KiB of the kernel's memory. Default: 1024.
    pub rx_slots: usize,
    /// Kernel memory for received superframes, bytes. Without `CAP_NET_ADMIN` the kernel grants no more than
    /// `net.core.rmem_max`. Default: 4 MiB.
    pub rx_bytes: usize,
    /// Kernel memory for frames that are being sent, bytes. Without `CAP_NET_ADMIN` the kernel grants no
    /// more than `net.core.wmem_max`. Default: 4 MiB.
    pub tx_bytes: usize,
    /// Offloads to use, if the kernel has them. Default: all.
    pub offloads: Offloads,
    /// Whether frames that this host sends on the interface are received as well, so that several ports on it
    /// reach each other. A port never receives its own frames. Each frame of the host then costs a run of the
    /// filter. Default: `false`.
    pub sees_host: bool,
}

impl PacketConfig {
    /// The defaults, for addresses on an interface.
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
        }
    }
}
