//! A wire between processes of one user, in shared memory. The wire within one process is
//! [`link`](crate::link), which `iwperf local` uses.
//!
//! A wire is a rendezvous folder. Each process claims a *station*, a number from 1 to 65535, whose Ethernet
//! address is `02:00:64:40` followed by the number. To send the first frame to another station, a port
//! connects to that station's socket in the folder, and hands over memory with a ring in each direction. All
//! later frames are copied into a ring by the sender and out of it by the receiver. There is no hub and no
//! extra thread, and no privilege is needed. Frames to anything but a station are dropped and counted.
//!
//! TCP frames of up to 64 KiB pass whole, and their checksum is left undone.
//!
//! A port that is polled makes a system call now and then, to look at its sockets. A port that is going to
//! sleep announces it ([`Sleep::arm_wakeup`](crate::Sleep::arm_wakeup)), and its peers wake it. A station
//! whose process ends or is killed is reported ([`Link::next_departed`](crate::Link::next_departed)) as soon
//! as all its frames have been received. A station that does not exist is reported as well.
//!
//! Every process validates what other processes write: the worst that a process can do to another is to end
//! their pair of rings. All processes of a wire belong to one user, who may do more than that by other
//! means.
//!
//! A forked child has no part in the wire: its copy of the port receives nothing and drops what it sends.

mod atomic;
mod claim;
mod config;
mod copy_strategy;
mod counters;
mod credentials;
mod folder;
mod fork;
mod hello;
#[doc(hidden)]
pub mod hostile;
mod memory;
mod peer;
mod peers;
mod port;
mod ring;
mod streaming;
#[cfg(test)]
mod tests;
mod wake;

pub use claim::{Station, stations};
pub use config::{LocalConfig, LocalError};
pub use counters::LocalCounters;
#[doc(hidden)]
pub use credentials::pid_of_peer;
pub use folder::{WireFolder, default_folder, private_folder};
#[doc(hidden)]
pub use fork::OwnFd;
pub use port::LocalPort;

use crate::Port;

/// Opens a port: claims a station and listens. May wait some milliseconds for other processes that claim a
/// station.
///
/// # Errors
/// See [`LocalError`].
pub fn open(config: &LocalConfig) -> Result<LocalPort, LocalError> {
    LocalPort::open(config).inspect(|port| crate::trace::port_opened(port.info()))
}
