//! Bindings to the installed DPDK. The bindings are generated at build time, and the drivers in [`DRIVERS`]
//! are linked in.
//!
//! This crate has C names and raw pointers, and no safe interface. The crate `dp` has a safe interface.
//! [`mbuf`] has accessors for `struct rte_mbuf`, whose field paths differ between DPDK releases.
//!
//! If `DOCS_RS` is set, DPDK need not be installed. In this case the bindings come from a recorded file, and
//! programs cannot be linked.

#![no_std]

mod bindings;
pub mod mbuf;

pub use bindings::*;

/// The library names of the linked drivers: `net_vhost`, `net_ixgbe`, ...
pub const DRIVERS: &[&str] = include!(concat!(env!("OUT_DIR"), "/drivers.rs"));
