//! The wire tap: every rule that can be checked on frames, at their sender and at their receiver.
//!
//! | rule | where |
//! |---|---|
//! | a segment sent again is the frozen one, or a cut that the stack has counted | `half.rs` |
//! | bytes known to have arrived are sent again only by probes of the path's MTU that the stack has counted | `half.rs` |
//! | FPDUs end where segments end; markers and CRCs are right | `fpdu.rs` |
//! | nothing beyond the peer's window, behind the FIN, after the RST, or in front of the SYN | `half.rs`, here |
//! | our right edge and acknowledgement never go back | here |
//! | nothing is acknowledged, selectively or not, that has not arrived | here |
//! | nothing selectively acknowledged is sent again before a timeout | `half.rs` |
//! | no frame is longer than the MTU | here |
//! | no storm of bare segments | `half.rs` |
//! | congestion marks are echoed, and the echo is heard | `ecn.rs` |
//! | only new bytes may be marked, and only where both SYNs agreed (RFC 3168 sections 6.1.1, 6.1.4 to 6.1.6) | here |
//! | a connection that TIME-WAIT makes way for begins above the numbers of the one before | `before.rs` |
//! | TIME-WAIT makes way for no SYN that may be old, and ends by no RST (RFC 6191, RFC 1337) | `before.rs` |
//! | no more Reads and atomics are outstanding than agreed on | here, `fpdu.rs` |

mod before;
mod ecn;
mod fpdu;
mod half;
mod ranges;

use std::collections::{BTreeMap, BTreeSet};

use tcp_lite::{Duration, StackCounters};

use self::before::Before;
use self::ecn::Ecn;
use self::fpdu::{Parser, Settled};
use self::half::{Borders, Half, Sender};
use super::coverage::{Coverage, Sight};
use super::packet::{Damage, Frame, Tcp, flag, parse};

pub use ranges::Ranges;

/// How the streams of a run are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By the user's pushes.
    Plain,
    /// By MPA.
    Mpa,
}

/// What a host is, and its counters at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Condition {
    /// It is tcp-lite.
    pub is_ours: bool,
    /// Retransmission timeouts so far.
    pub timeouts: u64,
    /// Cuts that it has counted, of both kinds.
    pub cuts: u64,
    /// Those for a smaller EMSS.
    pub cuts_by_emss: u64,
    /// Probes of a path's MTU that it has counted.
    pub probes: u64,
    /// Tail loss probes that it has counted.
    pub tail_probes: u64,
    /// It has answered SYNs by cookies.
    pub cookies: bool,
    /// TIME-WAIT of its connections.
    pub time_wait: Duration,
}

impl Condition {
    /// That of a host of tcp-lite with these counters.
    pub fn of(counters: &StackCounters, time_wait: Duration) -> Self {
        Self {
            is_ours: true,
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
    halves: [Half; 2],
    ecn: [Ecn; 2],
    /// The connection that used the same ports before.
    before: Option<Before>,
}

/// The tap on both ends of the wire.
#[derive(Debug)]
pub struct Watch {
    framing: Framing,
    ours: [bool; 2],
    mtus: [u16; 2],
    /// By the client's port.
    connections: BTreeMap<u16, Connection>,
    /// Cuts on connections whose ports were used again.
    past_cuts: [u64; 2],
    /// Reads and atomics that may be outstanding, by the client's port.
    depths: BTreeMap<u16, u64>,
    coverage: Coverage,
}

impl Watch {
    /// Nothing seen yet. `ours`: which hosts are tcp-lite.
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
        self.seen(port).0
    }

    /// A connection, and where what happens on it is counted.
    fn seen(&mut self, port: u16) -> (&mut Connection, &mut Coverage) {
        let (framing, ours) = (self.framing, self.ours);
        let connection = self.connections.entry(port).or_insert_with(|| Connection {
            halves: [0, 1].map(|side| {
                Half::new(match framing {
                    _ if !ours[side] => Borders::Unknown,
                    Framing::Plain => Borders::Pushed(BTreeSet::new()),
                    Framing::Mpa => Borders::Mpa(Parser::default()),
                })
            }),
            ecn: Default::default(),
            before: None,
        });
        (connection, &mut self.coverage)
    }

    /// The user of host `side` has pushed a segment that ends at `offset`, on the connection of this client
    /// port.
    pub fn pushed(&mut self, side: usize, port: u16, offset: u64) {
        if let Borders::Pushed(borders) = &mut self.connection(port).halves[side].borders {
            borders.insert(offset);
        }
    }

    /// Cuts seen of what host `side` had to leave whole.
    pub fn cuts(&self, side: usize) -> u64 {
        let now: u64 = self.connections.values().map(|connection| connection.halves[side].cuts).sum();
        now + self.past_cuts[side]
    }

    /// What was seen.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// So many Reads and atomics may be outstanding on a connection, each way.
    pub fn set_depth(&mut self, port: u16, depth: u16) {
        self.depths.insert(port, depth.into());
    }

    /// The user of host `side` was told that the connection is over.
    pub fn set_over(&mut self, side: usize, port: u16) {
        self.connection(port).halves[side].over = true;
    }

    /// A SYN of a host for which the connection is over: a new one begins, or it answers a late double of a
    /// SYN. Also where the peer has begun another by then: it refuses the answer by a RST (RFC 9293 section
    /// 3.5, figure 9).
    fn note_late_syn(&mut self, side: usize, port: u16, tcp: &Tcp) {
        let connection = self.connection(port);
        let begun =
            |before: &Before| tcp.has(flag::ACK) && before.has_begun(1 - side, tcp.ack.wrapping_sub(1));
        if connection.before.as_ref().is_some_and(begun) {
            connection.halves[side].late = Some(tcp.seq);
            return;
        }
        let half = &mut connection.halves[side];
        if !half.over || half.isn.is_none_or(|isn| isn == tcp.seq) {
            return;
        }
        if tcp.has(flag::ACK) {
            half.late = Some(tcp.seq);
            return;
        }
        let cuts = [0, 1].map(|side: usize| connection.halves[side].cuts);
        let before = Before::of(&connection.halves, connection.before.take());
        self.past_cuts.iter_mut().zip(cuts).for_each(|(past, cuts)| *past += cuts);
        self.coverage.saw(Sight::TimeWaitReused, 1);
        self.connections.remove(&port);
        self.connection(port).before = Some(before);
    }

    /// Whether `port`'s bytes from `side` have been acknowledged by so much: the wire's own measure of
    /// progress.
    pub fn acked(&self, side: usize, port: u16) -> u64 {
        self.connections.get(&port).map_or(0, |connection| connection.halves[side].heard)
    }

    /// Whether a connection that uses `port` again had to end the one before, and has: it has come that far.
    pub fn swept(&self, port: u16) -> bool {
        let connection = self.connections.get(&port);
        connection.is_some_and(|connection| connection.before.as_ref().is_some_and(|before| before.swept))
    }

    /// Whether the SYN of a connection that uses `port` again is not answered yet, and its number is not
    /// above those before.
    pub fn looks_old(&self, port: u16) -> bool {
        let Some(Connection { before: Some(before), halves, .. }) = self.connections.get(&port) else {
            return false;
        };
        [0, 1]
            .iter()
            .any(|&side: &usize| before.looks_old(side, halves[side].isn) && halves[1 - side].isn.is_none())
    }

    /// The longest that a byte of either side has waited for its acknowledgement, until `harmed_us` where it
    /// still does.
    pub fn stood_us(&self, port: u16, harmed_us: u64) -> u64 {
        let halves = self.connections.get(&port).map(|connection| &connection.halves);
        halves.into_iter().flatten().map(|half| half.stood_us(harmed_us)).max().unwrap_or(0)
    }

    /// Host `side` sends `frame`.
    ///
    /// # Errors
    /// What rule that breaks.
    pub fn on_sent(
        &mut self,
        now_us: u64,
        side: usize,
        frame: &[u8],
        condition: Condition,
    ) -> Result<(), String> {
        if frame.len() > usize::from(self.mtus[side]) + 14 {
            return Err(format!("a frame of {} bytes, the MTU is {}", frame.len(), self.mtus[side]));
        }
        let Some(tcp) = parse(frame) else { return Ok(()) };
        let port = tcp.src_port.max(tcp.dst_port);
        if tcp.has(flag::SYN) {
            self.note_late_syn(side, port, &tcp);
        }
        let (connection, coverage) = self.seen(port);
        if connection.is_late(side, &tcp) {
            return Ok(());
        }
        if tcp.is_bare() && condition.is_ours {
            connection.halves[side].note_bare(now_us).map_err(|what| format!("connection {port}, {what}"))?;
        }
        connection.note(side, &tcp, frame, condition, coverage);
        connection
            .sent(now_us, side, &tcp, frame, condition)
            .map_err(|what| format!("connection {port}, {what}"))?;
        connection.halves[side].note_sent(now_us);
        let open = connection.open_reads(side);
        let probes: u64 = self.connections.values().map(|connection| connection.halves[side].probes).sum();
        if condition.is_ours && probes > condition.probes {
            return Err(format!(
                "connection {port}, acknowledged bytes were sent {probes} times, {} probes are counted: {tcp:?}",
                condition.probes
            ));
        }
        if let Some(&depth) = self.depths.get(&port) {
            if open > depth {
                return Err(format!(
                    "connection {port}, {open} Reads and atomics are outstanding, {depth} may be"
                ));
            }
            self.coverage.saw_if(Sight::DepthReached, open == depth);
        }
        let seen = self.cuts(side);
        if condition.is_ours && seen > condition.cuts {
            return Err(format!(
                "connection {port}, what must stay whole was cut {seen} times, {} are counted: {tcp:?}",
                condition.cuts
            ));
        }
        Ok(())
    }

    /// `frame` arrives at host `side`.
    pub fn on_delivered(&mut self, now_us: u64, side: usize, frame: &Frame, condition: Condition) {
        if frame.damage == Damage::Seen {
            return;
        }
        let Some(tcp) = parse(&frame.bytes) else { return };
        let forged = frame.damage == Damage::Forged;
        let port = tcp.src_port.max(tcp.dst_port);
        self.connection(port).halves[side].calls += u64::from(forged || !tcp.is_bare());
        if forged || self.connection(port).is_late(1 - side, &tcp) {
            return;
        }
        self.connection(port).delivered(now_us, side, &tcp, &frame.bytes, condition);
    }

    /// A frame arrives at a host that may hear it or not, and that the rules see without its timestamp. If it
    /// was heard, what is older is not (RFC 7323 section 5).
    pub fn doubt_timestamp(&mut self, side: usize, frame: &[u8]) {
        let Some(tcp) = parse(frame) else { return };
        let Some(time) = tcp.timestamp(frame) else { return };
        let doubted = &mut self.connection(tcp.src_port.max(tcp.dst_port)).halves[1 - side].doubted;
        if doubted.is_none_or(|doubted| is_older(doubted, time)) {
            *doubted = Some(time);
        }
    }
}

impl Connection {
    fn pair(&mut self, side: usize) -> (&mut Half, &mut Half) {
        let [a, b] = &mut self.halves;
        if side == 0 { (a, b) } else { (b, a) }
    }

    /// What the peer's startup frame means for what `side` sends.
    fn settled(&self, side: usize) -> Settled {
        let asked = |side: usize| match &self.halves[side].borders {
            Borders::Mpa(parser) => parser.asked().unwrap_or_default(),
            _ => (false, false),
        };
        let (own, peer) = (asked(side), asked(1 - side));
        Settled { markers: peer.0, crc: own.1 || peer.1 }
    }

    /// Whether a segment of host `side` is of no connection any more.
    fn is_late(&self, side: usize, tcp: &Tcp) -> bool {
        let half = &self.halves[side];
        let old = self.before.is_some() && half.isn.is_none() && !tcp.has(flag::SYN);
        old || half.late.is_some_and(|isn| tcp.seq.wrapping_sub(isn) <= 1)
    }

    /// Reads and atomics that host `side` has asked for and the other has not sent the answer to.
    fn open_reads(&self, side: usize) -> u64 {
        match (&self.halves[side].borders, &self.halves[1 - side].borders) {
            (Borders::Mpa(own), Borders::Mpa(peer)) => own.requests.saturating_sub(peer.answers),
            _ => 0,
        }
    }

    /// What is worth a name in a segment that host `side` is about to send.
    fn note(&mut self, side: usize, tcp: &Tcp, frame: &[u8], condition: Condition, coverage: &mut Coverage) {
        if !condition.is_ours {
            return;
        }
        let (own, peer) = self.pair(side);
        let (syn, fin, reset) = (tcp.has(flag::SYN), tcp.has(flag::FIN), tcp.has(flag::RST));
        coverage.saw_if(Sight::SynAgain, syn && own.isn.is_some());
        coverage.saw_if(Sight::SimultaneousOpen, syn && tcp.has(flag::ACK) && own.opens && own.isn.is_some());
        coverage.saw_if(Sight::FinAgain, fin && own.fin.is_some());
        let crossed = fin && own.fin.is_none() && peer.fin.is_some() && !peer.fin_arrived;
        coverage.saw_if(Sight::SimultaneousClose, crossed);
        coverage.saw_if(Sight::Reset, reset);
        coverage.saw_if(Sight::ZeroWindow, tcp.window == 0 && !syn && !reset);
        let blocks = tcp.sack_blocks(frame);
        coverage.saw_if(Sight::ThreeBlocks, blocks.len() == 3);
        coverage.saw_if(Sight::FourBlocks, blocks.len() == 4);
        let doubled = blocks.first().is_some_and(|(start, _)| (start.wrapping_sub(tcp.ack) as i32) < 0);
        coverage.saw_if(Sight::DuplicateTold, doubled);
    }

    fn sent(
        &mut self,
        now_us: u64,
        side: usize,
        tcp: &Tcp,
        frame: &[u8],
        condition: Condition,
    ) -> Result<(), String> {
        let again = self.before.is_some();
        if let Some(before) = &self.before
            && tcp.has(flag::SYN)
            && tcp.has(flag::ACK)
            && self.halves[side].isn.is_none()
        {
            let syn = (self.halves[1 - side].isn, tcp.timestamp(frame).is_some());
            before.check_answer(now_us, side, syn, tcp, condition)?;
        }
        let settled = self.settled(side);
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
        // A RST with another number only answers what is wrong, and ends nothing (RFC 9293 section 3.10.7.4,
        // SYN-RECEIVED; 3.10.7.3).
        let at = own.offset(tcp.seq);
        let ends =
            own.isn.is_some() && (-1..=own.high as i64 + 1).contains(&at) && !(again && peer.isn.is_none());
        own.reset |= tcp.has(flag::RST) && ends;
        if tcp.has(flag::SYN) {
            if let Some(isn) = own.isn
                && isn != tcp.seq
            {
                if !tcp.has(flag::ACK) || own.settled || !condition.cookies {
                    return Err("a second SYN with another sequence number".into());
                }
                own.cookies.push(isn);
            }
            own.opens |= own.isn.is_none() && !tcp.has(flag::ACK);
            own.isn = Some(tcp.seq);
            own.scale = tcp.window_scale(frame);
        } else if own.isn.is_none() && !tcp.has(flag::RST) {
            return Err(format!("a segment in front of the SYN: {tcp:?}"));
        }
        if !tcp.has(flag::SYN) && !tcp.has(flag::RST) {
            own.settle(tcp.seq.wrapping_sub(1));
            peer.settle(tcp.ack.wrapping_sub(1));
        }
        let high = own.high;
        let offset = own.offset(tcp.seq) + i64::from(tcp.has(flag::SYN));
        if !tcp.is_empty() {
            let start =
                u64::try_from(offset).map_err(|_| format!("bytes in front of the stream: {tcp:?}"))?;
            let sender = Sender { is_ours: condition.is_ours, timeouts: condition.timeouts, settled };
            own.send(start, &frame[tcp.payload.clone()], sender)?;
        }
        let end = offset + tcp.len() as i64;
        if tcp.has(flag::FIN) {
            if end != own.high as i64 || own.fin.is_some_and(|fin| fin != own.high) {
                return Err(format!("a FIN at {end}, sent up to {}, FIN at {:?}", own.high, own.fin));
            }
            own.fin = Some(own.high);
        }
        if end > own.high as i64 + i64::from(own.fin.is_some()) && !tcp.has(flag::RST) {
            return Err(format!("a sequence number beyond what was sent, {end}: {tcp:?}"));
        }
        let (fresh, sent) = (own.high > high, own.high);
        let marks = tcp.ecn(frame) != 0;
        if condition.is_ours && marks && !(ecn && fresh) {
            return Err(format!("a codepoint of ECN, agreed: {ecn}, new bytes: {fresh}: {tcp:?}"));
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
        if let Some(before) = &mut self.before
            && self.halves[side].isn.is_none()
            && tcp.has(flag::RST)
        {
            before.on_reset(side);
        }
        let (own, peer) = self.pair(side);
        let offset = peer.offset(tcp.seq) + i64::from(tcp.has(flag::SYN));
        let (start, end) = (offset.max(0) as u64, (offset + tcp.len() as i64).max(0) as u64);
        // What is old is not heard, nor what is beyond the window (RFC 9293 section 3.10.7.4): a bare segment
        // has to be at the frontier.
        let next = peer.arrived.frontier() as i64 + i64::from(peer.fin_arrived);
        let is_new =
            if tcp.is_bare() { offset >= next } else { end as i64 + i64::from(tcp.has(flag::FIN)) > next };
        let in_window = is_new && offset <= peer.edge.max(peer.acked) as i64;
        let time = tcp.timestamp(frame);
        // Nor what comes with an old timestamp (RFC 7323 section 5), or without where both have them (section
        // 3.2).
        let older = match (time, peer.latest) {
            (Some(time), Some(latest)) => is_older(time, latest),
            (None, Some(_)) => own.latest.is_some(),
            (_, None) => false,
        };
        let heard = in_window && !older;
        // Of what is older than a timestamp in doubt nobody can tell whether it is.
        let is_sure =
            heard && !peer.doubted.is_some_and(|doubted| time.is_none_or(|time| is_older(time, doubted)));
        if !older {
            peer.latest = time.or(peer.latest);
        }
        let is_syn = tcp.has(flag::SYN) && (offset == 0 || peer.cookies.contains(&tcp.seq));
        let mut taken = None;
        let new_from = peer.arrived.first_missing(start);
        let known = peer.arrived.add(start, end);
        let news = end > start && known < end - start;
        let fin = offset + tcp.len() as i64;
        peer.fin_arrived |= tcp.has(flag::FIN) && peer.fin.is_some_and(|at| at as i64 == fin);
        if tcp.has(flag::ACK) && !tcp.has(flag::RST) && own.isn.is_some() {
            let ack = own.offset(tcp.ack);
            let scale = if tcp.has(flag::SYN) { 0 } else { scale(peer, own) };
            own.note_acknowledged(now_us, ack.max(0) as u64);
            // Nor what acknowledges bytes that were never sent (RFC 5961 section 5.2).
            if is_sure && ack <= (own.high + u64::from(own.fin == Some(own.high))) as i64 {
                taken = Some(ack.max(0) as u64);
                own.taken = own.taken.max(ack.max(0) as u64);
            }
            own.edge_heard = own.edge_heard.max((ack + (i64::from(tcp.window) << scale)).max(0) as u64);
            // Blocks that nobody has asked for say nothing (RFC 2018 section 2).
            let counts = is_sure && own.permits_sack && peer.permits_sack;
            for (start, end) in tcp.sack_blocks(frame).into_iter().filter(|_| counts) {
                let (start, end) = (own.offset(start), own.offset(end));
                own.hear_sack(start, end, condition.timeouts);
            }
        }
        own.note_end(now_us, peer);
        if is_syn {
            self.ecn[side].on_syn_arrival(tcp.flags);
        } else {
            let marked = (news && heard && tcp.ecn(frame) == 3).then_some(new_from);
            self.ecn[side].on_arrival(tcp.flags, taken, marked);
        }
    }
}

/// Whether a timestamp is from before another one (RFC 7323 section 5.2).
fn is_older(time: u32, other: u32) -> bool {
    (time.wrapping_sub(other) as i32) < 0
}

/// The shift of windows that `by` announces to `to`: none unless both offer it (RFC 7323 section 2.2).
fn scale(by: &Half, to: &Half) -> u8 {
    by.scale.filter(|_| to.scale.is_some()).unwrap_or(0)
}

/// What our segment says of the peer's stream `peer`.
fn acknowledges(peer: &mut Half, tcp: &Tcp, frame: &[u8], scale: u8) -> Result<(), String> {
    let ack = peer.offset(tcp.ack);
    let frontier = peer.arrived.frontier();
    let finished = peer.fin_arrived && peer.fin == Some(frontier);
    if ack > (frontier + u64::from(finished)) as i64 {
        return Err(format!("acknowledged up to {ack}, arrived up to {frontier}"));
    }
    if ack < peer.acked as i64 {
        return Err(format!("acknowledged up to {ack}, but up to {} before", peer.acked));
    }
    peer.acked = ack as u64;
    let edge = peer.acked + (u64::from(tcp.window) << scale);
    // The window of a SYN is not scaled: sent again after an acknowledgement it says less than that. Else a
    // window may say less only for want of a unit (RFC 7323 section 2.4).
    if edge + (1 << scale) <= peer.edge && !tcp.has(flag::SYN) {
        return Err(format!("the right edge of the window goes back from {} to {edge}", peer.edge));
    }
    peer.edge = peer.edge.max(edge);
    for (start, end) in tcp.sack_blocks(frame) {
        let (start, end) = (peer.offset(start), peer.offset(end));
        if start < 0 || start >= end || !peer.arrived.contains(start as u64, end as u64) {
            return Err(format!("selectively acknowledged {start}..{end}, which has not arrived"));
        }
    }
    Ok(())
}
