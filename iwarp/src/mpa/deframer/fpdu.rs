//! One FPDU in received octets: where it ends, and whether it is sound (section 6).

use super::ulpdu::{Ulpdu, Wire};
use crate::mpa::{CRC_OCTETS, Crc32c, LENGTH_OCTETS, marker};

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
    pub(super) ulpdu_octets: usize,
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
    /// Reads the length of the FPDU that starts at `start`; `None` while it is not there. `start` is a multiple of 4.
    pub(super) fn read(wire: Wire<'_>, start: u64, framing: Framing) -> Option<Self> {
        let header = marker::header_of(start, framing.markers);
        let ulpdu_octets = usize::from(u16::from_be_bytes(wire.read::<LENGTH_OCTETS>(header)?));
        Some(Self {
            start,
            header,
            end: marker::fpdu_end(start, ulpdu_octets, framing.markers),
            ulpdu_octets,
        })
    }

    /// Checks the CRC and then the markers of an FPDU that is wholly there, and gives its ULPDU.
    ///
    /// A damaged marker under a bad CRC is a bad CRC.
    pub(super) fn check<'a>(&self, wire: Wire<'a>, framing: Framing) -> Result<Ulpdu<'a>, Unsound> {
        let wire = wire.narrow(self.start, self.end);
        let field = self.end - CRC_OCTETS as u64;
        // The usual case: it lies in one piece.
        let whole = wire.front(self.start, self.end);
        let read = |at: u64| match whole {
            Some(octets) => octets[(at - self.start) as usize..].first_chunk().copied(),
            None => wire.read(at),
        };
        if framing.crc {
            let mut crc = Crc32c::new();
            match whole {
                Some(octets) => crc.update(&octets[..octets.len() - CRC_OCTETS]),
                None => wire.slices(self.start, field).for_each(|(_, octets)| crc.update(octets)),
            }
            if read(field) != Some(crc.field()) {
                return Err(Unsound::Crc);
            }
        }
        if framing.markers {
            let mut at = marker::at_or_after(self.start);
            while at < self.end {
                if read(at).map(marker::decode) != Some(marker::pointer(at, self.header)) {
                    return Err(Unsound::Marker);
                }
                at += marker::INTERVAL;
            }
        }
        Ok(Ulpdu::new(wire, self.header, self.ulpdu_octets, framing.markers))
    }
}
