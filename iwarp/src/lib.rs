//! iWARP: RDMA over TCP, in user space.
//!
//! This crate implements MPA, DDP and RDMAP (RFC 5044, 6581, 5041, 5040, 7306) on its own TCP ([`tcp_lite`]).
//! That TCP polls the queues of a port directly ([`dp`]). The API consists of the objects of libibverbs and
//! librdmacm ([`verbs`]), and an [`engine::Engine`] moves the data.
//!
//! # A Write and a Read, step by step
//!
//! This program shows the essential calls (`examples/write_read.rs`, shortened). An in-memory wire joins two
//! hosts. With a real port, only the first lines differ.
//!
//! ```
//! # use std::time::Duration;
//! # use iwarp::engine::{Engine, EngineConfig};
//! # use iwarp::memory::Access;
//! # use iwarp::verbs::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 1. A port and an engine for each host. The engine owns the port, and with it all TCP on it.
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
//!     // 4. Nothing moves unless the engines are polled: here, or by a thread (`Engine::spawn`).
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
//! // 5. A one-sided Write, and a Read of the same bytes to another address. B's program does nothing.
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
//! Without DPDK, `dp::packet::open` shares an interface with the kernel, `dp::local::open` joins processes of
//! a user, and [`dp::link::pair`] is a wire in memory.
//!
//! # What to know
//!
//! * **The engine has to be polled.** [`Engine::poll`](engine::Engine::poll) receives, acknowledges,
//!   retransmits and sends. A program that stops polling appears silent to its peers.
//!   [`Engine::spawn`](engine::Engine::spawn) starts a thread that polls, and backs off when idle.
//!   [`EngineThread::on_queues`](engine::EngineThread::on_queues) does so for each queue of a device.
//! * **A thread that sleeps until a completion comes** arms its queue, polls, and waits:
//!   [`CompletionChannel`](verbs::CompletionChannel#arm-poll-wait) has the recipe.
//! * **A completed Write means that TCP has accepted the bytes**, not that they arrived. A Read after it (or
//!   a Send that the peer answers) confirms the arrival: requests take effect in order. A completed Read has
//!   its bytes in local memory.
//! * **A Send needs a posted receive** that is long enough: iWARP has no "receiver not ready". Without one
//!   the connection ends. Post receives before connecting. Two ends of this crate may agree that the Send
//!   waits instead, and completes when a receive took it
//!   ([`ConnParam::ib_semantics`](verbs::ConnParam::ib_semantics)).
//! * **Atomics** ([`SendOp::Atomic`](verbs::SendOp::Atomic)) add to, or compare and swap, an aligned 64-bit
//!   word of the peer, atomically for all queue pairs of its process. A program should
//!   mix them with no other access to the same word. `examples/tickets.rs` has one.
//! * **Immediate Data** ([`SendOp::Immediate`](verbs::SendOp::Immediate), or after a Write) carries eight
//!   bytes into a receive of the peer: the buffer needs to hold them, unless both ends have agreed on
//!   `ib_semantics`.
//! * **Not every peer supports these two** (RFC 7306 section 1.1), and nothing on the wire negotiates them.
//!   Agree on them in your own protocol, for example in the private data of connect and accept. Or try:
//!   adding 0 changes nothing. A peer without them ends the connection with layer 0, type 2, code 6, an
//!   unexpected opcode. This side accepts them unless [`QpInit::extensions`](verbs::QpInit::extensions)
//!   leaves them out, and sends them only when posted.
//! * **An error ends the connection.** The peer gets a Terminate. Posted requests complete as flushed. Each
//!   of these completions says why ([`WorkCompletion::cause`](verbs::WorkCompletion::cause)): layer, type and
//!   code of the error, or a reset, a silent peer, a lost link. So do
//!   [`QueuePair::cause`](verbs::QueuePair::cause) and the
//!   [`Disconnected`](verbs::CmEventKind::Disconnected) event. A `?` turns it into a [`std::io::Error`].
//! * **A dead peer is noticed within ten seconds**, or as soon as you say:
//!   [`KeepalivePolicy`](verbs::KeepalivePolicy) has the times.
//! * **A responder sends second** (RFC 5044 section 7.1.2): unless the initiator requested peer-to-peer setup
//!   (the default here), the posts of a responder wait for the first message of the initiator.
//!   `Established::ready` reports it.
//! * **A peer may change registered memory** as long as it is registered with remote rights: it is read and
//!   written by copies, never through references. [Below](#memory-order) is the order in which others see
//!   them.
//!
//! # Memory order
//!
//! Another thread may see a copy half done. It may rely on these rules only:
//!
//! * **The bytes of a Write or a Send become visible by increasing address**, and those of a message before
//!   those of the next one. So a program may poll the last byte
//!   ([`MemoryRegion::load_u8`](verbs::MemoryRegion::load_u8), an acquire load): when it has changed, all
//!   bytes before it are there. [`MemoryRegion::write_at`](verbs::MemoryRegion::write_at) stores in this
//!   order as well. With [`ConnParam::markers`](verbs::ConnParam::markers) it does not hold: payload is then
//!   placed out of order. A completion holds in any case: what was placed before it is visible to the thread
//!   that polls it.
//! * **An aligned word of eight bytes is stored at once**, unless a message, an FPDU or a TCP segment begins
//!   or ends within it. An atomic changes its word at once, always.
//! * **A read has no order within itself.** This is so for
//!   [`MemoryRegion::read_at`](verbs::MemoryRegion::read_at), and for the engine that fetches the bytes of a
//!   Send, a Write or the answer to a Read, each FPDU when it is sent. During a concurrent write, the result
//!   may be old bytes, new bytes or a mixture.
//!
//! For a seqlock this means: a **local reader** of a record that its peer Writes is safe. The peer Writes
//! version, data, version at increasing addresses, in one message or several, from memory that it does not
//! change until the Writes are completed. The reader loads the second version, a byte, by `load_u8`, copies
//! the data by `read_at`, makes a `fence(Acquire)`, and loads the first version. If both are equal, the data
//! is of that version, as long as no 256 Writes came meanwhile. A **remote reader** that gets versions and
//! data by one Read cannot detect a torn record by comparing them: put a checksum into the record, or let
//! the owner answer a Send.
//!
//! # Looking at what runs
//!
//! [`Context::status`](verbs::Context::status) returns the connections, addresses and counters of all
//! engines. Three features, off by default, export them: `status` to `uwarp status`, by a socket of this
//! user (`iwarp::status::serve`); `metrics` to the exporter of the program (`iwarp::metrics::publish`);
//! `tracing` emits events for connections, MPA startup, Terminates, timeouts and links. For a program
//! without an exporter, [`prometheus`] makes the answers to Prometheus. The subscriber of events runs in the
//! thread that polls the engine, so a slow subscriber delays the engine.
//!
//! # Layers
//!
//! [`memory`] is registered memory, which threads share. [`ddp`], [`mpa`] and the wire formats of [`rdmap`]
//! are pure: no clock, thread, randomness or I/O. `queues` is the state that users and engines share. The
//! protocol of a stream (`stream`) works on all of these, and hands bytes to a TCP of [`tcp_lite`].
//! [`verbs`] has the objects of users, and [`engine`] moves their data over a port. The package
//! `tests` has the table of which module may know which (`src/layout/table.rs`).
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

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
#[cfg(all(feature = "status", target_os = "linux"))]
pub mod status;
mod stream;
pub mod verbs;
