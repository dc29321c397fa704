//! Poll-mode data plane: ports and their queues, packet buffers, hugepage regions and the clock.
//!
//! Two backends stand behind one [`Port`] trait and one [`Mbuf`] type: DPDK (feature `dpdk`, on by default)
//! and an in-memory link that loses, delays, reorders, duplicates and corrupts by a seeded plan.
//! Nothing here knows of TCP or iWARP.

pub mod checksum;
pub mod clock;
#[cfg(dpdk)]
pub mod dpdk;
#[cfg(dpdk)]
pub mod eal;
pub mod link;
pub mod mbuf;
pub mod mempool;
pub mod pcap;
pub mod port;
pub mod region;

pub use clock::Clock;
pub use mbuf::{Checksum, ExtBuf, Mbuf, TxOffload};
pub use mempool::Mempool;
pub use port::{BURST, Burst, LinkState, Offloads, Port, PortCounters, PortInfo};
pub use region::Region;
