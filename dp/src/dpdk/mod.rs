//! Ports on DPDK devices: NICs by PCI address, virtual devices by name and arguments.
//!
//! [`open`] sets up a device and returns one [`Port`] for each pair of queues. A device is closed (and a
//! virtual one removed) when the last of its ports is dropped. If the backend of a `net_virtio_user`
//! device does not answer then (its process is stopped), the device and its memory stay until this
//! process ends.

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
use crate::mempool::{Backend, dpdk::DpdkPool};
use crate::{Mempool, Offloads, Port};

/// A device to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// A NIC's PCI address, `0000:03:00.0` or `03:00.0`; listed in
    /// [`EalConfig::pci`](crate::eal::EalConfig::pci) and bound to `vfio-pci`, or to `uio_pci_generic` where
    /// there is no IOMMU.
    Pci(String),
    /// A virtual device, as for DPDK's `--vdev`: `net_vhost0,iface=/tmp/wire.sock`.
    ///
    /// A stale file of a unix socket to listen on is removed first. Of the two sides of a vhost-user
    /// socket, the one that listens survives the other and accepts the next one: `net_vhost`, or
    /// `net_virtio_user` with `server=1` (which blocks until its first peer connects, a `net_vhost` with
    /// `client=1`). The other side stays down when its peer is gone, and has to be opened again.
    Vdev(String),
}

/// Configuration of a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Pairs of queues; each is a [`Port`].
    pub queues: u16,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Receive descriptors per queue, adjusted to the device's limits. Their buffers are used in turn:
    /// few of them stay in the cache, many absorb a burst where a full ring would lose frames.
    pub rx_desc: u16,
    /// Transmit descriptors per queue, adjusted likewise.
    pub tx_desc: u16,
    /// Buffers in the device's pool, for all queues; `None`: four times the size of the rings, at least
    /// 8192.
    pub mbufs: Option<u32>,
    /// Capacity of one buffer, bytes; `None`: enough for a frame, at least 2048. With less a frame takes
    /// several buffers, if the device supports that.
    pub mbuf_bytes: Option<usize>,
    /// Large buffers for bulk sending, each for several segments, if the device sends frames of several
    /// buffers.
    pub bulk_mbufs: u32,
    /// Offloads to use, if the device has them.
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
/// The ports share one pool. Frames that the device drops, or for which it has no buffer, count at the
/// first port.
///
/// # Errors
/// [`DeviceError`], one line that says what to do.
pub fn open(eal: Eal, spec: &PortSpec, config: &DeviceConfig) -> Result<Vec<Box<dyn Port>>, DeviceError> {
    device::open(eal, spec, config)
}

/// A pool of `count` buffers with `data_bytes` each in DPDK's memory, independent of any device.
///
/// # Errors
/// [`DeviceError::Memory`].
///
/// # Panics
/// If `count` is 0 or `data_bytes` exceeds 65,407, the most a DPDK buffer can hold.
pub fn mempool(eal: Eal, name: &str, count: u32, data_bytes: usize) -> Result<Mempool, DeviceError> {
    let pool = DpdkPool::new(eal, name, (count, count), data_bytes, crate::mempool::dpdk::ANY_NODE)
        .map_err(|errno| DeviceError::memory(count, data_bytes, errno))?;
    Ok(Mempool { backend: Backend::Dpdk(pool) })
}

/// The drivers that are linked in, by library name: `net_vhost`, `net_ixgbe`, ...
pub fn drivers() -> &'static [&'static str] {
    dpdk_sys::DRIVERS
}
