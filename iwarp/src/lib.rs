//! iWARP: RDMA over TCP, in user space.
//!
//! This crate implements MPA, DDP and RDMAP (RFC 5044, 6581, 5041, 5040, 7306) on its own TCP ([`tcp_lite`]),
//! which sends and receives frames through a port ([`dp`]). The API consists of the objects of libibverbs and
//! librdmacm ([`verbs`]), and an [`engine::Engine`] moves the data.
//!
//! # A Write and a Read, step by step
//!
//! This program shows the essential calls. The whole program is `examples/write_read.rs`. An in-memory wire
//! joins two hosts. With a real port, only the first lines differ.
//!
//! ```
//! # use std::time::Duration;
//! # use iwarp::engine::{Engine, EngineConfig};
//! # use iwarp::memory::Access;
//! # use iwarp::verbs::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 1. A port and an engine for each host. The engine owns the port, and has the TCP stack for it.
//! let (port_a, port_b) = dp::link::pair(&dp::link::LinkConfig::default());
//! let (ctx_a, ctx_b) = (Context::new(ContextConfig::default())?, Context::new(ContextConfig::default())?);
//! let config_a = EngineConfig::new(&*port_a, &["10.0.0.1/24"])?;
//! let config_b = EngineConfig::new(&*port_b, &["10.0.0.2/24"])?;
//! let mut engine_a = Engine::new(&ctx_a, port_a, config_a)?;
//! let mut engine_b = Engine::new(&ctx_b, port_b, config_b)?;
//!
//! // 2. Objects: a protection domain, registered memory, a completion queue, a queue pair.
//! let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
//! let (pd_a, pd_b) = (ctx_a.alloc_pd()?, ctx_b.alloc_pd()?);
//! let (mr_a, mr_b) = (pd_a.reg_mr(4096, rights)?, pd_b.reg_mr(4096, rights)?);
//! let (cq_a, cq_b) = (ctx_a.create_cq(64, None)?, ctx_b.create_cq(64, None)?);
//! let (qp_a, qp_b) = (pd_a.create_qp(&QpInit::new(&cq_a))?, pd_b.create_qp(&QpInit::new(&cq_b))?);
//!
//! // 3. B listens, A connects. The private data of B has the address of its memory.
//! let (channel_a, channel_b) = (ctx_a.create_event_channel()?, ctx_b.create_event_channel()?);
//! let listener = ctx_b.create_id(&channel_b);
//! listener.listen(7471, 8, Duration::from_secs(10))?;
//! let id = ctx_a.create_id(&channel_a);
//! id.connect(&qp_a, "10.0.0.2:7471".parse()?, &ConnParam::default())?;
//! let mut remote = None;
//! let mut accepted = None;
//! while remote.is_none() {
//!     // 4. Data moves only while the engines are polled: here, or by a thread (`Engine::spawn`).
//!     engine_a.poll();
//!     engine_b.poll();
//!     if let Some(event) = channel_b.poll() && matches!(event.kind, CmEventKind::ConnectRequest { .. }) {
//!         let mut advert = mr_b.addr().to_be_bytes().to_vec();
//!         advert.extend(mr_b.rkey().to_be_bytes());
//!         event.id.accept(&qp_b, &ConnParam::default().with_private_data(&advert)?)?;
//!         accepted = Some(event.id);
//!     }
//!     match channel_a.poll().map(|event| event.kind) {
//!         Some(CmEventKind::Established { private_data, .. }) => {
//!             let (addr, rkey) = private_data.split_at(8);
//!             let addr = u64::from_be_bytes(addr.try_into()?);
//!             let rkey = u32::from_be_bytes(rkey.try_into()?);
//!             remote = Some(RemoteAddr { addr, rkey });
//!         }
//!         Some(other) => return Err(format!("{other:?}").into()),
//!         None => {}
//!     }
//! }
//! let remote = remote.ok_or("set by the loop")?;
//!
//! // 5. A one-sided Write, and a Read of the same bytes to another address. B posts no request.
//! mr_a.write_at(0, b"one-sided")?;
//! qp_a.post_send(&SendRequest::new(1, SendOp::Write { remote }, mr_a.sge(0, 9)))?;
//! qp_a.post_send(&SendRequest::new(2, SendOp::Read { remote }, mr_a.sge(100, 9)))?;
//! for wr_id in [1, 2] {
//!     let wc = loop {
//!         engine_a.poll();
//!         engine_b.poll();
//!         if let Some(wc) = cq_a.poll_one() { break wc; }
//!     };
//!     assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
//! }
//! let mut bytes = [0; 9];
//! mr_a.read_at(100, &mut bytes)?;
//! assert_eq!(&bytes, b"one-sided");
//! # drop(accepted);
//! # Ok(())
//! # }
//! ```
//!
//! # Opening a device
//!
//! The engine accepts any [`dp::Port`]. With the feature `dpdk`, a port can be a queue of a NIC or of a
//! virtual device:
//!
#![cfg_attr(feature = "dpdk", doc = "```no_run")]
#![cfg_attr(not(feature = "dpdk"), doc = "```ignore")]
//! # use iwarp::engine::{Engine, EngineConfig};
//! # use iwarp::verbs::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use dp::dpdk::{self, DeviceConfig, PortSpec};
//! use dp::eal::{Eal, EalConfig};
//!
//! let eal = Eal::start(&EalConfig { pci: vec!["0000:03:00.0".into()], ..EalConfig::default() })?;
//! let spec = PortSpec::Pci("0000:03:00.0".into()); // or Vdev("net_vhost0,iface=/tmp/wire.sock".into())
//! let port = dpdk::open(eal, &spec, &DeviceConfig::default())?.remove(0);
//! let config = EngineConfig::new(&*port, &["10.0.0.1/24"])?;
//! let engine = Engine::new(&Context::new(ContextConfig::default())?, port, config)?;
//! # drop(engine);
//! # Ok(())
//! # }
//! ```
//!
//! Other ports need no DPDK: `dp::packet::open` shares an interface with the kernel, `dp::local::open` joins
//! processes of one user, and [`dp::link::pair`] is a wire in memory.
//!
//! # What to know
//!
//! * **The engine has to be polled.** [`Engine::poll`](engine::Engine::poll) receives, acknowledges,
//!   retransmits and sends. A program that stops polling appears silent to its peers.
//!   [`Engine::spawn`](engine::Engine::spawn) starts a thread that polls, and sleeps when there is no work.
//!   [`EngineThread::on_queues`](engine::EngineThread::on_queues) starts such a thread for each queue of a
//!   device.
//! * **A thread that sleeps until a completion arrives** arms its queue, polls the queue, and then waits:
//!   [`CompletionChannel`](verbs::CompletionChannel#arm-poll-wait) describes these steps.
//! * **A completed Write means that TCP has accepted the bytes**, not that they have arrived. Requests take
//!   effect in order, so a later Read (or a later Send that the peer answers) confirms the arrival. A
//!   completed Read has its bytes in local memory. The bytes of a completed Write have also arrived if both
//!   peers have agreed on [`ConnParam::ib_semantics`](verbs::ConnParam::ib_semantics).
//! * **A Send needs a posted receive** that is long enough. iWARP has no "receiver not ready": a Send that
//!   finds no receive ends the connection, so post receives before connecting. Two peers that use this crate
//!   may agree that such a Send waits instead, and completes when a receive has taken the message
//!   ([`ConnParam::ib_semantics`](verbs::ConnParam::ib_semantics)).
//! * **Atomics** ([`SendOp::Atomic`](verbs::SendOp::Atomic)) change an aligned 64-bit word of the peer, for
//!   example by an addition. Atomics of all queue pairs of the peer's process are atomic to each other. A
//!   program should not access the same word in another way. `examples/tickets.rs` is an example.
//! * **Immediate Data** ([`SendOp::Immediate`](verbs::SendOp::Immediate), or after a Write) carries eight
//!   bytes into a receive of the peer. The receive's buffer has to have room for these bytes, unless both
//!   peers have agreed on `ib_semantics`.
//! * **Not every peer supports atomics and Immediate Data** (RFC 7306 section 1.1), and no message of MPA
//!   negotiates them. Agree on their use in your own protocol, for example in the private data of connect and
//!   accept. A program may also try an atomic that adds 0, which changes nothing. A peer without atomics ends
//!   the connection with layer 0, type 2, code 6 (unexpected opcode). This side accepts atomics and Immediate
//!   Data unless [`QpInit::extensions`](verbs::QpInit::extensions) excludes these messages, and sends such a
//!   message only when the program posts it.
//! * **An error ends the connection.** The peer gets a Terminate if possible. Requests that are not
//!   complete end in error, most of them as flushed. The cause of the end is in each flushed completion
//!   ([`WorkCompletion::cause`](verbs::WorkCompletion::cause)), in
//!   [`QueuePair::cause`](verbs::QueuePair::cause) and in the
//!   [`Disconnected`](verbs::CmEventKind::Disconnected) event. The cause is, for example, an error with its
//!   layer, type and code, a reset, a silent peer, or a lost link. The operator `?` converts the cause to a
//!   [`std::io::Error`].
//! * **A dead peer is detected within ten seconds**, or within a time that you set: see
//!   [`KeepalivePolicy`](verbs::KeepalivePolicy).
//! * **A responder sends second** (RFC 5044 section 7.1.2): the posts of a responder wait for the first
//!   message of the initiator, unless the initiator has requested peer-to-peer setup (the default here) or
//!   [`ConnParam::await_first_fpdu`](verbs::ConnParam::await_first_fpdu) is `false`. `Established::ready`
//!   reports whether posts are sent at once.
//! * **A peer may change registered memory** as long as the memory is registered with the rights of remote
//!   writes or atomics. So the memory is read and written by copies, never through references.
//!   [Memory order](#memory-order) says in which order other threads see the copied bytes.
//!
//! # Memory order
//!
//! Another thread may see an incomplete copy. Only these rules hold for such a thread:
//!
//! * **The bytes of a Write or a Send become visible in order**, by increasing address within each
//!   scatter/gather element, and the bytes of a message become visible before the bytes of the next message.
//!   So a program may poll the last byte ([`MemoryRegion::load_u8`](verbs::MemoryRegion::load_u8), an acquire
//!   load): when this byte has changed, all bytes before it have arrived.
//!   [`MemoryRegion::write_at`](verbs::MemoryRegion::write_at) also stores in this order. The rule does not
//!   hold with [`ConnParam::markers`](verbs::ConnParam::markers), since payload is then placed out of order.
//!   For a completion, the order holds in any case: all bytes that were placed before the completion are
//!   visible to the thread that polls the completion.
//! * **An aligned word of eight bytes is stored at once**, unless a message, an FPDU or a TCP segment begins
//!   or ends within the word, or a marker splits the word. An atomic always changes its word at once.
//! * **A read has no order within itself.** This is true of
//!   [`MemoryRegion::read_at`](verbs::MemoryRegion::read_at), and of the engine when it fetches the bytes of
//!   a Send, a Write or a Read Response. The engine fetches the bytes of each FPDU when the FPDU is
//!   sent. During a concurrent write, the result may be old bytes, new bytes or a mixture.
//!
//! An example is a seqlock: a record whose version is stored before and after the data. A **local reader** of
//! a record that its peer Writes is safe under two conditions. The peer Writes version, data and version at
//! increasing addresses, in one message or several, from memory that the peer does not change until the
//! Writes are completed. The reader loads the second version, which is one byte, by `load_u8`, copies the
//! data by `read_at`, executes a `fence(Acquire)`, and loads the first version. If both versions are equal,
//! the data is of this version, as long as the peer has written the record fewer than 256 times since the
//! first load. A **remote reader** that gets versions and data by one Read cannot detect a torn record by
//! comparing the versions. In this case, put a checksum into the record, or let the owner answer a Send.
//!
//! # Status, metrics and events
//!
//! [`Context::status`](verbs::Context::status) returns the connections, addresses and counters of all
//! engines. Three features, which are off by default, export such state and events. `status` passes the state
//! to `uwarp status`, through a socket that only this user may use (`iwarp::status::serve`). `metrics` passes
//! the counters to the exporter of the program (`iwarp::metrics::publish`). `tracing` emits events for
//! connections, MPA startup, Terminates, timeouts and links. For a program without an exporter,
//! [`prometheus`] generates the HTTP responses for Prometheus. Most events are emitted on the thread that
//! polls the engine, so a slow subscriber delays the engine.
//!
//! # Layers
//!
//! [`memory`] implements registered memory, which threads share. [`ddp`], [`mpa`] and the wire formats of
//! [`rdmap`] are pure: they use no clock, thread, randomness or I/O. `queues` contains the state that users
//! and engines share. The protocol of a stream (`stream`) uses all of these modules, and hands bytes to a TCP
//! of [`tcp_lite`]. [`roce`], the packets of UD messages in RoCEv2, is also pure, and uses none of these
//! modules. [`verbs`] has the objects of users, and [`engine`] moves their data over a port. A table of the
//! package `tests` lists the modules that each module may use (`src/layout/table.rs`).
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod datagram;
pub mod ddp;
pub mod engine;
#[allow(unsafe_code, reason = "registered memory is shared with peers: raw copies, proved one by one")]
pub mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod mpa;
pub mod prometheus;
mod queues;
pub mod rdmap;
pub mod roce;
#[cfg(all(feature = "status", target_os = "linux"))]
pub mod status;
mod stream;
pub mod verbs;
