//! Registered memory: our own, and the peer's.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use iwarp::verbs::{MemoryRegion, RemoteAddr, Sge, VerbsError};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Registered memory. Clones refer to the same memory. Dropping the last clone deregisters the memory. A
/// request in flight keeps a clone.
///
/// A peer with the STag may access the memory at any time, within the region's access rights. So this type
/// only copies bytes into the memory and out of it.
#[derive(Clone)]
pub struct Region {
    mr: Arc<MemoryRegion>,
}

impl Region {
    pub(crate) fn new(mr: MemoryRegion) -> Self {
        Self { mr: Arc::new(mr) }
    }

    /// Returns the length of the region in bytes.
    pub fn len(&self) -> usize {
        self.mr.len()
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.mr.is_empty()
    }

    /// Copies `bytes` to the region, beginning at `offset`.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the bytes do not fit.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.mr.write_at(offset, bytes)?)
    }

    /// Fills `out` with bytes of the region, beginning at `offset`.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the region has fewer bytes.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        Ok(self.mr.read_at(offset, out)?)
    }

    /// Returns a part of the region, for a request.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range is not within the region.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice> {
        let (start, end) = bounds(range.start_bound().cloned(), range.end_bound().cloned(), self.len());
        if start > end || end > self.len() {
            let [start, end, len] = [start, end, self.len()].map(|value| value as u64);
            return Err(Error::OutOfRange { start, end, len });
        }
        Ok(Slice { region: self.clone(), offset: start, len: end - start })
    }

    /// Returns the description that a peer needs to access the region, within the region's access rights.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion { addr: self.mr.addr(), rkey: self.mr.rkey(), len: self.len() as u64 }
    }

    /// Returns the verbs' memory region, for calls that this crate does not wrap.
    pub fn memory_region(&self) -> &MemoryRegion {
        &self.mr
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("remote", &self.remote()).finish()
    }
}

/// A part of a [`Region`]. A slice keeps its region registered.
#[derive(Clone, Debug)]
pub struct Slice {
    region: Region,
    offset: usize,
    len: usize,
}

impl Slice {
    /// Returns the length of the part in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the part has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a copy of the bytes.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the bytes cannot be read.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        self.region.read_at(self.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the scatter/gather element of the part. Fails if the part is too long for an element.
    pub(crate) fn sge(&self) -> Result<Sge, VerbsError> {
        check_element(self.len)?;
        Ok(self.region.mr.sge(self.offset, self.len))
    }
}

/// Checks that a scatter/gather element can have `len` bytes.
pub(crate) fn check_element(len: usize) -> Result<(), VerbsError> {
    let (got, max) = (len as u64, u64::from(u32::MAX));
    if got > max { Err(VerbsError::TooLong { got, max }) } else { Ok(()) }
}

impl From<&Region> for Slice {
    fn from(region: &Region) -> Self {
        Self { region: region.clone(), offset: 0, len: region.len() }
    }
}

impl From<&Self> for Slice {
    fn from(slice: &Self) -> Self {
        slice.clone()
    }
}

/// A description of memory of the peer. Peers send it in private data ([`to_bytes`](Self::to_bytes)) or in a
/// message (by serde).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteRegion {
    /// Tagged offset of the first byte.
    pub addr: u64,
    /// STag of the memory.
    pub rkey: u32,
    /// Length of the memory in bytes.
    pub len: u64,
}

impl RemoteRegion {
    /// The length of [`to_bytes`](Self::to_bytes) in bytes.
    pub const BYTES: usize = 20;

    /// Returns a part of the remote region.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range is not within the remote region.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self> {
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        let index = |bound: Bound<&u64>| bound.map(|&at| usize::try_from(at).unwrap_or(usize::MAX));
        let (start, end) = bounds(index(range.start_bound()), index(range.end_bound()), len);
        if start > end || end > len {
            return Err(Error::OutOfRange { start: start as u64, end: end as u64, len: self.len });
        }
        let (addr, len) = (self.addr.wrapping_add(start as u64), (end - start) as u64);
        Ok(Self { addr, rkey: self.rkey, len })
    }

    /// Returns address, STag and length, in network byte order.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    pub(crate) fn address(&self) -> RemoteAddr {
        RemoteAddr { addr: self.addr, rkey: self.rkey }
    }
}

impl TryFrom<&[u8]> for RemoteRegion {
    type Error = Error;

    /// Parses the bytes of [`to_bytes`](Self::to_bytes).
    fn try_from(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| Error::NoRegion(bytes.len()))?;
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l @ ..] = *bytes;
        let addr = u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        Ok(Self { addr, rkey: u32::from_be_bytes([k0, k1, k2, k3]), len: u64::from_be_bytes(l) })
    }
}

/// Returns the start and the end of a range within `len` bytes.
fn bounds(start: Bound<usize>, end: Bound<usize>, len: usize) -> (usize, usize) {
    let start = match start {
        Bound::Included(start) => start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match end {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => end,
        Bound::Unbounded => len,
    };
    (start, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: RemoteRegion = RemoteRegion { addr: 0x1234_5678_9abc_def0, rkey: 0x0bad_cafe, len: 100 };

    #[test]
    fn an_element_has_less_than_four_gibibytes() {
        assert!(check_element(u32::MAX as usize).is_ok());
        let too_long = |got| matches!(check_element(got), Err(VerbsError::TooLong { max: 0xffff_ffff, .. }));
        assert!(too_long(1 << 32) && too_long(usize::MAX));
    }

    #[test]
    fn a_remote_region_travels_as_bytes_and_by_serde() {
        assert_eq!(RemoteRegion::try_from(&REMOTE.to_bytes()[..]).unwrap(), REMOTE);
        assert!(matches!(RemoteRegion::try_from(&[0; 19][..]), Err(Error::NoRegion(19))));
        let text = serde_json::to_string(&REMOTE).unwrap();
        assert_eq!(serde_json::from_str::<RemoteRegion>(&text).unwrap(), REMOTE);
    }

    #[test]
    fn a_part_stays_within_the_whole() {
        let part = REMOTE.slice(10..=19).unwrap();
        assert_eq!(part, RemoteRegion { addr: REMOTE.addr + 10, len: 10, ..REMOTE });
        assert_eq!(part.slice(..).unwrap(), part);
        assert_eq!(REMOTE.slice(100..).unwrap().len, 0);
        for range in
            [(Bound::Included(0), Bound::Included(100)), (Bound::Excluded(u64::MAX), Bound::Unbounded)]
        {
            assert!(matches!(REMOTE.slice(range), Err(Error::OutOfRange { len: 100, .. })));
        }
    }
}
