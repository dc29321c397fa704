//! The attributes of a queue pair that can change. The user sets some attributes, as with `ibv_modify_qp`.
//! The other attributes follow from the connection, such as those on which its endpoints agree.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use crate::memory::Access;
use crate::queues::usage::{Permit, Quota};

/// The values of [`Attributes::ib_semantics`] after a connection was established.
const AGREED: u8 = 1;
const NOT_AGREED: u8 = 2;

/// The value of [`Attributes::rnr_retry`] if the user has not set it.
const UNSET: u8 = u8::MAX;

pub(crate) struct Attributes {
    /// The maximum rights of the peer's messages, as bits of [`Access`].
    remote_access: AtomicU32,
    /// ORD and IRD of the connection, or `u32::MAX` before a connection was established. A Read or atomic
    /// needs an ORD of at least 1.
    ord: AtomicU32,
    ird: AtomicU32,
    /// Number of inbound Reads and atomics that were granted to the connection, a part of `max_read_slots`.
    read_slots: AtomicU32,
    /// [`AGREED`] if both endpoints use InfiniBand's semantics, and otherwise [`NOT_AGREED`]. 0 before a
    /// connection was established.
    ib_semantics: AtomicU8,
    /// Whether the queue pair stays usable when the peer ends the connection.
    outlives_peer: AtomicBool,
    /// Maximum number of retries of a message for which the peer has no receive request, or [`UNSET`].
    rnr_retry: AtomicU8,
    /// Time in microseconds for which send requests are retried when the queue pair has no peer.
    retry_us: AtomicU32,
    /// The Q_Key of a queue pair of datagrams.
    qkey: AtomicU32,
    /// Whether send requests are being retried because the queue pair has no peer. During that time these
    /// requests stay in the send queue.
    retries: AtomicBool,
}

impl Attributes {
    pub(super) fn new() -> Self {
        Self {
            remote_access: AtomicU32::new(Access::REMOTE.bits()),
            ord: AtomicU32::new(u32::MAX),
            ird: AtomicU32::new(u32::MAX),
            read_slots: AtomicU32::new(0),
            ib_semantics: AtomicU8::new(0),
            outlives_peer: AtomicBool::new(false),
            rnr_retry: AtomicU8::new(UNSET),
            retry_us: AtomicU32::new(0),
            qkey: AtomicU32::new(0),
            retries: AtomicBool::new(false),
        }
    }

    /// Sets the Q_Key that datagrams to this queue pair need.
    pub(crate) fn set_qkey(&self, qkey: u32) {
        self.qkey.store(qkey, Ordering::Relaxed);
    }

    pub(crate) fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Relaxed)
    }

    /// Records, before a connection is made, whether the queue pair outlives its peer. Until the endpoints
    /// have agreed on the semantics, `outlives_peer` has an effect if the user wants InfiniBand's semantics.
    pub(crate) fn connecting(&self, ib_semantics: bool, outlives_peer: bool) {
        self.outlives_peer.store(ib_semantics && outlives_peer, Ordering::Release);
    }

    /// Records ORD, IRD and the semantics on which the endpoints have agreed. `outlives_peer` has an effect
    /// only with InfiniBand's semantics.
    pub(super) fn agree(&self, (ord, ird): (u16, u16), ib_semantics: bool, outlives_peer: bool) {
        self.connecting(ib_semantics, outlives_peer);
        self.ord.store(u32::from(ord), Ordering::Release);
        self.ird.store(u32::from(ird), Ordering::Release);
        self.ib_semantics.store(if ib_semantics { AGREED } else { NOT_AGREED }, Ordering::Release);
    }

    /// Returns ORD and IRD, or `None` for each of them before a connection was established.
    pub(crate) fn depths(&self) -> [Option<u16>; 2] {
        [&self.ord, &self.ird].map(|depth| u16::try_from(depth.load(Ordering::Acquire)).ok())
    }

    /// Whether this endpoint may send Reads and atomics. Returns `false` if the endpoints have agreed on an
    /// ORD of 0, and `true` before a connection was established.
    pub(super) fn allows_reads(&self) -> bool {
        self.ord.load(Ordering::Acquire) != 0
    }

    /// Records the number of inbound Reads and atomics that are granted to the connection that is about to be
    /// made.
    pub(super) fn grant_read_slots(&self, read_slots: Permit) {
        self.read_slots.store(read_slots.into_count() as u32, Ordering::Release);
    }

    /// Reduces the number of granted inbound Reads and atomics to at most `count`. Returns the surplus to
    /// `quota`, which had granted it.
    pub(super) fn shrink_read_slots(&self, quota: &Quota, count: usize) {
        let left = u32::try_from(count).unwrap_or(u32::MAX);
        let fewer = |granted: u32| (granted > left).then_some(left);
        if let Ok(granted) = self.read_slots.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer) {
            quota.take_back((granted - left) as usize);
        }
    }

    /// Whether both endpoints use InfiniBand's semantics. `None` before a connection was established.
    pub(crate) fn ib_semantics(&self) -> Option<bool> {
        match self.ib_semantics.load(Ordering::Acquire) {
            AGREED => Some(true),
            NOT_AGREED => Some(false),
            _ => None,
        }
    }

    /// Whether the queue pair has or had a connection.
    pub(crate) fn was_connected(&self) -> bool {
        self.ib_semantics().is_some()
    }

    pub(super) fn outlives_peer(&self) -> bool {
        self.outlives_peer.load(Ordering::Acquire)
    }

    /// Records that the user has ended the connection, so that the queue pair does not stay usable.
    pub(crate) fn end_by_user(&self) {
        self.outlives_peer.store(false, Ordering::Release);
    }

    /// Sets the time for which send requests are retried when the queue pair has no peer.
    pub(crate) fn set_retry_time(&self, time: Duration) {
        self.retry_us.store(u32::try_from(time.as_micros()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Returns the time for which send requests are retried when the queue pair has no peer. Initially the
    /// time is zero: the oldest request fails at once.
    pub(crate) fn retry_time(&self) -> Duration {
        Duration::from_micros(self.retry_us.load(Ordering::Relaxed).into())
    }

    /// Begins or ends the time in which send requests are retried because the queue pair has no peer.
    pub(crate) fn set_retries(&self, retries: bool) {
        self.retries.store(retries, Ordering::Release);
    }

    pub(crate) fn retries(&self) -> bool {
        self.retries.load(Ordering::Acquire)
    }

    /// Limits the rights of the peer's messages to `access`.
    pub(crate) fn set_remote_access(&self, access: Access) {
        self.remote_access.store(access.bits(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn remote_access(&self) -> Access {
        Access::from_bits_truncate(self.remote_access.load(Ordering::Relaxed))
    }

    /// Sets the maximum number of retries of a message for which the peer has no receive request.
    pub(crate) fn set_rnr_retry(&self, retry: u8) {
        self.rnr_retry.store(retry, Ordering::Relaxed);
    }

    /// Returns the maximum number of retries, or `None` if the user has not set it.
    pub(crate) fn rnr_retry(&self) -> Option<u8> {
        Some(self.rnr_retry.load(Ordering::Relaxed)).filter(|retry| *retry != UNSET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_agreed_before_there_is_a_connection() {
        let attributes = Attributes::new();
        assert_eq!((attributes.depths(), attributes.ib_semantics()), ([None, None], None));
        assert!(attributes.allows_reads() && !attributes.outlives_peer());
        assert_eq!((attributes.rnr_retry(), attributes.remote_access()), (None, Access::REMOTE));
    }

    #[test]
    fn what_is_agreed_counts() {
        for (depths, ib_semantics) in [((3, 5), false), ((0, 1), true), ((u16::MAX, 0), true)] {
            let attributes = Attributes::new();
            attributes.agree(depths, ib_semantics, false);
            assert_eq!(attributes.depths(), [Some(depths.0), Some(depths.1)]);
            assert_eq!(attributes.ib_semantics(), Some(ib_semantics));
            assert_eq!(attributes.allows_reads(), depths.0 > 0);
        }
    }

    /// A queue pair outlives its peer only if its user has requested this and InfiniBand's semantics are in
    /// use.
    #[test]
    fn only_infinibands_semantics_outlive_a_peer() {
        for (ib_semantics, wanted) in [(false, false), (false, true), (true, false), (true, true)] {
            let attributes = Attributes::new();
            let outlives = ib_semantics && wanted;
            attributes.connecting(ib_semantics, wanted);
            assert_eq!((attributes.outlives_peer(), attributes.ib_semantics()), (outlives, None));
            attributes.connecting(true, true);
            attributes.agree((1, 1), ib_semantics, wanted);
            assert_eq!(attributes.outlives_peer(), outlives);
            attributes.end_by_user();
            assert!(!attributes.outlives_peer());
        }
    }

    /// Granted Reads beyond the agreed number are returned to the quota exactly once.
    #[test]
    fn granted_reads_are_returned_once() {
        let (attributes, quota) = (Attributes::new(), Quota::new("", 100));
        let used = || quota.usage().used;
        attributes.shrink_read_slots(&quota, 0);
        attributes.grant_read_slots(quota.take(60).unwrap());
        assert_eq!(used(), 60);
        for (count, left) in [(70, 60), (60, 60), (20, 20), (30, 20), (0, 0), (0, 0)] {
            attributes.shrink_read_slots(&quota, count);
            assert_eq!(used(), left, "{count}");
        }
    }

    #[test]
    fn the_user_sets_rights_and_tries() {
        let attributes = Attributes::new();
        attributes.set_remote_access(Access::REMOTE_READ);
        attributes.set_rnr_retry(0);
        assert_eq!((attributes.remote_access(), attributes.rnr_retry()), (Access::REMOTE_READ, Some(0)));
        attributes.set_rnr_retry(7);
        assert_eq!(attributes.rnr_retry(), Some(7));
        assert_eq!((attributes.retry_time(), attributes.retries()), (Duration::ZERO, false));
        for (time, kept) in [(7, 7), (u64::MAX, u32::MAX.into())] {
            attributes.set_retry_time(Duration::from_micros(time));
            assert_eq!(attributes.retry_time(), Duration::from_micros(kept));
        }
    }
}
