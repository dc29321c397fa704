//! libibverbs and librdmacm on uwarp: RDMA programs run unmodified, without kernel RDMA, a device or a
//! privilege.
//!
//! `libuwarp.so` has the functions of both libraries under their symbol versions. A program takes it by
//! `LD_PRELOAD`, or as `libibverbs.so.1` and `librdmacm.so.1` in a folder of its own (`LD_LIBRARY_PATH`).
//! The launcher `uwarp` sets that up. Programs may also link against it, with rdma-core's headers.
//!
//! Nothing starts when the library is loaded. The first call that opens a device or makes an event channel
//! starts the wire that `UWARP_NET` names, and a thread that moves the data.
//!
//! | layer | modules |
//! |---|---|
//! | the border to C | `lack`, `settings`, `sys`, `abi`, `beside`, `room`, `sockaddr`, `text`, `event_fd`, `acked`, `users`, `section`, `living`, `fork`, `strings`, `signals` |
//! | the device and the wire | `identity`, `limits`, `net`, `hello` |
//! | the process | `process`, with its tables `numbers`, `ids`, `rendezvous`, `retries`, `selves`, `async_events`; `drain` |
//! | libibverbs | `device`, `pd`, `mr`, `mw`, `channel`, `cq`, `cq_events`, `cq_ex`, `srq`, `qp`, `qp_state`, `batch`, `request`, `qp_ex`, `post`, `ib`, `async_calls`, `refused`, `calls` |
//! | librdmacm | `cm`, `rsocket` |
//! | the start | `start` |
//!
//! A module uses those of its own line and of the lines above.

mod abi;
mod acked;
mod async_calls;
mod async_events;
mod batch;
mod beside;
mod calls;
mod channel;
mod cm;
mod cq;
mod cq_events;
mod cq_ex;
mod device;
mod drain;
mod ends;
mod event_fd;
mod fork;
mod hello;
mod ib;
mod identity;
mod ids;
mod lack;
mod limits;
mod living;
mod mr;
mod mw;
pub mod net;
mod numbers;
mod pd;
mod post;
mod process;
mod qp;
mod qp_ex;
mod qp_state;
mod refused;
mod rendezvous;
mod request;
mod retries;
mod room;
mod rsocket;
mod section;
mod selves;
mod settings;
mod signals;
mod sockaddr;
mod srq;
mod start;
mod strings;
mod sys;
mod text;
mod users;
