//! The calls of libc that wait for descriptors.
//!
//! The library exports these calls under libc's names (`uwarp.map`, `build.rs`), as it exports the calls that
//! open files (`crate::files`). If a call waits for a channel of this library, the calling thread serves the
//! engine while it waits (`crate::ffi::waits`). Otherwise the arguments are passed on to libc, after a load
//! and a branch in a program without channels.
//!
//! | file | contents |
//! |---|---|
//! | `call.rs` | what the calls have in common |
//! | `epoll.rs` | `epoll_wait(2)` and its variants, and the calls that make and change epoll instances |
//! | `poll.rs` | `poll(2)` and its variants |
//! | `select.rs` | `select(2)` and its variant |
//!
//! These waits do not serve the engine, so the engine's thread does so, within about a millisecond: system
//! calls that a program makes itself (as Go does), `io_uring`, and waits for a copy of a channel's descriptor
//! (`dup(2)`), or for an epoll instance inside another one.

mod call;
mod epoll;
mod poll;
mod select;
