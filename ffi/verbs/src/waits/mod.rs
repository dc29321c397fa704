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

use crate::ffi::next::Resolve;

/// All functions of libc that these files call.
static ALL: [&(dyn Resolve + Sync); 12] = [
    &epoll::EPOLL_CREATE,
    &epoll::EPOLL_CREATE1,
    &epoll::EPOLL_CTL,
    &epoll::EPOLL_WAIT,
    &epoll::EPOLL_PWAIT,
    &epoll::EPOLL_PWAIT2,
    &poll::POLL,
    &poll::POLL_CHK,
    &poll::PPOLL,
    &poll::PPOLL_CHK,
    &select::SELECT,
    &select::PSELECT,
];

/// Finds all functions when the library is loaded, as `files/calls.rs` does.
extern "C" fn resolve_all() {
    for next in ALL {
        next.resolve();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = resolve_all;
