//! Requests that a program is building with the `ibv_wr_*` calls, between `ibv_wr_start` and
//! `ibv_wr_complete`.

use std::ops::Deref;

use arrayvec::ArrayVec;
use iwarp::verbs::{MAX_INLINE, SendRequest};

use crate::ffi::abi::{EINVAL, Errno, Outcome};
use crate::process::limits;

/// The requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
pub(crate) struct WrBatch {
    pub(crate) requests: Vec<WrBuilder>,
    /// The first error since `ibv_wr_start`.
    pub(crate) error: Option<Errno>,
}

impl WrBatch {
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.error = None;
    }
}

/// A request whose elements may still be set.
pub(crate) struct WrBuilder {
    pub(crate) request: SendRequest,
    pub(crate) inline: Option<InlineBytes>,
    /// The program's immediate data of a Write. The immediate also contains the Write's length, which is
    /// known only when the elements are set.
    pub(crate) write_imm: Option<u32>,
}

/// The inline data of a request.
pub(crate) enum InlineBytes {
    Short(ArrayVec<u8, MAX_INLINE>),
    Long(Vec<u8>),
}

impl InlineBytes {
    /// Copies the bytes of the parts. Fails if the bytes are more than any queue pair allows.
    pub(crate) fn of<B: AsRef<[u8]>>(parts: impl Iterator<Item = B> + Clone) -> Outcome<Self> {
        let longer = |sum: usize, part: B| {
            sum.checked_add(part.as_ref().len()).filter(|sum| *sum <= limits::LONG_INLINE)
        };
        let length = parts.clone().try_fold(0, longer).ok_or(EINVAL)?;
        if length > MAX_INLINE {
            let mut bytes = Vec::with_capacity(length);
            parts.for_each(|part| bytes.extend_from_slice(part.as_ref()));
            return Ok(Self::Long(bytes));
        }
        let mut bytes = ArrayVec::new();
        for part in parts {
            bytes.try_extend_from_slice(part.as_ref()).map_err(|_| EINVAL)?;
        }
        Ok(Self::Short(bytes))
    }
}

impl Deref for InlineBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(bytes) => bytes,
        }
    }
}
