//! Sending: ULPDUs become FPDUs (RFC 5044 sections 4.1, 4.3 to 4.5).
//!
//! A [`Framer`] knows the position of the next FPDU in its direction. It knows nothing of TCP or of buffers:
//! the caller passes a slice of exactly the FPDU's length. The payload is fetched directly to its place in
//! that slice. Without markers it is summed while it is copied.

use arrayvec::ArrayVec;

use super::{CRC_BYTES, Crc32c, LENGTH_BYTES, MAX_ULPDU, MIN_MULPDU, fpdu_bytes, marker, pad_bytes};
use crate::memory::{Fault, Front, Source, Stride};

/// Frames one direction of a connection.
#[derive(Clone, Debug)]
pub struct Framer {
    position: u64,
    markers: bool,
    crc: bool,
    /// The partial Internet checksum of the FPDUs since [`tally`](Self::tally), while it is known.
    tally: Option<u64>,
}

impl Framer {
    /// A framer at position 0, right after the startup frame. `markers` says whether the peer wants markers.
    pub const fn new(markers: bool, crc: bool) -> Self {
        Self::at(0, markers, crc)
    }

    /// A framer in the middle of a stream.
    ///
    /// # Panics
    /// When `position` is not a multiple of 4: every FPDU begins at a multiple of 4.
    pub const fn at(position: u64, markers: bool, crc: bool) -> Self {
        assert!(position.is_multiple_of(4), "FPDUs begin at multiples of 4");
        Self { position, markers, crc, tally: None }
    }

    /// Starts to sum FPDUs for the Internet checksum, if `wanted`.
    #[inline]
    pub const fn tally(&mut self, wanted: bool) {
        self.tally = if wanted { Some(0) } else { None };
    }

    /// [`dp::checksum::partial`] of all bytes of the FPDUs since [`tally`](Self::tally); `None` if the sum
    /// was not wanted, or if one of the FPDUs was not framed in a single pass.
    #[inline]
    pub const fn take_tally(&mut self) -> Option<u64> {
        self.tally.take()
    }

    /// Where the next FPDU begins.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Whether markers are sent.
    pub const fn markers(&self) -> bool {
        self.markers
    }

    /// True if each FPDU has a CRC, for which the framer reads its payload.
    pub const fn crc(&self) -> bool {
        self.crc
    }

    /// The largest ULPDU whose FPDU fits a segment of `emss` bytes at any position (RFC 5044 section 4.5),
    /// within [`MIN_MULPDU`] and [`MAX_ULPDU`].
    ///
    /// ```
    /// # use iwarp::mpa::Framer;
    /// assert_eq!(Framer::new(true, true).mulpdu(1460), 1442);
    /// assert_eq!(Framer::new(false, true).mulpdu(1448), 1442);
    /// ```
    pub fn mulpdu(&self, emss: usize) -> usize {
        // RFC 5044 section 4.5 (MPA-101, MPA-102): EMSS less 6 bytes of length and CRC, the markers, and the
        // bytes beyond a multiple of 4.
        // RFC 5044 sections 3 and 4.5 (MPA-027, MPA-109): within 128 and 64768, whatever EMSS is.
        let markers = if self.markers { 4 * emss.div_ceil(marker::INTERVAL as usize) } else { 0 };
        emss.saturating_sub(6 + markers + emss % 4).clamp(MIN_MULPDU, MAX_ULPDU)
    }

    /// The largest ULPDU of the next FPDU in segments of `emss` bytes: MULPDU, or a little less where markers
    /// would give FPDUs different lengths on the wire. Segments of equal length can leave in one train.
    ///
    /// RFC 5044 section 3 (MPA-306): this is the maximum that DDP gets.
    ///
    /// Never inlined: a loop over FPDUs that calls this only with markers would otherwise compute half of it
    /// before it begins.
    #[inline(never)]
    pub fn ulpdu_limit(&self, emss: usize) -> usize {
        // Below an EMSS of about 140 bytes, MULPDU is more than a segment holds. The segment limits the ULPDU
        // then.
        let even = if self.markers { (emss / 4 * 4).saturating_sub(4) } else { emss };
        self.mulpdu(emss).min(self.fit(even).unwrap_or(0))
    }

    /// Bytes on the wire of an FPDU at the current position, including its markers.
    #[inline]
    pub fn wire_len(&self, ulpdu_bytes: usize) -> usize {
        if !self.markers {
            return fpdu_bytes(ulpdu_bytes);
        }
        (marker::fpdu_end(self.position, ulpdu_bytes, self.markers) - self.position) as usize
    }

    /// The largest ULPDU whose FPDU fits into `room` bytes at the current position; `None` when no FPDU fits.
    pub fn fit(&self, room: usize) -> Option<usize> {
        let room = room as u64 / 4 * 4;
        let markers = if self.markers { marker::count(self.position, self.position + room) } else { 0 };
        let content = room - 4 * markers;
        // An FPDU of a multiple of 4 bytes needs no pad, so all of `content` is used.
        let ulpdu = content.checked_sub(6)?;
        Some((ulpdu as usize).min(MAX_ULPDU))
    }

    /// The layout of an FPDU at the current position.
    ///
    /// # Panics
    /// When the ULPDU is longer than [`MAX_ULPDU`].
    #[inline]
    pub fn plan(&self, ulpdu_bytes: usize) -> FpduPlan {
        // RFC 5044 section 3 (MPA-028): no ULPDU is longer than 64768 bytes.
        if ulpdu_bytes > MAX_ULPDU {
            too_long(ulpdu_bytes);
        }
        FpduPlan { position: self.position, ulpdu_bytes, wire_len: self.wire_len(ulpdu_bytes) }
    }

    /// Begins an FPDU in `out`: writes the length and a marker before it. The caller then adds the ULPDU by
    /// [`put`](FpduWriter::put) and [`fill`](FpduWriter::fill) and ends the FPDU by
    /// [`finish`](FpduWriter::finish).
    ///
    /// # Panics
    /// When `out` is not exactly [`wire_len`](Self::wire_len) long, or the ULPDU is longer than
    /// [`MAX_ULPDU`].
    pub fn begin<'a>(&'a mut self, out: &'a mut [u8], ulpdu_bytes: usize) -> FpduWriter<'a> {
        let mut writer = self.writer(self.plan(ulpdu_bytes), out);
        // RFC 5044 sections 3 and 4.1 (MPA-022, MPA-039): one ULPDU in one FPDU, as length, ULPDU, pad and
        // CRC.
        writer.write(&(ulpdu_bytes as u16).to_be_bytes());
        writer
    }

    /// As [`begin`](Self::begin), and writes the first bytes of the ULPDU. Without markers they are summed
    /// from registers: a load of bytes that were just stored piece by piece would wait for the stores.
    ///
    /// # Panics
    /// When `out` is not as long as planned, the plan is for another position, or the ULPDU is shorter than
    /// `head`.
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

    /// Frames a ULPDU of `head` and bytes of `source`, from `offset` on. Without markers and with CRCs, copy
    /// and sum are one step.
    ///
    /// # Errors
    /// As [`Source::fetch_summed`]. The framer is unchanged then.
    ///
    /// # Panics
    /// As [`begin_with`](Self::begin_with).
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
        let (crc, sum) =
            source.fetch_behind(&head.front(&plan), offset, bytes, body, self.tally.is_some())?;
        // RFC 5044 section 4.4 (MPA-088, MPA-091, MPA-092): the CRC field is always there, and covers all
        // bytes before it.
        *field = Crc32c::of(crc).field();
        if let Some(tally) = &mut self.tally {
            // An FPDU begins at an even offset in its segment, and so does its last word.
            *tally += sum + u64::from(u32::from_ne_bytes(*field));
        }
        self.position += out.len() as u64;
        Ok(())
    }

    /// As [`frame_source`](Self::frame_source), piece by piece.
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
    /// FPDU around the payload.
    /// For streams with neither markers nor CRCs, which read no payload. The position does not advance; the
    /// caller calls [`advance`](Self::advance) when it has sent the FPDU.
    ///
    /// # Panics
    /// As [`begin_with`](Self::begin_with), and with markers or CRCs.
    pub fn frame_around(&self, plan: FpduPlan, head: &UlpduHead) -> FpduAround {
        assert!(!self.markers && !self.crc, "markers would lie inside the payload, and a CRC read it");
        debug_assert!(self.tally.is_none_or(|tally| tally == 0), "its payload is not summed");
        let (mut before, mut behind) = (ArrayVec::new(), ArrayVec::new());
        let mut bytes = [0; LENGTH_BYTES + UlpduHead::MAX_LEN];
        before.extend(head.front(&plan).store(&mut bytes).0.iter().copied());
        // RFC 5044 section 4.1 (MPA-042): the pad is zero.
        behind.extend([0; 3].into_iter().take(pad_bytes(plan.ulpdu_bytes)));
        // RFC 5044 section 4.4 (MPA-088): the CRC field is always there.
        behind.extend(Crc32c::unused().field());
        FpduAround { before, behind }
    }

    /// Called when the planned FPDU is sent: advances the position.
    ///
    /// # Panics
    /// When the plan is for another position.
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
        // The FPDU is written in pieces.
        self.tally = None;
        let ulpdu_bytes = plan.ulpdu_bytes;
        let crc = if self.crc { Crc32c::new() } else { Crc32c::unused() };
        let length_at = marker::length_field_of(self.position, self.markers);
        FpduWriter { framer: self, out, at: 0, summed: 0, length_at, ulpdu_bytes, left: ulpdu_bytes, crc }
    }

    /// Frames a whole ULPDU from one slice.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    pub fn frame(&mut self, out: &mut [u8], ulpdu: &[u8]) {
        let mut writer = self.begin(out, ulpdu.len());
        writer.put(ulpdu);
        writer.finish();
    }
}

/// The bytes around the payload of an FPDU, which stays in place.
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
    /// Bytes on the wire, including its markers.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        self.wire_len
    }
}

/// The first 14 or 18 bytes of a ULPDU, as numbers of consecutive bytes in network order.
#[derive(Clone, Copy, Debug)]
pub struct UlpduHead {
    /// The first 6 bytes. The upper 16 bits are 0.
    pub first: u64,
    /// The 8 bytes after them.
    pub second: u64,
    /// The 4 bytes after `second`, in a header of 18 bytes.
    pub third: Option<u32>,
}

impl UlpduHead {
    /// Bytes of the longer header.
    pub const MAX_LEN: usize = 18;

    /// The length field of the planned FPDU, and these bytes.
    ///
    /// RFC 5044 sections 3 and 4.1 (MPA-022, MPA-039): one ULPDU in one FPDU, as length, ULPDU, pad and CRC.
    #[inline]
    fn front(&self, plan: &FpduPlan) -> Front {
        let first = (plan.ulpdu_bytes as u64) << 48 | self.first;
        Front { words: [first, self.second].map(u64::to_be), rest: self.third.map(u32::to_be) }
    }

    /// The number of bytes: 14 or 18.
    #[inline]
    pub const fn len(&self) -> usize {
        if self.third.is_some() { Self::MAX_LEN } else { 14 }
    }

    /// Always `false`: a header has at least 14 bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// An FPDU that is being written. When it is dropped unfinished, the framer is unchanged, and the slice is
/// partly written.
#[derive(Debug)]
pub struct FpduWriter<'a> {
    framer: &'a mut Framer,
    out: &'a mut [u8],
    /// Bytes of `out` that are written.
    at: usize,
    /// Bytes of `out` that are in `crc`. Small pieces are summed together.
    summed: usize,
    /// Position of the length field.
    length_at: u64,
    ulpdu_bytes: usize,
    /// ULPDU bytes still to come.
    left: usize,
    crc: Crc32c,
}

/// The place of the bytes that [`FpduWriter::fill`] passes to its closure.
#[derive(Debug)]
pub enum Room<'a> {
    /// All bytes of the slice. The closure adds them to the CRC, for instance by [`Crc32c::running`].
    Whole(&'a mut [u8], &'a mut Crc32c),
    /// The runs between the gaps of the stride. The framer then writes markers into the gaps and sums it all.
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
    /// When there are more than [`left`](Self::left).
    pub fn put(&mut self, bytes: &[u8]) {
        self.count_off(bytes.len());
        self.write(bytes);
    }

    /// Appends `bytes` ULPDU bytes: calls `fill` to write them to their place.
    ///
    /// # Errors
    /// The error of `fill`. The caller has to drop the FPDU then.
    ///
    /// # Panics
    /// When there are more than [`left`](Self::left).
    #[inline]
    pub fn fill<E>(&mut self, bytes: usize, fill: impl FnOnce(Room<'_>) -> Result<(), E>) -> Result<(), E> {
        self.count_off(bytes);
        if !self.framer.markers {
            if self.summed < self.at {
                self.sum();
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

    /// Appends `bytes` bytes of `source`, from `offset` on.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    ///
    /// # Panics
    /// As [`fill`](Self::fill).
    #[inline]
    pub fn fill_from(&mut self, source: &Source<'_>, offset: usize, bytes: usize) -> Result<(), Fault> {
        self.fill(bytes, |room| match room {
            Room::Whole(room, crc) => source.fetch_summed(offset, room, crc.running()),
            Room::Runs(room, stride) => source.fetch_runs(offset, room, stride),
        })
    }

    /// Ends the FPDU: writes the pad, a marker if one is due, and the CRC. Advances the framer.
    ///
    /// # Panics
    /// When ULPDU bytes are [`left`](Self::left).
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
            self.sum();
        }
        // RFC 5044 section 4.4 (MPA-088): the CRC field is always there.
        let field = self.crc.field();
        self.out[self.at..].copy_from_slice(&field);
        self.framer.position += self.out.len() as u64;
    }

    #[inline]
    fn count_off(&mut self, bytes: usize) {
        assert!(bytes <= self.left, "{bytes} bytes for a ULPDU that lacks {}", self.left);
        self.left -= bytes;
    }

    /// Writes a marker if one is due. Returns how many bytes fit before the next one.
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

    /// Writes the marker at index `at` of `out`.
    fn write_marker(&mut self, at: usize) {
        let marker = marker::encode(marker::pointer(self.framer.position + at as u64, self.length_at));
        self.out[at..at + marker.len()].copy_from_slice(&marker);
    }

    /// Writes and sums the first bytes of an FPDU without markers.
    #[inline]
    fn write_front(&mut self, front: &Front) {
        self.at = front.store(self.out).0.len();
        self.summed = self.at;
        self.crc.update_front(front);
    }

    /// Writes bytes of the FPDU around the markers.
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
    fn sum(&mut self) {
        self.crc.update(&self.out[self.summed..self.at]);
        self.summed = self.at;
    }
}

/// Never inlined: callers that loop would prepare the message before they begin.
#[cold]
#[inline(never)]
fn too_long(ulpdu_bytes: usize) -> ! {
    panic!("a ULPDU of {ulpdu_bytes} bytes")
}

#[cfg(test)]
mod tests;
