//! Limits of packet buffers.

/// Free bytes in front of the data of a new buffer: enough for Ethernet, VLAN, IPv6 and TCP headers with
/// all options.
pub const HEADROOM: usize = 128;

/// Maximum segments of a chain: more than a superframe of 64 KiB in pieces of 1500 bytes has. The limit
/// bounds arrays of segments and the time to walk a chain.
pub const MAX_SEGMENTS: usize = 64;
