//! Where markers are and where they point (RFC 5044 section 4.3). This file has arithmetic only.
//!
//! A marker takes the positions `512 k .. 512 k + 4` of its direction. 508 bytes of content lie between two
//! markers. Positions have 64 bits and never wrap. FPDUs and markers begin at multiples of 4.

use super::fpdu_bytes;
use crate::memory::Stride;

/// Bytes from the start of one marker to the start of the next.
pub const INTERVAL: u64 = 512;

/// Bytes of a marker.
pub const MARKER_BYTES: u64 = 4;

/// Content bytes between two markers.
const CONTENT: u64 = INTERVAL - MARKER_BYTES;

const _: () = assert!(
    INTERVAL == Stride::PERIOD as u64 && MARKER_BYTES == Stride::GAP as u64,
    "copies go around gaps where markers are"
);

/// Whether a marker begins at `position`.
pub const fn begins_at(position: u64) -> bool {
    // RFC 5044 section 4.3 (MPA-059, MPA-065): at position 0 and at every further 512th byte.
    position.is_multiple_of(INTERVAL)
}

/// Position of the first marker at or after `position`.
pub const fn at_or_after(position: u64) -> u64 {
    position.next_multiple_of(INTERVAL)
}

/// Number of markers that begin in `from..to`.
pub const fn count(from: u64, to: u64) -> u64 {
    to.div_ceil(INTERVAL) - from.div_ceil(INTERVAL)
}

/// Position of the length field of the FPDU that starts at `start`. A marker at `start` comes before the
/// field.
pub const fn length_field_of(start: u64, markers: bool) -> u64 {
    // RFC 5044 section 4.3 (MPA-064): a marker between two FPDUs is part of the second.
    if markers && begins_at(start) { start + MARKER_BYTES } else { start }
}

/// Start of the FPDU whose length field is at `length_at`. A marker right before the field is part of the
/// FPDU.
pub const fn start_of(length_at: u64, markers: bool) -> u64 {
    if markers && length_at % INTERVAL == MARKER_BYTES { length_at - MARKER_BYTES } else { length_at }
}

/// Position of content byte `index`, counted from the content byte at `from`. Markers are not content, so
/// `from` lies behind the marker of its interval: `from % INTERVAL` is at least [`MARKER_BYTES`].
pub const fn nth_content(from: u64, index: u64, markers: bool) -> u64 {
    if markers {
        from + index + MARKER_BYTES * ((from % INTERVAL - MARKER_BYTES + index) / CONTENT)
    } else {
        from + index
    }
}

/// Position after the last of `bytes` (at least 1) content bytes that begin at `from`. A marker due at that
/// position belongs to the next content.
pub const fn end_of_content(from: u64, bytes: u64, markers: bool) -> u64 {
    nth_content(from, bytes - 1, markers) + 1
}

/// Position after the last byte of the FPDU that starts at `start`, the position of its leading marker if it
/// has one.
pub const fn fpdu_end(start: u64, ulpdu_bytes: usize, markers: bool) -> u64 {
    end_of_content(length_field_of(start, markers), fpdu_bytes(ulpdu_bytes) as u64, markers)
}

/// The FPDUPTR of the marker at `marker` in the FPDU whose length field is at `length_at`: the distance back
/// to the field. It is 0 for a marker before the field. It fits 16 bits for every ULPDU that may be sent.
pub const fn pointer(marker: u64, length_at: u64) -> u64 {
    // RFC 5044 section 4.3 (MPA-060, MPA-069, MPA-070): all markers in an FPDU point to its length field; a
    // marker between two FPDUs has 0.
    marker.saturating_sub(length_at)
}

/// The four bytes of a marker with this FPDUPTR.
pub const fn encode(pointer: u64) -> [u8; 4] {
    // RFC 5044 section 4.2 (MPA-049, MPA-050): 16 reserved bits of zero, then FPDUPTR in network order.
    // RFC 5044 section 4.2 (MPA-053): its two low bits are zero, as markers and length fields are at
    // multiples of 4.
    let [high, low] = (pointer as u16).to_be_bytes();
    [0, 0, high, low]
}

/// FPDUPTR of a received marker.
pub const fn decode(marker: [u8; 4]) -> u64 {
    // RFC 5044 section 4.2 (MPA-051, MPA-054): the reserved bytes are ignored, the two low bits count as 0.
    (u32::from_be_bytes(marker) & 0xfffc) as u64
}

/// Position of the length field that the marker at `marker` points to; `None` where no length field can be.
pub const fn target(marker: u64, pointer: u64) -> Option<u64> {
    if pointer == 0 {
        return Some(marker + MARKER_BYTES);
    }
    match marker.checked_sub(pointer) {
        Some(length_at) if length_at % INTERVAL >= MARKER_BYTES => Some(length_at),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
