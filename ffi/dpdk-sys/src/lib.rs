//! Bindings to the installed DPDK, generated at build time, with its drivers linked in.
//!
//! Raw names and raw pointers only: `dp` makes them safe. [`mbuf`] has the accessors of `struct
//! rte_mbuf`, whose field paths differ between DPDK releases.
//!
//! With `DOCS_RS` set, the crate contains only documentation, and needs no DPDK.

#![cfg_attr(not(no_dpdk), no_std)]

#[cfg(not(no_dpdk))]
mod bindings;
#[cfg(not(no_dpdk))]
pub mod mbuf;

#[cfg(not(no_dpdk))]
pub use bindings::*;

/// The drivers that were linked in, by library name: `net_vhost`, `net_ixgbe`, ...
pub const DRIVERS: &[&str] = include!(concat!(env!("OUT_DIR"), "/drivers.rs"));
