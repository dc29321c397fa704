//! A split ring (virtio 1.2 section 2.7), from the side of the device.
//!
//! The driver makes chains of descriptors available, and the device returns each chain as a used entry. The
//! entries of a burst are published together.

use std::sync::atomic::{Ordering, fence};

use super::memory::{Area, GuestMemory};

/// Maximum number of entries of a ring.
pub(super) const MAX_SIZE: u16 = 1 << 15;

/// Number of bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 16;

/// The offset of the index in the available and the used part. The flags are at offset 0.
const INDEX: usize = 2;
/// The offset of the first entry in the available and the used part.
const ENTRIES: usize = 4;
/// Number of bytes of an entry of the available and of the used part.
const AVAILABLE_BYTES: usize = 2;
const USED_BYTES: usize = 8;

/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY`: the other side need not be notified.
const NO_NOTIFICATION: u16 = 1;

/// The driver has published an impossible index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The addresses of the three parts of a ring, in the frontend's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

/// A descriptor: a part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) bytes: u32,
    flags: u16,
    pub(super) next: u16,
}

impl Descriptor {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;

    /// Makes a descriptor from its two words.
    #[inline]
    pub(super) fn from_words(address: u64, rest: u64) -> Self {
        Self { address, bytes: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.flags & Self::NEXT != 0
    }

    /// Whether the device writes to the buffer.
    #[inline]
    pub(super) fn is_writable(&self) -> bool {
        self.flags & Self::WRITE != 0
    }

    #[inline]
    pub(super) fn is_indirect(&self) -> bool {
        self.flags & Self::INDIRECT != 0
    }
}

/// A split ring in the memory of a frontend.
#[derive(Debug)]
pub(super) struct Ring {
    size: u16,
    descriptors: Area,
    available: Area,
    used: Area,
    /// The index of the next chain to take.
    next_available: u16,
    /// The index of the next used entry to write.
    next_used: u16,
    /// The index up to which used entries are published.
    published: u16,
    has_event_index: bool,
}

impl Ring {
    /// Makes a ring of `size` entries. `base` is the index of the next chain to take. The driver need not
    /// notify the device until the device [asks for it](Self::ask_for_notification). Returns `None` if the
    /// size is not a power of two, or if a part is not aligned or not in one region of the memory.
    pub(super) fn new(
        memory: &GuestMemory,
        size: u16,
        addresses: Addresses,
        base: u16,
        has_event_index: bool,
    ) -> Option<Self> {
        if !size.is_power_of_two() || size > MAX_SIZE {
            return None;
        }
        let entries = usize::from(size);
        let descriptors = memory.area(addresses.descriptors, DESCRIPTOR_BYTES * entries)?;
        // Behind the entries there is the index of the next notification.
        let available =
            memory.area(addresses.available, ENTRIES + AVAILABLE_BYTES * entries + size_of::<u16>())?;
        let used = memory.area(addresses.used, ENTRIES + USED_BYTES * entries + size_of::<u16>())?;
        if !descriptors.is_aligned(DESCRIPTOR_BYTES) || !available.is_aligned(2) || !used.is_aligned(4) {
            return None;
        }
        let published = used.u16(INDEX).load(Ordering::Relaxed);
        let ring = Self {
            size,
            descriptors,
            available,
            used,
            next_available: base,
            next_used: published,
            published,
            has_event_index,
        };
        ring.refuse_notifications();
        Some(ring)
    }

    /// The index of the next chain to take.
    pub(super) fn base(&self) -> u16 {
        self.next_available
    }

    #[inline]
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// Number of chains that wait.
    ///
    /// # Errors
    /// [`Broken`] if the number exceeds the size of the ring.
    #[inline]
    pub(super) fn waiting(&self) -> Result<u16, Broken> {
        let index = self.available.u16(INDEX).load(Ordering::Acquire);
        let waiting = index.wrapping_sub(self.next_available);
        if waiting > self.size { Err(Broken) } else { Ok(waiting) }
    }

    /// The first descriptor of the chain behind the next `nth` chains.
    ///
    /// # Errors
    /// [`Broken`] if there is no such descriptor.
    #[inline]
    pub(super) fn head(&self, nth: u16) -> Result<u16, Broken> {
        let slot = self.slot(self.next_available.wrapping_add(nth));
        let head = self.available.u16(ENTRIES + AVAILABLE_BYTES * slot).load(Ordering::Relaxed);
        if head < self.size { Ok(head) } else { Err(Broken) }
    }

    /// The descriptor with this number. `None` if the table has no such descriptor.
    #[inline]
    pub(super) fn descriptor(&self, nr: u16) -> Option<Descriptor> {
        if nr >= self.size {
            return None;
        }
        let at = DESCRIPTOR_BYTES * usize::from(nr);
        let word = |at| self.descriptors.u64(at).load(Ordering::Relaxed);
        Some(Descriptor::from_words(word(at), word(at + 8)))
    }

    /// Takes the next chain, and writes its used entry: the device has written `bytes` bytes to the chain.
    #[inline]
    pub(super) fn finish(&mut self, head: u16, bytes: u32) {
        self.next_available = self.next_available.wrapping_add(1);
        let at = ENTRIES + USED_BYTES * self.slot(self.next_used);
        self.used.u32(at).store(u32::from(head), Ordering::Relaxed);
        self.used.u32(at + 4).store(bytes, Ordering::Relaxed);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Publishes the used entries that were written. Returns whether the driver asks for a notification.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.next_used {
            return false;
        }
        let (old, new) = (self.published, self.next_used);
        self.used.u16(INDEX).store(new, Ordering::Release);
        self.published = new;
        // The driver first asks for a notification, and then reads the index. So one of the two sides sees
        // what the other side has stored.
        fence(Ordering::SeqCst);
        if self.has_event_index {
            let at = ENTRIES + AVAILABLE_BYTES * usize::from(self.size);
            is_due(self.available.u16(at).load(Ordering::Relaxed), new, old)
        } else {
            self.available.u16(0).load(Ordering::Relaxed) & NO_NOTIFICATION == 0
        }
    }

    /// Asks the driver to notify the device of the next chain. Returns whether no chain waits.
    ///
    /// # Errors
    /// [`Broken`] as [`waiting`](Self::waiting).
    pub(super) fn ask_for_notification(&self) -> Result<bool, Broken> {
        if self.has_event_index {
            let at = ENTRIES + USED_BYTES * usize::from(self.size);
            self.used.u16(at).store(self.next_available, Ordering::Relaxed);
        } else {
            self.used.u16(0).store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        Ok(self.waiting()? == 0)
    }

    /// Tells the driver that the device polls. With event indices nothing is to be done: the driver only
    /// notifies the device of the chain at the index of the last request.
    pub(super) fn refuse_notifications(&self) {
        if !self.has_event_index {
            self.used.u16(0).store(NO_NOTIFICATION, Ordering::Relaxed);
        }
    }
}

/// Whether the side that waits for the entry `event` has to be notified, if the index has changed from `old`
/// to `new` (virtio 1.2 section 2.7.10, `vring_need_event`).
#[inline]
fn is_due(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
