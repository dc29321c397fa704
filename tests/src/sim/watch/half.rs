//! One direction of one connection, as the wire shows it at its sender and at its receiver.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::before::Over;
use super::fpdu::{Parser, Settled};
use super::ranges::Ranges;

/// Bare segments (no payload, SYN, FIN, RST) that a host may send on a connection, beyond two for each
/// segment that has arrived and is not bare: for each second, and in all. Bare segments are not to be
/// answered but within these.
const BARE_PER_SECOND: u64 = 10;
const BARE_IN_ALL: u64 = 32;

/// How the sender's stream is divided into what must stay whole.
#[derive(Debug)]
pub(super) enum Borders {
    /// Not known: a stream of a TCP that is not ours.
    Unknown,
    /// Segments as the user pushed them: where each ends.
    Pushed(BTreeSet<u64>),
    /// MPA.
    Mpa(Parser),
}

/// What one host sends on one connection. Offsets count from the byte behind the SYN.
#[derive(Debug)]
pub(super) struct Half {
    /// Initial sequence number, once the SYN was seen.
    pub(super) isn: Option<u32>,
    /// Shift of the windows that the sender announces; both SYNs have to offer it.
    pub(super) scale: Option<u8>,
    /// Behind the highest byte sent.
    pub(super) high: u64,
    /// Where the FIN stands.
    pub(super) fin: Option<u64>,
    /// The sender has sent a RST.
    pub(super) reset: bool,
    /// Other numbers its SYN-ACKs had: cookies change (RFC 4987 section 3.6), as long as none is
    /// acknowledged.
    pub(super) cookies: Vec<u32>,
    /// One of its SYNs is counted on.
    pub(super) settled: bool,
    /// The sender's SYN had no ACK.
    pub(super) opens: bool,
    /// The sender's user was told that the connection is over.
    pub(super) over: bool,
    /// The peer's FIN arrived before the sender had sent its own.
    closes_last: bool,
    /// Both FINs have arrived, as the sender knows.
    pub(super) ended: Option<Over>,
    /// The number of a SYN-ACK with which the sender answered a late double of the peer's SYN, when it was
    /// over.
    pub(super) late: Option<u32>,
    /// Segments that arrived at the sender and were not bare.
    pub(super) calls: u64,
    /// Bare segments that it sent.
    bare: u64,
    /// What arrived at the receiver with a good checksum.
    pub(super) arrived: Ranges,
    /// The latest timestamp that arrived at the receiver.
    pub(super) latest: Option<u32>,
    /// A timestamp that the other end may have taken, or not
    /// ([`Watch::doubt_timestamp`](super::Watch::doubt_timestamp)).
    pub(super) doubted: Option<u32>,
    /// The FIN arrived.
    pub(super) fin_arrived: bool,
    /// The highest offset that the receiver has acknowledged, FIN included.
    pub(super) acked: u64,
    /// The highest acknowledgement that has arrived back at the sender.
    pub(super) heard: u64,
    /// The highest among those that the sender had to take in.
    pub(super) taken: u64,
    /// The right edge that the receiver has announced.
    pub(super) edge: u64,
    /// The right edge that has arrived at the sender.
    pub(super) edge_heard: u64,
    /// Bytes (and the FIN) that wait for their acknowledgement: up to where, and when they were first sent.
    waiting: VecDeque<(u64, u64)>,
    /// The longest that one has waited.
    pub(super) waited_us: u64,
    /// What must stay whole.
    pub(super) borders: Borders,
    /// Cuts of what must stay whole, seen so far.
    pub(super) cuts: u64,
    /// Probes of the path's MTU, seen so far.
    pub(super) probes: u64,
    /// Segments as they were first sent.
    frozen: BTreeMap<u64, u64>,
    /// SACK blocks heard, with the timeouts of the sender by then.
    sacked: Vec<(u64, u64, u64)>,
    /// Its SYN permits selective acknowledgements.
    pub(super) permits_sack: bool,
}

impl Half {
    /// Nothing sent yet.
    pub(super) fn new(borders: Borders) -> Self {
        Self {
            isn: None,
            scale: None,
            high: 0,
            fin: None,
            reset: false,
            cookies: Vec::new(),
            settled: false,
            opens: false,
            over: false,
            closes_last: false,
            ended: None,
            late: None,
            calls: 0,
            bare: 0,
            arrived: Ranges::default(),
            latest: None,
            doubted: None,
            fin_arrived: false,
            acked: 0,
            heard: 0,
            taken: 0,
            edge: 0,
            edge_heard: 0,
            waiting: VecDeque::new(),
            waited_us: 0,
            borders,
            cuts: 0,
            probes: 0,
            frozen: BTreeMap::new(),
            sacked: Vec::new(),
            permits_sack: false,
        }
    }

    /// The offset of a sequence number near those in use.
    pub(super) fn offset(&self, seq: u32) -> i64 {
        self.isn.map_or(0, |isn| i64::from(seq.wrapping_sub(isn).wrapping_sub(1) as i32))
    }

    /// Something has arrived from the peer: notes whether the connection is over now.
    pub(super) fn note_end(&mut self, now_us: u64, peer: &Self) {
        if !peer.fin_arrived || peer.fin != Some(peer.arrived.frontier()) {
            return;
        }
        self.closes_last |= self.fin.is_none();
        if self.fin.is_some_and(|fin| self.taken > fin) {
            self.ended.get_or_insert(Over { at_us: now_us, waits: !self.closes_last });
        }
    }

    /// The last sequence number used, be it the SYN's or the FIN's.
    pub(super) fn last_number(&self) -> Option<u32> {
        self.isn.map(|isn| isn.wrapping_add(self.high as u32 + u32::from(self.fin.is_some())))
    }

    /// Somebody counts on the stream beginning behind this number: of several SYN-ACKs that one holds.
    pub(super) fn settle(&mut self, isn: u32) {
        if self.cookies.contains(&isn) {
            self.isn = Some(isn);
        }
        self.cookies.clear();
        self.settled |= self.isn.is_some();
    }

    /// The sender sends a bare segment.
    ///
    /// # Errors
    /// When that is one too many.
    pub(super) fn note_bare(&mut self, now_us: u64) -> Result<(), String> {
        self.bare += 1;
        let allowed = 2 * self.calls + BARE_IN_ALL + BARE_PER_SECOND * (now_us / 1_000_000);
        if self.bare > allowed {
            let (bare, calls) = (self.bare, self.calls);
            return Err(format!("{bare} bare segments sent, {calls} received that are not bare: a storm"));
        }
        Ok(())
    }

    /// Something was sent: what is new waits from now on.
    pub(super) fn note_sent(&mut self, now_us: u64) {
        let end = self.high + u64::from(self.fin.is_some());
        if end > self.waiting.back().map_or(self.heard, |&(last, _)| last) {
            self.waiting.push_back((end, now_us));
        }
    }

    /// `ack` has arrived back: the oldest byte that it acknowledges has waited the longest. What it does not
    /// acknowledge waits on, and so does the timer of it.
    pub(super) fn note_acknowledged(&mut self, now_us: u64, ack: u64) {
        if ack <= self.heard {
            return;
        }
        self.heard = ack;
        if let Some(&(_, since_us)) = self.waiting.front() {
            self.waited_us = self.waited_us.max(now_us - since_us);
        }
        while self.waiting.front().is_some_and(|&(end, _)| end <= ack) {
            self.waiting.pop_front();
        }
    }

    /// The longest that a byte has waited for its acknowledgement, by `harmed_us` where one still waits.
    pub(super) fn stood_us(&self, harmed_us: u64) -> u64 {
        let now = self.waiting.front().map_or(0, |&(_, since_us)| harmed_us.saturating_sub(since_us));
        self.waited_us.max(now)
    }

    /// The receiver's SACK block `start..end` has arrived at the sender, which had `timeouts` by then. It
    /// says something of the segments that are wholly inside (RFC 2018 section 5); of parts that others are
    /// cut into later, it does not.
    pub(super) fn hear_sack(&mut self, start: i64, end: i64, timeouts: u64) {
        if start < self.heard as i64 || start >= end {
            return;
        }
        let inside = self.frozen.range(start as u64..end as u64).filter(|(_, last)| **last <= end as u64);
        let mut ends = inside.map(|(&first, &last)| (first, last));
        if let Some((first, mut last)) = ends.next() {
            last = ends.next_back().map_or(last, |(_, end)| end);
            self.sacked.push((first, last, timeouts));
            if self.sacked.len() > 256 {
                let heard = self.heard;
                self.sacked.retain(|&(_, end, _)| end > heard);
            }
        }
    }

    /// The sender sends `payload` at `start`. `of_ours`: it is tcp-lite.
    ///
    /// # Errors
    /// What rule that breaks.
    pub(super) fn send(&mut self, start: u64, payload: &[u8], sender: Sender) -> Result<(), String> {
        let end = start + payload.len() as u64;
        if start > self.high {
            return Err(format!("bytes {start}..{end}, but {}..{start} were never sent", self.high));
        }
        if !sender.is_ours {
            self.high = self.high.max(end);
            return Ok(());
        }
        if self.fin.is_some_and(|fin| end > fin) {
            return Err(format!("bytes up to {end} behind the FIN at {:?}", self.fin));
        }
        if end > self.edge_heard {
            return Err(format!(
                "bytes {start}..{end} beyond the peer's window, which ends at {}",
                self.edge_heard
            ));
        }
        if self.is_probe(start, end) {
            self.probes += 1;
            Ok(())
        } else if start == self.high {
            self.freeze(start, payload, sender.settled)
        } else {
            self.send_again(start, end, sender.timeouts)
        }
    }

    /// Acknowledged bytes: a probe of the path's MTU. (What lies inside of one segment may be sent again by a
    /// host that could not take the acknowledgement, since its segment was old.)
    fn is_probe(&self, start: u64, end: u64) -> bool {
        let inside = self.frozen.range(..=start).next_back().is_some_and(|(_, &last)| end <= last);
        end <= self.heard.min(self.high) && (!inside || end <= self.taken)
    }

    /// New bytes: a segment is frozen. Its ends have to be borders, or it was cut.
    fn freeze(&mut self, start: u64, payload: &[u8], settled: Settled) -> Result<(), String> {
        let end = start + payload.len() as u64;
        self.frozen.insert(start, end);
        self.high = end;
        let whole = match &mut self.borders {
            Borders::Unknown => true,
            Borders::Pushed(borders) => {
                let inside = borders.range(start + 1..end).next().copied();
                if let Some(border) = inside {
                    return Err(format!(
                        "segment {start}..{end} joins what was pushed in two parts, border {border}"
                    ));
                }
                borders.contains(&end)
            }
            Borders::Mpa(parser) => parser.read(payload, settled)?.last() == Some(&end),
        };
        self.cuts += u64::from(!whole);
        Ok(())
    }

    /// Bytes sent before: the frozen segment, or a part of one that was cut.
    fn send_again(&mut self, start: u64, end: u64, timeouts: u64) -> Result<(), String> {
        let Some((&first, &last)) = self.frozen.range(..=start).next_back() else {
            return Err(format!("bytes {start}..{end} sent again, but no segment had them"));
        };
        if end > last {
            return Err(format!("bytes {start}..{end} sent again, but a segment ended at {last}"));
        }
        if start != first {
            self.frozen.insert(first, start);
            self.frozen.insert(start, last);
            self.cuts += 1;
        }
        if end != last {
            self.frozen.insert(start, end);
            self.frozen.insert(end, last);
            self.cuts += 1;
        }
        let known = |&(from, to, then): &(u64, u64, u64)| from <= start && end <= to && then == timeouts;
        if self.sacked.iter().any(known) {
            return Err(format!(
                "bytes {start}..{end} sent again, though selectively acknowledged since the last timeout"
            ));
        }
        Ok(())
    }
}

/// What is known of the sender of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    /// It is tcp-lite.
    pub(super) is_ours: bool,
    /// Its retransmission timeouts so far.
    pub(super) timeouts: u64,
    /// What MPA's startup has settled for its direction.
    pub(super) settled: Settled,
}

#[cfg(test)]
mod tests {
    use super::{Borders, Half};

    /// A half that sends 100 bytes at each of these times.
    fn sends(times_us: &[u64]) -> Half {
        let mut half = Half::new(Borders::Unknown);
        for &now_us in times_us {
            half.high += 100;
            half.note_sent(now_us);
        }
        half
    }

    #[test]
    fn a_byte_waits_from_when_it_was_first_sent_whatever_is_acknowledged_before_it() {
        let mut half = sends(&[1000, 1000, 1500]);
        half.note_sent(4000);
        half.note_acknowledged(4010, 50);
        assert_eq!((half.waited_us, half.stood_us(6000)), (3010, 5000));
        half.note_acknowledged(7010, 200);
        assert_eq!((half.waited_us, half.stood_us(7010)), (6010, 6010));
        half.note_acknowledged(7020, 200);
        assert_eq!(half.stood_us(9500), 8000, "the last hundred");
        half.note_acknowledged(9600, 300);
        assert_eq!(half.stood_us(20_000), 8100, "nothing waits any more");
    }

    #[test]
    fn a_fin_waits_too() {
        let mut half = sends(&[1000]);
        half.note_acknowledged(1100, 100);
        half.fin = Some(100);
        half.note_sent(2000);
        half.note_acknowledged(5000, 101);
        assert_eq!((half.waited_us, half.stood_us(9000)), (3000, 3000));
    }
}
