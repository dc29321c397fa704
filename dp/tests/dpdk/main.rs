//! The tests with DPDK in one program, so that DPDK is linked once and EAL starts once. Each test opens
//! devices with names of its own, since a device exists once in a process.
//!
//! | module | what |
//! |---|---|
//! | `support` | starts EAL, starts second processes, and makes frames |
//! | `mbuf`, `limits` | packet buffers of DPDK's mempools; full rings and empty pools |
//! | `vhost_frames`, `vhost_interrupts` | frames between a vhost process and a virtio-user process; their sleep |
//! | `vhost_peer_killed`, `vhost_peer_stopped` | peers that end or stop |
//! | `vhost_without_dpdk` | frames between `dp::vhost` and a virtio-user process, which may be killed |
//! | `vhost_at_once` | several devices opened at the same time |
//!
//! `eal` is a program of its own, since it tests the start of EAL.

mod limits;
mod mbuf;
mod support;
mod vhost_at_once;
mod vhost_frames;
mod vhost_interrupts;
mod vhost_peer_killed;
mod vhost_peer_stopped;
#[cfg(feature = "vhost")]
mod vhost_without_dpdk;
