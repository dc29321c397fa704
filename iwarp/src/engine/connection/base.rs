//! The part of a connection's state that every phase has.

use std::sync::Arc;
use std::time::Duration;

use dp::Mbuf;
use tcp_lite::{CloseReason, ConnId, Instant};

use crate::mpa::Negotiated;
use crate::queues::{QpShared, QpState};
use crate::verbs::{Admitted, CmEventKind, ConnectionError, KeepalivePolicy, PlainBytes};

use super::super::state::EngineState;
use super::super::trace;
use super::pre_fpdu::{PreFpdu, Progress, Sent};
use super::reassembly::Reassembly;
use super::report::{Announced, Announcement, Report, User};
use super::retry::Attempt;
use super::timers::{Timers, duration};

pub(super) struct Base {
    pub(super) conn: ConnId,
    /// The queue pair of the connection; `None` while there is no queue pair.
    pub(super) qp: Option<Arc<QpShared>>,
    /// Counts the connection at the listener that accepted it; `None` if this side opened the connection.
    pub(super) admitted: Option<Admitted>,
    pub(super) user: User,
    /// Bytes to send before the first FPDU. The last of these bytes may be sent in Full Operation.
    pub(super) pre_fpdu: PreFpdu,
    pub(super) timers: Timers,
    pub(super) report: Report,
    pub(super) attempt: Attempt,
}

impl Base {
    pub(super) fn new(conn: ConnId, deadline: Option<Instant>) -> Self {
        Self {
            conn,
            qp: None,
            admitted: None,
            user: User::Unaware,
            pre_fpdu: PreFpdu::default(),
            timers: Timers::new(deadline),
            report: Report::default(),
            attempt: Attempt::First,
        }
    }

    // ---- its user, its listener and its queue pair ----

    pub(super) fn announce(&self, kind: CmEventKind) {
        if let Some(id) = self.user.id() {
            id.announce(None, kind);
        }
    }

    pub(super) fn announce_established(&mut self, state: &mut EngineState, announcement: Announcement) {
        let Announcement { negotiated, agreement, idle_timeout, ready } = announcement;
        self.report.announced = Announced::Established;
        state.counters.connections += 1;
        state.counters.connections_without_crc += u64::from(!negotiated.crc);
        self.set_established(state, idle_timeout);
        trace::established(state, self.conn, self.qp.as_ref(), &negotiated);
        let Negotiated { tx_markers, rx_markers, ird, ord, private_data, peer, revision, .. } = negotiated;
        // RFC 5044 section 3 (MPA-037), RFC 6581 section 9.1 (MPA2-058): the event reports the peer's
        // revision and depths to the user.
        self.announce(CmEventKind::Established {
            private_data: private_data.as_slice().into(),
            ord,
            ird,
            peer,
            revision,
            fell_back: matches!(self.attempt, Attempt::Second { .. }),
            markers: (tx_markers, rx_markers),
            ib_semantics: agreement.ib_semantics(),
            ready,
        });
    }

    /// Called when streaming mode begins or the RDMA stream is established: the connection's age and idle
    /// timeout start now.
    pub(super) fn set_established(&mut self, state: &EngineState, idle_timeout: Option<Duration>) {
        if let Some(id) = self.user.id() {
            id.set_established(state.now_us());
        }
        self.timers.watch_idle(state.now, idle_timeout);
    }

    /// Records that data was received or sent.
    pub(super) fn note_progress(&self, state: &EngineState) {
        if let Some(id) = self.user.id() {
            id.set_progress(state.now_us());
        }
    }

    /// Whether no data was received or sent for longer than the user allows. If so, records the idle timeout
    /// as the error.
    pub(super) fn has_idled(&mut self, state: &EngineState) -> bool {
        let progress_us = self.user.id().map_or(0, |id| id.progress_us());
        let is_idle = self.timers.is_idle(Instant::from_micros(progress_us as i64), state.now);
        if is_idle {
            self.report.add(ConnectionError::IdleTimeout);
        }
        is_idle
    }

    pub(super) fn leave_backlog(&mut self) {
        if let Some(admitted) = &mut self.admitted {
            admitted.decide();
        }
    }

    /// Counts that this side rejects the Request, and removes the connection from its listener's backlog.
    pub(super) fn count_rejected(&mut self) {
        self.leave_backlog();
        if let Some(admitted) = &self.admitted {
            admitted.listener.count(|stats| stats.rejected += 1);
        }
    }

    /// Called when the connection has failed through the peer's fault. The listener counts the failure
    /// against the peer's address.
    pub(super) fn count_peer_failure(&self, state: &mut EngineState) {
        if let Some(admitted) = &self.admitted {
            state.count_peer_failure(&admitted.id, admitted.address());
        }
    }

    /// Counts at the listener that a connection ended during startup, before the connection had a user.
    fn count_end(&self, error: Option<ConnectionError>) {
        if let Some(admitted) = &self.admitted
            && admitted.is_undecided()
        {
            admitted.listener.count(|stats| match error {
                Some(ConnectionError::StartupTimeout) => stats.startup_timeouts += 1,
                Some(ConnectionError::Startup(_)) => stats.startup_faults += 1,
                _ => stats.startup_lost += 1,
            });
        }
    }

    /// Records that MPA startup has failed because of `error`.
    pub(super) fn note_startup_failure(&mut self, state: &mut EngineState, error: ConnectionError) {
        self.report.add(error);
        trace::startup_failed(state, self.conn, error);
        if matches!(error, ConnectionError::StartupTimeout | ConnectionError::Startup(_)) {
            self.count_peer_failure(state);
        }
    }

    /// Sets the cause of the queue pair's end before any request is flushed. The cause is the first error.
    /// Without an error, the cause is that the peer has closed the connection. No cause is set if the user
    /// has aborted the connection, if the user has closed the connection and no error has occurred, or if a
    /// second attempt to connect follows.
    pub(super) fn name_cause(&self) {
        let Some(qp) = &self.qp else { return };
        let cause = match self.report.error() {
            _ if matches!(self.attempt, Attempt::Failed(_)) => return,
            Some(ConnectionError::Tcp(CloseReason::Aborted)) => return,
            None if qp.signals.is_close_asked() => return,
            None => ConnectionError::PeerClosed,
            Some(error) => error,
        };
        qp.state.blame(cause);
    }

    /// Whether the queue pair outlives the connection at the user's request. It does so if the peer has ended
    /// the connection by FIN or RST, or if the connection was never established. A queue pair of type UC
    /// outlives every end except a failure of the stream.
    pub(super) fn is_orphan(&self) -> bool {
        let Some(qp) = &self.qp else { return false };
        let ended_by_peer = match self.report.error() {
            None | Some(ConnectionError::Tcp(CloseReason::Reset)) => true,
            Some(ConnectionError::Stream(_)) => false,
            Some(_) => qp.config.is_unreliable(),
        };
        (ended_by_peer || !qp.attributes.was_connected()) && qp.outlives_peer()
    }

    /// Flushes requests that were posted after the stream ended.
    pub(super) fn flush_late(&self) {
        if let Some(qp) = &self.qp
            && matches!(qp.state.get(), QpState::Terminate | QpState::Error)
        {
            qp.flush();
        }
    }

    /// Called when TCP is closed and the phases are over. With `is_orphan`, a queue pair that is not in
    /// `Error` outlives the connection; any other queue pair is flushed. Reports the end to the user once.
    /// Does nothing if a second attempt to connect follows.
    pub(super) fn finish(&mut self, state: &mut EngineState, is_orphan: bool) {
        if matches!(self.attempt, Attempt::Failed(_)) {
            return;
        }
        match &self.qp {
            Some(qp) if is_orphan && qp.state.get() == QpState::Orphaned => {}
            Some(qp) if is_orphan && qp.state.get() != QpState::Error => {
                let retries = qp.attributes.was_connected();
                let retry_time = if retries { qp.attributes.retry_time() } else { Duration::ZERO };
                qp.orphan(retry_time);
                if !retry_time.is_zero() {
                    state.orphans.insert(state.now + duration(retry_time), qp);
                }
            }
            Some(qp) => qp.end_with_peer(),
            None => {}
        }
        let kind = self.report.last_event();
        let error = self.report.error();
        state.counters.connections_failed += u64::from(error.is_some());
        trace::ended(state, self.user.id(), self.qp.as_ref(), error);
        match self.user.take() {
            User::Unaware => self.count_end(error),
            // `set_over` is called before the event is announced. After `set_over`, an `accept` of the user
            // is refused. If the user has accepted before `set_over`, the user receives this event.
            User::Known(id) => {
                id.set_over(error);
                id.announce(None, kind);
            }
            User::Done => {}
        }
    }

    // ---- TCP ----

    pub(super) fn schedule_tx(&self, state: &mut EngineState) {
        state.schedule_tx(self.conn);
    }

    pub(super) fn apply_keepalive(&self, state: &mut EngineState, keepalive: KeepalivePolicy) {
        let keepalive = match keepalive {
            KeepalivePolicy::Engine => return,
            KeepalivePolicy::Off => None,
            KeepalivePolicy::Probe { idle, interval, probes } => {
                let (idle, interval) = (duration(idle), duration(interval));
                Some(tcp_lite::Keepalive { idle, interval, probes })
            }
        };
        state.tcp.set_keepalive(state.now, self.conn, keepalive);
    }

    /// Drops received bytes. TCP's budget counts out-of-order bytes until they are released.
    pub(super) fn discard(&self, state: &mut EngineState, offset: u64, buf: &Mbuf, frontier: u64) {
        if offset >= frontier {
            state.tcp.release(self.conn, buf.len());
        }
    }

    /// Drops the bytes that a phase before Full Operation holds.
    pub(super) fn drop_reassembly(&self, state: &mut EngineState, mut reassembly: Reassembly) {
        state.tcp.release(self.conn, reassembly.clear(&mut state.held));
    }

    /// Queues a startup frame after the bytes that are queued already, and sends what TCP accepts now.
    pub(super) fn send_frame(&mut self, state: &mut EngineState, bytes: &[u8]) {
        self.pre_fpdu.push_frame(bytes);
        self.begin_to_send(state);
    }

    /// Hands as many of the bytes before the first FPDU to TCP as TCP accepts now. If no packet buffer is
    /// free, schedules the connection to send again.
    pub(super) fn begin_to_send(&mut self, state: &mut EngineState) {
        if self.send_pre_fpdu(state, None) == Sent::NoMbuf {
            self.schedule_tx(state);
        }
    }

    /// Hands to TCP the bytes that have to be sent before the first FPDU. In streaming mode the user may add
    /// bytes in `plain`, which are sent as well.
    pub(super) fn send_pre_fpdu(&mut self, state: &mut EngineState, plain: Option<&PlainBytes>) -> Sent {
        let Progress { result, some, writable } = self.pre_fpdu.send(state, self.conn, plain);
        if some {
            self.note_progress(state);
        }
        if writable {
            self.announce(CmEventKind::StreamWritable);
        }
        result
    }

    /// Sets the deadline of a close. The deadline is extended as long as the peer acknowledges bytes, since
    /// up to a whole send buffer is sent before our FIN. Returns the number of bytes that the peer has
    /// acknowledged.
    pub(super) fn set_close_deadline(&mut self, state: &EngineState) -> u64 {
        self.timers.set_deadline(state.now + duration(state.config.close_timeout));
        self.acknowledged_bytes(state)
    }

    /// Called when the deadline of a close has passed: resets the connection, unless the peer has
    /// acknowledged more than `acknowledged` bytes by now. Returns the number of bytes acknowledged by now.
    pub(super) fn on_close_deadline(&mut self, state: &mut EngineState, acknowledged: u64) -> u64 {
        if self.acknowledged_bytes(state) > acknowledged {
            return self.set_close_deadline(state);
        }
        self.close_timeout(state);
        acknowledged
    }

    /// Returns the number of our bytes that the peer has acknowledged.
    fn acknowledged_bytes(&self, state: &EngineState) -> u64 {
        state.tcp.info(self.conn).map_or(0, |info| info.send_offset.saturating_sub(info.unacknowledged))
    }

    /// Resets the connection because its close takes too long.
    pub(super) fn close_timeout(&mut self, state: &mut EngineState) {
        self.report.add(ConnectionError::CloseTimeout);
        state.tcp.abort(state.now, self.conn);
    }

    /// Ends the connection at once.
    pub(super) fn abort(&mut self, state: &mut EngineState) {
        if let Some(qp) = &self.qp {
            qp.attributes.end_by_user();
        }
        self.report.add(ConnectionError::Tcp(CloseReason::Aborted));
        state.tcp.abort(state.now, self.conn);
    }
}
