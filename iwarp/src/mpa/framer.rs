//! Sending: ULPDUs into FPDUs (sections 4.1, 4.3 to 4.5).
//!
//! A [`Framer`] knows where in its direction's stream the next FPDU begins, nothing of TCP or of buffers. The
//! caller brings room of exactly the FPDU's size; the payload is fetched straight to its place, and without
//! markers summed as it is copied.

use super::{Crc32c, MAX_ULPDU, MIN_MULPDU, marker, pad_bytes};
use crate::memory::Stride;

/// Frames one direction of a connection.
#[derive(Clone, Debug)]
pub struct Framer {
    position: u64,
    markers: bool,
    crc: bool,
}

impl Framer {
    /// A framer at position 0: behind the startup frame. `markers` is what the peer asked for.
    pub const fn new(markers: bool, crc: bool) -> Self {
        Self::at(0, markers, crc)
    }

    /// A framer in the middle of a stream.
    ///
    /// # Panics
    /// When `position` is not a multiple of 4: no FPDU begins there.
    pub const fn at(position: u64, markers: bool, crc: bool) -> Self {
        assert!(position.is_multiple_of(4), "FPDUs begin at multiples of 4");
        Self { position, markers, crc }
    }

    /// Where the next FPDU begins.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Whether markers are sent.
    pub const fn markers(&self) -> bool {
        self.markers
    }

    /// Largest ULPDU whose FPDU fits a segment of `emss` bytes wherever it begins (section 4.5), within
    /// [`MIN_MULPDU`] and [`MAX_ULPDU`].
    ///
    /// ```
    /// # use iwarp::mpa::Framer;
    /// assert_eq!(Framer::new(true, true).mulpdu(1460), 1442);
    /// assert_eq!(Framer::new(false, true).mulpdu(1448), 1442);
    /// ```
    pub fn mulpdu(&self, emss: usize) -> usize {
        let markers = if self.markers { 4 * emss.div_ceil(marker::INTERVAL as usize) } else { 0 };
        emss.saturating_sub(6 + markers + emss % 4).clamp(MIN_MULPDU, MAX_ULPDU)
    }

    /// Largest ULPDU of the FPDU that begins here, in segments of `emss` bytes: MULPDU, or a little less
    /// where markers would make FPDUs differ in length on the wire. Segments of one length leave in one
    /// train.
    pub fn ulpdu_limit(&self, emss: usize) -> usize {
        // Below an EMSS of some 140 bytes MULPDU promises more than a segment holds: then the segment
        // decides.
        let even = if self.markers { (emss / 4 * 4).saturating_sub(4) } else { emss };
        self.mulpdu(emss).min(self.fit(even).unwrap_or(0))
    }

    /// Bytes on the wire, markers included, of an FPDU that begins here.
    pub fn wire_len(&self, ulpdu_bytes: usize) -> usize {
        (marker::fpdu_end(self.position, ulpdu_bytes, self.markers) - self.position) as usize
    }

    /// Largest ULPDU whose FPDU, begun here, fits `room` bytes; `None` when none does. For packing FPDUs into
    /// what is left of a segment.
    pub fn fit(&self, room: usize) -> Option<usize> {
        let room = room as u64 / 4 * 4;
        let markers = if self.markers { marker::count(self.position, self.position + room) } else { 0 };
        let content = room - 4 * markers;
        // The whole of `content` is used: an FPDU of a multiple of 4 bytes needs no pad.
        let ulpdu = content.checked_sub(6)?;
        Some((ulpdu as usize).min(MAX_ULPDU))
    }

    /// Begins an FPDU in `out`. Writes what precedes the ULPDU; the ULPDU is then [`put`](FpduWriter::put)
    /// and [`filled`](FpduWriter::fill), and [`finish`](FpduWriter::finish) ends it.
    ///
    /// # Panics
    /// When `out` is not exactly [`wire_len`](Self::wire_len) long, or the ULPDU is longer than
    /// [`MAX_ULPDU`].
    pub fn begin<'a>(&'a mut self, out: &'a mut [u8], ulpdu_bytes: usize) -> FpduWriter<'a> {
        assert!(ulpdu_bytes <= MAX_ULPDU, "a ULPDU of {ulpdu_bytes} bytes");
        assert_eq!(out.len(), self.wire_len(ulpdu_bytes), "room for another FPDU");
        let crc = if self.crc { Crc32c::new() } else { Crc32c::unused() };
        let header = marker::header_of(self.position, self.markers);
        let mut writer =
            FpduWriter { framer: self, out, at: 0, summed: 0, header, ulpdu_bytes, left: ulpdu_bytes, crc };
        writer.write(&(ulpdu_bytes as u16).to_be_bytes());
        writer
    }

    /// Frames a whole ULPDU that lies in one slice.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    pub fn frame(&mut self, out: &mut [u8], ulpdu: &[u8]) {
        let mut writer = self.begin(out, ulpdu.len());
        writer.put(ulpdu);
        writer.finish();
    }
}

/// An FPDU being written. Dropped unfinished it leaves its framer as it was, and the room half written.
#[derive(Debug)]
pub struct FpduWriter<'a> {
    framer: &'a mut Framer,
    out: &'a mut [u8],
    /// Bytes of `out` written.
    at: usize,
    /// Bytes of `out` that are in `crc`: small pieces are summed together.
    summed: usize,
    /// Position of the ULPDU length.
    header: u64,
    ulpdu_bytes: usize,
    /// ULPDU bytes still to come.
    left: usize,
    crc: Crc32c,
}

/// Where [`FpduWriter::fill`] has bytes written.
#[derive(Debug)]
pub enum Room<'a> {
    /// All of it. Who writes adds what he wrote to the CRC, for instance by [`Crc32c::running`].
    Whole(&'a mut [u8], &'a mut Crc32c),
    /// Around gaps, which get markers behind it and are part of the sum then.
    Runs(&'a mut [u8], Stride),
}

impl FpduWriter<'_> {
    /// ULPDU bytes still to come.
    pub const fn left(&self) -> usize {
        self.left
    }

    /// Appends ULPDU bytes.
    ///
    /// # Panics
    /// When these are more than are [`left`](Self::left).
    pub fn put(&mut self, bytes: &[u8]) {
        self.take(bytes.len());
        self.write(bytes);
    }

    /// Appends `bytes` ULPDU bytes by letting `fill` write them where they go.
    ///
    /// # Errors
    /// What `fill` fails with: the FPDU is then to be dropped.
    ///
    /// # Panics
    /// When these are more than are [`left`](Self::left).
    pub fn fill<E>(&mut self, bytes: usize, fill: impl FnOnce(Room<'_>) -> Result<(), E>) -> Result<(), E> {
        self.take(bytes);
        if !self.framer.markers {
            self.sum();
            fill(Room::Whole(&mut self.out[self.at..self.at + bytes], &mut self.crc))?;
            self.at += bytes;
            self.summed = self.at;
            return Ok(());
        }
        let stride = Stride::new(self.front());
        let end = self.at + stride.span(bytes);
        fill(Room::Runs(&mut self.out[self.at..end], stride))?;
        for gap in stride.gaps(end - self.at) {
            self.write_marker(self.at + gap);
        }
        self.at = end;
        Ok(())
    }

    /// Ends the FPDU: pad, a marker that is due, CRC. The framer stands behind it then.
    ///
    /// # Panics
    /// When bytes are [`left`](Self::left).
    pub fn finish(mut self) {
        assert_eq!(self.left, 0, "an FPDU without its last bytes");
        self.write(&[0; 3][..pad_bytes(self.ulpdu_bytes)]);
        // A marker between pad and CRC is part of the sum.
        self.front();
        self.sum();
        let field = self.crc.field();
        self.out[self.at..].copy_from_slice(&field);
        self.framer.position += self.out.len() as u64;
    }

    fn take(&mut self, bytes: usize) {
        assert!(bytes <= self.left, "{bytes} bytes for a ULPDU that lacks {}", self.left);
        self.left -= bytes;
    }

    /// Writes a marker if one is due; says how many bytes fit in front of the next one.
    fn front(&mut self) -> usize {
        if !self.framer.markers {
            return usize::MAX;
        }
        if marker::begins_at(self.framer.position + self.at as u64) {
            self.write_marker(self.at);
            self.at += Stride::GAP;
        }
        let position = self.framer.position + self.at as u64;
        (marker::at_or_after(position) - position) as usize
    }

    /// Writes the marker that begins at `at` of `out`.
    fn write_marker(&mut self, at: usize) {
        let marker = marker::encode(marker::pointer(self.framer.position + at as u64, self.header));
        self.out[at..at + marker.len()].copy_from_slice(&marker);
    }

    /// Writes bytes of the FPDU around the markers.
    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let run = self.front().min(bytes.len());
            let (now, rest) = bytes.split_at(run);
            self.out[self.at..self.at + run].copy_from_slice(now);
            self.at += run;
            bytes = rest;
        }
    }

    /// Adds all that is written to the CRC.
    fn sum(&mut self) {
        self.crc.update(&self.out[self.summed..self.at]);
        self.summed = self.at;
    }
}

#[cfg(test)]
mod tests;
