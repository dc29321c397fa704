//! One direction of one connection, as seen on the wire at its sender and at its receiver.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::earlier::OrderlyEnd;
use super::fpdu::{MpaSettings, Parser};
use super::ranges::Ranges;

/// A host may send a limited number of bare segments (without payload, SYN, FIN or RST) on a connection: two
/// for each segment that arrived and is not bare, `BARE_PER_SECOND` for each second, and `BARE_IN_ALL` once.
/// A host must not answer more bare segments than these limits allow.
const BARE_PER_SECOND: u64 = 10;
const BARE_IN_ALL: u64 = 32;

/// The units of the sender's stream that must stay whole.
#[derive(Debug)]
pub(super) enum Boundaries {
    /// The units are unknown, since the sender is not tcp-lite.
    Unknown,
    /// The segments that the user pushed into the send queue: the offset at which each segment ends.
    Pushed(BTreeSet<u64>),
    /// The FPDUs that the parser finds.
    Mpa(Parser),
}

/// The stream that one host sends on one connection. The byte after the SYN has offset 0.
#[derive(Debug)]
pub(super) struct HalfConnection {
    /// Initial sequence number, once the SYN was seen.
    pub(super) isn: Option<u32>,
    /// Window scale that the sender offers. The scale is used only if both SYNs offer a window scale.
    pub(super) scale: Option<u8>,
    /// The offset after the highest byte that was sent.
    pub(super) high: u64,
    /// The offset of the FIN.
    pub(super) fin: Option<u64>,
    /// Whether the sender has sent a RST that ends the connection.
    pub(super) reset: bool,
    /// Other initial sequence numbers of the sender's SYN-ACKs, until one of these numbers is acknowledged:
    /// SYN cookies change with time (RFC 4987 section 3.6).
    pub(super) cookies: Vec<u32>,
    /// Whether a segment of either side relies on one of the sender's SYNs.
    pub(super) syn_confirmed: bool,
    /// Whether the sender's SYN had no ACK.
    pub(super) active_open: bool,
    /// Whether the sender's user has received the event that the connection is over.
    pub(super) over: bool,
    /// Whether the peer's FIN arrived before the sender had sent its own FIN.
    closes_last: bool,
    /// The end of the connection, once the sender knows that both FINs have arrived.
    pub(super) ended: Option<OrderlyEnd>,
    /// The initial sequence number of a late SYN-ACK: the sender's connection was over, and the SYN-ACK
    /// answers a late duplicate of the peer's SYN.
    pub(super) late_syn_ack: Option<u32>,
    /// Number of segments that arrived at the sender and were forged or not bare.
    pub(super) non_bare_arrived: u64,
    /// Number of bare segments that the sender sent.
    bare_sent: u64,
    /// Bytes that arrived at the receiver with a correct checksum.
    pub(super) arrived: Ranges,
    /// The latest timestamp that arrived at the receiver.
    pub(super) latest_timestamp: Option<u32>,
    /// A timestamp that the receiver may have processed or not
    /// ([`Watch::doubt_timestamp`](super::Watch::doubt_timestamp)).
    pub(super) doubtful_timestamp: Option<u32>,
    pub(super) fin_arrived: bool,
    /// The highest offset that the receiver has acknowledged, including the FIN.
    pub(super) acked: u64,
    /// The highest acknowledgement that has arrived at the sender.
    pub(super) ack_arrived: u64,
    /// The highest acknowledgement that the sender had to process.
    pub(super) ack_processed: u64,
    /// The right window edge that the receiver has announced.
    pub(super) right_edge: u64,
    /// The right window edge that has arrived at the sender.
    pub(super) right_edge_arrived: u64,
    /// Unacknowledged bytes and the FIN: the offsets of their ends, and the time at which each end was first
    /// sent.
    waiting: VecDeque<(u64, u64)>,
    /// The longest time, in microseconds, from the first transmission of a byte to its acknowledgement.
    pub(super) waited_us: u64,
    /// The units that must stay whole.
    pub(super) boundaries: Boundaries,
    /// Number of times so far that a unit that must stay whole was split.
    pub(super) cuts: u64,
    /// Number of path MTU probes so far.
    pub(super) probes: u64,
    /// Segments as they were first sent: the end of each segment by its start.
    frozen: BTreeMap<u64, u64>,
    /// The whole segments in each SACK block that arrived: start, end, and the number of the sender's
    /// timeouts at that time.
    sacked: Vec<(u64, u64, u64)>,
    /// Whether the sender's SYN has the SACK-permitted option.
    pub(super) permits_sack: bool,
}

impl HalfConnection {
    /// Returns a half on which nothing has been sent.
    pub(super) fn new(boundaries: Boundaries) -> Self {
        Self {
            isn: None,
            scale: None,
            high: 0,
            fin: None,
            reset: false,
            cookies: Vec::new(),
            syn_confirmed: false,
            active_open: false,
            over: false,
            closes_last: false,
            ended: None,
            late_syn_ack: None,
            non_bare_arrived: 0,
            bare_sent: 0,
            arrived: Ranges::default(),
            latest_timestamp: None,
            doubtful_timestamp: None,
            fin_arrived: false,
            acked: 0,
            ack_arrived: 0,
            ack_processed: 0,
            right_edge: 0,
            right_edge_arrived: 0,
            waiting: VecDeque::new(),
            waited_us: 0,
            boundaries,
            cuts: 0,
            probes: 0,
            frozen: BTreeMap::new(),
            sacked: Vec::new(),
            permits_sack: false,
        }
    }

    /// Returns the stream offset of a sequence number that is less than 2^31 away from the initial sequence
    /// number, or 0 before the SYN has been seen.
    pub(super) fn offset(&self, seq: u32) -> i64 {
        self.isn.map_or(0, |isn| i64::from(seq.wrapping_sub(isn).wrapping_sub(1) as i32))
    }

    /// Records whether the connection is over, after a segment of the peer has arrived.
    pub(super) fn note_end(&mut self, now_us: u64, peer: &Self) {
        if !peer.fin_arrived || peer.fin != Some(peer.arrived.frontier()) {
            return;
        }
        self.closes_last |= self.fin.is_none();
        if self.fin.is_some_and(|fin| self.ack_processed > fin) {
            self.ended.get_or_insert(OrderlyEnd { at_us: now_us, time_wait: !self.closes_last });
        }
    }

    /// Returns the last sequence number that the sender has used, or `None` before its SYN. The SYN and the
    /// FIN use one number each.
    pub(super) fn last_number(&self) -> Option<u32> {
        self.isn.map(|isn| isn.wrapping_add(self.high as u32 + u32::from(self.fin.is_some())))
    }

    /// Records that a segment relies on the initial sequence number `isn`. If there are several SYN-ACKs, the
    /// SYN-ACK with this number is valid.
    pub(super) fn confirm_syn(&mut self, isn: u32) {
        if self.cookies.contains(&isn) {
            self.isn = Some(isn);
        }
        self.cookies.clear();
        self.syn_confirmed |= self.isn.is_some();
    }

    /// Counts a bare segment that the sender sends.
    ///
    /// # Errors
    /// If the segment exceeds the limit.
    pub(super) fn note_bare(&mut self, now_us: u64) -> Result<(), String> {
        self.bare_sent += 1;
        let allowed = 2 * self.non_bare_arrived + BARE_IN_ALL + BARE_PER_SECOND * (now_us / 1_000_000);
        if self.bare_sent > allowed {
            let (bare, non_bare) = (self.bare_sent, self.non_bare_arrived);
            return Err(format!(
                "{bare} bare segments sent, {non_bare} received that are not bare: the limit is exceeded"
            ));
        }
        Ok(())
    }

    /// Records that a segment was sent: its new bytes begin to wait for their acknowledgement.
    pub(super) fn note_sent(&mut self, now_us: u64) {
        let end = self.high + u64::from(self.fin.is_some());
        if end > self.waiting.back().map_or(self.ack_arrived, |&(last, _)| last) {
            self.waiting.push_back((end, now_us));
        }
    }

    /// Records that `ack` has arrived. The oldest of the acknowledged bytes has waited longest. The other
    /// bytes continue to wait, and their timer continues to run.
    pub(super) fn note_acknowledged(&mut self, now_us: u64, ack: u64) {
        if ack <= self.ack_arrived {
            return;
        }
        self.ack_arrived = ack;
        if let Some(&(_, since_us)) = self.waiting.front() {
            self.waited_us = self.waited_us.max(now_us - since_us);
        }
        while self.waiting.front().is_some_and(|&(end, _)| end <= ack) {
            self.waiting.pop_front();
        }
    }

    /// Returns the longest time from the first transmission of a byte to its acknowledgement. For bytes that
    /// still wait, the time until `last_fault_us` counts.
    pub(super) fn longest_wait_us(&self, last_fault_us: u64) -> u64 {
        let now = self.waiting.front().map_or(0, |&(_, since_us)| last_fault_us.saturating_sub(since_us));
        self.waited_us.max(now)
    }

    /// Records that the receiver's SACK block `start..end` has arrived at the sender, which has had
    /// `timeouts` timeouts. The block covers segments that are wholly inside it (RFC 2018 section 5). If
    /// another segment is split later, the block does not cover the parts of this segment.
    pub(super) fn on_sack_arrival(&mut self, start: i64, end: i64, timeouts: u64) {
        if start < self.ack_arrived as i64 || start >= end {
            return;
        }
        let inside = self.frozen.range(start as u64..end as u64).filter(|(_, last)| **last <= end as u64);
        let mut ends = inside.map(|(&first, &last)| (first, last));
        if let Some((first, mut last)) = ends.next() {
            last = ends.next_back().map_or(last, |(_, end)| end);
            self.sacked.push((first, last, timeouts));
            if self.sacked.len() > 256 {
                let arrived = self.ack_arrived;
                self.sacked.retain(|&(_, end, _)| end > arrived);
            }
        }
    }

    /// Checks that the sender may send `payload` at offset `start`.
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
        if end > self.right_edge_arrived {
            return Err(format!(
                "bytes {start}..{end} are beyond the peer's window, which ends at {}",
                self.right_edge_arrived
            ));
        }
        if self.is_probe(start, end) {
            self.probes += 1;
            Ok(())
        } else if start == self.high {
            self.freeze(start, payload, sender.settings)
        } else {
            self.send_again(start, end, sender.timeouts)
        }
    }

    /// Whether the bytes `start..end` are a path MTU probe: a probe repeats bytes whose acknowledgement has
    /// arrived. An ordinary retransmission may also do this if the host could not process the
    /// acknowledgement, which came in an old segment. So bytes inside one original segment count as a probe
    /// only if the host had to process their acknowledgement.
    fn is_probe(&self, start: u64, end: u64) -> bool {
        let inside = self.frozen.range(..=start).next_back().is_some_and(|(_, &last)| end <= last);
        end <= self.ack_arrived.min(self.high) && (!inside || end <= self.ack_processed)
    }

    /// Records a segment of new bytes. If the segment does not end where a unit ends, a unit was split.
    fn freeze(&mut self, start: u64, payload: &[u8], settings: MpaSettings) -> Result<(), String> {
        let end = start + payload.len() as u64;
        self.frozen.insert(start, end);
        self.high = end;
        let whole = match &mut self.boundaries {
            Boundaries::Unknown => true,
            Boundaries::Pushed(boundaries) => {
                let inside = boundaries.range(start + 1..end).next().copied();
                if let Some(border) = inside {
                    return Err(format!(
                        "segment {start}..{end} joins two pushed segments, the boundary is at {border}"
                    ));
                }
                boundaries.contains(&end)
            }
            Boundaries::Mpa(parser) => parser.read(payload, settings)?.last() == Some(&end),
        };
        self.cuts += u64::from(!whole);
        Ok(())
    }

    /// Checks retransmitted bytes. They have to be a recorded segment, or a part of it after a split, and
    /// must not have been selectively acknowledged since the last timeout.
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

/// The state of the sender of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    /// Whether the sender is tcp-lite.
    pub(super) is_ours: bool,
    /// Number of retransmission timeouts of this sender so far.
    pub(super) timeouts: u64,
    /// The MPA settings of the sender's direction.
    pub(super) settings: MpaSettings,
}

#[cfg(test)]
mod tests {
    use super::{Boundaries, HalfConnection};

    /// Returns a half that has sent 100 bytes at each of these times.
    fn sends(times_us: &[u64]) -> HalfConnection {
        let mut half = HalfConnection::new(Boundaries::Unknown);
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
        assert_eq!((half.waited_us, half.longest_wait_us(6000)), (3010, 5000));
        half.note_acknowledged(7010, 200);
        assert_eq!((half.waited_us, half.longest_wait_us(7010)), (6010, 6010));
        half.note_acknowledged(7020, 200);
        assert_eq!(half.longest_wait_us(9500), 8000, "the last hundred");
        half.note_acknowledged(9600, 300);
        assert_eq!(half.longest_wait_us(20_000), 8100, "nothing waits");
    }

    #[test]
    fn a_fin_waits_too() {
        let mut half = sends(&[1000]);
        half.note_acknowledged(1100, 100);
        half.fin = Some(100);
        half.note_sent(2000);
        half.note_acknowledged(5000, 101);
        assert_eq!((half.waited_us, half.longest_wait_us(9000)), (3000, 3000));
    }
}
