//! Ports on DPDK devices: NICs by PCI address, virtual devices by name and arguments.
//!
//! [`open`] makes a device ready and gives one [`Port`] for each pair of queues. A device is closed (and a
//! virtual one removed) when the last of its ports is dropped. A `net_virtio_user` device whose backend does
//! not answer then (its process is stopped) stays, with its memory, until this process ends.

mod device;
mod drivers;
mod error;
mod fit;
mod pci;
mod port;
mod rx_limit;
mod vdev;
mod vhost_user;

pub use error::DeviceError;
pub use pci::PciProblem;

use crate::eal::Eal;
use crate::mempool::{Backend, dpdk::Pool};
use crate::{Mempool, Offloads, Port};

/// Which device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// A NIC's PCI address, `0000:03:00.0` or `03:00.0`; listed in
    /// [`EalConfig::pci`](crate::eal::EalConfig::pci) and bound to `vfio-pci`, or to `uio_pci_generic` where
    /// there is no IOMMU.
    Pci(String),
    /// A virtual device as DPDK's `--vdev` has it: `net_vhost0,iface=/tmp/wire.sock`.
    ///
    /// The file of a listening unix socket that nobody listens on any more is removed first. Of the two sides
    /// of a vhost wire the one that listens outlives the other and takes the next one: `net_vhost`, or
    /// `net_virtio_user` with `server=1` (which does not open before its first peer, a `net_vhost` with
    /// `client=1`). The other stays down when its peer goes, and has to be opened again.
    Vdev(String),
}

/// How a device is set up.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Pairs of queues, each a [`Port`] of its own.
    pub queues: u16,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Receive descriptors a queue, adjusted to what the device can do. Their buffers are used in turn: few
    /// stay in the cache, many take a burst where a full ring loses frames.
    pub rx_desc: u16,
    /// Transmit descriptors a queue, likewise.
    pub tx_desc: u16,
    /// Buffers in the device's pool, all queues together; `None`: four times what the rings hold, at least
    /// 8192.
    pub mbufs: Option<u32>,
    /// Room for data in one buffer, bytes; `None`: enough for a frame, at least 2048. With less a frame takes
    /// several buffers, if the device can do that.
    pub mbuf_bytes: Option<usize>,
    /// Large buffers for what is sent in bulk, each of several segments, where the device sends frames of
    /// several buffers.
    pub bulk_mbufs: u32,
    /// What the device may do by itself, if it can.
    pub offloads: Offloads,
    /// Receive frames for all addresses.
    pub promiscuous: bool,
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
        }
    }
}

/// Opens a device and starts it: one port for each pair of queues, in their order.
///
/// The ports share one pool. What the device drops, or receives without a buffer, counts at the first.
///
/// # Errors
/// [`DeviceError`], one line that says what to do.
pub fn open(eal: Eal, spec: &PortSpec, config: &DeviceConfig) -> Result<Vec<Box<dyn Port>>, DeviceError> {
    device::open(eal, spec, config)
}

/// A pool of `count` buffers with `data_bytes` each in DPDK's memory, apart from any device.
///
/// # Errors
/// [`DeviceError::Memory`].
///
/// # Panics
/// When `count` is 0 or `data_bytes` exceeds 65,407, which is all a DPDK buffer can hold.
pub fn mempool(eal: Eal, name: &str, count: u32, data_bytes: usize) -> Result<Mempool, DeviceError> {
    let pool = Pool::new(eal, name, (count, count), data_bytes, crate::mempool::dpdk::ANY_NODE)
        .map_err(|errno| DeviceError::memory(count, data_bytes, errno))?;
    Ok(Mempool { backend: Backend::Dpdk(pool) })
}

/// The drivers that are linked in, as libraries call them: `net_vhost`, `net_ixgbe`, ...
pub fn drivers() -> &'static [&'static str] {
    dpdk_sys::DRIVERS
}
