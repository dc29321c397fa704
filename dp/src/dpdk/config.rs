//! Which device to open, and how.

use std::net::IpAddr;

use crate::Offloads;

/// A device to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// A NIC's PCI address, `0000:03:00.0` or `03:00.0`, optionally followed by a comma and arguments for its
    /// driver. The NIC must be bound to `vfio-pci`, or to `uio_pci_generic` where there is no IOMMU; in the
    /// latter case EAL has to be told of the NIC when it starts
    /// ([`EalConfig::pci`](crate::eal::EalConfig::pci)).
    Pci(String),
    /// A virtual device, as for DPDK's `--vdev`: `net_vhost0,iface=/tmp/wire.sock`.
    ///
    /// If the device listens on a unix socket, a stale socket file is removed first. On a vhost-user
    /// socket, the listening side survives its peer and accepts the next one: `net_vhost`, or
    /// `net_virtio_user` with `server=1` (which blocks until its first peer connects, a `net_vhost` with
    /// `client=1`). The connecting side stays down after its peer is gone, and has to be opened again.
    Vdev(String),
}

/// How [`open`](super::open) sets a device up: its queues, buffers and offloads.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Pairs of queues; each is a [`Port`](crate::Port). More than one pair needs a device with RSS, or a
    /// device whose peer or kernel spreads flows. Default: 1.
    pub queues: u16,
    /// Largest IP packet, bytes. Default: 1500.
    pub mtu: u16,
    /// Receive descriptors per queue, adjusted to the device's limits. The device uses their buffers in turn:
    /// those of a short ring stay in the cache, and a long ring absorbs a burst that would overflow a short
    /// one. Default: 1024.
    pub rx_desc: u16,
    /// Transmit descriptors per queue, adjusted likewise. Default: 1024.
    pub tx_desc: u16,
    /// Buffers in the pool of each queue; `None`: four times the size of its rings, at least 8192.
    /// Default: `None`.
    pub mbufs: Option<u32>,
    /// Capacity of one buffer, bytes; `None`: enough for a frame, at least 2048. With a smaller capacity
    /// a frame takes several buffers, if the device supports that. Default: `None`.
    pub mbuf_bytes: Option<usize>,
    /// Large buffers of each queue for bulk sending, each for several segments, if the device sends frames of
    /// several buffers. Default: 512.
    pub bulk_mbufs: u32,
    /// Offloads to use, if the device has them. Default: all.
    pub offloads: Offloads,
    /// Receive frames for all addresses. Default: `true`.
    pub promiscuous: bool,
    /// The NUMA node of the buffers and rings; `None`: that of the device. Default: `None`.
    pub socket: Option<u32>,
    /// Our IP addresses. If the device can receive neither all frames nor all multicast frames, it is
    /// told the solicited-node groups of the IPv6 addresses. Default: none.
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
