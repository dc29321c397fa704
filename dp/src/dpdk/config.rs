//! The options for opening a device.

use std::net::IpAddr;

use crate::Offloads;

/// A device to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// A NIC's PCI address, `0000:03:00.0` or `03:00.0`, optionally followed by a comma and arguments for its
    /// driver. The NIC must be bound to `vfio-pci`, or to `uio_pci_generic` if there is no IOMMU. With
    /// `uio_pci_generic`, the NIC must be named when EAL starts
    /// ([`EalConfig::pci`](crate::eal::EalConfig::pci)).
    Pci(String),
    /// A virtual device in the form of DPDK's `--vdev`: `net_vhost0,iface=/tmp/wire.sock`.
    ///
    /// If the device listens on a unix socket, a stale socket file is removed first. On a vhost-user socket,
    /// the listening side continues when its peer ends, and accepts the next peer. The listening side is
    /// `net_vhost`, or `net_virtio_user` with `server=1` (which blocks until its first peer connects, a
    /// `net_vhost` with `client=1`). The link of the connecting side is down for ever after its peer has
    /// ended, so the device has to be opened again.
    Vdev(String),
}

/// How [`open`](super::open) sets a device up: its queues, buffers and offloads.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Number of pairs of queues. Each pair is a [`Port`](crate::Port). More than one pair needs a device
    /// with RSS, or a device whose peer or kernel spreads flows. Default: 1.
    pub queues: u16,
    /// Largest IP packet, bytes. Default: 1500.
    pub mtu: u16,
    /// Receive descriptors per queue, adjusted to the device's limits. The device uses their buffers in turn.
    /// The buffers of a short ring remain in the CPU's cache, but a burst may overflow it. Default: 1024.
    pub rx_desc: u16,
    /// Transmit descriptors per queue, adjusted to the device's limits. Default: 1024.
    pub tx_desc: u16,
    /// Number of buffers in the pool of each queue. `None` means four times the size of its rings, and at
    /// least 8192. Default: `None`.
    pub mbufs: Option<u32>,
    /// Capacity of one buffer in bytes. `None` means enough for a frame, and at least 2048. If the capacity
    /// is smaller than a frame, a frame takes several buffers, if the device supports this. Default: `None`.
    pub mbuf_bytes: Option<usize>,
    /// Number of large buffers of each queue for bulk sending. Each has room for several segments. They are
    /// made only if the device can send frames of several buffers. Default: 512.
    pub bulk_mbufs: u32,
    /// Offloads to use, if the device has them. Default: all.
    pub offloads: Offloads,
    /// Receive frames for all addresses. Default: `true`.
    pub promiscuous: bool,
    /// The NUMA node of the buffers and rings. `None` means the node of the device. Default: `None`.
    pub socket: Option<u32>,
    /// Our IP addresses. If the device can receive neither all frames nor all multicast frames, it gets a
    /// list of the solicited-node groups of the IPv6 addresses. Default: none.
    pub addresses: Vec<IpAddr>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            queues: 1,
            mtu: 1500,
            rx_desc: 1024,
            tx_desc: 1024,
            mbufs: None,
            mbuf_bytes: None,
            bulk_mbufs: 512,
            offloads: Offloads::all(),
            promiscuous: true,
            socket: None,
            addresses: Vec::new(),
        }
    }
}
