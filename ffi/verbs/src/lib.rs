//! libibverbs and librdmacm on uwarp, for unmodified RDMA programs. The programs need no RDMA support in the
//! kernel and no RDMA device. On a `local` wire, the default, they also need no privileges.
//!
//! `libuwarp.so` exports the functions of both libraries under their symbol versions. A program loads
//! `libuwarp.so` by `LD_PRELOAD`, or as `libibverbs.so.1` and `librdmacm.so.1` in a folder on
//! `LD_LIBRARY_PATH`. `uwarp run` sets both variables. Programs may also be compiled with rdma-core's headers
//! and linked with the library.
//!
//! Nothing starts when the library is loaded. The first call that needs the engine usually opens a device or
//! makes an event channel. This call opens the wire that `UWARP_NET` names, and starts the engine's thread,
//! which moves the data. (With `UWARP_THREAD=caller`, the program's calls move the data.)
//!
//! | layer | folder |
//! |---|---|
//! | the boundary to C, and to the process into which the library is loaded | `ffi` |
//! | the wire, and the addresses on it | `net` |
//! | the state of the process: one wire, one engine, one context | `process` |
//! | the functions of libibverbs | `ibverbs` |
//! | the functions of librdmacm | `rdmacm` |
//! | the files in sysfs and `/dev` that programs look for | `files` |
//! | the calls of libc that wait for descriptors | `waits` |
//! | what a program finds | `check` |
//!
//! A module uses only modules of its own folder and of the folders above that folder in the table
//! (`tests/src/layout` checks this rule).

pub mod check;
mod ffi;
pub mod files;
mod ibverbs;
pub mod net;
mod process;
mod rdmacm;
mod waits;
