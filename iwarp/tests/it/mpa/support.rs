//! Helpers of the MPA tests: a model of TCP for the deframer, a sink that records everything, and calls of
//! the reference.

use std::collections::{BTreeMap, HashSet};

use crate::common::oracle::oracle;
use dp::{Mbuf, Mempool};
use iwarp::mpa::{Deframed, Deframer, HeldSlab, MpaError, Ulpdu};

/// Returns a fresh buffer that contains `bytes`. If `segment` is smaller than the number of bytes, the result
/// is a chain of several buffers.
pub(crate) fn mbuf(pool: &Mempool, bytes: &[u8], segment: usize) -> Mbuf {
    let least = bytes.len().div_ceil(dp::mbuf::MAX_SEGMENTS).max(1);
    let mut chunks = bytes.chunks(segment.clamp(least, pool.data_bytes()));
    let mut buf = fresh(pool, chunks.next().unwrap_or_default());
    for chunk in chunks {
        assert!(buf.chain(fresh(pool, chunk)).is_ok(), "chain of {} bytes", bytes.len());
    }
    buf
}

fn fresh(pool: &Mempool, bytes: &[u8]) -> Mbuf {
    let mut buf = pool.alloc().expect("a pool large enough for the test");
    buf.append(bytes.len()).expect("room").copy_from_slice(bytes);
    buf
}

/// Records ULPDUs. ULPDUs that arrive early are copied at once, as in a placement.
#[derive(Default)]
pub(crate) struct Sink {
    /// The delivered ULPDUs, in order.
    pub(crate) ulpdus: Vec<Vec<u8>>,
    /// ULPDUs that are placed and not yet delivered, by position.
    pub(crate) early: BTreeMap<u64, Vec<u8>>,
    /// Number of ULPDUs placed early.
    pub(crate) placed: usize,
    /// ULPDUs that begin with one of these bytes are not placed early.
    pub(crate) refuse: HashSet<u8>,
    /// If set, reception ends after this number of ULPDUs.
    pub(crate) enough: Option<usize>,
}

fn whole(ulpdu: &Ulpdu<'_>) -> Vec<u8> {
    let mut bytes = vec![0; ulpdu.len()];
    assert_eq!(ulpdu.copy_to(0, &mut bytes), bytes.len());
    // Reads the same bytes through `runs`.
    let third = bytes.len() / 3;
    let runs: Vec<u8> =
        ulpdu.runs(third, usize::MAX).inspect(|run| assert!(!run.is_empty())).flatten().copied().collect();
    assert_eq!(runs, bytes[third..]);
    bytes
}

impl Sink {
    /// Places a ULPDU beyond a hole, unless `refuse` contains the first byte of the ULPDU. Returns whether
    /// the ULPDU was placed.
    fn place_early(&mut self, ulpdu: &Ulpdu<'_>) -> bool {
        let bytes = whole(ulpdu);
        if bytes.first().is_some_and(|first| self.refuse.contains(first)) {
            return false;
        }
        assert!(self.early.insert(ulpdu.position(), bytes).is_none(), "placed twice");
        self.placed += 1;
        true
    }

    fn deliver_placed(&mut self, header: &[u8], ulpdu_len: usize) {
        let (_, bytes) = self.early.pop_first().expect("a ULPDU that was placed");
        assert_eq!((header, ulpdu_len), (&bytes[..bytes.len().min(18)], bytes.len()));
        self.ulpdus.push(bytes);
    }

    fn has_enough(&self) -> bool {
        self.enough.is_some_and(|enough| self.ulpdus.len() >= enough)
    }
}

/// A receiver: the deframer and the TCP below it. TCP passes each byte to the deframer once, as soon as the
/// byte arrives.
pub(crate) struct Receiver {
    pub(crate) pool: Mempool,
    pub(crate) slab: HeldSlab,
    pub(crate) deframer: Deframer,
    pub(crate) sink: Sink,
    start: u64,
    /// The ranges that the deframer has received: the end of each range by its start. Adjacent ranges are
    /// joined.
    seen: BTreeMap<u64, u64>,
    /// Number of bytes that the deframer received out of order and has not released.
    pub(crate) ahead: usize,
    pub(crate) most_ahead: usize,
}

impl Receiver {
    pub(crate) fn new(start: u64, markers: bool, crc: bool) -> Self {
        Self::with_pool(Mempool::heap("mpa-test", 16_384, 512), start, markers, crc)
    }

    pub(crate) fn with_pool(pool: Mempool, start: u64, markers: bool, crc: bool) -> Self {
        Self {
            slab: HeldSlab::new(pool.capacity(), 1024),
            pool,
            deframer: Deframer::new(start, markers, crc),
            sink: Sink::default(),
            start,
            seen: BTreeMap::from([(start, start)]),
            ahead: 0,
            most_ahead: 0,
        }
    }

    pub(crate) fn frontier(&self) -> u64 {
        self.seen[&self.start]
    }

    /// Receives a TCP segment, and passes the new parts of the segment to the deframer.
    pub(crate) fn segment(&mut self, offset: u64, bytes: &[u8], chunk: usize) -> Result<(), MpaError> {
        let (mut at, end) = (offset, offset + bytes.len() as u64);
        while at < end {
            let (_, covered) =
                self.seen.range(..=at).next_back().map_or((0, 0), |(start, end)| (*start, *end));
            if covered > at {
                at = covered;
                continue;
            }
            let upto = self.seen.range(at + 1..).next().map_or(end, |(start, _)| end.min(*start));
            let part = &bytes[(at - offset) as usize..(upto - offset) as usize];
            self.up(at, part, chunk)?;
            at = upto;
        }
        Ok(())
    }

    fn up(&mut self, at: u64, bytes: &[u8], chunk: usize) -> Result<(), MpaError> {
        let end = at + bytes.len() as u64;
        let end = self.seen.remove(&end).unwrap_or(end);
        match self.seen.range_mut(..=at).next_back() {
            Some((_, covered)) if *covered == at => *covered = end,
            _ => drop(self.seen.insert(at, end)),
        }
        let frontier = self.frontier();
        if at >= frontier {
            self.ahead += bytes.len();
            self.most_ahead = self.most_ahead.max(self.ahead);
        }
        let buf = mbuf(&self.pool, bytes, chunk);
        self.receive(at, buf, frontier)
    }

    /// If the stream begins at an even offset, the deframer first receives complete FPDUs by `receive_whole`,
    /// as in an engine.
    fn receive(&mut self, offset: u64, mut buf: Mbuf, frontier: u64) -> Result<(), MpaError> {
        let Self { deframer, slab, sink, .. } = self;
        let mut taken = 0;
        if self.start.is_multiple_of(2) {
            let whole = deframer.receive_whole(offset, &buf, frontier, slab, |_, ulpdu| {
                sink.ulpdus.push(ulpdu.to_vec());
                if sink.has_enough() { Err(()) } else { Ok(()) }
            });
            let Ok(bytes) = whole else { return Ok(()) };
            taken = bytes;
            if taken > 0 && taken == buf.len() {
                return Ok(());
            }
            buf.advance(taken);
        }
        let mut ulpdus = deframer.receive(offset + taken as u64, buf, frontier, slab);
        while let Some(received) = ulpdus.next()? {
            match received {
                Deframed::InOrder(ulpdu) => sink.ulpdus.push(whole(&ulpdu)),
                Deframed::Placed { head, ulpdu_len } => sink.deliver_placed(head, ulpdu_len),
                Deframed::Ahead(ulpdu) => {
                    if sink.place_early(&ulpdu) {
                        ulpdus.mark_placed();
                    }
                    continue;
                }
            }
            if sink.has_enough() {
                return Ok(());
            }
        }
        let released = ulpdus.finish();
        self.release(released);
        Ok(())
    }

    /// Passes the same bytes to the deframer a second time. Our TCP passes each byte once, but another TCP
    /// might do this.
    pub(crate) fn again(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MpaError> {
        let frontier = self.frontier();
        if offset >= frontier {
            self.ahead += bytes.len();
        }
        let buf = mbuf(&self.pool, bytes, bytes.len());
        self.receive(offset, buf, frontier)
    }

    /// TCP asks the deframer to discard `bytes` bytes, which may arrive again. Returns the number of
    /// discarded bytes.
    pub(crate) fn give_up(&mut self, bytes: usize) -> usize {
        let Self { deframer, slab, seen, ahead, start, .. } = self;
        let mut gone = 0;
        deframer.give_up(bytes, slab, |stretches| {
            for stretch in stretches {
                let (&from, &to) = seen.range(..=stretch.start).next_back().expect("what was handed up");
                assert!(from != *start && stretch.start < stretch.end && stretch.end <= to, "{stretch:?}");
                seen.remove(&from);
                seen.extend([(from, stretch.start), (stretch.end, to)].into_iter().filter(|(a, b)| a < b));
                gone += (stretch.end - stretch.start) as usize;
            }
            true
        });
        *ahead = ahead.checked_sub(gone).expect("no more than is counted");
        gone
    }

    pub(crate) fn release(&mut self, bytes: usize) {
        assert!(bytes <= self.ahead, "{bytes} bytes released, {} are counted", self.ahead);
        self.ahead -= bytes;
    }

    /// Ends the stream, and checks that no buffer is still held.
    pub(crate) fn finish(mut self) -> Sink {
        let released = self.deframer.clear(&mut self.slab);
        self.release(released);
        assert_eq!(self.ahead, 0, "bytes counted for ever");
        assert_eq!((self.slab.buffers().0, self.slab.early_fpdus().0), (0, 0), "slots left taken");
        assert_eq!(self.pool.available(), self.pool.capacity(), "buffers left behind");
        self.sink
    }
}

/// Runs `script` with `input` on its standard input, and returns the output. The reference is already
/// imported as `mpa_ref`.
pub(crate) fn reference(script: &str, input: &str) -> String {
    oracle(&format!("import sys, mpa_ref\n{script}"), input)
}

/// Prints the reference's wire bytes for each input line `markers crc position ulpdu...`, which is one
/// stream.
pub(crate) const ENCODE: &str = "
for line in sys.stdin:
    markers, crc, position, *ulpdus = line.split()
    encoder = mpa_ref.Encoder(markers == '1', crc == '1', int(position))
    print(''.join(encoder.fpdu(bytes.fromhex(ulpdu)).hex() for ulpdu in ulpdus))
";

/// Prints the reference's error code (or 0) and ULPDUs for each input line `markers crc position wire`.
pub(crate) const DECODE: &str = "
for line in sys.stdin:
    markers, crc, position, wire = line.split()
    decoder = mpa_ref.Decoder(markers == '1', crc == '1', int(position))
    fpdus = decoder.feed(bytes.fromhex(wire))
    print(decoder.error[0] if decoder.error else 0, *(fpdu.ulpdu.hex() for fpdu in fpdus))
";
