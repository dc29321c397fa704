//! A wire between processes of one user, in shared memory. (For a wire within one process, see
//! [`link`](crate::link).)
//!
//! A wire is identified by its rendezvous folder. Each port claims a *station*, a number from 1 to 65535. The
//! Ethernet address of a station is `02:00:64:40` followed by the station's number. To send the first frame
//! to another station, a port connects to that station's socket in the folder. Through the socket, the port
//! passes shared memory with a ring in each direction. The sender copies each frame into a ring, and the
//! receiver copies the frame out of the ring. Long TCP frames are lent instead: the receiver gets views of
//! the sender's pages (`local/lending.rs`). There is no hub and no extra thread, and no privilege is needed.
//! Datagrams to multicast groups are copied to all other stations, at most 1024. Other frames to addresses
//! that are not addresses of stations are dropped and counted.
//!
//! TCP frames of at most 64 KiB are passed uncut, and no TCP checksum is computed.
//!
//! From time to time, a port that is polled makes a system call to read its sockets. A port that is about to
//! sleep announces the sleep ([`Sleep::arm_wakeup`](crate::Sleep::arm_wakeup)), and its peers wake it. If the
//! process of a station ends or is killed, the port reports the end
//! ([`Link::next_departed`](crate::Link::next_departed)) as soon as it has received all frames of the
//! station. The port also reports stations that do not exist.
//!
//! Each process validates what other processes write. So invalid bytes in the shared memory can at worst end
//! the pair of rings between the two processes. All processes of a wire belong to one user, and each of them
//! has other means to do more harm.
//!
//! A forked child cannot use the wire: its copy of the port receives nothing, and drops all frames that it
//! should send.

mod atomic;
mod claim;
mod config;
mod copy_strategy;
mod counters;
mod credentials;
mod folder;
pub(crate) mod fork;
mod group;
mod hello;
#[doc(hidden)]
pub mod hostile;
mod lending;
mod memory;
mod peer;
mod peers;
mod pool;
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

/// Opens a port: claims a station and listens. The call waits while other processes claim a station, usually
/// for at most a few milliseconds.
///
/// # Errors
/// [`LocalError`] if the port cannot be opened.
pub fn open(config: &LocalConfig) -> Result<LocalPort, LocalError> {
    LocalPort::open(config).inspect(|port| crate::trace::port_opened(port.info()))
}
