//! One FPDU in the received bytes: the positions of its parts, and its checks (RFC 5044 section 6).

use super::ulpdu::{Ulpdu, Wire};
use crate::mpa::{CRC_BYTES, Crc32c, LENGTH_BYTES, fpdu_bytes, marker};

/// The framing of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Framing {
    pub(super) markers: bool,
    pub(super) crc: bool,
}

/// The positions of an FPDU's parts, computed from its length field before any check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Position of the first byte. If the FPDU begins with a marker, this is the first byte of the marker.
    pub(super) start: u64,
    /// Position of the length field.
    pub(super) length_at: u64,
    /// Position after the last byte.
    pub(super) end: u64,
    /// The content of the length field.
    pub(super) ulpdu_bytes: usize,
}

/// Splits off the FPDU at the front of `bytes`, in a stream without markers. Returns the FPDU's ULPDU and the
/// bytes after the FPDU. Returns `None` if the FPDU is incomplete or not valid.
#[inline]
pub(super) fn split_valid(bytes: &[u8], crc: bool) -> Option<(&[u8], &[u8])> {
    let ulpdu_bytes = usize::from(u16::from_be_bytes(*bytes.first_chunk()?));
    // RFC 5044 section 6 (MPA-133): the length shows whether the whole FPDU has arrived.
    let (fpdu, behind) = bytes.split_at_checked(fpdu_bytes(ulpdu_bytes))?;
    let (covered, sent) = fpdu.split_last_chunk()?;
    // RFC 5044 section 4.4 (MPA-095, MPA-096): any difference makes the FPDU invalid.
    if crc && *sent != Crc32c::of_bytes(covered).field() {
        return None;
    }
    Some((&covered[LENGTH_BYTES..LENGTH_BYTES + ulpdu_bytes], behind))
}

/// Why an FPDU is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsound {
    /// The CRC is wrong: error code 2.
    Crc,
    /// A marker is wrong: error code 3.
    Marker,
}

impl Extent {
    /// Reads the length of the FPDU that starts at `start`, a multiple of 4. Returns `None` while the length
    /// field is incomplete.
    pub(super) fn read(wire: Wire<'_>, start: u64, framing: Framing) -> Option<Self> {
        // RFC 5041 section 3 (DDP-032, DDP-036): the length field restores the boundaries and the length of
        // each segment.
        let length_at = marker::length_field_of(start, framing.markers);
        let ulpdu_bytes = usize::from(u16::from_be_bytes(wire.read::<LENGTH_BYTES>(length_at)?));
        Some(Self {
            start,
            length_at,
            end: marker::fpdu_end(start, ulpdu_bytes, framing.markers),
            ulpdu_bytes,
        })
    }

    /// Checks the CRC and then the markers of an FPDU whose bytes have all arrived.
    ///
    /// If an FPDU has a damaged marker and a wrong CRC, the wrong CRC is reported.
    pub(super) fn check(&self, wire: Wire<'_>, framing: Framing) -> Result<(), Unsound> {
        let wire = wire.narrow(self.start, self.end);
        let field = self.end - CRC_BYTES as u64;
        // RFC 5044 section 4.4 (MPA-095): the CRC covers the same bytes as the sender's.
        // RFC 5044 section 4.1 (MPA-043): the CRC also covers the pad, whose bytes are not checked in any
        // other way.
        let mut crc = if framing.crc { Crc32c::new() } else { Crc32c::unused() };
        let mut markers_sound = true;
        let sent = if let Some(bytes) = wire.front(self.start, self.end) {
            // The usual case: all bytes of the FPDU are in one piece of memory.
            crc.update(&bytes[..bytes.len() - CRC_BYTES]);
            markers_sound = !framing.markers || self.markers_are_sound(wire, self.start, bytes);
            bytes.last_chunk().copied()
        } else {
            for (at, bytes) in wire.slices(self.start, self.end) {
                crc.update(&bytes[..bytes.len().min(field.saturating_sub(at) as usize)]);
                markers_sound &= !framing.markers || self.markers_are_sound(wire, at, bytes);
            }
            wire.read(field)
        };
        // RFC 5044 sections 4.4 and 6 (MPA-096, MPA-128): any difference makes the FPDU invalid.
        // RFC 5044 sections 4.1 and 7.1.1 (MPA-045, MPA-158, MPA-160): without CRCs, any value is valid.
        // RFC 5041 section 3 (DDP-035): CRC32c protects the whole segment.
        if framing.crc && sent != Some(crc.field()) {
            return Err(Unsound::Crc);
        }
        if !markers_sound {
            return Err(Unsound::Marker);
        }
        Ok(())
    }

    /// Returns the ULPDU of a valid FPDU whose bytes have all arrived.
    #[inline]
    pub(super) fn ulpdu<'a>(&self, wire: Wire<'a>, framing: Framing) -> Ulpdu<'a> {
        // RFC 5044 sections 3 and 4.3 (MPA-032, MPA-075): for each FPDU, DDP receives exactly one ULPDU with
        // its length.
        Ulpdu::new(wire, self.length_at, self.ulpdu_bytes, framing.markers)
    }

    /// Whether all markers that begin in `bytes` point to this FPDU's length field. `bytes` is a slice of
    /// `wire` at `from`.
    fn markers_are_sound(&self, wire: Wire<'_>, from: u64, bytes: &[u8]) -> bool {
        let mut at = marker::at_or_after(from);
        let rest = bytes.get((at - from) as usize..).unwrap_or_default();
        let (intervals, rest) = rest.as_chunks::<{ marker::INTERVAL as usize }>();
        for [a, b, c, d, ..] in intervals {
            if marker::decode([*a, *b, *c, *d]) != marker::pointer(at, self.length_at) {
                return false;
            }
            at += marker::INTERVAL;
        }
        // A marker at the end of the slice may continue in the next slice.
        let last = || rest.first_chunk().copied().or_else(|| wire.read(at)).map(marker::decode);
        rest.is_empty() || last() == Some(marker::pointer(at, self.length_at))
    }
}
