//! The control block of one connection (RFC 9293): segments and time in, events and transmissions out.

use std::net::SocketAddr;

use dp::Mbuf;

use super::header::TcpHeader;
use super::send::SegmentKey;
use super::{ConnInfo, Ctx, SegmentBuf, SendError};
use crate::Instant;
use crate::facade::TcpSeqNumber;

/// Connection states (RFC 9293 section 3.3.2). LISTEN is the stack's: a listener makes a block per SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

/// What a connection is born with; the stack decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth {
    /// Our port.
    pub(crate) local_port: u16,
    /// The peer's port.
    pub(crate) remote_port: u16,
    /// Initial sequence number (RFC 6528).
    pub(crate) iss: TcpSeqNumber,
    /// Added to the millisecond clock of our timestamps (RFC 7323 section 7.1).
    pub(crate) timestamp_offset: u32,
    /// Largest TCP segment without options towards this peer: MTU - IP header - 20. Also the MSS we announce.
    pub(crate) mss: u16,
    /// The peer's MSS when its SYN names none: 536 for IPv4, 1220 for IPv6 (RFC 9293 section 3.7.1).
    pub(crate) default_peer_mss: u16,
}

/// What became of a segment.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// Taken in or dropped; answers, if any, wait in [`Tcb::next_transmission`].
    Done,
    /// Send this RST; the connection stays.
    Reset(TcpHeader),
    /// TIME-WAIT, and this SYN may start a new connection: forget this block and treat the SYN as one for the
    /// listener (RFC 9293 section 3.10.7.4, RFC 6191), if there is none, keep the block.
    Reopen,
}

/// A segment to put on the wire, and to report with [`Tcb::sent`] when it was.
#[derive(Debug)]
pub(crate) struct Transmission {
    /// Header to emit.
    pub(crate) header: TcpHeader,
    /// Payload: a segment of [`SegmentSlab`](super::SegmentSlab), whole.
    pub(crate) payload: Option<SegmentKey>,
}

/// One connection.
pub(crate) struct Tcb {}

impl Tcb {
    /// Active open: SYN-SENT.
    pub(crate) fn connect(ctx: &mut Ctx<'_>, birth: Birth) -> Self {
        let _ = (ctx, birth);
        todo!()
    }

    /// Passive open by a SYN (no ACK, no RST; the caller checks): SYN-RECEIVED.
    pub(crate) fn accept(ctx: &mut Ctx<'_>, birth: Birth, syn: &TcpHeader) -> Self {
        let _ = (ctx, birth, syn);
        todo!()
    }

    /// A segment with a good checksum. `payload` holds exactly the payload; it may be empty, or a chain.
    pub(crate) fn on_segment(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, payload: Mbuf) -> Verdict {
        let _ = (ctx, header, payload);
        todo!()
    }

    /// Timers that are due at `ctx.now`. Harmless when none is.
    pub(crate) fn on_timer(&mut self, ctx: &mut Ctx<'_>) {
        let _ = ctx;
        todo!()
    }

    /// When [`on_timer`](Self::on_timer) wants to be called. May change by any call.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        todo!()
    }

    /// Whether [`next_transmission`](Self::next_transmission) may have something. May say yes in vain, never no.
    pub(crate) fn wants_transmit(&self) -> bool {
        todo!()
    }

    /// What is to be sent next. Asking changes nothing but cuts of an oversized segment; asking again without
    /// [`sent`](Self::sent) gives the same.
    pub(crate) fn next_transmission(&mut self, ctx: &mut Ctx<'_>) -> Option<Transmission> {
        let _ = ctx;
        todo!()
    }

    /// `transmission`, the last that [`next_transmission`](Self::next_transmission) gave, went out.
    /// Counts `tx_segments`, `tx_retransmits`, `tx_acks`, `tx_resets`.
    pub(crate) fn sent(&mut self, ctx: &mut Ctx<'_>, transmission: &Transmission) {
        let _ = (ctx, transmission);
        todo!()
    }

    /// An empty segment of the pool.
    pub(crate) fn segment(&mut self, ctx: &mut Ctx<'_>) -> Result<SegmentBuf, SendError> {
        let _ = ctx;
        todo!()
    }

    /// Queues a segment.
    pub(crate) fn push(&mut self, ctx: &mut Ctx<'_>, segment: SegmentBuf) {
        let _ = (ctx, segment);
        todo!()
    }

    /// No more segments will be pushed: FIN after the queue.
    pub(crate) fn close(&mut self, ctx: &mut Ctx<'_>) {
        let _ = ctx;
        todo!()
    }

    /// Drops everything queued; a RST is the last transmission. `Event::Closed(Aborted)`.
    pub(crate) fn abort(&mut self, ctx: &mut Ctx<'_>) {
        let _ = ctx;
        todo!()
    }

    /// The peer cannot be reached (ICMP while connecting, no neighbour): ends the connection without a RST.
    pub(crate) fn unreachable(&mut self, ctx: &mut Ctx<'_>) {
        let _ = ctx;
        todo!()
    }

    /// The path carries only `mss` (as [`Birth::mss`]) from now on; never grows.
    pub(crate) fn set_path_mss(&mut self, mss: u16) {
        let _ = mss;
        todo!()
    }

    /// `octets` handed up ahead of the frontier are no longer held.
    pub(crate) fn release(&mut self, ctx: &mut Ctx<'_>, octets: usize) {
        let _ = (ctx, octets);
        todo!()
    }

    /// Gives back all shared storage; before the block is dropped in any state but with [`is_dead`](Self::is_dead).
    pub(crate) fn dispose(&mut self, ctx: &mut Ctx<'_>) {
        let _ = ctx;
        todo!()
    }

    /// The state.
    pub(crate) fn state(&self) -> State {
        todo!()
    }

    /// Nothing more to receive, wait for or send: forget the block.
    pub(crate) fn is_dead(&self) -> bool {
        todo!()
    }

    /// `Event::Closed` was raised (or, for a connection that was never announced, would have been): the id is dead
    /// for the user, the block may live on in TIME-WAIT or until its RST is sent.
    pub(crate) fn is_over(&self) -> bool {
        todo!()
    }

    /// Whether this sequence number is in flight, i.e. an ICMP error that quotes it is plausible (RFC 5927).
    pub(crate) fn in_flight(&self, seq: TcpSeqNumber) -> bool {
        let _ = seq;
        todo!()
    }

    /// A look from outside.
    pub(crate) fn info(&self, config: &crate::TcpConfig, local: SocketAddr, remote: SocketAddr) -> ConnInfo {
        let _ = (config, local, remote);
        todo!()
    }
}
