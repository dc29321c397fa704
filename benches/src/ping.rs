//! `iwperf ping` and `iwperf pong`: what `rping` does, on its wire protocol, so that either end can be
//! `rping`.
//!
//! A round: the client Sends where its source is; the server Reads it and Sends back; the client Sends where
//! its sink is; the server Writes the data there and Sends back. Every Send is 16 bytes ([`wire::Advert`]).

pub mod client;
mod link;
pub mod server;
pub mod wire;

/// rping's port.
pub const DEFAULT_PORT: u16 = 7174;

/// The largest data of a round, bytes (rping's `RPING_BUFSIZE` less one).
pub const MAX_BYTES: u32 = 65_535;

/// Takes the lines of `--verbose`.
pub type OnLine<'a> = &'a mut dyn FnMut(&str);
