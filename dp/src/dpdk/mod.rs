//! Ports on DPDK devices. A NIC is named by its PCI address, and a virtual device by its name and arguments.
//!
//! [`open`] sets up a device and returns one [`Port`] for each pair of queues. A device is closed and removed
//! when the last of its ports is dropped. Then the device can be opened again. If a device is removed while
//! it is open, its ports report [`LinkState::Gone`](crate::LinkState::Gone). The user should then drop these
//! ports: Linux releases a device behind `vfio-pci` only after all its ports are dropped. The backend of a
//! `net_virtio_user` device may not answer when the last port is dropped, because the backend's process is
//! stopped. In this case the device and its memory exist until this process ends.
//!
//! Many ports have a descriptor to sleep on (see the table at [`Sleep::poll_fd`](crate::Sleep::poll_fd)). The
//! receive interrupts of a NIC or of a peer are enabled only before a sleep, so received frames cause no
//! interrupts while the port is polled.

mod config;
mod descriptors;
mod device;
mod drivers;
mod error;
mod filter;
mod fit;
mod handle;
mod interrupt;
mod link_events;
mod pci;
mod port;
mod probed;
mod queues;
mod rss;
mod rx_limit;
mod stats;
mod unplug;
mod vdev;
mod vhost_user;

pub use config::{DeviceConfig, PortSpec};
pub use error::DeviceError;
pub use pci::PciProblem;

use std::sync::Arc;

use port::QueuePort;

use crate::eal::Eal;
use crate::mempool::{Backend, dpdk::DpdkPool};
use crate::{Mempool, Port};

/// Opens a device and starts it. Returns one port for each pair of queues, in the order of the queues.
///
/// Each port has its own pool. The counters of the first port include the frames that the device drops or for
/// which the device has no buffer. If the device hashes flows, [`PortInfo::queue`](crate::PortInfo::queue)
/// says how the device chooses the queue, if this is known.
///
/// # Errors
/// [`DeviceError`] if the device cannot be used. The message is one line, and usually says what to do.
pub fn open(eal: Eal, spec: &PortSpec, config: &DeviceConfig) -> Result<Vec<Box<dyn Port>>, DeviceError> {
    let (device, info) = device::open(eal, spec, config)?;
    crate::trace::port_opened(&info);
    let device = Arc::new(device);
    let port = |queue| Box::new(QueuePort::new(Arc::clone(&device), queue, info.clone())) as Box<dyn Port>;
    Ok((0..config.queues).map(port).collect())
}

/// Makes a pool of `count` buffers with `data_bytes` bytes each in DPDK's memory, independent of any device.
///
/// # Errors
/// [`DeviceError::Memory`] if the memory for the pool cannot be allocated.
///
/// # Panics
/// If `count` is 0, or if `data_bytes` is more than 65,407, the maximum of a DPDK buffer.
pub fn mempool(eal: Eal, name: &str, count: u32, data_bytes: usize) -> Result<Mempool, DeviceError> {
    let pool = DpdkPool::new(eal, name, (count, count), data_bytes, crate::mempool::dpdk::ANY_NODE)
        .map_err(|errno| DeviceError::memory(count, data_bytes, errno))?;
    Ok(Mempool { backend: Backend::Dpdk(pool) })
}

/// The linked drivers, by the names of their libraries: `net_vhost`, `net_ixgbe`, ...
pub fn drivers() -> &'static [&'static str] {
    dpdk_sys::DRIVERS
}
