//! Limits of packet buffers.

/// Free bytes in front of the data of a new buffer. They are enough for Ethernet, VLAN, IPv6 and TCP headers
/// with all options.
pub const HEADROOM: usize = 128;

/// Maximum segments of a chain, more than in a superframe of 64 KiB with pieces of 1500 bytes. The limit
/// bounds arrays of segments and the time for walking through a chain.
pub const MAX_SEGMENTS: usize = 64;
