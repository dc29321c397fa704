//! The options for opening a device.

use std::net::IpAddr;

use crate::Offloads;

/// A device to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// A NIC's PCI address, `0000:03:00.0` or `03:00.0`, optionally followed by a comma and arguments for the
    /// NIC's driver. The NIC must be bound to a Linux driver that passes the NIC to user space: `vfio-pci`,
    /// or without an IOMMU for example `uio_pci_generic`. Unless the NIC is bound to `vfio-pci` and is behind
    /// an IOMMU, the NIC must be listed in the configuration with which EAL starts
    /// ([`EalConfig::pci`](crate::eal::EalConfig::pci)).
    Pci(String),
    /// A virtual device in the form of DPDK's `--vdev`: `net_vhost0,iface=/tmp/wire.sock`.
    ///
    /// If the device listens on a unix socket, a stale socket file is removed first. A device that listens on
    /// a vhost-user socket (a `net_vhost` without `client=1`, or a `net_virtio_user` with `server=1`) accepts
    /// the next peer when its peer has ended. A `net_virtio_user` with `server=1` blocks until its first peer
    /// connects. A `net_virtio_user` without `server=1` stays down when its peer has ended, so the device has
    /// to be opened again.
    Vdev(String),
}

/// The queues, buffers and offloads with which [`open`](super::open) sets a device up.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Number of pairs of queues. Each pair is a [`Port`](crate::Port). More than one pair needs a device
    /// with RSS, or a device for which the peer or the kernel spreads flows. Default: 1.
    pub queues: u16,
    /// Maximum number of bytes of an IP packet. Default: 1500.
    pub mtu: u16,
    /// Number of receive descriptors per queue, adjusted to the device's limits. The device uses the buffers
    /// of the descriptors in turn. The buffers of a short ring remain in the CPU's cache, but a burst may
    /// overflow a short ring. Default: 1024.
    pub rx_desc: u16,
    /// Number of transmit descriptors per queue, adjusted to the device's limits. Default: 1024.
    pub tx_desc: u16,
    /// Number of buffers in the pool of each queue. `None` means four times the number of the queue's receive
    /// and transmit descriptors, and at least 8192. Default: `None`.
    pub mbufs: Option<u32>,
    /// Capacity of one buffer in bytes. `None` means enough for a frame, and at least 2048, or at least 4096
    /// if the device may deliver frames that are larger than the MTU. A frame that is larger than a buffer is
    /// received into several buffers, if the device supports this. Default: `None`.
    pub mbuf_bytes: Option<usize>,
    /// Number of large buffers of each queue for bulk sending. The buffers are allocated only if the port can
    /// send frames of several buffers. Default: 512.
    pub bulk_mbufs: u32,
    /// Offloads to use. Offloads that the device does not have are ignored. Default: all.
    pub offloads: Offloads,
    /// Whether the device receives frames for all Ethernet addresses, if its driver supports this. Default:
    /// `true`.
    pub promiscuous: bool,
    /// The NUMA node of the buffers and rings. `None` means the NUMA node of the device. Default: `None`.
    pub socket: Option<u32>,
    /// The host's IP addresses. If the device can receive neither all frames nor all multicast frames, the
    /// device is configured with a list of the multicast groups that the IPv6 addresses need. Default: none.
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
