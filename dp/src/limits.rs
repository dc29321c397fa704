//! Limits of packet buffers.

/// Number of free bytes in front of the data of a new buffer. The headroom is enough for Ethernet, VLAN, IPv6
/// and TCP headers with all options.
pub const HEADROOM: usize = 128;

/// Maximum number of segments of a chain. A superframe of 64 KiB in pieces of 1500 bytes has fewer segments.
/// The limit bounds arrays of segments and the time for walking through a chain.
pub const MAX_SEGMENTS: usize = 64;
