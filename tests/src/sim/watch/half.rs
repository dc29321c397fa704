//! One direction of one connection, as seen on the wire at its sender and at its receiver.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::before::Over;
use super::fpdu::{Parser, Settled};
use super::ranges::Ranges;

/// Limit of bare segments (no payload, SYN, FIN or RST) that a host may send on a connection: two for each
/// segment that arrived and is not bare, and beyond that this many a second and in all. Bare segments must
/// not be answered beyond these limits.
const BARE_PER_SECOND: u64 = 10;
const BARE_IN_ALL: u64 = 32;

/// The units of the sender's stream that must stay whole.
#[derive(Debug)]
pub(super) enum Borders {
    /// Unknown: the stream of a TCP that is not ours.
    Unknown,
    /// Segments as the user pushed them: the offset of the end of each.
    Pushed(BTreeSet<u64>),
    /// FPDUs.
    Mpa(Parser),
}

/// The stream that one host sends on one connection. Offsets count from the byte after the SYN.
#[derive(Debug)]
pub(super) struct Half {
    /// Initial sequence number, once the SYN was seen.
    pub(super) isn: Option<u32>,
    /// Window scale that the sender offers. It is used only if both SYNs offer one.
    pub(super) scale: Option<u8>,
    /// The offset after the highest byte sent.
    pub(super) high: u64,
    /// Offset of the FIN.
    pub(super) fin: Option<u64>,
    /// The sender has sent a RST.
    pub(super) reset: bool,
    /// Other initial sequence numbers of its SYN-ACKs: cookies change (RFC 4987 section 3.6) until one is
    /// acknowledged.
    pub(super) cookies: Vec<u32>,
    /// The peer has acknowledged its SYN.
    pub(super) settled: bool,
    /// The sender's SYN had no ACK.
    pub(super) opens: bool,
    /// The sender's user has got the event that the connection is over.
    pub(super) over: bool,
    /// The peer's FIN arrived before the sender had sent its own.
    closes_last: bool,
    /// Both FINs have arrived, as the sender knows.
    pub(super) ended: Option<Over>,
    /// The initial sequence number of a SYN-ACK that the sender, whose connection was over, sent for a late
    /// duplicate of the peer's SYN.
    pub(super) late: Option<u32>,
    /// Segments that arrived at the sender and were not bare.
    pub(super) calls: u64,
    /// Bare segments that the sender sent.
    bare: u64,
    /// Bytes that arrived at the receiver with a correct checksum.
    pub(super) arrived: Ranges,
    /// The latest timestamp that arrived at the receiver.
    pub(super) latest: Option<u32>,
    /// A timestamp that the other end may have processed or not
    /// ([`Watch::doubt_timestamp`](super::Watch::doubt_timestamp)).
    pub(super) doubted: Option<u32>,
    /// The FIN arrived.
    pub(super) fin_arrived: bool,
    /// The highest offset that the receiver has acknowledged, FIN included.
    pub(super) acked: u64,
    /// The highest acknowledgement that has arrived at the sender.
    pub(super) heard: u64,
    /// The highest acknowledgement that the sender had to process.
    pub(super) taken: u64,
    /// The right window edge that the receiver has announced.
    pub(super) edge: u64,
    /// The right window edge that has arrived at the sender.
    pub(super) edge_heard: u64,
    /// Unacknowledged bytes (and the FIN): the offset of their end, and when they were first sent.
    waiting: VecDeque<(u64, u64)>,
    /// The longest that a byte has waited for its acknowledgement.
    pub(super) waited_us: u64,
    /// The units that must stay whole.
    pub(super) borders: Borders,
    /// Splits of such units so far.
    pub(super) cuts: u64,
    /// Path MTU probes so far.
    pub(super) probes: u64,
    /// Segments as they were first sent.
    frozen: BTreeMap<u64, u64>,
    /// SACK blocks that arrived, with the number of timeouts of the sender at that time.
    sacked: Vec<(u64, u64, u64)>,
    /// Its SYN has the SACK-permitted option.
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

    /// A segment of the peer has arrived: notes whether the connection is over now.
    pub(super) fn note_end(&mut self, now_us: u64, peer: &Self) {
        if !peer.fin_arrived || peer.fin != Some(peer.arrived.frontier()) {
            return;
        }
        self.closes_last |= self.fin.is_none();
        if self.fin.is_some_and(|fin| self.taken > fin) {
            self.ended.get_or_insert(Over { at_us: now_us, waits: !self.closes_last });
        }
    }

    /// The last sequence number used, that of the SYN or the FIN included.
    pub(super) fn last_number(&self) -> Option<u32> {
        self.isn.map(|isn| isn.wrapping_add(self.high as u32 + u32::from(self.fin.is_some())))
    }

    /// A segment relies on the stream beginning after this number: of several SYN-ACKs this one is valid.
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
    /// If it exceeds the limit.
    pub(super) fn note_bare(&mut self, now_us: u64) -> Result<(), String> {
        self.bare += 1;
        let allowed = 2 * self.calls + BARE_IN_ALL + BARE_PER_SECOND * (now_us / 1_000_000);
        if self.bare > allowed {
            let (bare, calls) = (self.bare, self.calls);
            return Err(format!("{bare} bare segments sent, {calls} received that are not bare: the limit is exceeded"));
        }
        Ok(())
    }

    /// A segment was sent: new bytes begin to wait for their acknowledgement.
    pub(super) fn note_sent(&mut self, now_us: u64) {
        let end = self.high + u64::from(self.fin.is_some());
        if end > self.waiting.back().map_or(self.heard, |&(last, _)| last) {
            self.waiting.push_back((end, now_us));
        }
    }

    /// `ack` has arrived: of the bytes that it acknowledges, the oldest has waited longest. The others
    /// continue to wait, and so does their timer.
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

    /// The longest that a byte has waited for its acknowledgement. Bytes that still wait count until
    /// `harmed_us`.
    pub(super) fn stood_us(&self, harmed_us: u64) -> u64 {
        let now = self.waiting.front().map_or(0, |&(_, since_us)| harmed_us.saturating_sub(since_us));
        self.waited_us.max(now)
    }

    /// The receiver's SACK block `start..end` has arrived at the sender, which had had `timeouts` timeouts.
    /// The block covers segments that are wholly inside (RFC 2018 section 5), but not parts into which other
    /// segments are split later.
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

    /// The sender sends `payload` at `start`.
    ///
    /// # Errors
    /// The broken rule.
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
            return Err(format!("bytes up to {end} are after the FIN at {:?}", self.fin));
        }
        if end > self.edge_heard {
            return Err(format!(
                "bytes {start}..{end} are beyond the peer's window, which ends at {}",
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

    /// Acknowledged bytes: a path MTU probe. (A host may retransmit bytes within one segment if it could not
    /// process their acknowledgement, since that segment was old.)
    fn is_probe(&self, start: u64, end: u64) -> bool {
        let inside = self.frozen.range(..=start).next_back().is_some_and(|(_, &last)| end <= last);
        end <= self.heard.min(self.high) && (!inside || end <= self.taken)
    }

    /// New bytes: a segment is frozen. If it does not end where a unit ends, a unit was split.
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
                        "segment {start}..{end} joins two pushed segments, the boundary is at {border}"
                    ));
                }
                borders.contains(&end)
            }
            Borders::Mpa(parser) => parser.read(payload, settled)?.last() == Some(&end),
        };
        self.cuts += u64::from(!whole);
        Ok(())
    }

    /// Retransmitted bytes: the frozen segment, or a part of it after a split.
    fn send_again(&mut self, start: u64, end: u64, timeouts: u64) -> Result<(), String> {
        let Some((&first, &last)) = self.frozen.range(..=start).next_back() else {
            return Err(format!("bytes {start}..{end} retransmitted, but no segment had them"));
        };
        if end > last {
            return Err(format!("bytes {start}..{end} retransmitted, but a segment ended at {last}"));
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
                "bytes {start}..{end} retransmitted, though selectively acknowledged since the last timeout"
            ));
        }
        Ok(())
    }
}

/// State of the sender of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    /// It is tcp-lite.
    pub(super) is_ours: bool,
    /// Its retransmission timeouts so far.
    pub(super) timeouts: u64,
    /// The MPA settings of its direction.
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
        assert_eq!(half.stood_us(20_000), 8100, "nothing waits");
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
