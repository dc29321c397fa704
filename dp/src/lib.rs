//! Poll-mode data plane: ports and their queues, packet buffers, hugepage regions and the clock.
//!
//! Four backends implement the same trait [`Port`] and use the same type [`Mbuf`]: DPDK (feature `dpdk`, on
//! by default), a wire between processes (`local`, Linux), a packet socket on an ordinary interface
//! (`packet`, Linux), and an in-memory link. The in-memory link loses, delays, reorders, duplicates and
//! corrupts frames according to a plan and a seed. This crate does not depend on the TCP stack or on iWARP.
//!
//! A frame is an [`Mbuf`] from a [`Mempool`]. Each frame has one owner. Ports send and receive bursts of
//! frames.
//!
//! ```
//! use dp::{Burst, link};
//!
//! let (mut a, mut b) = link::pair(&link::LinkConfig::default());
//! let mut frame = a.mempool().alloc().expect("a fresh pool has buffers");
//! assert!(frame.append_slice(&[0xff; 60]));
//!
//! let mut burst = Burst::new();
//! burst.push(frame);
//! assert_eq!(a.tx_burst(0, &mut burst), 1);
//! assert_eq!(b.rx_burst(0, &mut burst), 1);
//! assert_eq!(burst[0].head(), [0xff; 60]);
//! ```
//!
//! Other modules contain, for example, a capture for any port ([`pcap::Tap`]), loss and delay on purpose for
//! any port ([`Impaired`]), memory to register ([`Region`]), the clock ([`Clock`]) and a profiler
//! ([`profile`]).

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod checksum;
pub mod clock;
#[doc(hidden)]
pub mod counters;
#[cfg(feature = "dpdk")]
pub mod dpdk;
#[cfg(feature = "dpdk")]
pub mod eal;
pub mod impaired;
#[doc(hidden)]
pub mod invariant;
mod limits;
pub mod link;
#[cfg(target_os = "linux")]
pub mod local;
pub mod loopback;
#[cfg(target_os = "linux")]
mod mac;
pub mod mbuf;
pub mod mempool;
mod offload;
#[cfg(target_os = "linux")]
pub mod packet;
pub mod page;
pub mod pcap;
pub mod port;
pub mod prefetch;
pub mod profile;
pub mod region;
pub mod rss;
#[doc(hidden)]
pub mod thread;
mod trace;
pub mod tso;
#[cfg(all(feature = "vhost", target_os = "linux", target_endian = "little"))]
pub mod vhost;

pub use clock::Clock;
pub use counters::Metric;
pub use impaired::{Impaired, Impairment};
pub use loopback::Loopback;
pub use mbuf::{Checksum, ExtBuf, Mbuf, TxOffload};
pub use mempool::Mempool;
pub use page::Page;
pub use port::{
    BURST, Below, Burst, DeviceStat, DeviceStats, Link, LinkState, Offloads, Port, PortBase, PortCounters,
    PortInfo, PortLayer, Sleep, Statistics, UnknownOffload,
};
pub use prefetch::prefetch;
pub use region::Region;
pub use rss::{Flow, Queue, Rss, RssFields};
pub use tso::{Mss, TsoLimits};
