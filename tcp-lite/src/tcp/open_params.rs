//! Initial parameters of a connection. The stack decides one part ([`OpenParams`]); the two SYNs agree on the
//! other part ([`Agreed`]; RFC 9293 section 3.7.1, RFC 7323 section 1.3, RFC 2018 section 2, RFC 3168 section
//! 6.1.1).

use crate::facade::TcpSeqNumber;

/// Initial parameters of a connection that the stack decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenParams {
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    /// Initial sequence number (RFC 6528).
    pub(crate) iss: TcpSeqNumber,
    /// The offset that is added to the millisecond clock of our timestamps (RFC 7323 section 7.1).
    pub(crate) timestamp_offset: u32,
    /// MSS (RFC 6691) to this peer, which is also the MSS that we announce: the MTU minus the fixed IP and
    /// TCP headers, but at most the capacity of one mbuf. Options make the payload smaller than the MSS.
    pub(crate) mss: u16,
    /// The MSS for BASE_PLPMTU (RFC 8899 section 5.1.2), a size that most paths carry.
    pub(crate) base_mss: u16,
    /// The peer's MSS if its SYN has no MSS option: 536 for IPv4, 1220 for IPv6 (RFC 9293 section
    /// 3.7.1).
    pub(crate) default_peer_mss: u16,
}

/// The parameters that the two SYNs agreed on. Before the peer's SYN arrives, this value has the options that
/// our SYN offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// True if every segment that we send has timestamps.
    pub(super) timestamps: bool,
    /// True if both sides may send SACK blocks.
    pub(super) sack: bool,
    /// The shift with which the peer scales its windows; `None` if windows are not scaled.
    pub(super) window_scale: Option<u8>,
    /// True if ECN is used: we echo the marks of the peer's segments, and the peer's echoes reduce our rate.
    pub(super) ecn: bool,
}

impl Agreed {
    /// Number of bytes of options in every segment.
    #[inline]
    pub(super) fn option_bytes(&self) -> u16 {
        if self.timestamps { 12 } else { 0 }
    }
}

/// Number of payload bytes in a segment of `mss` bytes with the options that every segment has (RFC 6691).
#[inline]
pub(super) fn payload_of(mss: u16, option_bytes: u16) -> u32 {
    u32::from(mss - option_bytes.min(mss.saturating_sub(1)))
}

/// The smallest shift with which a window of `bytes` bytes fits the window field, even if the window is
/// rounded up (RFC 7323 section 2.3).
pub(super) fn window_shift(bytes: u32) -> u8 {
    (0..14).find(|shift| bytes >> shift < u32::from(u16::MAX)).unwrap_or(14)
}
