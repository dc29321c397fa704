//! Sending: ULPDUs become FPDUs (RFC 5044 sections 4.1, 4.3 to 4.5).
//!
//! A [`Framer`] knows the position of the next FPDU in its direction. A framer does not depend on TCP or on
//! buffers: the caller passes a slice of exactly the FPDU's length. The payload is copied directly to its
//! place in that slice. Without markers, the CRC of the payload can be computed while the payload is copied.
//! ([`Framer::frame_around`] does not copy the payload and needs no slice.)

use arrayvec::ArrayVec;

use super::{CRC_BYTES, Crc32c, LENGTH_BYTES, MAX_ULPDU, MIN_MULPDU, fpdu_bytes, marker, pad_bytes};
use crate::memory::{Fault, Front, Source, Stride};

/// Frames one direction of a connection.
#[derive(Clone, Debug)]
pub struct Framer {
    position: u64,
    markers: bool,
    crc: bool,
    /// The partial Internet checksum of the FPDUs since [`tally`](Self::tally). `None` if the checksum is not
    /// wanted or not known.
    tally: Option<u64>,
}

impl Framer {
    /// Returns a framer at position 0, the first byte after the startup frame. `markers` says whether the
    /// peer wants markers, and `crc` says whether CRCs are used.
    pub const fn new(markers: bool, crc: bool) -> Self {
        Self::at(0, markers, crc)
    }

    /// Returns a framer at `position` of a stream.
    ///
    /// # Panics
    /// Panics if `position` is not a multiple of 4: every FPDU begins at a multiple of 4.
    pub const fn at(position: u64, markers: bool, crc: bool) -> Self {
        assert!(position.is_multiple_of(4), "FPDUs begin at multiples of 4");
        Self { position, markers, crc, tally: None }
    }

    /// Starts the partial Internet checksum over the next FPDUs, if `wanted`. Otherwise no checksum is
    /// computed.
    #[inline]
    pub const fn tally(&mut self, wanted: bool) {
        self.tally = if wanted { Some(0) } else { None };
    }

    /// Returns [`dp::checksum::partial`] of all bytes of the FPDUs since [`tally`](Self::tally). Returns
    /// `None` if the checksum was not wanted, or if one of the FPDUs was not framed in a single pass.
    #[inline]
    pub const fn take_tally(&mut self) -> Option<u64> {
        self.tally.take()
    }

    /// The position at which the next FPDU begins.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Whether markers are sent.
    pub const fn markers(&self) -> bool {
        self.markers
    }

    /// Whether CRCs are in use, so that the framer reads the payload of each FPDU.
    pub const fn crc(&self) -> bool {
        self.crc
    }

    /// Returns MULPDU (RFC 5044 section 4.5): the FPDU of a ULPDU of this length fits into a segment of
    /// `emss` bytes at any position. The result is at most [`MAX_ULPDU`], and at least [`MIN_MULPDU`], even
    /// if the FPDU then does not fit.
    ///
    /// ```
    /// # use iwarp::mpa::Framer;
    /// assert_eq!(Framer::new(true, true).mulpdu(1460), 1442);
    /// assert_eq!(Framer::new(false, true).mulpdu(1448), 1442);
    /// ```
    pub fn mulpdu(&self, emss: usize) -> usize {
        // RFC 5044 section 4.5 (MPA-101, MPA-102): MULPDU is EMSS minus 6 bytes for length and CRC, the
        // markers, and the bytes beyond a multiple of 4.
        // RFC 5044 sections 3 and 4.5 (MPA-027, MPA-109): MULPDU is at least 128 and at most 64768, whatever
        // EMSS is.
        let markers = if self.markers { 4 * emss.div_ceil(marker::INTERVAL as usize) } else { 0 };
        emss.saturating_sub(6 + markers + emss % 4).clamp(MIN_MULPDU, MAX_ULPDU)
    }

    /// Returns the length of the longest ULPDU for the next FPDU in segments of `emss` bytes. The result is
    /// MULPDU, or less if EMSS is very small. With markers the result may also be a little less, so that
    /// FPDUs have the same length on the wire: TCP can send segments of equal length together in one frame.
    ///
    /// RFC 5044 section 3 (MPA-306): this is the maximum length that DDP may use.
    ///
    /// The function is never inlined. Otherwise the compiler would move a part of the function out of a loop
    /// over FPDUs, although the loop calls the function only if the stream has markers.
    #[inline(never)]
    pub fn ulpdu_limit(&self, emss: usize) -> usize {
        // If EMSS is less than about 140 bytes, MULPDU does not fit into a segment. In this case the segment
        // limits the ULPDU.
        let even = if self.markers { (emss / 4 * 4).saturating_sub(4) } else { emss };
        self.mulpdu(emss).min(self.fit(even).unwrap_or(0))
    }

    /// Returns the number of bytes on the wire of an FPDU at the current position, including its markers.
    #[inline]
    pub fn wire_len(&self, ulpdu_bytes: usize) -> usize {
        if !self.markers {
            return fpdu_bytes(ulpdu_bytes);
        }
        (marker::fpdu_end(self.position, ulpdu_bytes, self.markers) - self.position) as usize
    }

    /// Returns the length of the longest ULPDU whose FPDU fits into `room` bytes at the current position.
    /// Returns `None` if no FPDU fits.
    pub fn fit(&self, room: usize) -> Option<usize> {
        let room = room as u64 / 4 * 4;
        let markers = if self.markers { marker::count(self.position, self.position + room) } else { 0 };
        let content = room - 4 * markers;
        // `content` is a multiple of 4, so an FPDU of this length needs no pad. The ULPDU has all bytes
        // except those of the length and CRC fields.
        let ulpdu = content.checked_sub(6)?;
        Some((ulpdu as usize).min(MAX_ULPDU))
    }

    /// Returns the layout of an FPDU at the current position.
    ///
    /// # Panics
    /// Panics if the ULPDU is longer than [`MAX_ULPDU`].
    #[inline]
    pub fn plan(&self, ulpdu_bytes: usize) -> FpduPlan {
        // RFC 5044 section 3 (MPA-028): no ULPDU is longer than 64768 bytes.
        if ulpdu_bytes > MAX_ULPDU {
            too_long(ulpdu_bytes);
        }
        FpduPlan { position: self.position, ulpdu_bytes, wire_len: self.wire_len(ulpdu_bytes) }
    }

    /// Begins an FPDU in `out`: writes the length field and, if one is due, the marker before it. The caller
    /// then adds the ULPDU by [`put`](FpduWriter::put) and [`fill`](FpduWriter::fill) and ends the FPDU by
    /// [`finish`](FpduWriter::finish).
    ///
    /// # Panics
    /// Panics if the length of `out` is not [`wire_len`](Self::wire_len), or if the ULPDU is longer than
    /// [`MAX_ULPDU`].
    pub fn begin<'a>(&'a mut self, out: &'a mut [u8], ulpdu_bytes: usize) -> FpduWriter<'a> {
        let mut writer = self.writer(self.plan(ulpdu_bytes), out);
        // RFC 5044 sections 3 and 4.1 (MPA-022, MPA-039): an FPDU contains one ULPDU, and consists of length,
        // ULPDU, pad and CRC.
        writer.write(&(ulpdu_bytes as u16).to_be_bytes());
        writer
    }

    /// Does what [`begin`](Self::begin) does, and writes the first bytes of the ULPDU. Without markers, the
    /// CRC of these bytes is computed from registers: a load of bytes that were just stored in smaller pieces
    /// would wait for the stores.
    ///
    /// # Panics
    /// Panics if `out` does not have the planned length, if the plan is for another position, or if the ULPDU
    /// is shorter than `head`.
    #[inline]
    pub fn begin_with<'a>(
        &'a mut self,
        plan: FpduPlan,
        out: &'a mut [u8],
        head: &UlpduHead,
    ) -> FpduWriter<'a> {
        let mut writer = self.writer(plan, out);
        writer.count_off(head.len());
        let front = head.front(&plan);
        if writer.framer.markers {
            let mut bytes = [0; LENGTH_BYTES + UlpduHead::MAX_LEN];
            writer.write(front.store(&mut bytes).0);
        } else {
            writer.write_front(&front);
        }
        writer
    }

    /// Frames a ULPDU that consists of `head` and the bytes of `source` from `offset` on. If there are CRCs
    /// and no markers, the bytes are copied and their CRC is computed by one call of
    /// [`Source::fetch_behind`]: the fast path, whose general path is `frame_in_pieces`.
    ///
    /// # Errors
    /// The errors of [`Source::fetch`]. After an error the framer is unchanged, except that the checksum of
    /// the last FPDU is forgotten.
    ///
    /// # Panics
    /// Panics like [`begin_with`](Self::begin_with).
    #[inline(always)]
    pub fn frame_source(
        &mut self,
        plan: FpduPlan,
        out: &mut [u8],
        head: &UlpduHead,
        source: &Source<'_>,
        offset: usize,
    ) -> Result<(), Fault> {
        if self.markers || !self.crc {
            return self.frame_in_pieces(plan, out, head, source, offset);
        }
        self.check(&plan, out);
        assert!(head.len() <= plan.ulpdu_bytes, "a ULPDU shorter than its head");
        let Some((body, field)) = out.split_last_chunk_mut::<CRC_BYTES>() else { return Ok(()) };
        // RFC 5044 section 4.1 (MPA-042): the pad is zero.
        let bytes = plan.ulpdu_bytes - head.len();
        let (crc, checksum) =
            source.fetch_behind(&head.front(&plan), offset, bytes, body, self.tally.is_some())?;
        // RFC 5044 section 4.4 (MPA-088, MPA-091, MPA-092): every FPDU has a CRC field, and the CRC covers
        // all bytes before this field.
        *field = Crc32c::of(crc).field();
        if let Some(tally) = &mut self.tally {
            // An FPDU and its last word begin at even offsets in their segment, so the checksums of the parts
            // can be added.
            *tally += checksum + u64::from(u32::from_ne_bytes(*field));
        }
        self.position += out.len() as u64;
        Ok(())
    }

    /// The general path of [`frame_source`](Self::frame_source), piece by piece, with or without markers and
    /// CRCs.
    #[inline(never)]
    fn frame_in_pieces(
        &mut self,
        plan: FpduPlan,
        out: &mut [u8],
        head: &UlpduHead,
        source: &Source<'_>,
        offset: usize,
    ) -> Result<(), Fault> {
        let mut writer = self.begin_with(plan, out, head);
        writer.fill_from(source, offset, writer.left())?;
        writer.finish();
        Ok(())
    }

    /// Frames a ULPDU that consists of `head` and a payload that is not copied: generates the bytes of the
    /// FPDU around the payload. This function is for streams without markers and without CRCs, where the
    /// framer does not read the payload. The position does not advance: the caller calls
    /// [`advance`](Self::advance) when it has sent the FPDU.
    ///
    /// # Panics
    /// Panics like [`begin_with`](Self::begin_with), or if the stream has markers or CRCs.
    pub fn frame_around(&self, plan: FpduPlan, head: &UlpduHead) -> FpduAround {
        assert!(!self.markers && !self.crc, "markers would lie inside the payload, and a CRC read it");
        debug_assert!(self.tally.is_none_or(|tally| tally == 0), "the checksum lacks its payload");
        let (mut before, mut behind) = (ArrayVec::new(), ArrayVec::new());
        let mut bytes = [0; LENGTH_BYTES + UlpduHead::MAX_LEN];
        before.extend(head.front(&plan).store(&mut bytes).0.iter().copied());
        // RFC 5044 section 4.1 (MPA-042): the pad is zero.
        behind.extend([0; 3].into_iter().take(pad_bytes(plan.ulpdu_bytes)));
        // RFC 5044 section 4.4 (MPA-088): every FPDU has a CRC field.
        behind.extend(Crc32c::unused().field());
        FpduAround { before, behind }
    }

    /// Moves the position to the end of the planned FPDU, which the caller has sent.
    ///
    /// # Panics
    /// Panics if the plan is for another position.
    pub fn advance(&mut self, plan: &FpduPlan) {
        assert_eq!(self.position, plan.position, "an FPDU at this position");
        self.position += plan.wire_len as u64;
    }

    #[inline]
    fn check(&self, plan: &FpduPlan, out: &[u8]) {
        assert!(out.len() == plan.wire_len && self.position == plan.position, "room for another FPDU");
    }

    #[inline]
    fn writer<'a>(&'a mut self, plan: FpduPlan, out: &'a mut [u8]) -> FpduWriter<'a> {
        self.check(&plan, out);
        // The FPDU is written in pieces, so its checksum is not known.
        self.tally = None;
        let ulpdu_bytes = plan.ulpdu_bytes;
        let crc = if self.crc { Crc32c::new() } else { Crc32c::unused() };
        let length_at = marker::length_field_of(self.position, self.markers);
        FpduWriter { framer: self, out, at: 0, summed: 0, length_at, ulpdu_bytes, left: ulpdu_bytes, crc }
    }

    /// Frames a whole ULPDU from one slice.
    ///
    /// # Panics
    /// Panics like [`begin`](Self::begin).
    pub fn frame(&mut self, out: &mut [u8], ulpdu: &[u8]) {
        let mut writer = self.begin(out, ulpdu.len());
        writer.put(ulpdu);
        writer.finish();
    }
}

/// The bytes around the payload of an FPDU. The payload itself is not copied.
#[derive(Clone, Debug)]
pub struct FpduAround {
    /// The length field and the first bytes of the ULPDU, before the payload.
    pub before: ArrayVec<u8, { LENGTH_BYTES + UlpduHead::MAX_LEN }>,
    /// The pad and the CRC field, after the payload.
    pub behind: ArrayVec<u8, { 3 + CRC_BYTES }>,
}

/// The layout of the next FPDU.
#[derive(Clone, Copy, Debug)]
pub struct FpduPlan {
    position: u64,
    ulpdu_bytes: usize,
    wire_len: usize,
}

impl FpduPlan {
    /// Number of bytes of the FPDU on the wire, including its markers.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        self.wire_len
    }
}

/// The first 14 or 18 bytes of a ULPDU, as integers. Each integer consists of consecutive bytes, the most
/// significant byte first.
#[derive(Clone, Copy, Debug)]
pub struct UlpduHead {
    /// The first 6 bytes. The upper 16 bits are 0.
    pub first: u64,
    /// The 8 bytes after the first 6 bytes.
    pub second: u64,
    /// The 4 bytes after `second`, if the header has 18 bytes.
    pub third: Option<u32>,
}

impl UlpduHead {
    /// Number of bytes of the longer header.
    pub const MAX_LEN: usize = 18;

    /// Returns the length field of the planned FPDU, followed by the bytes of `self`.
    ///
    /// RFC 5044 sections 3 and 4.1 (MPA-022, MPA-039): an FPDU contains one ULPDU, and consists of length,
    /// ULPDU, pad and CRC.
    #[inline]
    fn front(&self, plan: &FpduPlan) -> Front {
        let first = (plan.ulpdu_bytes as u64) << 48 | self.first;
        Front { words: [first, self.second].map(u64::to_be), rest: self.third.map(u32::to_be) }
    }

    /// Returns the number of bytes: 14 or 18.
    #[inline]
    pub const fn len(&self) -> usize {
        if self.third.is_some() { Self::MAX_LEN } else { 14 }
    }

    /// Returns `false`: a header always has at least 14 bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// An FPDU that is being written. If this value is dropped before [`finish`](Self::finish), the framer is
/// unchanged, except that the checksum of the last FPDU is forgotten. Some bytes of the slice may have been
/// written.
#[derive(Debug)]
pub struct FpduWriter<'a> {
    framer: &'a mut Framer,
    out: &'a mut [u8],
    /// Number of bytes of `out` that are written.
    at: usize,
    /// Number of bytes of `out` that have been added to `crc`. Small pieces are added together.
    summed: usize,
    length_at: u64,
    ulpdu_bytes: usize,
    left: usize,
    crc: Crc32c,
}

/// The memory that [`FpduWriter::fill`] passes to its closure, which writes bytes of the ULPDU there.
#[derive(Debug)]
pub enum Room<'a> {
    /// The bytes fill the whole slice. The closure also adds the bytes to the CRC, for instance by
    /// [`Crc32c::running`].
    Whole(&'a mut [u8], &'a mut Crc32c),
    /// The bytes fill the runs between the gaps of the stride. After the closure, the framer writes markers
    /// into the gaps, and adds all bytes to the CRC.
    Runs(&'a mut [u8], Stride),
}

impl FpduWriter<'_> {
    /// Number of ULPDU bytes that have not been written yet.
    pub const fn left(&self) -> usize {
        self.left
    }

    /// Appends ULPDU bytes.
    ///
    /// # Panics
    /// Panics if there are more bytes than [`left`](Self::left).
    pub fn put(&mut self, bytes: &[u8]) {
        self.count_off(bytes.len());
        self.write(bytes);
    }

    /// Appends `bytes` ULPDU bytes, which the closure `fill` writes directly to the FPDU.
    ///
    /// # Errors
    /// The error of `fill`. After an error the caller must drop the FPDU.
    ///
    /// # Panics
    /// Panics if there are more bytes than [`left`](Self::left).
    #[inline]
    pub fn fill<E>(&mut self, bytes: usize, fill: impl FnOnce(Room<'_>) -> Result<(), E>) -> Result<(), E> {
        self.count_off(bytes);
        if !self.framer.markers {
            if self.summed < self.at {
                self.update_crc();
            }
            fill(Room::Whole(&mut self.out[self.at..self.at + bytes], &mut self.crc))?;
            self.at += bytes;
            self.summed = self.at;
            return Ok(());
        }
        let stride = Stride::new(self.write_due_marker());
        let end = self.at + stride.span(bytes);
        fill(Room::Runs(&mut self.out[self.at..end], stride))?;
        for gap in stride.gaps(end - self.at) {
            self.write_marker(self.at + gap);
        }
        self.at = end;
        Ok(())
    }

    /// Appends the `bytes` bytes at `offset` of `source`.
    ///
    /// # Errors
    /// The errors of [`Source::fetch_with_crc`]. After an error the caller must drop the FPDU.
    ///
    /// # Panics
    /// Panics like [`fill`](Self::fill).
    #[inline]
    pub fn fill_from(&mut self, source: &Source<'_>, offset: usize, bytes: usize) -> Result<(), Fault> {
        self.fill(bytes, |room| match room {
            Room::Whole(room, crc) => source.fetch_with_crc(offset, room, crc.running()),
            Room::Runs(room, stride) => source.fetch_runs(offset, room, stride),
        })
    }

    /// Ends the FPDU: writes the pad, a marker if one is due, and the CRC. Advances the framer.
    ///
    /// # Panics
    /// Panics if ULPDU bytes are [`left`](Self::left).
    #[inline]
    pub fn finish(mut self) {
        assert_eq!(self.left, 0, "an FPDU without its last bytes");
        // RFC 5044 section 4.1 (MPA-042): the pad is zero.
        let pad = pad_bytes(self.ulpdu_bytes);
        if pad > 0 {
            self.write(&[0; 3][..pad]);
        }
        // RFC 5044 section 4.4 (MPA-091 to MPA-093): the CRC covers all bytes from the start, including a
        // marker before the length and a marker between pad and CRC field.
        self.write_due_marker();
        if self.summed < self.at {
            self.update_crc();
        }
        // RFC 5044 section 4.4 (MPA-088): every FPDU has a CRC field.
        let field = self.crc.field();
        self.out[self.at..].copy_from_slice(&field);
        self.framer.position += self.out.len() as u64;
    }

    #[inline]
    fn count_off(&mut self, bytes: usize) {
        assert!(bytes <= self.left, "{bytes} bytes for a ULPDU that lacks {}", self.left);
        self.left -= bytes;
    }

    /// Writes a marker if one is due. Returns the number of bytes before the next marker.
    fn write_due_marker(&mut self) -> usize {
        if !self.framer.markers {
            return usize::MAX;
        }
        // RFC 5044 section 4.3 (MPA-058): markers are sent when the peer has asked for them.
        if marker::begins_at(self.framer.position + self.at as u64) {
            self.write_marker(self.at);
            self.at += Stride::GAP;
        }
        let position = self.framer.position + self.at as u64;
        (marker::at_or_after(position) - position) as usize
    }

    fn write_marker(&mut self, at: usize) {
        let marker = marker::encode(marker::pointer(self.framer.position + at as u64, self.length_at));
        self.out[at..at + marker.len()].copy_from_slice(&marker);
    }

    /// Writes the first bytes of an FPDU without markers, and adds these bytes to the CRC.
    #[inline]
    fn write_front(&mut self, front: &Front) {
        self.at = front.store(self.out).0.len();
        self.summed = self.at;
        self.crc.update_front(front);
    }

    /// Writes bytes of the FPDU, and every marker that is due between them.
    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let run = self.write_due_marker().min(bytes.len());
            let (now, rest) = bytes.split_at(run);
            self.out[self.at..self.at + run].copy_from_slice(now);
            self.at += run;
            bytes = rest;
        }
    }

    /// Adds all written bytes to the CRC.
    fn update_crc(&mut self) {
        self.crc.update(&self.out[self.summed..self.at]);
        self.summed = self.at;
    }
}

/// Panics because the ULPDU is too long. The function is never inlined. Otherwise the compiler could prepare
/// the text of the panic before a loop of the caller begins.
#[cold]
#[inline(never)]
fn too_long(ulpdu_bytes: usize) -> ! {
    panic!("a ULPDU of {ulpdu_bytes} bytes")
}

#[cfg(test)]
mod tests;
