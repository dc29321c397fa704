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
//! | layer | folder |
//! |---|---|
//! | the border to C, and to the process that the library is loaded into | `ffi` |
//! | the wire, and the addresses on it | `net` |
//! | the state of the process: one wire, one engine, one context | `process` |
//! | the functions of libibverbs | `ibverbs` |
//! | the functions of librdmacm | `rdmacm` |
//!
//! A module uses those of its own folder and of the folders above it (`tests/src/layout` checks it).

mod ffi;
mod ibverbs;
pub mod net;
mod process;
mod rdmacm;
