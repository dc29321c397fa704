//! The attributes of a queue pair that change: some are set by its user, as with `ibv_modify_qp`; on others
//! the ends of its connection agree.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use crate::memory::Access;
use crate::queues::usage::{Permit, Quota};

/// The values of [`Attributes::ib_semantics`] once there is a connection.
const AGREED: u8 = 1;
const NOT_AGREED: u8 = 2;

/// The user has set no [`Attributes::rnr_retry`].
const UNSET: u8 = u8::MAX;

/// The attributes of a queue pair that change.
pub(crate) struct Attributes {
    /// The maximum rights of the peer's messages: bits of [`Access`].
    remote_access: AtomicU32,
    /// ORD and IRD of the connection; `u32::MAX` before there is one. A Read or atomic needs an ORD of at
    /// least 1.
    ord: AtomicU32,
    ird: AtomicU32,
    /// Inbound Reads and atomics that the connection was granted, out of `max_read_slots`.
    read_slots: AtomicU32,
    /// [`AGREED`] if both ends use InfiniBand's semantics, else [`NOT_AGREED`]; 0 before there is a
    /// connection.
    ib_semantics: AtomicU8,
    /// True if the queue pair stays when the peer ends the connection.
    outlives_peer: AtomicBool,
    /// Maximum retries of a message that finds no receive request, or [`UNSET`].
    rnr_retry: AtomicU8,
    /// How long a request is retried that finds no peer, in microseconds.
    retry_us: AtomicU32,
    /// True while such requests are retried: they stay in the send queue.
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
            retries: AtomicBool::new(false),
        }
    }

    /// Called before a connection is made. Until the ends agree, `outlives_peer` applies if the user wants
    /// InfiniBand's semantics.
    pub(crate) fn connecting(&self, ib_semantics: bool, outlives_peer: bool) {
        self.outlives_peer.store(ib_semantics && outlives_peer, Ordering::Release);
    }

    /// The ends have agreed on these depths, ORD and IRD. `outlives_peer` counts with InfiniBand's semantics
    /// only.
    pub(super) fn agree(&self, (ord, ird): (u16, u16), ib_semantics: bool, outlives_peer: bool) {
        self.connecting(ib_semantics, outlives_peer);
        self.ord.store(u32::from(ord), Ordering::Release);
        self.ird.store(u32::from(ird), Ordering::Release);
        self.ib_semantics.store(if ib_semantics { AGREED } else { NOT_AGREED }, Ordering::Release);
    }

    /// ORD and IRD, once connected.
    pub(crate) fn depths(&self) -> [Option<u16>; 2] {
        [&self.ord, &self.ird].map(|depth| u16::try_from(depth.load(Ordering::Acquire)).ok())
    }

    /// False if the ends have agreed on an ORD of 0: then a Read or atomic of this end is refused.
    pub(super) fn allows_reads(&self) -> bool {
        self.ord.load(Ordering::Acquire) != 0
    }

    /// Grants inbound Reads and atomics to the connection that is about to be made.
    pub(super) fn grant_read_slots(&self, read_slots: Permit) {
        self.read_slots.store(read_slots.into_count() as u32, Ordering::Release);
    }

    /// Returns the inbound Reads and atomics above `count` to `quota`, from which they were taken.
    pub(super) fn shrink_read_slots(&self, quota: &Quota, count: usize) {
        let left = u32::try_from(count).unwrap_or(u32::MAX);
        let fewer = |granted: u32| (granted > left).then_some(left);
        if let Ok(granted) = self.read_slots.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer) {
            quota.take_back((granted - left) as usize);
        }
    }

    /// True if both ends use InfiniBand's semantics; `None` before there is a connection.
    pub(crate) fn ib_semantics(&self) -> Option<bool> {
        match self.ib_semantics.load(Ordering::Acquire) {
            AGREED => Some(true),
            NOT_AGREED => Some(false),
            _ => None,
        }
    }

    /// True if there is or was a connection.
    pub(crate) fn was_connected(&self) -> bool {
        self.ib_semantics().is_some()
    }

    /// True if a request completes when the peer has taken its message.
    pub(crate) fn completes_by_acknowledgement(&self) -> bool {
        self.ib_semantics() == Some(true)
    }

    /// True if the queue pair stays when the peer ends the connection.
    pub(super) fn outlives_peer(&self) -> bool {
        self.outlives_peer.load(Ordering::Acquire)
    }

    /// Called when the user has ended the connection: the queue pair does not stay.
    pub(crate) fn end_by_user(&self) {
        self.outlives_peer.store(false, Ordering::Release);
    }

    /// Sets how long a request is retried that finds no peer.
    pub(crate) fn set_retry_time(&self, time: Duration) {
        self.retry_us.store(u32::try_from(time.as_micros()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// How long a request is retried that finds no peer; zero, initially: it fails at once.
    pub(crate) fn retry_time(&self) -> Duration {
        Duration::from_micros(self.retry_us.load(Ordering::Relaxed).into())
    }

    /// Begins or ends the time in which requests are retried that find no peer.
    pub(crate) fn set_retries(&self, retries: bool) {
        self.retries.store(retries, Ordering::Release);
    }

    /// True while requests are retried that find no peer.
    pub(crate) fn retries(&self) -> bool {
        self.retries.load(Ordering::Acquire)
    }

    /// Limits the rights of the peer's messages to these.
    pub(crate) fn set_remote_access(&self, access: Access) {
        self.remote_access.store(access.bits(), Ordering::Relaxed);
    }

    /// The maximum rights of the peer's messages.
    #[inline]
    pub(crate) fn remote_access(&self) -> Access {
        Access::from_bits_truncate(self.remote_access.load(Ordering::Relaxed))
    }

    /// Sets the maximum retries of a message that finds no receive request at the peer.
    pub(crate) fn set_rnr_retry(&self, retry: u8) {
        self.rnr_retry.store(retry, Ordering::Relaxed);
    }

    /// The maximum retries, if set.
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

    /// A queue pair outlives its peer only if its user asks for it and InfiniBand's semantics are in use.
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

    /// Granted Reads beyond the agreed number are returned, each once.
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
