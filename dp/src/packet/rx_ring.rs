//! The receive ring: slots in memory that the kernel shares with this process (TPACKET_V2,
//! `Documentation/networking/packet_mmap.rst`).
//!
//! A slot belongs to the kernel until the slot's status has `TP_STATUS_USER`. Then the slot belongs to this
//! process until the process stores `TP_STATUS_KERNEL`. The kernel fills the slots in order, and does not
//! access slots that belong to the process. This module reads the bytes of a slot only while the slot belongs
//! to the process. Both sides write the status, so the status is accessed only by atomics.

use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::tpacket2_hdr;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::sys;

/// Approximate number of bytes of a block, which the kernel allocates as a whole. The number is a power of
/// two, since the kernel allocates powers of two.
const BLOCK_BYTES: usize = 256 << 10;

/// The size of a slot is a multiple of this number of bytes, so that some number of slots fills whole pages.
pub(super) const SLOT_UNIT: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    slot_bytes: usize,
    /// Number of slots in a block.
    in_block: usize,
    blocks: usize,
}

impl Geometry {
    /// Computes the sizes of a ring with at least `slots` slots of `slot_bytes` bytes (a multiple of
    /// [`SLOT_UNIT`]). The blocks of the ring are whole pages.
    pub(super) fn new(slots: usize, slot_bytes: usize, page_bytes: usize) -> Self {
        debug_assert!(slot_bytes.is_multiple_of(SLOT_UNIT) && slot_bytes > 0);
        // The minimum number of slots that fill whole pages. The page size is a power of two, so powers of
        // two are the only common factors of the page size and the slot size.
        let least = page_bytes >> slot_bytes.trailing_zeros().min(page_bytes.trailing_zeros());
        let in_block = (BLOCK_BYTES / (least * slot_bytes)).max(1) * least;
        Self { slot_bytes, in_block, blocks: slots.div_ceil(in_block).max(1) }
    }

    pub(super) fn slots(&self) -> usize {
        self.in_block * self.blocks
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots() * self.slot_bytes
    }

    /// The bytes of a `struct tpacket_req` with these sizes.
    fn request(&self) -> [u8; 16] {
        let words = [self.in_block * self.slot_bytes, self.blocks, self.slot_bytes, self.slots()];
        let mut request = [0; 16];
        for (room, word) in request.chunks_exact_mut(4).zip(words) {
            room.copy_from_slice(&(word as u32).to_ne_bytes());
        }
        request
    }
}

/// A frame in the next slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filled {
    /// The status of the slot (`TP_STATUS_...`).
    pub(super) status: u32,
    /// Number of bytes of the frame without the VLAN tag.
    pub(super) bytes: usize,
    /// Number of bytes of the frame that are in the slot. The number is less than `bytes` if the slot is too
    /// small.
    pub(super) kept: usize,
    /// The offset of the frame's bytes in the slot. `at + kept` is at most the slot's size.
    at: usize,
    /// The VLAN tag that the kernel has removed: protocol and control information.
    pub(super) tag: Option<[u16; 2]>,
}

/// The mapped ring of a socket.
pub(super) struct RxRing {
    /// The start of `slots * slot_bytes` mapped bytes.
    base: NonNull<u8>,
    slots: usize,
    slot_bytes: usize,
    /// The index of the slot that the kernel fills next, less than `slots`.
    next: usize,
}

// SAFETY: the mapping belongs to the process and not to a thread, and in the process only this value uses the
// mapping. For the kernel it makes no difference which thread of the process uses the ring.
unsafe impl Send for RxRing {}

impl RxRing {
    /// Makes the ring of a socket and maps the ring. The socket must not be bound yet.
    pub(super) fn map(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<Self, Errno> {
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &geometry.request())?;
        let (bytes, protection) = (geometry.bytes(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the kernel chooses an unused address, so the new mapping replaces nothing.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, slots: geometry.slots(), slot_bytes: geometry.slot_bytes, next: 0 })
    }

    #[inline]
    fn slot(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.next * self.slot_bytes)
    }

    #[inline]
    fn status(&self) -> &AtomicU32 {
        let status = self.slot().wrapping_add(offset_of!(tpacket2_hdr, tp_status)).cast();
        // SAFETY: the slot is inside the mapping (`next` is less than `slots`), which is removed only when
        // `self` is dropped. The slot is aligned to 16 bytes. The kernel loads and stores the status as a
        // whole, and this process accesses the status only by this atomic.
        unsafe { AtomicU32::from_ptr(status) }
    }

    /// Returns the frame in the next slot, or `None` if the kernel has not filled the slot.
    #[inline]
    pub(super) fn peek(&self) -> Option<Filled> {
        // The Acquire pairs with the barrier that the kernel has between its writes to the slot and its write
        // of the status.
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let header: *const tpacket2_hdr = self.slot().cast();
        // SAFETY: the slot is inside the mapping (`next` is less than `slots`) and aligned to 16 bytes. The
        // status says that the slot belongs to this process until `release`, so the kernel does not write to
        // the slot. All fields are numbers.
        let header = unsafe { header.read() };
        let at = usize::from(header.tp_mac);
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            [if known { header.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 }, header.tp_vlan_tci]
        });
        Some(Filled {
            status,
            bytes: header.tp_len as usize,
            // The kernel never exceeds the slot. `copy` relies on this limit, so this code enforces it.
            kept: (header.tp_snaplen as usize).min(self.slot_bytes.saturating_sub(at)),
            at,
            tag,
        })
    }

    /// Fills `out` with the bytes, from `offset` on, of the frame that [`peek`](Self::peek) has found.
    ///
    /// # Panics
    /// If the slot has fewer bytes of the frame than requested.
    #[inline]
    pub(super) fn copy(&self, filled: &Filled, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= filled.kept && filled.at + filled.kept <= self.slot_bytes);
        let from = self.slot().wrapping_add(filled.at + offset);
        // SAFETY: the bytes are inside the slot, as was just checked, and the slot is inside the mapping
        // (`next` is less than `slots`). `peek` has found that the slot belongs to this process until
        // `release`, so the kernel does not write to the slot. `out` is not a part of the mapping, since
        // nobody has a slice of the mapping.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    }

    /// Gives the slot that [`peek`](Self::peek) has found back to the kernel, and advances to the next slot.
    #[inline]
    pub(super) fn release(&mut self) {
        // The store has Release order, so that the reads of the slot happen before the kernel writes to the
        // slot.
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = if self.next + 1 == self.slots { 0 } else { self.next + 1 };
    }
}

impl Drop for RxRing {
    fn drop(&mut self) {
        // SAFETY: `map` has made this mapping with this length, and nothing refers to the mapping any more:
        // `copy` returns no reference, and the result of `status` borrows `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.slots * self.slot_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring in ordinary memory. The test does the kernel's part.
    struct Stage {
        ring: RxRing,
    }

    impl Stage {
        fn new(slots: usize, slot_bytes: usize) -> Self {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: the kernel chooses an unused address, so the new mapping replaces nothing.
            let base =
                unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), slots * slot_bytes, protection, flags) };
            let base = NonNull::new(base.unwrap().cast()).unwrap();
            Self { ring: RxRing { base, slots, slot_bytes, next: 0 } }
        }

        /// Fills a slot, as the kernel does.
        fn fill(&mut self, slot: usize, header: tpacket2_hdr, bytes: &[u8]) {
            let start = self.ring.base.as_ptr().wrapping_add(slot * self.ring.slot_bytes);
            let data = start.wrapping_add(usize::from(header.tp_mac));
            assert!(bytes.is_empty() || usize::from(header.tp_mac) + bytes.len() <= self.ring.slot_bytes);
            // SAFETY: the bytes are inside the slot, as was just checked, and nobody else accesses the slot.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len()) };
            // SAFETY: the slot is inside the mapping and aligned, and nobody else accesses the slot.
            unsafe { start.cast::<tpacket2_hdr>().write(header) };
        }
    }

    fn header(bytes: u32, kept: u32, extra: u32) -> tpacket2_hdr {
        tpacket2_hdr {
            tp_status: libc::TP_STATUS_USER | extra,
            tp_len: bytes,
            tp_snaplen: kept,
            tp_mac: 76,
            tp_net: 90,
            tp_sec: 0,
            tp_nsec: 0,
            tp_vlan_tci: 7,
            tp_vlan_tpid: 0x88a8,
            tp_padding: [0; 4],
        }
    }

    #[test]
    fn blocks_are_whole_pages_and_nearly_powers_of_two() {
        for page_bytes in [4096, 16_384, 65_536] {
            for slot_bytes in [1024, 2048, 9216, 10_240, 66_560] {
                for slots in [1, 64, 1000, 4096] {
                    let geometry = Geometry::new(slots, slot_bytes, page_bytes);
                    let block = geometry.in_block * slot_bytes;
                    assert!(block.is_multiple_of(page_bytes), "{geometry:?}");
                    assert!(geometry.slots() >= slots && geometry.slots() < slots + geometry.in_block);
                    // The kernel allocates a power of two, which is at most one and a half times the block.
                    assert!(
                        page_bytes > 4096
                            || slot_bytes == 66_560
                            || block.next_power_of_two() <= block / 2 * 3
                    );
                }
            }
        }
        let geometry = Geometry::new(2048, 2048, 4096);
        assert_eq!((geometry.slots(), geometry.bytes()), (2048, 4 << 20));
        let words = [256 << 10, 16, 2048, 2048_u32].map(u32::to_ne_bytes);
        assert_eq!(geometry.request(), *words.as_flattened());
    }

    #[test]
    fn frames_are_taken_in_order_around_the_ring_and_slots_go_back() {
        let mut stage = Stage::new(3, SLOT_UNIT);
        assert_eq!(stage.ring.peek(), None);
        for nr in 0..10_u8 {
            stage.fill(usize::from(nr) % 3, header(100, 100, 0), &[nr; 100]);
            let filled = stage.ring.peek().unwrap();
            assert_eq!((filled.bytes, filled.kept, filled.tag), (100, 100, None));
            let mut out = [0xff; 60];
            stage.ring.copy(&filled, 40, &mut out);
            assert_eq!(out, [nr; 60]);
            assert_eq!(stage.ring.peek(), Some(filled), "until it is released");
            stage.ring.release();
            assert_eq!(stage.ring.peek(), None);
        }
    }

    #[test]
    fn a_slot_is_ours_by_the_status_of_the_user_alone() {
        let mut stage = Stage::new(1, SLOT_UNIT);
        for extra in [libc::TP_STATUS_COPY, libc::TP_STATUS_CSUMNOTREADY, libc::TP_STATUS_LOSING] {
            stage.fill(0, tpacket2_hdr { tp_status: extra, ..header(60, 60, 0) }, &[0; 60]);
            assert_eq!(stage.ring.peek(), None, "{extra:#x}");
            stage.fill(0, header(60, 60, extra), &[0; 60]);
            assert_eq!(stage.ring.peek().unwrap().status, libc::TP_STATUS_USER | extra);
        }
    }

    #[test]
    fn a_full_ring_is_emptied_once() {
        let mut stage = Stage::new(4, SLOT_UNIT);
        for slot in 0..4 {
            stage.fill(slot, header(1, 1, 0), &[slot as u8]);
        }
        for slot in 0..4 {
            let mut out = [0];
            stage.ring.copy(&stage.ring.peek().unwrap(), 0, &mut out);
            assert_eq!(out, [slot]);
            stage.ring.release();
        }
        assert_eq!(stage.ring.peek(), None);
    }

    #[test]
    fn lengths_never_reach_beyond_the_slot() {
        let mut stage = Stage::new(1, SLOT_UNIT);
        stage.fill(0, header(5000, 5000, libc::TP_STATUS_COPY), &[]);
        let filled = stage.ring.peek().unwrap();
        assert_eq!((filled.bytes, filled.kept), (5000, SLOT_UNIT - 76));
        stage.fill(0, tpacket2_hdr { tp_mac: 2000, ..header(9, 9, 0) }, &[]);
        assert_eq!(stage.ring.peek().unwrap().kept, 0);
    }

    #[test]
    fn a_tag_is_that_of_the_kernel_with_802_1q_as_its_usual_protocol() {
        let mut stage = Stage::new(1, SLOT_UNIT);
        let mut tag = |extra| {
            stage.fill(0, header(60, 60, extra), &[0; 60]);
            stage.ring.peek().unwrap().tag
        };
        assert_eq!(tag(libc::TP_STATUS_VLAN_VALID), Some([0x8100, 7]));
        assert_eq!(tag(libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID), Some([0x88a8, 7]));
        assert_eq!(tag(0), None);
    }
}
