//! `iwperf ping` and `iwperf pong` speak `rping`'s wire protocol, so that either side can be `rping`.
//!
//! In a round, the client Sends the address of its source, and the server Reads the source and answers with a
//! Send. Then the client Sends the address of its sink, and the server Writes the data to the sink and
//! answers with a Send. Every Send is 16 bytes ([`wire::Advert`]).

pub mod client;
mod link;
pub mod server;
pub mod wire;

/// rping's port.
pub const DEFAULT_PORT: u16 = 7174;

/// Maximum number of bytes of the data of a round (rping's `RPING_BUFSIZE` less one).
pub const MAX_BYTES: u32 = 65_535;

/// A function that is called with each line of `--verbose`.
pub type OnLine<'a> = &'a mut dyn FnMut(&str);
