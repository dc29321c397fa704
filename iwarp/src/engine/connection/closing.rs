//! How a connection closes when its stream has ended or its startup has failed (RFC 5040 section 7; RFC 5041
//! section 7).

use crate::queues::Ask;
use crate::stream::Stream;
use crate::verbs::ConnectionError;

use super::super::state::EngineState;
use super::base::Base;
use super::pre_fpdu::Sent;
use super::{Event, Phase};

/// The last phase of a connection: TCP was reset, is gone, or is closing, perhaps after sending the rest of
/// our startup frames. Received bytes are dropped. TCP acknowledges the dropped bytes, unless
/// acknowledgements are withheld.
#[derive(Default)]
pub(super) struct Closing {
    /// Number of bytes that the peer had acknowledged when the deadline was set.
    acknowledged: u64,
    /// Whether the peer's requests complete by TCP's acknowledgement.
    completes_by_acknowledgement: bool,
    /// TCP withholds acknowledgements until the peer has acknowledged the bytes below this stream offset.
    withheld_until: Option<u64>,
    /// Whether the peer has sent more bytes after our graceful close. If so, the connection is reset once the
    /// peer has acknowledged all our bytes.
    refuses: bool,
}

/// A phase that can end the connection.
pub(super) trait EndablePhase: Sized {
    /// Ends the phase. Frees its slots in the slabs that all connections share. Completes the requests that a
    /// stream has taken from the queue pair, or returns them to a queue pair that outlives the connection.
    /// Even after a graceful close, a receive may be incomplete.
    fn end(self, base: &mut Base, state: &mut EngineState) -> Closing;

    /// Sends FIN after the rest of the startup frames. Received bytes are dropped from now on.
    fn close(self, base: &mut Base, state: &mut EngineState) -> Phase {
        let mut closing = self.end(base, state);
        closing.acknowledged = base.set_close_deadline(state);
        if base.pre_fpdu.is_pending() {
            base.schedule_tx(state);
        } else {
            // RFC 5041 section 3 (DDP-042), RFC 5040 section 7 (RDMAP-321): the connection ends with its only
            // stream.
            state.tcp.close(state.now, base.conn);
        }
        Phase::Closing(closing)
    }

    /// Startup has failed: closes at once, and reports the error.
    fn fail_startup(self, base: &mut Base, state: &mut EngineState, error: ConnectionError) -> Phase {
        base.note_startup_failure(state, error);
        // RFC 5044 sections 7.1.2 and 8 (MPA-177, MPA-189, MPA-235): in both roles, an invalid startup frame
        // closes TCP at once, and the user gets the error. `crate::mpa` decides which frames are invalid.
        let closing = self.end(base, state);
        state.tcp.abort(state.now, base.conn);
        Phase::Closing(closing)
    }
}

impl EndablePhase for Closing {
    fn end(self, base: &mut Base, _: &mut EngineState) -> Closing {
        base.name_cause();
        self
    }
}

impl Closing {
    /// Returns the state for the end of this stream, which must not have ended yet.
    pub(super) fn of_stream(stream: &Stream) -> Self {
        Self {
            completes_by_acknowledgement: stream.completes_by_acknowledgement(),
            withheld_until: stream.withheld_until(),
            ..Self::default()
        }
    }

    pub(super) fn on(mut self, base: &mut Base, state: &mut EngineState, event: Event<'_>) -> Phase {
        match event {
            Event::Received { received, .. } => {
                base.discard(state, received.offset, &received.buf, received.frontier);
                self.refuse(base, state, received.offset);
            }
            Event::Acknowledged => self.on_acknowledged(base, state),
            // Without this reset, TCP would acknowledge all bytes that arrived before the peer's FIN.
            Event::PeerClosed if self.refuses => state.tcp.abort(state.now, base.conn),
            Event::Send if base.pre_fpdu.is_pending() => {
                if base.send_pre_fpdu(state, None) == Sent::All {
                    state.tcp.close(state.now, base.conn);
                }
            }
            Event::Deadline => self.acknowledged = base.on_close_deadline(state, self.acknowledged),
            Event::Asked(Ask::Abort) => base.abort(state),
            // The connection is ending already.
            Event::Asked(_) | Event::Disconnect => {}
            event => return Phase::Closing(self).by_default(base, state, event),
        }
        Phase::Closing(self)
    }

    /// Called when bytes that begin at stream offset `offset` have arrived and were dropped. With
    /// InfiniBand's semantics the peer's requests succeed when TCP acknowledges their bytes. So if the bytes
    /// follow a graceful close, their acknowledgement is withheld and the connection is reset (RFC 9293
    /// section 3.6.1, for data after a CLOSE). The reset is sent only after the peer has acknowledged our
    /// last bytes: these bytes may report accepted requests, and a reset would end their retransmission.
    fn refuse(&mut self, base: &Base, state: &mut EngineState, offset: u64) {
        if self.completes_by_acknowledgement
            && base.report.error().is_none()
            && !std::mem::replace(&mut self.refuses, true)
        {
            state.tcp.withhold(base.conn, Some(offset));
            self.reset_if_heard(base, state);
        }
    }

    /// Resets the connection if the peer has sent more bytes after our graceful close, and has acknowledged
    /// all our bytes.
    fn reset_if_heard(&self, base: &Base, state: &mut EngineState) {
        let has_heard = state.tcp.info(base.conn).is_none_or(|info| info.unacknowledged == 0);
        if self.refuses && has_heard {
            state.tcp.abort(state.now, base.conn);
        }
    }

    /// Called when the peer has acknowledged bytes. Lets TCP acknowledge bytes again, once the peer knows
    /// which bytes were not accepted.
    fn on_acknowledged(&mut self, base: &Base, state: &mut EngineState) {
        if let (Some(until), Some(offset)) = (self.withheld_until, state.tcp.acknowledged(base.conn))
            && until <= offset
        {
            self.withheld_until = None;
            state.tcp.withhold(base.conn, None);
        }
        self.reset_if_heard(base, state);
    }
}
