//! A segment of a chain: the fields of its `rte_mbuf`, and its bytes.

use std::marker::PhantomData;
use std::ptr::NonNull;

use dpdk_sys as sys;
use dpdk_sys::mbuf as field;

use crate::mbuf::view::{View, copy_slice};
use crate::mempool::external::copy_raw;

/// A segment of a chain, for reading.
#[derive(Clone, Copy)]
pub(crate) struct DpdkSegment<'a> {
    /// An mbuf of the borrowed chain. The mbuf is in use, and nobody writes its fields during the borrow.
    pub(super) raw: NonNull<sys::rte_mbuf>,
    pub(super) chain: PhantomData<&'a sys::rte_mbuf>,
}

/// A segment of a chain, for writing. The methods of the chain keep the chain well formed.
pub(super) struct DpdkSegmentMut<'a> {
    /// An mbuf of the borrowed chain. The mbuf is in use, and nobody else accesses its fields during the
    /// borrow.
    pub(super) raw: NonNull<sys::rte_mbuf>,
    pub(super) chain: PhantomData<&'a mut sys::rte_mbuf>,
}

/// Defines methods that read a field, or compute a value from fields.
macro_rules! reads {
    ($($name:ident: $type:ty;)*) => {$(
        #[inline(always)]
        pub(super) fn $name(self) -> $type {
            // SAFETY: `raw` is an mbuf in use, so its pool is not freed. Only the number of owners may change
            // during the borrow: DPDK changes it by atomics if there are several owners.
            unsafe { field::$name(self.raw.as_ptr()) }
        }
    )*};
}

/// Defines methods that write a field.
macro_rules! writes {
    ($($name:ident: $type:ty;)*) => {$(
        #[inline(always)]
        pub(super) fn $name(&mut self, value: $type) {
            // SAFETY: `raw` is an mbuf in use, so its pool is not freed. Nobody else accesses its fields
            // during the borrow.
            unsafe { field::$name(self.raw.as_ptr(), value) }
        }
    )*};
}

impl<'a> DpdkSegment<'a> {
    reads! {
        data_off: u16;
        data_len: u16;
        buf_len: u16;
        nb_segs: u16;
        pkt_len: u32;
        ol_flags: u64;
        tx_offload: u64;
        pool: *mut sys::rte_mempool;
        data: *mut u8;
        storage_owners: u16;
    }

    #[inline(always)]
    pub(super) fn next(self) -> Option<Self> {
        // SAFETY: `raw` is an mbuf in use, so its pool is not freed. Nobody writes its fields during the
        // borrow.
        let next = unsafe { field::next(self.raw.as_ptr()) };
        NonNull::new(next).map(|raw| Self { raw, chain: PhantomData })
    }

    pub(super) fn tailroom(self) -> usize {
        (self.buf_len() - self.data_off() - self.data_len()) as usize
    }

    pub(super) fn is_external(self) -> bool {
        self.ol_flags() & sys::K_F_EXTERNAL != 0
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        assert!(!self.is_external(), "external memory has no slice: copy it");
        // SAFETY: the data are inside the buffer, which is mapped and initialised, since the chain is well
        // formed. The data of a view are written only through `&mut DpdkChain` while the storage has one
        // owner. If this chain is the only owner, the chain is borrowed while the slice is used. If there are
        // several owners, only `room` is written, which no view covers.
        unsafe { std::slice::from_raw_parts(self.data(), self.data_len() as usize) }
    }
}

impl View for DpdkSegment<'_> {
    fn len(&self) -> usize {
        usize::from(self.data_len())
    }

    fn is_external(&self) -> bool {
        DpdkSegment::is_external(*self)
    }

    fn start(&self) -> *const u8 {
        self.data()
    }

    fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        if !self.is_external() {
            return copy_slice(self.bytes(), offset, out);
        }
        let bytes = View::len(self).saturating_sub(offset).min(out.len());
        // SAFETY: the data of an mbuf with external memory are inside an `ExtBuf`, which is not dropped
        // before DPDK has freed the last view. Raw copies may read the bytes (the contract of
        // `ExtBuf::from_raw`). `offset + bytes` is at most the length of the data.
        unsafe { copy_raw(self.data().wrapping_add(offset), &mut out[..bytes]) };
        bytes
    }
}

impl<'a> DpdkSegmentMut<'a> {
    writes! {
        set_data_off: u16;
        set_data_len: u16;
        set_nb_segs: u16;
        set_pkt_len: u32;
        set_ol_flags: u64;
        set_tx_offload: u64;
        set_next: *mut sys::rte_mbuf;
    }

    #[inline(always)]
    pub(super) fn get(&self) -> DpdkSegment<'_> {
        DpdkSegment { raw: self.raw, chain: PhantomData }
    }

    pub(super) fn into_next(self) -> Option<Self> {
        let raw = self.get().next()?.raw;
        Some(Self { raw, chain: PhantomData })
    }

    /// Returns the bytes, for writing. Returns `None` if the storage is shared.
    pub(super) fn bytes_mut(self) -> Option<&'a mut [u8]> {
        let segment = self.get();
        if segment.storage_owners() != 1 {
            return None;
        }
        let (start, length) = (segment.data(), segment.data_len() as usize);
        // SAFETY: the data are inside the buffer, which is mapped and initialised, since the chain is well
        // formed. The only owner of the storage is this chain, which is borrowed mutably while the slice is
        // used. So there is no other view of the bytes, and nobody can make one. The number of owners was
        // read with Acquire, so the accesses of former owners happen before the accesses through this slice.
        Some(unsafe { std::slice::from_raw_parts_mut(start, length) })
    }
}

#[derive(Clone)]
pub(crate) struct DpdkSegments<'a> {
    pub(super) next: Option<DpdkSegment<'a>>,
}

impl<'a> Iterator for DpdkSegments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let segment = self.next?;
        self.next = segment.next();
        Some(segment.bytes())
    }
}
