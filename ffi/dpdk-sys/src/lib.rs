//! Bindings to the installed DPDK, generated at build time, with its drivers linked in.
//!
//! Raw names and raw pointers only: `dp` makes them safe. [`mbuf`] has the accessors of `struct
//! rte_mbuf`, whose field paths differ between DPDK releases.
//!
//! With `DOCS_RS` set, DPDK need not be installed: the bindings come from a recorded file, and nothing can
//! be linked.

#![no_std]

mod bindings;
pub mod mbuf;

pub use bindings::*;

/// The drivers that were linked in, by library name: `net_vhost`, `net_ixgbe`, ...
pub const DRIVERS: &[&str] = include!(concat!(env!("OUT_DIR"), "/drivers.rs"));
