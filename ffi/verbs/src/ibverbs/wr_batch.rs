//! Requests that a program is building with the `ibv_wr_*` calls, between `ibv_wr_start` and
//! `ibv_wr_complete`.

use arrayvec::ArrayVec;
use iwarp::verbs::{MAX_INLINE, SendRequest};

use crate::ffi::abi::Errno;

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
    pub(crate) inline: Option<ArrayVec<u8, MAX_INLINE>>,
    /// The program's immediate data of a Write. The immediate also contains the Write's length, which is
    /// known only when the elements are set.
    pub(crate) write_imm: Option<u32>,
}
