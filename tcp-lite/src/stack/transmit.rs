//! The implementation of [`Stack::transmit`], which builds the frames to send.
//!
//! Frames are sent in this order: frames of the slow path; datagrams of the user; probes, announcements and
//! answers to probes of our own addresses; ARP and NDP queries that already wait; answers to segments of no
//! connection; segments of the connections; and ARP and NDP queries that these segments need. The connections
//! are served round robin, and each of them sends a few segments. If the pool is empty, nothing is lost,
//! because the next call tries to send the same frames again.

use dp::{Burst, Offloads};

use super::{Stack, connections};
use crate::CloseReason;
use crate::Deadline;
use crate::discovery;
use crate::facade::{EthernetAddress, Instant};
use crate::four_tuple::FourTuple;
use crate::frame::{Framing, Headers};
use crate::ip::Ecn;
use crate::neighbor::Resolution;
use crate::tcp::header::{Flags, TcpHeader};
use crate::tcp::{Ctx, MAX_TRAIN, Payload, SegmentKey, State, Transmission};

/// Maximum number of segments that one connection sends before the next connection is served. (A train that
/// is sent by TSO may have more segments.) The number is small enough for fairness, and large enough that
/// several segments use the connection's state while the state is in the cache.
const QUOTA_SEGMENTS: usize = 8;

/// The offloads that a port needs for TSO.
pub(super) const TRAINS: Offloads =
    Offloads::TX_TSO.union(Offloads::TX_MULTI_SEGMENT).union(Offloads::TX_TCP_CHECKSUM);

/// The offloads that a port needs to send external memory. The stack computes no checksum of external memory.
pub(super) const EXTERNAL: Offloads =
    Offloads::TX_EXTERNAL.union(Offloads::TX_MULTI_SEGMENT).union(Offloads::TX_TCP_CHECKSUM);

/// RST for a segment of no connection or of an earlier connection with the same 4-tuple, or SYN-ACK with a
/// cookie. The answer is sent to the source Ethernet address of the segment, so that forged segments cannot
/// make us resolve addresses.
pub(crate) struct Answer {
    pub(crate) dst_mac: EthernetAddress,
    pub(crate) tuple: FourTuple,
    pub(crate) header: TcpHeader,
}

/// Result of serving a connection.
pub(super) enum Served {
    /// The connection may send nothing more now.
    Idle,
    /// The connection may send more now.
    More,
    /// The Ethernet address of the next hop is not known, or the local address is still being probed.
    Waiting,
    /// A pool is empty.
    NoMbuf,
}

impl Stack {
    /// The part of [`Stack::transmit`] for a stack that has something to transmit.
    pub(super) fn fill(&mut self, now: Instant, out: &mut Burst) -> bool {
        let before = out.len();
        if self.has_other_frames() && !self.fill_other_frames(out) {
            return self.on_pool_empty(now, out.len() > before);
        }
        while !out.is_full() {
            let Some(slot) = self.connections.next_ready() else { break };
            let served = self.serve(now, slot, out);
            match served {
                Served::Waiting => self.connections.wait(slot),
                Served::Idle => {}
                Served::More => self.connections.make_ready(slot),
                Served::NoMbuf => {
                    self.connections.requeue_front(slot);
                    return self.on_pool_empty(now, out.len() > before);
                }
            }
        }
        // Serving connections may have started address resolution.
        if self.neighbors.has_query() && !self.fill_queries(out) {
            return self.on_pool_empty(now, out.len() > before);
        }
        self.pool_retry.succeeded();
        // Other frames are left only if the burst is full.
        self.connections.any_ready() || out.is_full() && self.has_other_frames()
    }

    /// Called when the pool is empty, so nothing more can be sent now. `has_sent` is true if this call of
    /// [`fill`](Self::fill) sent frames.
    fn on_pool_empty(&mut self, now: Instant, has_sent: bool) -> bool {
        self.counters.tx_no_mbuf += 1;
        if has_sent {
            self.pool_retry.succeeded();
        }
        self.pool_retry.refused(now);
        false
    }

    /// Whether [`fill`](Self::fill) has something to do.
    #[inline]
    pub(super) fn has_to_transmit(&self) -> bool {
        self.link_up && (self.connections.any_ready() || self.has_other_frames())
    }

    /// Whether frames that belong to no connection wait. Usually no such frame waits.
    #[inline]
    fn has_other_frames(&self) -> bool {
        self.slow_path.has_frames()
            || !self.answers.is_empty()
            || self.neighbors.has_query()
            || self.conflicts.has_assertion()
            || self.udp.as_ref().is_some_and(|udp| udp.outbox.has_ready())
    }

    /// Sends frames that belong to no connection. Returns `false` if the pool is empty.
    #[cold]
    fn fill_other_frames(&mut self, out: &mut Burst) -> bool {
        while !out.is_full() {
            let Some(frame) = self.slow_path.next_frame() else { break };
            out.push(frame);
        }
        self.fill_datagrams(out);
        self.fill_assertions(out) && self.fill_queries(out) && self.fill_answers(out)
    }

    /// Sends the datagrams of the user. They need no more buffers, and free theirs when they are sent.
    fn fill_datagrams(&mut self, out: &mut Burst) {
        let Some(udp) = &mut self.udp else { return };
        while !out.is_full()
            && let Some(frame) = udp.outbox.pop_ready()
        {
            out.push(frame);
            self.counters.tx_datagrams += 1;
        }
    }

    /// Sends probes, announcements and answers to probes of our addresses. Returns `false` if the pool is
    /// empty.
    fn fill_assertions(&mut self, out: &mut Burst) -> bool {
        while !out.is_full() {
            let Some(assertion) = self.conflicts.assertion() else { break };
            let Some(mut frame) = self.pool.alloc() else { return false };
            let (mac, vlan) = (self.framing.mac, self.framing.vlan);
            if let Some(room) = frame.append(discovery::MAX_QUERY_BYTES) {
                let bytes = discovery::emit_assertion(room, mac, vlan, assertion);
                frame.truncate(bytes);
                out.push(frame);
                self.counters.tx_assertions += 1;
            }
            self.conflicts.asserted();
        }
        true
    }

    /// Sends ARP requests and neighbour solicitations. Returns `false` if the pool is empty.
    fn fill_queries(&mut self, out: &mut Burst) -> bool {
        while !out.is_full() {
            let Some(query) = self.neighbors.query() else { break };
            let Some(mut frame) = self.pool.alloc() else { return false };
            let framing = &self.framing;
            if let Some(source) = self.routes.query_source(&query.target)
                && let Some(room) = frame.append(discovery::MAX_QUERY_BYTES)
                && let Some(bytes) =
                    discovery::emit_query(room, framing.mac, framing.vlan, source, query.target, query.to)
            {
                frame.truncate(bytes);
                out.push(frame);
            }
            self.neighbors.query_sent();
        }
        true
    }

    /// Sends answers to segments of no connection. Returns `false` if the pool is empty.
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

    /// Serves a connection whose local address is not usable, because the address is still being probed or is
    /// lost. Returns `None` if the address is usable.
    fn serve_unusable_address(&mut self, now: Instant, slot: u32) -> Option<Served> {
        let local = &self.connections.get(slot)?.tuple.local;
        if self.conflicts.is_usable(local) {
            return None;
        }
        if !self.conflicts.is_lost(local) {
            return Some(Served::Waiting);
        }
        self.with(now, slot, |tcb, ctx| tcb.unreachable(ctx, CloseReason::AddressLost));
        Some(Served::Idle)
    }

    /// Sends the segments that one connection has to send now, at most `QUOTA_SEGMENTS`, and updates the
    /// connection's timer.
    fn serve(&mut self, now: Instant, slot: u32, out: &mut Burst) -> Served {
        let mut left = QUOTA_SEGMENTS;
        match self.serve_usual(now, slot, &mut left, out) {
            Some(served) => served,
            None => {
                let served = self.serve_any(now, slot, left, out);
                self.settle_timer(slot);
                served
            }
        }
    }

    /// Sends up to `left` segments of any kind of one connection. This is the general path of
    /// [`serve_usual`](Self::serve_usual).
    #[inline(never)]
    fn serve_any(&mut self, now: Instant, slot: u32, mut left: usize, out: &mut Burst) -> Served {
        if let Some(served) = self.serve_unusable_address(now, slot) {
            return served;
        }
        let (parts, connections, neighbors) = self.split(now);
        let Some((id, conn)) = connections.get_mut(slot) else { return Served::Idle };
        let framing = parts.framing;
        let mut ctx = parts.ctx(id, conn.listener);
        let mut dst_mac = None;
        while left > 0 {
            if out.is_full() {
                return Served::More;
            }
            let Some(mut transmission) = conn.tcb.next_transmission(&mut ctx) else { return Served::Idle };
            let dst_mac = match dst_mac {
                Some(known) => known,
                None => match neighbors.resolve(now, conn.next_hop) {
                    Resolution::Known(known) => {
                        conn.unresolved_since = Deadline::NONE;
                        *dst_mac.insert(known)
                    }
                    Resolution::Pending => {
                        conn.unresolved_since.get_or_insert(now);
                        return Served::Waiting;
                    }
                    Resolution::Failed if gives_up(now, conn, ctx.config.user_timeout) => {
                        conn.tcb.unreachable(&mut ctx, CloseReason::NoNeighbor);
                        return Served::Idle;
                    }
                    Resolution::Failed => return Served::Waiting,
                },
            };
            let port_cuts = port_cuts(framing, &ctx, &transmission);
            let limits = match port_cuts {
                // The headers need one of the buffers.
                true => (MAX_TRAIN, framing.tso.buffers.saturating_sub(1)),
                // A template needs the payload of each segment in one slice. So segments with external memory
                // are sent one by one.
                false if is_external(&ctx, &transmission) => (1, MAX_TRAIN),
                false => (left.min(out.remaining_capacity()), MAX_TRAIN),
            };
            conn.tcb.extend_train(&ctx, &mut transmission, limits);
            let headers = Headers {
                framing,
                dst_mac,
                src: conn.tuple.local,
                dst: conn.tuple.remote,
                ecn: transmission.ecn,
                tcp: &transmission.header,
            };
            let wanted = transmission.segments;
            transmission.segments = emit(&ctx, &headers, &transmission, port_cuts, out);
            if transmission.segments > 0 {
                ctx.counters.tx_trains += u64::from(port_cuts && wanted > 1);
                conn.tcb.sent(&mut ctx, &transmission);
            }
            if transmission.segments < wanted {
                return Served::NoMbuf;
            }
            if !conn.tcb.wants_transmit() {
                return Served::Idle;
            }
            left = left.saturating_sub(wanted);
        }
        Served::More
    }
}

/// Whether the port can cut a frame into segments that are as long as the first segment of `transmission`.
#[inline]
fn port_cuts(framing: &Framing, ctx: &Ctx<'_>, transmission: &Transmission) -> bool {
    framing.offloads.contains(TRAINS)
        && matches!(transmission.payload, Some(Payload::Segment(first)) if framing.tso.mss.contains(ctx.segments.length(first)))
}

/// Whether the first segment of `transmission` has external memory.
#[inline]
fn is_external(ctx: &Ctx<'_>, transmission: &Transmission) -> bool {
    matches!(transmission.payload, Some(Payload::Segment(first)) if ctx.segments.is_external(first))
}

/// Builds the frames of a transmission: one frame that the port divides into segments (TSO), or one frame for
/// each segment. Returns the number of segments in these frames, which is smaller than requested if a pool is
/// empty.
fn emit(
    ctx: &Ctx<'_>,
    headers: &Headers<'_>,
    transmission: &Transmission,
    port_cuts: bool,
    out: &mut Burst,
) -> usize {
    let Ctx { pool, segments, searches, .. } = ctx;
    let count = transmission.segments;
    let before = out.len();
    match transmission.payload {
        None => out.extend(headers.bare(pool)),
        Some(Payload::Segment(first)) if segments.is_external(first) => {
            return emit_external(ctx, headers, (first, count), out);
        }
        Some(Payload::Segment(first)) if count > 1 && port_cuts => {
            let bytes = segments.length(first);
            let train = segments.views(first, count).and_then(|views| headers.with_train(pool, views, bytes));
            let sent = if train.is_some() { count } else { 0 };
            out.extend(train);
            return sent;
        }
        Some(Payload::Segment(only)) if count == 1 => {
            let view = || segments.views(only, 1)?.pop();
            out.extend(headers.with_payload(pool, segments.bytes(only), view));
        }
        Some(Payload::Segment(first)) => {
            let template = headers.template();
            let mut offset = 0;
            for (nr, key) in segments.iter_from(first).take(count).enumerate() {
                let payload = segments.bytes(key);
                let place = (offset, payload, nr + 1 == count);
                let view = || segments.views(key, 1)?.pop();
                let Some(frame) = template.frame(headers.framing, pool, place, view) else { break };
                out.push(frame);
                offset += payload.len();
            }
        }
        Some(Payload::MtuProbe(key)) => {
            if let Some(probe) = searches.buf(key) {
                out.extend(headers.with_payload(pool, probe.head(), || probe.share()));
            }
        }
    }
    out.len() - before
}

/// Builds the frame of a transmission of `count` segments with external memory. Returns the number of
/// segments in the frame.
#[inline(never)]
fn emit_external(
    ctx: &Ctx<'_>,
    headers: &Headers<'_>,
    (first, count): (SegmentKey, usize),
    out: &mut Burst,
) -> usize {
    let cut_at = if count > 1 { ctx.segments.length(first) } else { 0 };
    let views = ctx.segments.external_views(ctx.pool, first, count);
    let train = views.and_then(|views| headers.with_train(ctx.pool, views, cut_at));
    let sent = if train.is_some() { count } else { 0 };
    out.extend(train);
    sent
}

/// Whether a connection ends because its next hop does not answer. In SYN-SENT, or if only an RST is left to
/// send, the connection ends at once. In other states, the connection ends after the user timeout. (In
/// SYN-RECEIVED the stack waits as well: a peer that has just sent a SYN is up, even if it does not answer
/// our queries.)
fn gives_up(now: Instant, conn: &mut connections::Conn, user_timeout: crate::Duration) -> bool {
    let since = conn.unresolved_since.get_or_insert(now);
    matches!(conn.tcb.state(), State::SynSent | State::Closed) || now >= since + user_timeout
}
