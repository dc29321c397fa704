//! The state that all objects of a context share, such as its limits, its memory table, its asynchronous
//! events, and the numbers of its objects.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::memory::{MemoryTable, StreamId};

use super::usage::Quota;
use super::{AsyncEvents, Listed, QpStatus, VerbsError};

/// Limits on the objects of a context. A call that would exceed a limit is refused with
/// [`VerbsError::Limit`]. (Events that exceed `max_async_events` or `max_cm_events` are not refused, but kept
/// or lost.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLimits {
    /// Maximum number of protection domains. Default: 16,384.
    pub max_pd: usize,
    /// Maximum number of memory regions. Default: 65,536.
    pub max_mr: usize,
    /// Maximum number of memory windows. Default: 65,536.
    pub max_mw: usize,
    /// Maximum number of queue pairs. Default: 16,384.
    pub max_qp: usize,
    /// Maximum number of completion queues. Default: 16,384.
    pub max_cq: usize,
    /// Maximum number of entries of one completion queue. Default: 1,048,576.
    pub max_cqe: usize,
    /// Maximum number of entries of all completion queues together. Default: 16,777,216.
    pub max_cqe_total: usize,
    /// Maximum number of requests of one send or receive queue. Default: 32,768.
    pub max_qp_wr: usize,
    /// Maximum number of shared receive queues. Default: 16,384.
    pub max_srq: usize,
    /// Maximum number of requests of one shared receive queue. Default: 1,048,576.
    pub max_srq_wr: usize,
    /// Maximum number of inbound Reads and atomics that all connections together may have outstanding. A
    /// connection counts with its IRD. If its queue pair has enabled atomics
    /// ([`Extensions::ATOMICS`](crate::verbs::Extensions::ATOMICS), the default), it counts with twice its
    /// IRD, since atomics have separate buffers. Before the depths are negotiated, a connection counts with
    /// the largest IRD that the negotiation can give:
    /// [`ConnParam::responder_resources`](crate::verbs::ConnParam::responder_resources), and at least 128 if
    /// this endpoint is the initiator. Default: 4,194,304.
    pub max_read_slots: usize,
    /// Maximum number of asynchronous events in the queue. If the queue is full, objects keep their further
    /// events, one of each kind, until the queue has room. Default: 1024.
    pub max_async_events: usize,
    /// Maximum number of events that wait in one event channel. Further events are kept only if they belong
    /// to identifiers that the program holds ([`EventChannel`](crate::verbs::EventChannel#limit)). All other
    /// further events are lost and counted. Default: 512.
    pub max_cm_events: usize,
}

/// The default limits are for 16,384 connections, each with 1024 completion entries and 2 x 128 Read slots
/// (the default IRD, for Reads and for atomics). Objects allocate their memory when they are created, so a
/// high limit on objects costs almost no memory. But the event queues are allocated in advance, so their
/// limits are low.
impl Default for ContextLimits {
    fn default() -> Self {
        Self {
            max_pd: 16_384,
            max_mr: 65_536,
            max_mw: 65_536,
            max_qp: 16_384,
            max_cq: 16_384,
            max_cqe: 1 << 20,
            max_cqe_total: 1 << 24,
            max_qp_wr: 32_768,
            max_srq: 16_384,
            max_srq_wr: 1 << 20,
            max_read_slots: 16_384 * 2 * 128,
            max_async_events: 1024,
            max_cm_events: 512,
        }
    }
}

pub(crate) struct Resources {
    pub(crate) limits: ContextLimits,
    pub(crate) quotas: Quotas,
    pub(crate) events: AsyncEvents,
    pub(crate) memory: MemoryTable,
    /// Whether requests with invalid local memory are accepted, and fail later.
    pub(crate) late_memory_checks: bool,
    qp_nums: QpNumbers,
    /// The stream number that was assigned last. Each queue pair has one stream number.
    streams: AtomicU64,
    pd_nums: Numbers,
    cq_nums: Numbers,
    srq_nums: Numbers,
}

/// Numbers for queue pairs. A number has 24 bits, the size in which programs exchange these numbers, and is
/// not a number with a special meaning in InfiniBand: 0, 1 and 0xFF_FFFF. With a prefix, the first 8 bits of
/// each number are the prefix, and the other bits are neither 0 nor 1 nor 0xFFFF. A freed number is used
/// again only after every other free number. So even if a peer still uses a freed number, for a long time the
/// number does not name another queue pair. (A region that is limited to a queue pair names the queue pair's
/// stream, whose number is never reused.)
struct QpNumbers {
    range: RangeInclusive<u32>,
    in_use: Mutex<QpNumbersInUse>,
}

struct QpNumbersInUse {
    /// The next number to try.
    next: u32,
    /// The queue pairs by number. While a queue pair is being created, its entry is `None`.
    used: BTreeMap<u32, Option<Weak<dyn Listed>>>,
}

/// Numbers for one kind of object other than queue pairs: 1, 2, and so on. A number is never 0 and is never
/// reused, so the number of a destroyed object never names another object.
struct Numbers {
    kind: &'static str,
    next: AtomicU32,
}

/// The limits on the objects of a context, and how much of each limit is in use.
pub(crate) struct Quotas {
    pub(crate) pd: Arc<Quota>,
    pub(crate) qp: Arc<Quota>,
    pub(crate) cq: Arc<Quota>,
    pub(crate) cqe: Arc<Quota>,
    pub(crate) srq: Arc<Quota>,
    pub(crate) read_slots: Arc<Quota>,
}

impl Resources {
    /// # Errors
    /// [`VerbsError::System`] if no descriptor is available for the events.
    pub(crate) fn new(
        limits: ContextLimits,
        memory: MemoryTable,
        late_memory_checks: bool,
        qp_num_prefix: Option<u8>,
    ) -> Result<Arc<Self>, VerbsError> {
        Ok(Arc::new(Self {
            limits,
            quotas: Quotas {
                pd: Quota::new("max_pd", limits.max_pd),
                qp: Quota::new("max_qp", limits.max_qp),
                cq: Quota::new("max_cq", limits.max_cq),
                cqe: Quota::new("max_cqe_total", limits.max_cqe_total),
                srq: Quota::new("max_srq", limits.max_srq),
                read_slots: Quota::new("max_read_slots", limits.max_read_slots),
            },
            events: AsyncEvents::new(limits.max_async_events)?,
            memory,
            late_memory_checks,
            qp_nums: QpNumbers::new(qp_num_prefix),
            streams: AtomicU64::new(0),
            pd_nums: Numbers::new("protection domain numbers"),
            cq_nums: Numbers::new("completion queue numbers"),
            srq_nums: Numbers::new("shared receive queue numbers"),
        }))
    }

    /// Checks that an object of `other` may be used with this context. Objects of different contexts may not
    /// be used together, since each context has its own numbers, memory and limits.
    pub(crate) fn same(&self, other: &Self) -> Result<(), VerbsError> {
        // RFC 5040 sections 8.1.1 and 8.1.2 (RDMAP-359, RDMAP-366): users of different contexts share
        // nothing.
        if std::ptr::eq(self, other) {
            return Ok(());
        }
        Err(VerbsError::Invalid("these objects are of different contexts, which share nothing".into()))
    }

    /// Reserves one queue pair of `max_qp` and a number for it. Returns the number. Fails if the limit is
    /// reached, or if all numbers are in use.
    pub(crate) fn take_qp_num(&self) -> Result<u32, VerbsError> {
        let permit = self.quotas.qp.take(1)?;
        let num = self.qp_nums.take()?;
        // `free_qp_num` returns this unit to the quota.
        permit.into_count();
        Ok(num)
    }

    /// Records the queue pair that has reserved `num`. From now on the queue pair can be found by this
    /// number.
    pub(crate) fn enter_qp(&self, num: u32, qp: &Arc<impl Listed + 'static>) {
        self.qp_nums.in_use().used.insert(num, Some(Arc::downgrade(qp) as Weak<dyn Listed>));
    }

    /// Returns the queue pair with this number, if it exists. The caller must not hold a lock that the drop
    /// of a queue pair takes, since the returned reference may be the last.
    pub(crate) fn qp(&self, num: u32) -> Option<Arc<dyn Listed>> {
        self.qp_nums.in_use().used.get(&num)?.as_ref()?.upgrade()
    }

    /// Returns the status of all queue pairs, in the order of their numbers.
    pub(crate) fn qps(&self) -> Vec<QpStatus> {
        // Any of these references may become the last reference to its queue pair. The drop of a queue pair
        // takes the lock, so the references are dropped after the lock is released.
        let in_use: Vec<_> =
            self.qp_nums.in_use().used.values().flatten().filter_map(Weak::upgrade).collect();
        in_use.iter().map(|qp| qp.status()).collect()
    }

    /// Frees the number of a queue pair that was destroyed.
    pub(crate) fn free_qp_num(&self, num: u32) {
        self.qp_nums.free(num);
        self.quotas.qp.take_back(1);
    }

    /// Returns the number of a new stream. The number is never reused.
    pub(crate) fn next_stream(&self) -> StreamId {
        StreamId(self.streams.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn next_pd_num(&self) -> Result<u32, VerbsError> {
        self.pd_nums.take()
    }

    pub(crate) fn next_cq_num(&self) -> Result<u32, VerbsError> {
        self.cq_nums.take()
    }

    pub(crate) fn next_srq_num(&self) -> Result<u32, VerbsError> {
        self.srq_nums.take()
    }
}

impl QpNumbers {
    /// Numbers 0 and 1 are those of InfiniBand's management, and the number after the last number means all
    /// queue pairs of a multicast group.
    const FIRST_NUMBER: u32 = 2;
    const LAST_NUMBER: u32 = (1 << 24) - 2;

    fn new(prefix: Option<u8>) -> Self {
        let range = match prefix {
            None => Self::FIRST_NUMBER..=Self::LAST_NUMBER,
            Some(prefix) => u32::from(prefix) << 16 | 2..=u32::from(prefix) << 16 | 0xfffe,
        };
        let in_use = QpNumbersInUse { next: *range.start(), used: BTreeMap::new() };
        Self { range, in_use: Mutex::new(in_use) }
    }

    /// # Errors
    /// [`VerbsError::Limit`] if all numbers are in use.
    fn take(&self) -> Result<u32, VerbsError> {
        let QpNumbersInUse { next, used } = &mut *self.in_use();
        let (first, last) = (*self.range.start(), *self.range.end());
        let limit = (last - first + 1) as usize;
        if used.len() >= limit {
            return Err(VerbsError::Limit { name: "queue pair numbers", limit });
        }
        loop {
            let num = *next;
            *next = if num == last { first } else { num + 1 };
            if let Entry::Vacant(place) = used.entry(num) {
                place.insert(None);
                return Ok(num);
            }
        }
    }

    fn free(&self, num: u32) {
        let was_used = self.in_use().used.remove(&num);
        debug_assert!(was_used.is_some(), "a queue pair has its number until it is gone");
    }

    fn in_use(&self) -> MutexGuard<'_, QpNumbersInUse> {
        self.in_use.lock().expect("no holder of this lock panics")
    }
}

impl Numbers {
    const LAST_NUMBER: u32 = u32::MAX - 1;

    fn new(kind: &'static str) -> Self {
        Self { kind, next: AtomicU32::new(1) }
    }

    /// # Errors
    /// [`VerbsError::Limit`] if the context has already created four billion objects of this kind.
    fn take(&self) -> Result<u32, VerbsError> {
        let next = |number: u32| number.checked_add(1);
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .map_err(|_| VerbsError::Limit { name: self.kind, limit: Self::LAST_NUMBER as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CompletionQueue, CqOptions, PdShared, QpInit, QpShared};
    use super::*;

    /// A new number has 24 bits, is not 0 and is not in use. A freed number is used again only after every
    /// other free number.
    #[test]
    fn a_queue_pair_gets_the_number_that_was_free_for_longest() {
        let numbers = QpNumbers::new(None);
        assert_eq!([(); 3].map(|()| numbers.take().unwrap()), [2, 3, 4]);
        numbers.free(2);
        numbers.free(4);
        assert_eq!(numbers.take().unwrap(), 5);
        numbers.in_use().next = QpNumbers::LAST_NUMBER;
        assert_eq!([(); 4].map(|()| numbers.take().unwrap()), [0xff_fffe, 2, 4, 6], "3 and 5 are in use");
    }

    #[test]
    fn a_prefix_is_the_first_byte_of_each_number() {
        for prefix in [0, 1, 0xff] {
            let numbers = QpNumbers::new(Some(prefix));
            let with_prefix = |rest: u32| u32::from(prefix) << 16 | rest;
            assert_eq!([(); 2].map(|()| numbers.take().unwrap()), [2, 3].map(with_prefix));
            numbers.in_use().next = with_prefix(0xfffe);
            assert_eq!([(); 2].map(|()| numbers.take().unwrap()), [0xfffe, 4].map(with_prefix));
            (0..0xfffd - 4).for_each(|_| _ = numbers.take().unwrap());
            assert!(numbers.take().is_err());
            numbers.free(with_prefix(7));
            assert_eq!(numbers.take().unwrap(), with_prefix(7));
        }
    }

    /// If a number were used twice, it would name two objects. For example, the regions of one protection
    /// domain would also belong to another protection domain.
    #[test]
    fn no_number_is_given_twice() {
        let resources =
            Resources::new(ContextLimits::default(), MemoryTable::new(16, [1; 32]), false, None).unwrap();
        resources.pd_nums.next.store(Numbers::LAST_NUMBER, Ordering::Relaxed);
        let last = PdShared::new(&resources).unwrap();
        assert_eq!(last.id().0, Numbers::LAST_NUMBER);
        for _ in 0..2 {
            let error = PdShared::new(&resources).err().expect("no number is left");
            assert!(matches!(error, VerbsError::Limit { .. }), "{error}");
        }
    }

    /// When a queue pair is destroyed, its number is freed, and it is removed from the list of all queue
    /// pairs.
    #[test]
    fn a_queue_pair_that_is_gone_leaves_no_number() {
        let resources =
            Resources::new(ContextLimits::default(), MemoryTable::new(16, [1; 32]), false, None).unwrap();
        let pd = PdShared::new(&resources).unwrap();
        let cq = CompletionQueue::new(Arc::clone(&resources), &CqOptions::new(16)).unwrap();
        let first = QpShared::new(&pd, &QpInit::new(&cq)).unwrap();
        let second = QpShared::new(&pd, &QpInit::new(&cq)).unwrap();
        let used = || resources.qp_nums.in_use().used.keys().copied().collect::<Vec<_>>();
        assert_eq!(used(), [first.config.num, second.config.num]);
        drop(first);
        assert_eq!((used(), resources.qps().len()), (vec![second.config.num], 1));
        drop(second);
        assert!(used().is_empty() && resources.qps().is_empty());
        // A queue pair that could not be created, because its completion queue has too few entries, does not
        // keep its number.
        let strict = CompletionQueue::new(
            Arc::clone(&resources),
            &CqOptions { strict: Some(true), ..CqOptions::new(1) },
        )
        .unwrap();
        assert!(QpShared::new(&pd, &QpInit { max_send_wr: 100, ..QpInit::new(&strict) }).is_err());
        assert!(used().is_empty());
    }
}
