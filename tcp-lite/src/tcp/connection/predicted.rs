//! Header prediction: the fast path for a segment that is next in order and has only usual header fields. The
//! fast path leaves out the steps of the general path, [`Tcb::on_segment`], that have no effect for such a
//! segment, so both paths have the same result (`tests/stack/prediction.rs` compares them).

use dp::Mbuf;

use super::Tcb;
use crate::facade::TcpSeqNumber;
use crate::tcp::State;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::SackBlock;
use crate::tcp::send::AckInfo;

/// A segment with the flags ACK, or ACK and PSH, whose only options are timestamps and perhaps SACK blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PredictedSegment {
    pub(crate) seq: TcpSeqNumber,
    pub(crate) ack: TcpSeqNumber,
    /// The window field as the header has it. `SendHalf::on_usual_ack` applies the window scale.
    pub(crate) window: u16,
    /// TSval and TSecr.
    pub(crate) timestamp: u32,
    pub(crate) echo: u32,
    /// Number of bytes of payload.
    pub(crate) bytes: usize,
}

impl Tcb {
    /// Whether [`on_predicted`](Self::on_predicted) can handle this segment. Does not change the connection.
    #[inline]
    pub(crate) fn predicts(&self, segment: &PredictedSegment) -> bool {
        self.state == State::Established
            && self.receive.predicts(segment.seq, segment.bytes, segment.timestamp)
            && self.send.is_ack_expected(segment.ack)
    }

    /// Handles a segment that [`predicts`](Self::predicts) accepts, with the same result as
    /// [`on_segment`](Self::on_segment).
    #[inline]
    pub(crate) fn on_predicted(&mut self, ctx: &mut Ctx<'_>, segment: &PredictedSegment, payload: Mbuf) {
        let bytes = segment.bytes;
        let info = self.predicted_ack(ctx, segment, &[]);
        if !self.send.on_usual_ack(ctx, &info) {
            let fin_acked = self.send.on_ack(ctx, &info);
            debug_assert!(!fin_acked, "no FIN of ours is sent in ESTABLISHED");
        }
        if bytes > 0 {
            self.receive.on_next_payload(ctx, payload);
        }
    }

    /// Handles a segment that [`predicts`](Self::predicts) accepts and that has SACK blocks and no payload.
    #[inline]
    pub(crate) fn on_predicted_sack(
        &mut self,
        ctx: &mut Ctx<'_>,
        segment: &PredictedSegment,
        sack: &[SackBlock],
    ) {
        let info = self.predicted_ack(ctx, segment, sack);
        let fin_acked = self.send.on_ack(ctx, &info);
        debug_assert!(!fin_acked, "no FIN of ours is sent in ESTABLISHED");
    }

    /// Restarts the keepalive timer, stores the timestamp of a predicted segment, and returns the segment's
    /// acknowledgement.
    #[inline]
    fn predicted_ack<'a>(
        &mut self,
        ctx: &mut Ctx<'_>,
        segment: &PredictedSegment,
        sack: &'a [SackBlock],
    ) -> AckInfo<'a> {
        let &PredictedSegment { ack, window, timestamp, echo, bytes, .. } = segment;
        let pos = self.receive.nxt() as i64;
        self.restart_keepalive(ctx);
        self.receive.learn_next_timestamp(ctx, timestamp);
        let ack = self.send.position(ack).max(0) as u64;
        AckInfo { ack, pos, len: bytes, window, sack, echo: Some(echo), ece: false }
    }
}
