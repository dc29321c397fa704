//! One FPDU in received bytes: where it ends, and whether it is sound (section 6).

use super::ulpdu::{Ulpdu, Wire};
use crate::mpa::{CRC_BYTES, Crc32c, LENGTH_BYTES, marker};

/// How a direction is framed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Framing {
    pub(super) markers: bool,
    pub(super) crc: bool,
}

/// An FPDU by its length field: not checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// First position, a leading marker included.
    pub(super) start: u64,
    /// Position of the length field.
    pub(super) header: u64,
    /// First position behind.
    pub(super) end: u64,
    /// What the length field says.
    pub(super) ulpdu_bytes: usize,
}

/// What is wrong with an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsound {
    /// Code 2.
    Crc,
    /// Code 3.
    Marker,
}

impl Extent {
    /// Reads the length of the FPDU that starts at `start`; `None` while it is not there. `start` is a
    /// multiple of 4.
    pub(super) fn read(wire: Wire<'_>, start: u64, framing: Framing) -> Option<Self> {
        let header = marker::header_of(start, framing.markers);
        let ulpdu_bytes = usize::from(u16::from_be_bytes(wire.read::<LENGTH_BYTES>(header)?));
        Some(Self { start, header, end: marker::fpdu_end(start, ulpdu_bytes, framing.markers), ulpdu_bytes })
    }

    /// Checks the CRC and then the markers of an FPDU that is wholly there.
    ///
    /// A damaged marker under a bad CRC is a bad CRC.
    pub(super) fn check(&self, wire: Wire<'_>, framing: Framing) -> Result<(), Unsound> {
        let wire = wire.narrow(self.start, self.end);
        let field = self.end - CRC_BYTES as u64;
        let mut crc = if framing.crc { Crc32c::new() } else { Crc32c::unused() };
        let mut markers_sound = true;
        let sent = if let Some(bytes) = wire.front(self.start, self.end) {
            // The usual case: it lies in one piece.
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
        if framing.crc && sent != Some(crc.field()) {
            return Err(Unsound::Crc);
        }
        if !markers_sound {
            return Err(Unsound::Marker);
        }
        Ok(())
    }

    /// The ULPDU of an FPDU that is wholly there, and sound.
    #[inline]
    pub(super) fn ulpdu<'a>(&self, wire: Wire<'a>, framing: Framing) -> Ulpdu<'a> {
        Ulpdu::new(wire, self.header, self.ulpdu_bytes, framing.markers)
    }

    /// Whether the markers that begin in `bytes`, a slice of `wire` at `from`, point to this FPDU's header.
    fn markers_are_sound(&self, wire: Wire<'_>, from: u64, bytes: &[u8]) -> bool {
        let end = from + bytes.len() as u64;
        let mut at = marker::at_or_after(from);
        while at < end {
            let here = bytes[(at - from) as usize..].first_chunk().copied();
            // The rest of one that a slice ends in is in the next.
            if here.or_else(|| wire.read(at)).map(marker::decode) != Some(marker::pointer(at, self.header)) {
                return false;
            }
            at += marker::INTERVAL;
        }
        true
    }
}
