//! The memory of a frontend: mappings of the files that the frontend has sent.
//!
//! The frontend and its driver may write any byte at any time. Words are accessed by atomics, and other bytes
//! by raw copies of [`vm_memory`], which never makes a slice of the memory. After each copy there is a
//! compiler fence, so that the compiler does not read the source again instead of the copy.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence};

use rustix::fs::{SealFlags, fcntl_get_seals};
use vm_memory::mmap::MmapRegion;
use vm_memory::{AtomicInteger, FileOffset, VolatileMemory, VolatileSlice};

/// Maximum number of regions. The vhost-user protocol sends at most 32 descriptors in a message.
pub(super) const MAX_REGIONS: usize = 32;

/// The place of a region in the two address spaces of the other side, and in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionPlace {
    /// The address in the guest, which descriptors use.
    pub(super) guest: u64,
    /// The address in the frontend, which the messages use.
    pub(super) user: u64,
    pub(super) bytes: u64,
    /// The offset in the file.
    pub(super) offset: u64,
}

/// A region of the memory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unfit;

/// A mapped region.
#[derive(Clone, Debug)]
struct Region {
    place: RegionPlace,
    map: Arc<MmapRegion>,
}

impl Region {
    fn map(place: RegionPlace, file: File, needs_seals: bool) -> Result<Self, Unfit> {
        let metadata = file.metadata().map_err(|_| Unfit)?;
        let end = place.offset.checked_add(place.bytes).ok_or(Unfit)?;
        let is_sealed = || fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let fits = metadata.is_file() && place.bytes > 0 && end <= metadata.size();
        let ends = [place.guest.checked_add(place.bytes), place.user.checked_add(place.bytes)];
        if !fits || ends.contains(&None) || needs_seals && !is_sealed() {
            return Err(Unfit);
        }
        let bytes = usize::try_from(place.bytes).map_err(|_| Unfit)?;
        let map = MmapRegion::from_file(FileOffset::new(file, place.offset), bytes).map_err(|_| Unfit)?;
        Ok(Self { place, map: Arc::new(map) })
    }
}

/// Part of a driver's buffer: bytes of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    region: usize,
    at: usize,
    pub(super) bytes: usize,
}

/// All regions of a frontend.
#[derive(Debug, Default)]
pub(super) struct GuestMemory {
    regions: Vec<Region>,
}

impl GuestMemory {
    /// Maps all regions.
    ///
    /// # Errors
    /// [`Unfit`] if a file cannot be mapped, or does not have the bytes of its region, or if two regions
    /// overlap.
    pub(super) fn map(
        places: impl IntoIterator<Item = (RegionPlace, File)>,
        needs_seals: bool,
    ) -> Result<Self, Unfit> {
        let mut memory = Self::default();
        for (place, file) in places {
            memory = memory.with(place, file, needs_seals)?;
        }
        Ok(memory)
    }

    /// Adds a region.
    ///
    /// # Errors
    /// [`Unfit`] as [`map`](Self::map), or if there are too many regions.
    pub(super) fn with(&self, place: RegionPlace, file: File, needs_seals: bool) -> Result<Self, Unfit> {
        let region = Region::map(place, file, needs_seals)?;
        let overlaps = |other: &Region| {
            let apart = |a: u64, b: u64| a + place.bytes <= b || b + other.place.bytes <= a;
            !apart(place.guest, other.place.guest) || !apart(place.user, other.place.user)
        };
        if self.regions.len() >= MAX_REGIONS || self.regions.iter().any(overlaps) {
            return Err(Unfit);
        }
        let mut regions = self.regions.clone();
        regions.push(region);
        Ok(Self { regions })
    }

    /// Removes the region with this address in the guest and this length.
    ///
    /// # Errors
    /// [`Unfit`] if there is no such region.
    pub(super) fn without(&self, guest: u64, user: u64, bytes: u64) -> Result<Self, Unfit> {
        let mut regions = self.regions.clone();
        let is_it =
            |Region { place, .. }: &Region| (place.guest, place.user, place.bytes) == (guest, user, bytes);
        let at = regions.iter().position(is_it).ok_or(Unfit)?;
        regions.swap_remove(at);
        Ok(Self { regions })
    }

    /// Finds the bytes from the address `guest` on, up to the end of their region, but at most `bytes` bytes.
    /// `hint` is the region of the last call.
    #[inline]
    pub(super) fn find(&self, guest: u64, bytes: usize, hint: &mut usize) -> Option<Piece> {
        let part = |region: usize, place: &RegionPlace| {
            let at = guest.checked_sub(place.guest).filter(|at| *at < place.bytes)?;
            let left = (place.bytes - at) as usize;
            Some(Piece { region, at: at as usize, bytes: bytes.min(left) })
        };
        if let Some(region) = self.regions.get(*hint)
            && let Some(piece) = part(*hint, &region.place)
        {
            return Some(piece);
        }
        let (nr, piece) =
            self.regions.iter().enumerate().find_map(|(nr, region)| Some((nr, part(nr, &region.place)?)))?;
        *hint = nr;
        Some(piece)
    }

    /// Finds the `bytes` bytes at the address `user`, which must be in one region.
    pub(super) fn area(&self, user: u64, bytes: usize) -> Option<Area> {
        self.regions.iter().find_map(|Region { place, map }| {
            let at = user.checked_sub(place.user).filter(|at| *at < place.bytes)?;
            let fits = place.bytes - at >= bytes as u64;
            fits.then(|| Area { map: Arc::clone(map), at: at as usize })
        })
    }

    #[inline]
    fn slice(&self, piece: Piece, skip: usize, bytes: usize) -> Option<VolatileSlice<'_>> {
        if skip > piece.bytes || bytes > piece.bytes - skip {
            return None;
        }
        self.regions.get(piece.region)?.map.get_slice(piece.at + skip, bytes).ok()
    }

    /// Copies the bytes of a piece from `skip` on to `out`. Returns the number of copied bytes.
    #[inline]
    pub(super) fn copy_out(&self, piece: Piece, skip: usize, out: &mut [u8]) -> usize {
        let bytes = out.len().min(piece.bytes.saturating_sub(skip));
        let copied = self.slice(piece, skip, bytes).map_or(0, |slice| slice.copy_to(&mut out[..bytes]));
        compiler_fence(Ordering::SeqCst);
        copied
    }

    /// Copies `data` into a piece from `skip` on. Returns the number of copied bytes.
    #[inline]
    pub(super) fn copy_in(&self, piece: Piece, skip: usize, data: &[u8]) -> usize {
        let bytes = data.len().min(piece.bytes.saturating_sub(skip));
        let Some(slice) = self.slice(piece, skip, bytes) else { return 0 };
        slice.copy_from(&data[..bytes]);
        compiler_fence(Ordering::SeqCst);
        bytes
    }
}

/// A position in a list of pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    piece: usize,
    skip: usize,
}

impl Cursor {
    /// Copies the next bytes of `pieces` to `out`. Returns the number of copied bytes, which is less than the
    /// length of `out` only if the pieces end.
    #[inline]
    pub(super) fn copy_out(&mut self, memory: &GuestMemory, pieces: &[Piece], out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let Some(&piece) = pieces.get(self.piece) else { break };
            let copied = memory.copy_out(piece, self.skip, &mut out[done..]);
            done += copied;
            self.step(piece, copied);
        }
        done
    }

    /// Copies `data` to the next bytes of `pieces`. Returns the number of copied bytes, which is less than
    /// the length of `data` only if the pieces end.
    #[inline]
    pub(super) fn copy_in(&mut self, memory: &GuestMemory, pieces: &[Piece], data: &[u8]) -> usize {
        let mut done = 0;
        while done < data.len() {
            let Some(&piece) = pieces.get(self.piece) else { break };
            let copied = memory.copy_in(piece, self.skip, &data[done..]);
            done += copied;
            self.step(piece, copied);
        }
        done
    }

    #[inline]
    fn step(&mut self, piece: Piece, copied: usize) {
        self.skip += copied;
        if self.skip >= piece.bytes || copied == 0 {
            *self = Self { piece: self.piece + 1, skip: 0 };
        }
    }
}

/// The memory of a part of a ring, of a length that [`GuestMemory::area`] has checked.
#[derive(Clone, Debug)]
pub(super) struct Area {
    map: Arc<MmapRegion>,
    at: usize,
}

impl Area {
    /// Whether the area begins at a multiple of `bytes` in its mapping, which begins at a page boundary.
    pub(super) fn is_aligned(&self, bytes: usize) -> bool {
        self.at.is_multiple_of(bytes)
    }

    #[inline]
    pub(super) fn u16(&self, at: usize) -> &AtomicU16 {
        self.word(at)
    }

    #[inline]
    pub(super) fn u32(&self, at: usize) -> &AtomicU32 {
        self.word(at)
    }

    #[inline]
    pub(super) fn u64(&self, at: usize) -> &AtomicU64 {
        self.word(at)
    }

    /// The word at this offset.
    ///
    /// # Panics
    /// If the word exceeds the mapping or is not aligned. A ring only uses offsets inside of its areas, whose
    /// lengths and alignments were checked when the ring was made.
    #[inline]
    fn word<T: AtomicInteger>(&self, at: usize) -> &T {
        match self.map.get_atomic_ref(self.at + at) {
            Ok(word) => word,
            Err(_) => outside(),
        }
    }
}

#[cold]
#[inline(never)]
fn outside() -> ! {
    unreachable!("a ring uses only its areas")
}
