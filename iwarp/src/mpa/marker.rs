//! Where markers are and where they point (section 4.3). Arithmetic only.
//!
//! A marker occupies positions `512 k .. 512 k + 4` of its direction; 508 bytes of content lie between two.
//! Positions are 64 bits wide and never wrap. FPDUs begin at multiples of 4, and so does whatever is computed
//! here.

use super::fpdu_bytes;
use crate::memory::Stride;

/// Bytes from one marker's start to the next one's.
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
    position.is_multiple_of(INTERVAL)
}

/// Where the first marker begins at or behind `position`.
pub const fn at_or_after(position: u64) -> u64 {
    position.next_multiple_of(INTERVAL)
}

/// Markers that begin in `from..to`.
pub const fn count(from: u64, to: u64) -> u64 {
    to.div_ceil(INTERVAL) - from.div_ceil(INTERVAL)
}

/// Where the ULPDU length of an FPDU is whose first byte is at `start`: behind a marker that leads it.
pub const fn header_of(start: u64, markers: bool) -> u64 {
    if markers && begins_at(start) { start + MARKER_BYTES } else { start }
}

/// Where the FPDU starts whose ULPDU length is at `header`: a marker right in front of it is its own.
pub const fn start_of(header: u64, markers: bool) -> u64 {
    if markers && header % INTERVAL == MARKER_BYTES { header - MARKER_BYTES } else { header }
}

/// Position of content byte `index`, counted from the content byte at `from`.
pub const fn nth_content(from: u64, index: u64, markers: bool) -> u64 {
    if markers {
        from + index + MARKER_BYTES * ((from % INTERVAL - MARKER_BYTES + index) / CONTENT)
    } else {
        from + index
    }
}

/// First position behind `bytes` (at least 1) content bytes from `from` on. A marker due exactly there
/// belongs to what follows.
pub const fn end_of_content(from: u64, bytes: u64, markers: bool) -> u64 {
    nth_content(from, bytes - 1, markers) + 1
}

/// First position behind the FPDU that starts at `start` (a leading marker included).
pub const fn fpdu_end(start: u64, ulpdu_bytes: usize, markers: bool) -> u64 {
    end_of_content(header_of(start, markers), fpdu_bytes(ulpdu_bytes) as u64, markers)
}

/// What the FPDUPTR of the marker at `marker` has to say, in the FPDU whose ULPDU length is at `header`: the
/// distance back to it, 0 for the marker that leads it. Fits 16 bits for every ULPDU that may be sent.
pub const fn pointer(marker: u64, header: u64) -> u64 {
    marker.saturating_sub(header)
}

/// The four bytes of a marker with this FPDUPTR.
pub const fn encode(pointer: u64) -> [u8; 4] {
    let [high, low] = (pointer as u16).to_be_bytes();
    [0, 0, high, low]
}

/// FPDUPTR of a received marker. Reserved bytes are ignored, and so are the two low bits.
pub const fn decode(marker: [u8; 4]) -> u64 {
    (u16::from_be_bytes([marker[2], marker[3]]) & 0xfffc) as u64
}

/// Where the ULPDU length is that the marker at `marker` points to; `None` where there can be none.
pub const fn target(marker: u64, pointer: u64) -> Option<u64> {
    if pointer == 0 {
        return Some(marker + MARKER_BYTES);
    }
    match marker.checked_sub(pointer) {
        Some(header) if header % INTERVAL >= MARKER_BYTES => Some(header),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
