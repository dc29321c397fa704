//! Opens wires by their names.
//!
//! A string names a wire and the settings of this endpoint of the wire. [`open`] returns a port on the wire,
//! and the configuration of an engine for that port:
//!
//! | specification | wire | needs |
//! |---|---|---|
//! | `local[:name]` | shared memory between processes of one user | Linux |
//! | `packet:eth0,addr=10.0.0.2/24` | an interface of the kernel, through packet sockets | Linux, CAP_NET_RAW |
//! | `tap:uwarp0,addr=..` | a tap interface, which is created if it does not exist | DPDK, CAP_NET_ADMIN |
//! | `xdp:eth0,addr=..` | an interface of the kernel, through AF_XDP | DPDK, CAP_NET_ADMIN, CAP_BPF |
//! | `vhost:/tmp/wire.sock,addr=..` | a vhost-user socket, which this endpoint makes, for example for a virtual machine | Linux, the feature `vhost` (or DPDK) |
//! | `virtio:/tmp/wire.sock,addr=..` | the other side of a vhost-user socket | DPDK |
//! | `memif:/tmp/memif.sock,role=server,id=0,addr=..` | shared memory through DPDK's memif | DPDK |
//! | `dpdk:-a 0000:03:00.0` | a DPDK device that EAL arguments name | DPDK, [an address](Spec::set_address) |
//!
//! The address of this endpoint must not be an address of the kernel. The kinds with the key `addr` also have
//! the keys `gw`, `mac`, `mtu` and `crc`. The kind `local` has the keys `mtu`, `crc` and `ring`. DPDK wires
//! need the feature `dpdk`.
//!
//! All kinds except `dpdk` can lose and delay the frames that this endpoint sends, to test programs: the key
//! `loss` is a probability (`0.01` or `1%`), `delay` and `jitter` are times (`500us`, `1ms`, `0.1s`), and
//! `seed` makes the losses repeatable (`local,loss=1%,delay=1ms,seed=7`). A `dpdk` wire has no keys, but
//! [`Spec::impairment`] has the same effect.
//!
//! A connection on a `local` wire waits for up to an hour for a peer that is stopped or in a debugger, since
//! the wire reports at once when a peer's process ends. A wire that loses or delays frames on purpose keeps
//! the engine's usual timeouts.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let wire = iwarp_wire::open(&"packet:eth0,addr=10.0.0.2/24".parse()?)?;
//! let context = iwarp::verbs::Context::new(Default::default())?;
//! let engine = iwarp::engine::Engine::new(&context, wire.port, wire.config)?;
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "dpdk")]
mod dpdk;
mod impairment;
mod open;
#[cfg(feature = "dpdk")]
mod signals;
mod spec;

pub use impairment::Impairment;
pub use open::{LOCAL_PREFIX, OpenError, Wire, address_of_station, open, open_dpdk, open_local, open_packet};
pub use spec::{Kind, Spec, SpecError};
