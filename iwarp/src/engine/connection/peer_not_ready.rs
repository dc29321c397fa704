//! A message of ours waits at the peer for a receive request, where both ends have agreed on InfiniBand's
//! semantics (`receiver_not_ready.rs` of the peer). Its request and those behind it complete when the peer
//! has taken it. Nothing is sent again: the peer has the message.
//!
//! InfiniBand counts how often the message is sent again, each time after a time that the peer has told. Here
//! it counts how long the message waits: as long as these tries would take. Then its request fails with
//! [`WcStatus::RnrRetryExceeded`](crate::queues::WcStatus), and the connection is reset, so that the peer
//! drops the message.
//!
//! The acknowledgement that says that the message is taken may be lost, as no other one need follow it. So
//! the peer is probed while a message waits.

use tcp_lite::{Deadline, Duration, Instant};

use super::super::io::Io;
use super::full_operation::FullState;
use super::{Connection, Phase, duration};
use crate::verbs::{ConnectionError, QpState, RNR_RETRY_FOR_EVER};

/// The time before the first probe. Each further one doubles it.
const FIRST_PROBE: Duration = Duration::from_millis(100);
/// The longest time between two probes.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// The messages that the peer has not taken, while there are any.
pub(super) struct PeerNotReady {
    /// Where the oldest of them begins, or a little before that.
    from: u64,
    /// When its request fails.
    fails: Deadline,
    /// When to probe, and the time before the next probe.
    probe: Deadline,
    pause: Duration,
}

impl PeerNotReady {
    /// The peer has not taken the message that begins at `from`.
    fn new(from: u64, fails: Deadline, now: Instant) -> Self {
        let mut untaken = Self { from, fails, probe: Deadline::NONE, pause: FIRST_PROBE };
        untaken.set_probe(now);
        untaken
    }

    fn set_probe(&mut self, now: Instant) {
        self.probe = Some(now + self.pause).into();
        self.pause = (self.pause + self.pause).min(PROBE_MAX);
    }

    /// When to look again.
    fn next(&self) -> Deadline {
        self.fails.min(self.probe)
    }
}

impl Connection {
    /// The peer has acknowledged the bytes up to `acknowledged`, and taken those up to `taken`.
    #[cold]
    pub(super) fn watch_untaken(&mut self, io: &mut Io, taken: u64, acknowledged: u64) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        let is_watched = full.untaken.as_ref().is_some_and(|untaken| untaken.from == taken);
        if taken >= acknowledged {
            full.untaken = None;
        } else if !is_watched {
            // Each message has the whole time.
            let retry = full.stream.qp().attributes.rnr_retry().unwrap_or(full.peer_rnr.rnr_retry);
            let time = full.peer_rnr.rnr_time() * u32::from(retry);
            let fails = (retry < RNR_RETRY_FOR_EVER).then(|| io.now + duration(time));
            full.untaken = Some(Box::new(PeerNotReady::new(taken, fails.into(), io.now)));
        }
        self.rewatch_untaken();
    }

    /// Sets when to look again.
    fn rewatch_untaken(&mut self) {
        let Phase::FullOperation(full) = &self.phase else { return };
        self.timers.watch_untaken(full.untaken.as_ref().map_or(Deadline::NONE, |untaken| untaken.next()));
    }

    /// Time has passed while a message was not taken.
    pub(super) fn on_untaken(&mut self, io: &mut Io) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        let Some(untaken) = &mut full.untaken else { return };
        if untaken.fails.has_passed(io.now) {
            if matches!(full.state, FullState::Open) {
                return self.give_up_untaken(io);
            }
            // The end of the connection has deadlines of its own.
            untaken.fails = Deadline::NONE;
        }
        if untaken.probe.has_passed(io.now) {
            io.tcp.probe(io.now, self.conn);
            untaken.set_probe(io.now);
        }
        self.rewatch_untaken();
    }

    /// The message has waited for too long.
    fn give_up_untaken(&mut self, io: &mut Io) {
        self.report.add(ConnectionError::ReceiverNotReady);
        self.name_cause();
        let Phase::FullOperation(full) = &mut self.phase else { return };
        full.stream.fail_untaken();
        full.stream.qp().state.set(QpState::Error);
        io.tcp.abort(io.now, self.conn);
    }
}
