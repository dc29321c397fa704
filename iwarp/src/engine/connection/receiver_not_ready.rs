//! A message of the peer that finds no receive request waits for one, where both ends have agreed on
//! InfiniBand's semantics. (There it is the peer that tries again, after a "receiver not ready", RNR.)
//!
//! The stream stops at that message. What arrives behind it is held, and counts as held, so that TCP's window
//! closes: a waiting connection takes at most a receive window of packet buffers. TCP acknowledges and probes
//! as usual, and this end sends as usual. A posted receive asks for the connection
//! ([`Ask::Receive`](crate::queues::Ask::Receive)), and the stream goes on with the same message.
//!
//! TCP tells the peer with each acknowledgement from where on its bytes are not taken
//! ([`tcp_lite::Stack::set_untaken`]). So the request of the peer completes when its message is taken
//! (`peer_not_ready.rs`).
//!
//! All that the peer sends behind the message waits as well: Writes, responses to Reads of this end, a
//! Terminate, FIN. A peer that has closed resets the connection in the end if this end does not.

use crate::memory::EpochGuard;
use crate::mpa::MpaError;
use crate::queues::Ask;
use crate::stream::{Failure, StreamContext};
use crate::verbs::ConnectionError;

use super::super::io::Io;
use super::full_operation::{FullState, ReceiveSnapshot};
use super::{Connection, Phase, duration};

impl Connection {
    /// A message waits. Called for each received buffer meanwhile.
    #[cold]
    pub(super) fn await_recv(&mut self, io: &mut Io) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        io.tcp.hold(self.conn, full.deframer.take_kept());
        io.tcp.set_untaken(self.conn, full.deframer.waits_from());
        full.stream.await_recv();
        if matches!(full.state, FullState::Open) && self.timers.deadline().is_none() {
            self.timers.watch_rnr(io.now);
        }
    }

    /// Receives the message that waits, and what is held behind it, as far as there are receive requests.
    pub(super) fn resume_receiving(&mut self, io: &mut Io, guard: &EpochGuard<'_>) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        if !full.deframer.waits() {
            return;
        }
        if matches!(full.state, FullState::Open) && !full.peer_closed {
            // It counts anew for the next message.
            self.timers.clear_deadline();
        }
        let before = ReceiveSnapshot::of(full, io);
        let context = StreamContext { guard, counters: &mut io.streams, pool: &mut io.request_pool };
        let result = full.resume(&mut io.held, context);
        self.after_receiving(io, before, result);
        if let Phase::FullOperation(full) = &self.phase
            && !full.is_terminating()
        {
            io.tcp.set_untaken(self.conn, full.deframer.waits_from());
        }
        if let Phase::FullOperation(full) = &mut self.phase
            && full.peer_closed
            && !full.deframer.waits()
        {
            full.peer_closed = false;
            if matches!(full.state, FullState::Open) {
                self.timers.clear_deadline();
            }
            self.on_peer_closed(io);
        }
    }

    /// The peer has sent FIN behind the message that waits. It waits for our FIN only so long, and so does
    /// this end for a receive request.
    pub(super) fn on_peer_closed_behind_waiting(&mut self, io: &mut Io) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        full.peer_closed = true;
        if matches!(full.state, FullState::Open) {
            self.timers.set_deadline(io.now + duration(io.config.close_timeout));
        }
    }

    /// The message has waited for too long. Without a FIN behind it, the peer gets the Terminate that it
    /// would have got at once without the agreement.
    pub(super) fn on_waiting_deadline(&mut self, io: &mut Io) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        if full.peer_closed {
            self.report.add(ConnectionError::PeerClosed);
            return self.fail(io, Failure::Lost(MpaError::Closed));
        }
        full.stream.stop_waiting();
        full.stream.qp().ask(Ask::Receive);
    }
}
