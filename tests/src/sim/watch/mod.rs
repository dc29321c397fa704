//! The wire tap: rules that are checked on frames, at their sender and at their receiver.
//!
//! | rule | where |
//! |---|---|
//! | a retransmission is a segment as it was first sent, or a part of it after a split that the stack has counted | `half_connection.rs` |
//! | acknowledged bytes are sent again only as path MTU probes that the stack has counted | `half_connection.rs` |
//! | FPDUs end where segments end; markers and CRCs are right | `fpdu.rs` |
//! | nothing is sent beyond the peer's window, after the FIN or the RST, or before the SYN | `half_connection.rs`, here |
//! | tcp-lite's right window edge and acknowledgement never move back | here |
//! | only bytes that arrived are acknowledged, selectively or not | here |
//! | selectively acknowledged bytes are not retransmitted before a timeout | `half_connection.rs` |
//! | no frame is longer than the MTU | here |
//! | the number of bare segments is limited | `half_connection.rs` |
//! | congestion marks are echoed (ECE), and the echo is answered (CWR) | `ecn.rs` |
//! | only packets with new bytes are ECN-capable, and only after negotiation (RFC 3168 sections 6.1.1, 6.1.4 to 6.1.6) | here |
//! | a connection that replaces a connection in TIME-WAIT begins above the sequence numbers of the old connection | `earlier.rs` |
//! | no SYN that may be old replaces a connection in TIME-WAIT, and no RST ends TIME-WAIT (RFC 6191, RFC 1337) | `earlier.rs` |
//! | the negotiated limit of outstanding Reads and atomics | here, `fpdu.rs` |

mod earlier;
mod ecn;
mod fpdu;
mod half_connection;
mod ranges;

use std::collections::{BTreeMap, BTreeSet};

use tcp_lite::{Duration, StackCounters};

use self::earlier::EarlierConnection;
use self::ecn::Ecn;
use self::fpdu::{MpaSettings, Parser};
use self::half_connection::{Boundaries, HalfConnection, Sender};
use super::coverage::{Coverage, Occurrence};
use testkit::packet::{Damage, Frame, Tcp, flag, parse};

pub use ranges::Ranges;

/// The units of the streams of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The segments that the user pushes into the send queue.
    Plain,
    /// The FPDUs of iWARP.
    Mpa,
}

/// The kind of a host, and its current counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Condition {
    /// Whether the host runs tcp-lite.
    pub is_ours: bool,
    /// Whether the host may process frames in an order other than the order of their arrival, since its
    /// engines hand some frames to each other.
    pub reorders: bool,
    /// Number of retransmission timeouts so far.
    pub timeouts: u64,
    /// Number of segments that the host has cut, because of a smaller EMSS or after the persist timer
    /// expired.
    pub cuts: u64,
    /// Number of segments that the host has cut because of a smaller EMSS.
    pub cuts_by_emss: u64,
    /// Number of path MTU probes that the host has counted.
    pub probes: u64,
    /// Number of tail loss probes that the host has counted.
    pub tail_probes: u64,
    /// Whether the host has answered SYNs with cookies.
    pub cookies: bool,
    /// Duration of the host's TIME-WAIT.
    pub time_wait: Duration,
}

impl Condition {
    /// Returns the condition of a tcp-lite host with these counters.
    pub fn of(counters: &StackCounters, time_wait: Duration) -> Self {
        Self {
            is_ours: true,
            reorders: false,
            timeouts: counters.rto_expired,
            cuts: counters.tx_cut_by_emss + counters.tx_cut_by_persist,
            cuts_by_emss: counters.tx_cut_by_emss,
            probes: counters.path_mtu_probes,
            tail_probes: counters.tail_loss_probes,
            cookies: counters.tx_syn_cookies > 0,
            time_wait,
        }
    }
}

#[derive(Debug)]
struct Connection {
    halves: [HalfConnection; 2],
    ecn: [Ecn; 2],
    /// The earlier connection on the same ports.
    earlier: Option<EarlierConnection>,
}

/// The tap at both sides of the wire.
#[derive(Debug)]
pub struct Watch {
    framing: Framing,
    ours: [bool; 2],
    mtus: [u16; 2],
    /// The connections, by the client's port.
    connections: BTreeMap<u16, Connection>,
    /// Number of each host's splits on earlier connections whose ports were reused.
    past_cuts: [u64; 2],
    /// Maximum number of outstanding Reads and atomics of a connection, by the client's port.
    depths: BTreeMap<u16, u64>,
    coverage: Coverage,
}

impl Watch {
    /// Returns a tap that has not seen any frame. `ours`: which hosts run tcp-lite.
    pub fn new(framing: Framing, ours: [bool; 2], mtus: [u16; 2]) -> Self {
        Self {
            framing,
            ours,
            mtus,
            connections: BTreeMap::new(),
            past_cuts: [0; 2],
            depths: BTreeMap::new(),
            coverage: Coverage::default(),
        }
    }

    fn connection(&mut self, port: u16) -> &mut Connection {
        self.connection_and_coverage(port).0
    }

    /// Returns the connection on `port`, and the counters of faults and events.
    fn connection_and_coverage(&mut self, port: u16) -> (&mut Connection, &mut Coverage) {
        let (framing, ours) = (self.framing, self.ours);
        let connection = self.connections.entry(port).or_insert_with(|| Connection {
            halves: [0, 1].map(|side| {
                HalfConnection::new(match framing {
                    _ if !ours[side] => Boundaries::Unknown,
                    Framing::Plain => Boundaries::Pushed(BTreeSet::new()),
                    Framing::Mpa => Boundaries::Mpa(Parser::default()),
                })
            }),
            ecn: Default::default(),
            earlier: None,
        });
        (connection, &mut self.coverage)
    }

    /// Records that the user of host `side` has pushed a segment that ends at `offset`, on the connection
    /// with this client port.
    pub fn pushed(&mut self, side: usize, port: u16, offset: u64) {
        if let Boundaries::Pushed(boundaries) = &mut self.connection(port).halves[side].boundaries {
            boundaries.insert(offset);
        }
    }

    /// Returns the number of splits seen of units that host `side` had to keep whole.
    pub fn cuts(&self, side: usize) -> u64 {
        let now: u64 = self.connections.values().map(|connection| connection.halves[side].cuts).sum();
        now + self.past_cuts[side]
    }

    /// Returns the counts of events seen.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Sets the maximum number of outstanding Reads and atomics of each side on a connection.
    pub fn set_depth(&mut self, port: u16, depth: u16) {
        self.depths.insert(port, depth.into());
    }

    /// Records that the user of host `side` has got the event that the connection is over.
    pub fn set_over(&mut self, side: usize, port: u16) {
        self.connection(port).halves[side].over = true;
    }

    /// Records a SYN that host `side` sends after its connection was over. The SYN begins a new connection,
    /// or it answers a late duplicate of a SYN. In the second case the peer may have begun another
    /// connection, and then refuses the answer with a RST (RFC 9293 section 3.5, figure 9).
    fn note_late_syn(&mut self, side: usize, port: u16, tcp: &Tcp) {
        let connection = self.connection(port);
        let begun = |earlier: &EarlierConnection| {
            tcp.has(flag::ACK) && earlier.has_begun(1 - side, tcp.ack.wrapping_sub(1))
        };
        if connection.earlier.as_ref().is_some_and(begun) {
            connection.halves[side].late_syn_ack = Some(tcp.seq);
            return;
        }
        let half = &mut connection.halves[side];
        if !half.over || half.isn.is_none_or(|isn| isn == tcp.seq) {
            return;
        }
        if tcp.has(flag::ACK) {
            half.late_syn_ack = Some(tcp.seq);
            return;
        }
        let cuts = [0, 1].map(|side: usize| connection.halves[side].cuts);
        let earlier = EarlierConnection::of(&connection.halves, connection.earlier.take());
        self.past_cuts.iter_mut().zip(cuts).for_each(|(past, cuts)| *past += cuts);
        self.coverage.count(Occurrence::TimeWaitReused, 1);
        self.connections.remove(&port);
        self.connection(port).earlier = Some(earlier);
    }

    /// Returns the highest acknowledgement of `side`'s bytes that has arrived: the measure of progress on the
    /// wire.
    pub fn acked(&self, side: usize, port: u16) -> u64 {
        self.connections.get(&port).map_or(0, |connection| connection.halves[side].ack_arrived)
    }

    /// Whether a RST has ended the earlier connection on `port`.
    pub fn earlier_was_reset(&self, port: u16) -> bool {
        let connection = self.connections.get(&port);
        connection
            .is_some_and(|connection| connection.earlier.as_ref().is_some_and(|earlier| earlier.was_reset))
    }

    /// Whether a connection that reuses `port` has an unanswered SYN with a sequence number that is not above
    /// the sequence numbers of the earlier connection.
    pub fn syn_looks_old(&self, port: u16) -> bool {
        let Some(Connection { earlier: Some(earlier), halves, .. }) = self.connections.get(&port) else {
            return false;
        };
        [0, 1].iter().any(|&side: &usize| {
            earlier.syn_looks_old(side, halves[side].isn) && halves[1 - side].isn.is_none()
        })
    }

    /// Returns the longest time from the first transmission of a byte of either side to its acknowledgement.
    /// For bytes that still wait, the time until `last_fault_us` counts.
    pub fn longest_wait_us(&self, port: u16, last_fault_us: u64) -> u64 {
        let halves = self.connections.get(&port).map(|connection| &connection.halves);
        halves.into_iter().flatten().map(|half| half.longest_wait_us(last_fault_us)).max().unwrap_or(0)
    }

    /// Checks a frame that host `side` sends.
    ///
    /// # Errors
    /// The broken rule.
    pub fn on_sent(
        &mut self,
        now_us: u64,
        side: usize,
        frame: &[u8],
        condition: Condition,
    ) -> Result<(), String> {
        if frame.len() > usize::from(self.mtus[side]) + 14 {
            return Err(format!("a frame of {} bytes exceeds the MTU of {}", frame.len(), self.mtus[side]));
        }
        let Some(tcp) = parse(frame) else { return Ok(()) };
        let port = tcp.src_port.max(tcp.dst_port);
        if tcp.has(flag::SYN) {
            self.note_late_syn(side, port, &tcp);
        }
        let (connection, coverage) = self.connection_and_coverage(port);
        if connection.is_stale(side, &tcp) {
            return Ok(());
        }
        if tcp.is_bare() && condition.is_ours {
            connection.halves[side].note_bare(now_us).map_err(|what| format!("connection {port}, {what}"))?;
        }
        connection.count_events(side, &tcp, frame, condition, coverage);
        connection
            .sent(now_us, side, &tcp, frame, condition)
            .map_err(|what| format!("connection {port}, {what}"))?;
        connection.halves[side].note_sent(now_us);
        let open = connection.open_reads(side);
        let probes: u64 = self.connections.values().map(|connection| connection.halves[side].probes).sum();
        if condition.is_ours && probes > condition.probes {
            return Err(format!(
                "connection {port}, acknowledged bytes were sent {probes} times, but {} probes are counted: {tcp:?}",
                condition.probes
            ));
        }
        if let Some(&depth) = self.depths.get(&port) {
            if open > depth {
                return Err(format!(
                    "connection {port}, {open} Reads and atomics are outstanding, the limit is {depth}"
                ));
            }
            self.coverage.count_if(Occurrence::DepthReached, open == depth);
        }
        let seen = self.cuts(side);
        if condition.is_ours && seen > condition.cuts {
            return Err(format!(
                "connection {port}, segments or FPDUs were split {seen} times, but {} splits are counted: {tcp:?}",
                condition.cuts
            ));
        }
        Ok(())
    }

    /// Records a frame that arrives at host `side`.
    pub fn on_delivered(&mut self, now_us: u64, side: usize, frame: &Frame, condition: Condition) {
        if frame.damage == Damage::WrongChecksum {
            return;
        }
        let Some(tcp) = parse(&frame.bytes) else { return };
        let forged = frame.damage == Damage::Forged;
        let port = tcp.src_port.max(tcp.dst_port);
        self.connection(port).halves[side].non_bare_arrived += u64::from(forged || !tcp.is_bare());
        if forged || self.connection(port).is_stale(1 - side, &tcp) {
            return;
        }
        self.connection(port).delivered(now_us, side, &tcp, &frame.bytes, condition);
    }

    /// Records the timestamp of a frame that arrives at a host that may process the frame or not. The rules
    /// then see the frame without its timestamp. If the host has processed the frame, it does not process
    /// older frames (RFC 7323 section 5).
    pub fn doubt_timestamp(&mut self, side: usize, frame: &[u8]) {
        let Some(tcp) = parse(frame) else { return };
        let Some(time) = tcp.timestamp(frame) else { return };
        let doubtful_timestamp =
            &mut self.connection(tcp.src_port.max(tcp.dst_port)).halves[1 - side].doubtful_timestamp;
        if doubtful_timestamp.is_none_or(|doubtful_timestamp| is_older(doubtful_timestamp, time)) {
            *doubtful_timestamp = Some(time);
        }
    }
}

impl Connection {
    fn pair(&mut self, side: usize) -> (&mut HalfConnection, &mut HalfConnection) {
        let [a, b] = &mut self.halves;
        if side == 0 { (a, b) } else { (b, a) }
    }

    /// Returns the MPA settings for the stream of `side`.
    fn settings(&self, side: usize) -> MpaSettings {
        let asked = |side: usize| match &self.halves[side].boundaries {
            Boundaries::Mpa(parser) => parser.asked().unwrap_or_default(),
            _ => (false, false),
        };
        let (own, peer) = (asked(side), asked(1 - side));
        MpaSettings { markers: peer.0, crc: own.1 || peer.1 }
    }

    /// Whether a segment of host `side` does not belong to the current connection.
    fn is_stale(&self, side: usize, tcp: &Tcp) -> bool {
        let half = &self.halves[side];
        let old = self.earlier.is_some() && half.isn.is_none() && !tcp.has(flag::SYN);
        old || half.late_syn_ack.is_some_and(|isn| tcp.seq.wrapping_sub(isn) <= 1)
    }

    /// Returns the number of Reads and atomics that host `side` has requested and whose response the peer has
    /// not sent.
    fn open_reads(&self, side: usize) -> u64 {
        match (&self.halves[side].boundaries, &self.halves[1 - side].boundaries) {
            (Boundaries::Mpa(own), Boundaries::Mpa(peer)) => own.open_requests(peer),
            _ => 0,
        }
    }

    /// Counts the events in a segment that host `side` is about to send.
    fn count_events(
        &mut self,
        side: usize,
        tcp: &Tcp,
        frame: &[u8],
        condition: Condition,
        coverage: &mut Coverage,
    ) {
        if !condition.is_ours {
            return;
        }
        let (own, peer) = self.pair(side);
        let (syn, fin, reset) = (tcp.has(flag::SYN), tcp.has(flag::FIN), tcp.has(flag::RST));
        coverage.count_if(Occurrence::SynRetransmitted, syn && own.isn.is_some());
        coverage.count_if(
            Occurrence::SimultaneousOpen,
            syn && tcp.has(flag::ACK) && own.active_open && own.isn.is_some(),
        );
        coverage.count_if(Occurrence::FinRetransmitted, fin && own.fin.is_some());
        let crossed = fin && own.fin.is_none() && peer.fin.is_some() && !peer.fin_arrived;
        coverage.count_if(Occurrence::SimultaneousClose, crossed);
        coverage.count_if(Occurrence::Reset, reset);
        coverage.count_if(Occurrence::ZeroWindow, tcp.window == 0 && !syn && !reset);
        let blocks = tcp.sack_blocks(frame);
        coverage.count_if(Occurrence::ThreeBlocks, blocks.len() == 3);
        coverage.count_if(Occurrence::FourBlocks, blocks.len() == 4);
        let doubled = blocks.first().is_some_and(|(start, _)| (start.wrapping_sub(tcp.ack) as i32) < 0);
        coverage.count_if(Occurrence::DsackSent, doubled);
    }

    fn sent(
        &mut self,
        now_us: u64,
        side: usize,
        tcp: &Tcp,
        frame: &[u8],
        condition: Condition,
    ) -> Result<(), String> {
        let again = self.earlier.is_some();
        if let Some(earlier) = &self.earlier
            && tcp.has(flag::SYN)
            && tcp.has(flag::ACK)
            && self.halves[side].isn.is_none()
        {
            let syn = (self.halves[1 - side].isn, tcp.timestamp(frame).is_some());
            earlier.check_answer(now_us, side, syn, tcp, condition)?;
        }
        let settings = self.settings(side);
        if tcp.has(flag::SYN) {
            self.ecn[side].on_syn_sent(tcp.flags);
        }
        let ecn = self.ecn[side].may_mark();
        let (own, peer) = self.pair(side);
        if own.reset && !tcp.has(flag::RST) {
            return Err(format!("a segment after the RST: {tcp:?}"));
        }
        if tcp.has(flag::SYN) {
            own.permits_sack = tcp.options(frame).any(|(kind, _)| kind == 4);
        }
        // A RST with another number only answers an unacceptable segment, and does not end the connection
        // (RFC 9293 section 3.10.7.4, SYN-RECEIVED; 3.10.7.3).
        let at = own.offset(tcp.seq);
        let ends =
            own.isn.is_some() && (-1..=own.high as i64 + 1).contains(&at) && !(again && peer.isn.is_none());
        own.reset |= tcp.has(flag::RST) && ends;
        if tcp.has(flag::SYN) {
            if let Some(isn) = own.isn
                && isn != tcp.seq
            {
                if !tcp.has(flag::ACK) || own.syn_confirmed || !condition.cookies {
                    return Err("a second SYN with another sequence number".into());
                }
                own.cookies.push(isn);
            }
            own.active_open |= own.isn.is_none() && !tcp.has(flag::ACK);
            own.isn = Some(tcp.seq);
            own.scale = tcp.window_scale(frame);
        } else if own.isn.is_none() && !tcp.has(flag::RST) {
            return Err(format!("a segment before the SYN: {tcp:?}"));
        }
        if !tcp.has(flag::SYN) && !tcp.has(flag::RST) {
            own.confirm_syn(tcp.seq.wrapping_sub(1));
            peer.confirm_syn(tcp.ack.wrapping_sub(1));
        }
        let high = own.high;
        let offset = own.offset(tcp.seq) + i64::from(tcp.has(flag::SYN));
        if !tcp.is_empty() {
            let start = u64::try_from(offset)
                .map_err(|_| format!("bytes before the beginning of the stream: {tcp:?}"))?;
            let sender = Sender { is_ours: condition.is_ours, timeouts: condition.timeouts, settings };
            own.send(start, &frame[tcp.payload.clone()], sender)?;
        }
        let end = offset + tcp.len() as i64;
        if tcp.has(flag::FIN) {
            if end != own.high as i64 || own.fin.is_some_and(|fin| fin != own.high) {
                return Err(format!(
                    "a FIN at {end}, but bytes were sent up to {}, the FIN is at {:?}",
                    own.high, own.fin
                ));
            }
            own.fin = Some(own.high);
        }
        if end > own.high as i64 + i64::from(own.fin.is_some()) && !tcp.has(flag::RST) {
            return Err(format!("a sequence number beyond the bytes sent, {end}: {tcp:?}"));
        }
        let (fresh, sent) = (own.high > high, own.high);
        let marks = tcp.ecn(frame) != 0;
        if condition.is_ours && marks && !(ecn && fresh) {
            return Err(format!("an ECN codepoint (negotiated: {ecn}, new bytes: {fresh}): {tcp:?}"));
        }
        if !tcp.has(flag::ACK) || tcp.has(flag::RST) || peer.isn.is_none() || !condition.is_ours {
            return Ok(());
        }
        let scale = if tcp.has(flag::SYN) { 0 } else { scale(own, peer) };
        acknowledges(peer, tcp, frame, scale)?;
        let ack = peer.acked;
        if !tcp.has(flag::SYN) {
            self.ecn[side].on_sent(tcp.flags, ack, sent, (fresh, marks))?;
        }
        Ok(())
    }

    fn delivered(&mut self, now_us: u64, side: usize, tcp: &Tcp, frame: &[u8], condition: Condition) {
        if self.halves[1 - side].isn.is_none() {
            return;
        }
        if let Some(earlier) = &mut self.earlier
            && self.halves[side].isn.is_none()
            && tcp.has(flag::RST)
        {
            earlier.on_reset(side);
        }
        let (own, peer) = self.pair(side);
        let offset = peer.offset(tcp.seq) + i64::from(tcp.has(flag::SYN));
        let (start, end) = (offset.max(0) as u64, (offset + tcp.len() as i64).max(0) as u64);
        // The host does not process old segments and segments beyond the window (RFC 9293 section 3.10.7.4).
        // A bare segment has to be at the next expected byte.
        let next = peer.arrived.frontier() as i64 + i64::from(peer.fin_arrived);
        let is_new =
            if tcp.is_bare() { offset >= next } else { end as i64 + i64::from(tcp.has(flag::FIN)) > next };
        let in_window = is_new && offset <= peer.right_edge.max(peer.acked) as i64;
        let time = tcp.timestamp(frame);
        // The host does not process a segment with an old timestamp (RFC 7323 section 5). If both sides use
        // timestamps, the host also does not process a segment without a timestamp (section 3.2).
        let older = match (time, peer.latest_timestamp) {
            (Some(time), Some(latest)) => is_older(time, latest),
            (None, Some(_)) => own.latest_timestamp.is_some(),
            (_, None) => false,
        };
        let processed = in_window && !older;
        // The host may process a segment or not if the segment is older than a doubtful timestamp, or if
        // another segment may overtake it.
        let is_sure = processed
            && !condition.reorders
            && !peer
                .doubtful_timestamp
                .is_some_and(|doubtful_timestamp| time.is_none_or(|time| is_older(time, doubtful_timestamp)));
        if !older {
            peer.latest_timestamp = time.or(peer.latest_timestamp);
        }
        let is_syn = tcp.has(flag::SYN) && (offset == 0 || peer.cookies.contains(&tcp.seq));
        let mut ack_processed = None;
        let new_from = peer.arrived.first_missing(start);
        let known = peer.arrived.add(start, end);
        let new = end > start && known < end - start;
        let fin = offset + tcp.len() as i64;
        peer.fin_arrived |= tcp.has(flag::FIN) && peer.fin.is_some_and(|at| at as i64 == fin);
        if tcp.has(flag::ACK) && !tcp.has(flag::RST) && own.isn.is_some() {
            let ack = own.offset(tcp.ack);
            let scale = if tcp.has(flag::SYN) { 0 } else { scale(peer, own) };
            own.note_acknowledged(now_us, ack.max(0) as u64);
            // The host does not process an acknowledgement of bytes that were never sent (RFC 5961 section
            // 5.2).
            if is_sure && ack <= (own.high + u64::from(own.fin == Some(own.high))) as i64 {
                ack_processed = Some(ack.max(0) as u64);
                own.ack_processed = own.ack_processed.max(ack.max(0) as u64);
            }
            own.right_edge_arrived =
                own.right_edge_arrived.max((ack + (i64::from(tcp.window) << scale)).max(0) as u64);
            // SACK blocks have no effect unless both SYNs had SACK-permitted (RFC 2018 section 2).
            let counts = is_sure && own.permits_sack && peer.permits_sack;
            for (start, end) in tcp.sack_blocks(frame).into_iter().filter(|_| counts) {
                let (start, end) = (own.offset(start), own.offset(end));
                own.on_sack_arrival(start, end, condition.timeouts);
            }
        }
        own.note_end(now_us, peer);
        if is_syn {
            self.ecn[side].on_syn_arrival(tcp.flags);
        } else {
            let marked = (new && processed && tcp.ecn(frame) == 3).then_some(new_from);
            self.ecn[side].on_arrival(tcp.flags, ack_processed, marked);
        }
    }
}

/// Whether timestamp `time` is older than timestamp `other` (RFC 7323 section 5.2).
fn is_older(time: u32, other: u32) -> bool {
    (time.wrapping_sub(other) as i32) < 0
}

/// Returns the window scale of `by` in segments to `to`, which is 0 unless both hosts offer one (RFC 7323
/// section 2.2).
fn scale(by: &HalfConnection, to: &HalfConnection) -> u8 {
    by.scale.filter(|_| to.scale.is_some()).unwrap_or(0)
}

/// Checks the acknowledgement, the window and the SACK blocks of a segment that acknowledges the stream
/// `peer`.
fn acknowledges(peer: &mut HalfConnection, tcp: &Tcp, frame: &[u8], scale: u8) -> Result<(), String> {
    let ack = peer.offset(tcp.ack);
    let frontier = peer.arrived.frontier();
    let finished = peer.fin_arrived && peer.fin == Some(frontier);
    if ack > (frontier + u64::from(finished)) as i64 {
        return Err(format!("acknowledged up to {ack}, but bytes arrived only up to {frontier}"));
    }
    if ack < peer.acked as i64 {
        return Err(format!("acknowledged up to {ack}, but earlier up to {}", peer.acked));
    }
    peer.acked = peer.acked.max(ack as u64);
    let edge = ack as u64 + (u64::from(tcp.window) << scale);
    // The window of a SYN is not scaled, so a SYN that is retransmitted after an acknowledgement announces a
    // smaller window. In other segments, a window may shrink only because it is rounded to a multiple of its
    // unit (RFC 7323 section 2.4).
    if edge + (1 << scale) <= peer.right_edge && !tcp.has(flag::SYN) {
        return Err(format!("the right window edge moves back from {} to {edge}", peer.right_edge));
    }
    peer.right_edge = peer.right_edge.max(edge);
    for (start, end) in tcp.sack_blocks(frame) {
        let (start, end) = (peer.offset(start), peer.offset(end));
        if start < 0 || start >= end || !peer.arrived.contains(start as u64, end as u64) {
            return Err(format!("selectively acknowledged {start}..{end}, which has not arrived"));
        }
    }
    Ok(())
}
