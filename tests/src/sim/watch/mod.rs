//! The wire tap: every rule that can be checked on frames, at their sender and at their receiver.
//!
//! | rule | where |
//! |---|---|
//! | a segment sent again is the frozen one, or a cut that the stack has counted | `half.rs` |
//! | octets known to have arrived are sent again only by probes of the path's MTU that the stack has counted | `half.rs` |
//! | FPDUs end where segments end; markers and CRCs are right | `fpdu.rs` |
//! | nothing beyond the peer's window, behind the FIN, after the RST, or in front of the SYN | `half.rs`, here |
//! | our right edge and acknowledgement never go back | here |
//! | nothing is acknowledged, selectively or not, that has not arrived | here |
//! | nothing selectively acknowledged is sent again before a timeout | `half.rs` |
//! | no frame is longer than the MTU; no storm of bare segments | here |
//! | congestion marks are echoed, and the echo is heard | `ecn.rs` |
//! | only new octets may be marked, and only where both SYNs agreed (RFC 3168 sections 6.1.1, 6.1.4 to 6.1.6) | here |

mod ecn;
mod fpdu;
mod half;
mod ranges;

use std::collections::{BTreeMap, BTreeSet};

use self::ecn::Ecn;
use self::fpdu::{Parser, Settled};
use self::half::{Borders, Half, Sender};
use super::packet::{Damage, Frame, Tcp, flag, parse};

pub use ranges::Ranges;

/// Bare segments (no payload, SYN, FIN, RST) that a host may send beyond two for each segment that is not bare and has
/// arrived: for each second, and in all. Bare segments are not to be answered but within these.
const BARE_PER_SECOND: u64 = 10;
const BARE_IN_ALL: u64 = 64;

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
    /// Probes of a path's MTU that it has counted.
    pub probes: u64,
}

#[derive(Debug)]
struct Connection {
    halves: [Half; 2],
    ecn: [Ecn; 2],
}

/// The tap on both ends of the wire.
#[derive(Debug)]
pub struct Watch {
    framing: Framing,
    ours: [bool; 2],
    mtus: [u16; 2],
    /// By the client's port.
    connections: BTreeMap<u16, Connection>,
    /// Segments that arrived at each host and were not bare, and bare segments that it sent.
    arrived: [u64; 2],
    bare: [u64; 2],
}

impl Watch {
    /// Nothing seen yet. `ours`: which hosts are tcp-lite.
    pub fn new(framing: Framing, ours: [bool; 2], mtus: [u16; 2]) -> Self {
        Self { framing, ours, mtus, connections: BTreeMap::new(), arrived: [0; 2], bare: [0; 2] }
    }

    fn connection(&mut self, port: u16) -> &mut Connection {
        let (framing, ours) = (self.framing, self.ours);
        self.connections.entry(port).or_insert_with(|| Connection {
            halves: [0, 1].map(|side| {
                Half::new(match framing {
                    _ if !ours[side] => Borders::Unknown,
                    Framing::Plain => Borders::Pushed(BTreeSet::new()),
                    Framing::Mpa => Borders::Mpa(Parser::default()),
                })
            }),
            ecn: Default::default(),
        })
    }

    /// The user of host `side` has pushed a segment that ends at `offset`, on the connection of this client port.
    pub fn pushed(&mut self, side: usize, port: u16, offset: u64) {
        if let Borders::Pushed(borders) = &mut self.connection(port).halves[side].borders {
            borders.insert(offset);
        }
    }

    /// Cuts seen of what host `side` had to leave whole.
    pub fn cuts(&self, side: usize) -> u64 {
        self.connections.values().map(|connection| connection.halves[side].cuts).sum()
    }

    /// Whether `port`'s octets from `side` have been acknowledged by so much: the wire's own measure of progress.
    pub fn acked(&self, side: usize, port: u16) -> u64 {
        self.connections.get(&port).map_or(0, |connection| connection.halves[side].heard)
    }

    /// The longest that an octet of either side has waited for its acknowledgement, until `harmed_us` where it still does.
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
            return Err(format!("a frame of {} octets, the MTU is {}", frame.len(), self.mtus[side]));
        }
        let Some(tcp) = parse(frame) else { return Ok(()) };
        if is_bare(&tcp) {
            self.bare[side] += 1;
            let allowed = 2 * self.arrived[side] + BARE_IN_ALL + BARE_PER_SECOND * (now_us / 1_000_000);
            if self.bare[side] > allowed {
                let (bare, arrived) = (self.bare[side], self.arrived[side]);
                return Err(format!(
                    "{bare} bare segments sent, {arrived} received that are not bare: a storm"
                ));
            }
        }
        let port = tcp.src_port.max(tcp.dst_port);
        let connection = self.connection(port);
        connection.sent(side, &tcp, frame, condition).map_err(|what| format!("connection {port}, {what}"))?;
        connection.halves[side].note_time(now_us, 0);
        let probes: u64 = self.connections.values().map(|connection| connection.halves[side].probes).sum();
        if condition.is_ours && probes > condition.probes {
            return Err(format!(
                "connection {port}, acknowledged octets were sent {probes} times, {} probes are counted: {tcp:?}",
                condition.probes
            ));
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
        let Some(tcp) = parse(&frame.octets) else { return };
        self.arrived[side] += u64::from(!is_bare(&tcp));
        let port = tcp.src_port.max(tcp.dst_port);
        self.connection(port).delivered(now_us, side, &tcp, &frame.octets, condition);
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

    fn sent(&mut self, side: usize, tcp: &Tcp, frame: &[u8], condition: Condition) -> Result<(), String> {
        let settled = self.settled(side);
        let ecn = Ecn::agreed(&self.ecn);
        let (own, peer) = self.pair(side);
        if own.reset && !tcp.has(flag::RST) {
            return Err(format!("a segment after the RST: {tcp:?}"));
        }
        own.reset |= tcp.has(flag::RST);
        if tcp.has(flag::SYN) {
            if own.isn.is_some_and(|isn| isn != tcp.seq) {
                return Err("a second SYN with another sequence number".into());
            }
            own.isn = Some(tcp.seq);
            own.scale = tcp.window_scale(frame);
        } else if own.isn.is_none() && !tcp.has(flag::RST) {
            return Err(format!("a segment in front of the SYN: {tcp:?}"));
        }
        let high = own.high;
        let offset = own.offset(tcp.seq) + i64::from(tcp.has(flag::SYN));
        if !tcp.is_empty() {
            let start =
                u64::try_from(offset).map_err(|_| format!("octets in front of the stream: {tcp:?}"))?;
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
        if condition.is_ours && tcp.ecn(frame) != 0 && !(ecn && fresh) {
            return Err(format!("a codepoint of ECN, agreed: {ecn}, new octets: {fresh}: {tcp:?}"));
        }
        if !tcp.has(flag::ACK) || tcp.has(flag::RST) || peer.isn.is_none() || !condition.is_ours {
            return Ok(());
        }
        let scale = if tcp.has(flag::SYN) { 0 } else { scale(own, peer) };
        acknowledges(peer, tcp, frame, scale)?;
        let ack = peer.acked;
        if tcp.has(flag::SYN) {
            self.ecn[side].on_syn(tcp.flags);
        } else if ecn {
            self.ecn[side].on_sent(tcp.flags, ack, sent, fresh)?;
        }
        Ok(())
    }

    fn delivered(&mut self, now_us: u64, side: usize, tcp: &Tcp, frame: &[u8], condition: Condition) {
        let agreed = Ecn::agreed(&self.ecn);
        let (own, peer) = self.pair(side);
        if peer.isn.is_none() {
            return;
        }
        let offset = peer.offset(tcp.seq) + i64::from(tcp.has(flag::SYN));
        let (start, end) = (offset.max(0) as u64, (offset + tcp.len() as i64).max(0) as u64);
        let known = peer.arrived.add(start, end);
        let news = end > start && known < end - start;
        peer.fin_arrived |= tcp.has(flag::FIN);
        if tcp.has(flag::ACK) && !tcp.has(flag::RST) && own.isn.is_some() {
            let ack = own.offset(tcp.ack);
            let scale = if tcp.has(flag::SYN) { 0 } else { scale(peer, own) };
            own.note_time(now_us, ack.max(0) as u64);
            own.edge_heard = own.edge_heard.max((ack + (i64::from(tcp.window) << scale)).max(0) as u64);
            for (start, end) in tcp.sack_blocks(frame) {
                let (start, end) = (own.offset(start), own.offset(end));
                own.hear_sack(start, end, condition.timeouts);
            }
        }
        let heard = own.heard;
        if tcp.has(flag::SYN) {
            // What a host says before it knows of the other is taken in here.
            self.ecn[1 - side].on_syn(tcp.flags);
        } else if agreed {
            self.ecn[side].on_arrival(tcp.flags, heard, (news && tcp.ecn(frame) == 3).then_some(start));
        }
    }
}

fn is_bare(tcp: &Tcp) -> bool {
    tcp.is_empty() && tcp.flags & (flag::SYN | flag::FIN | flag::RST) == 0
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
    // The window of a SYN is not scaled: sent again after an acknowledgement it says less than that.
    if edge < peer.edge && !tcp.has(flag::SYN) {
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
