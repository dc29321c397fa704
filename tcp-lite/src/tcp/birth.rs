//! What a connection begins with: what its stack decides ([`Birth`]), and what the two SYNs agree
//! on ([`Agreed`]; RFC 9293 section 3.7.1, RFC 7323 section 1.3, RFC 2018 section 2, RFC 3168
//! section 6.1.1).

use crate::facade::TcpSeqNumber;

/// What a connection is born with; the stack decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth {
    /// Our port.
    pub(crate) local_port: u16,
    /// The peer's port.
    pub(crate) remote_port: u16,
    /// Initial sequence number (RFC 6528).
    pub(crate) iss: TcpSeqNumber,
    /// Added to the millisecond clock of our timestamps (RFC 7323 section 7.1).
    pub(crate) timestamp_offset: u32,
    /// Largest TCP segment without options towards this peer: MTU - IP header - 20. Also the MSS we
    /// announce.
    pub(crate) mss: u16,
    /// As `mss`, of BASE_PLPMTU (RFC 8899 section 5.1.2): what most paths carry.
    pub(crate) base_mss: u16,
    /// The peer's MSS when its SYN names none: 536 for IPv4, 1220 for IPv6 (RFC 9293 section
    /// 3.7.1).
    pub(crate) default_peer_mss: u16,
}

/// What the two SYNs agreed on. Before the peer's has arrived: what ours offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// Timestamps on every segment.
    pub(super) timestamps: bool,
    /// SACK blocks in both directions.
    pub(super) sack: bool,
    /// Windows are scaled; the shift of the peer's.
    pub(super) window_scale: Option<u8>,
    /// Marks instead of drops: the peer's marks are echoed, its echoes are answered.
    pub(super) ecn: bool,
}

impl Agreed {
    /// Bytes of options that every segment has.
    #[inline]
    pub(super) fn option_bytes(&self) -> u16 {
        if self.timestamps { 12 } else { 0 }
    }
}

/// Payload of a segment of `mss` bytes beside the options that every segment has (RFC 6691).
#[inline]
pub(super) fn payload_of(mss: u16, option_bytes: u16) -> u32 {
    u32::from(mss - option_bytes.min(mss.saturating_sub(1)))
}

/// The smallest shift with which a window fits its field (RFC 7323 section 2.3), rounding up
/// included.
pub(super) fn window_shift(bytes: u32) -> u8 {
    (0..14).find(|shift| bytes >> shift < u32::from(u16::MAX)).unwrap_or(14)
}
