//! From connections to frames: what [`Stack::transmit`] does.
//!
//! First what the slow path wants to send, then questions for neighbours and answers to strangers, then the
//! connections that have something, in turns of a few segments each. When the pool is empty nothing is lost: the
//! same is tried in the next call.

use dp::{Burst, Mbuf, Offloads};

use super::{Stack, connections};
use crate::discovery;
use crate::facade::{EthernetAddress, Instant};
use crate::frame::Headers;
use crate::ip::Ecn;
use crate::neighbor::Resolution;
use crate::table::FourTuple;
use crate::tcp::header::{Flags, TcpHeader};
use crate::tcp::{Payload, State};

/// Segments that one connection sends before the next has its turn; a train of more is not cut for that.
const TURN_SEGMENTS: usize = 8;

/// What a port does that takes several segments in one frame.
const TRAINS: Offloads = Offloads::TX_TSO.union(Offloads::TX_MULTI_SEGMENT).union(Offloads::TX_TCP_CHECKSUM);

/// A RST for a segment that no connection takes, or a SYN-ACK that nobody remembers. It goes back where the segment
/// came from, so that strangers make us ask for no addresses.
pub(crate) struct Answer {
    pub(crate) dst_mac: EthernetAddress,
    pub(crate) tuple: FourTuple,
    pub(crate) header: TcpHeader,
}

/// How a connection's turn ended.
enum Turn {
    /// Nothing more to send.
    Idle,
    /// More to send.
    More,
    /// The next hop has no known Ethernet address.
    Waiting,
    /// The pool is empty.
    NoMbuf,
}

impl Stack {
    /// See [`Stack::transmit`].
    pub(super) fn fill(&mut self, now: Instant, out: &mut Burst) -> bool {
        if !self.link_up {
            return false;
        }
        while !out.is_full() {
            let Some(frame) = self.slow_path.next_frame() else { break };
            out.push(frame);
        }
        self.starved = false;
        if !self.fill_assertions(out) || !self.fill_queries(out) || !self.fill_answers(out) {
            return self.starve();
        }
        while !out.is_full() {
            let Some(slot) = self.connections.next_ready() else { break };
            let turn = self.turn(now, slot, out);
            match turn {
                Turn::Waiting => self.connections.wait(slot),
                Turn::Idle => {}
                Turn::More => self.connections.make_ready(slot),
                Turn::NoMbuf => {
                    self.connections.still_ready(slot);
                    return self.starve();
                }
            }
            self.settle_timer(slot);
        }
        // Turns may have raised questions.
        if !self.fill_queries(out) {
            return self.starve();
        }
        self.has_to_transmit()
    }

    /// The pool is empty: nothing more can be sent now.
    fn starve(&mut self) -> bool {
        self.counters.tx_no_mbuf += 1;
        self.starved = true;
        false
    }

    /// Whether [`fill`](Self::fill) has something to do.
    pub(super) fn has_to_transmit(&self) -> bool {
        self.link_up
            && (self.connections.any_ready()
                || self.slow_path.has_frames()
                || !self.answers.is_empty()
                || self.neighbors.query().is_some()
                || self.claims.assertion().is_some())
    }

    /// What is to be said of our addresses; `false` when the pool is empty.
    fn fill_assertions(&mut self, out: &mut Burst) -> bool {
        while !out.is_full() {
            let Some(assertion) = self.claims.assertion() else { break };
            let Some(mut frame) = self.pool.alloc() else { return false };
            let (mac, vlan) = (self.framing.mac, self.framing.vlan);
            if let Some(room) = frame.append(discovery::MAX_QUERY_OCTETS) {
                let octets = discovery::emit_assertion(room, mac, vlan, assertion);
                frame.truncate(octets);
                out.push(frame);
                self.counters.tx_assertions += 1;
            }
            self.claims.asserted();
        }
        true
    }

    /// ARP requests and neighbour solicitations; `false` when the pool is empty.
    fn fill_queries(&mut self, out: &mut Burst) -> bool {
        while !out.is_full() {
            let Some(query) = self.neighbors.query() else { break };
            let Some(mut frame) = self.pool.alloc() else { return false };
            let framing = &self.framing;
            if let Some(source) = self.routes.query_source(&query.target)
                && let Some(room) = frame.append(discovery::MAX_QUERY_OCTETS)
                && let Some(octets) =
                    discovery::emit_query(room, framing.mac, framing.vlan, source, query.target, query.to)
            {
                frame.truncate(octets);
                out.push(frame);
            }
            self.neighbors.query_sent();
        }
        true
    }

    /// Answers to segments of no connection; `false` when the pool is empty.
    fn fill_answers(&mut self, out: &mut Burst) -> bool {
        while !out.is_full() {
            let Some(Answer { dst_mac, tuple, header }) = self.answers.front() else { break };
            let headers = Headers {
                framing: &self.framing,
                dst_mac: *dst_mac,
                src: tuple.local,
                dst: tuple.remote,
                ecn: Ecn::NotEct,
                tcp: header,
            };
            let is_reset = header.flags.contains(Flags::RST);
            let Some(frame) = headers.bare(&self.pool) else { return false };
            out.push(frame);
            self.answers.pop_front();
            self.counters.tx_segments += 1;
            self.counters.tx_resets += u64::from(is_reset);
        }
        true
    }

    /// The turn of a connection whose address is not ours: not yet, or not at all.
    fn unclaimed(&mut self, now: Instant, slot: u32) -> Option<Turn> {
        let local = &self.connections.get(slot)?.tuple.local;
        if self.claims.is_usable(local) {
            return None;
        }
        if !self.claims.is_lost(local) {
            return Some(Turn::Waiting);
        }
        self.with(now, slot, |tcb, ctx| tcb.unreachable(ctx));
        Some(Turn::Idle)
    }

    /// One connection's turn.
    fn turn(&mut self, now: Instant, slot: u32, out: &mut Burst) -> Turn {
        if let Some(turn) = self.unclaimed(now, slot) {
            return turn;
        }
        let mut dst_mac = None;
        let mut left = TURN_SEGMENTS;
        while left > 0 {
            if out.is_full() {
                return Turn::More;
            }
            let (mut surroundings, connections, neighbors) = self.split(now);
            let Some((id, conn)) = connections.get_mut(slot) else { return Turn::Idle };
            let mut ctx = surroundings.ctx(id, conn.listener);
            let Some(mut transmission) = conn.tcb.next_transmission(&mut ctx) else { return Turn::Idle };
            let dst_mac = match dst_mac {
                Some(known) => known,
                None => match neighbors.resolve(now, conn.next_hop) {
                    Resolution::Known(known) => {
                        conn.unresolved_since = None;
                        *dst_mac.insert(known)
                    }
                    Resolution::Pending => {
                        conn.unresolved_since.get_or_insert(now);
                        return Turn::Waiting;
                    }
                    Resolution::Failed if gives_up(now, conn, ctx.config.user_timeout) => {
                        conn.tcb.unreachable(&mut ctx);
                        return Turn::Idle;
                    }
                    Resolution::Failed => return Turn::Waiting,
                },
            };
            if surroundings.framing.offloads.contains(TRAINS) {
                conn.tcb.couple(&surroundings.ctx(id, conn.listener), &mut transmission);
            }
            left = left.saturating_sub(transmission.segments);
            let headers = Headers {
                framing: surroundings.framing,
                dst_mac,
                src: conn.tuple.local,
                dst: conn.tuple.remote,
                ecn: transmission.ecn,
                tcp: &transmission.header,
            };
            let frame: Option<Mbuf> = match transmission.payload {
                None => headers.bare(surroundings.pool),
                Some(Payload::Segment(key)) => {
                    let (pool, segments) = (surroundings.pool, &*surroundings.segments);
                    let (octets, count) = (segments.octets(key), transmission.segments);
                    match count {
                        1 => headers.with_payload(pool, octets, || segments.views(key, 1)?.pop()),
                        _ => segments
                            .views(key, count)
                            .and_then(|views| headers.with_train(pool, views, octets.len())),
                    }
                }
                Some(Payload::Probe(key)) => surroundings.searches.buf(key).and_then(|probe| {
                    headers.with_payload(surroundings.pool, probe.head(), || probe.share())
                }),
            };
            let Some(frame) = frame else { return Turn::NoMbuf };
            out.push(frame);
            conn.tcb.sent(&mut surroundings.ctx(id, conn.listener), &transmission);
        }
        match self.connections.get(slot) {
            Some(conn) if conn.tcb.wants_transmit() => Turn::More,
            _ => Turn::Idle,
        }
    }
}

/// Whether a connection ends because nobody answers for its next hop: at once while we set it up or where only a RST
/// is left to be sent, else only when that lasts as long as any silence may. (Whoever has just sent a SYN is there, whatever became
/// of our questions.)
fn gives_up(now: Instant, conn: &mut connections::Conn, user_timeout: crate::Duration) -> bool {
    let since = *conn.unresolved_since.get_or_insert(now);
    matches!(conn.tcb.state(), State::SynSent | State::Closed) || now >= since + user_timeout
}
