//! The buffers into which a connection receives messages.

use iwarp::memory::Access;
use iwarp::verbs::{ProtectionDomain, RecvRequest};

use crate::error::Result;
use crate::region::{Region, check_element};
use crate::wr_id::Tag;

/// Buffers of equal length in one region. Each buffer has its own receive request.
pub(crate) struct Receives {
    memory: Region,
    tag: Tag,
    pub(crate) depth: usize,
    /// Size of each buffer in bytes, which is the maximum length of a message.
    pub(crate) message_bytes: usize,
}

impl Receives {
    pub(crate) fn new(pd: &ProtectionDomain, tag: Tag, depth: usize, message_bytes: usize) -> Result<Self> {
        check_element(message_bytes)?;
        // The region has at least one byte, since memory cannot be empty.
        let bytes = depth.saturating_mul(message_bytes).max(1);
        let memory = Region::new(pd.reg_mr(bytes, Access::LOCAL_WRITE)?);
        Ok(Self { memory, tag, depth, message_bytes })
    }

    pub(crate) fn request(&self, buffer: usize) -> RecvRequest {
        let sge = self.memory.memory_region().sge(self.start(buffer), self.message_bytes);
        RecvRequest::new(self.tag.receive(buffer), sge)
    }

    pub(crate) fn read(&self, buffer: usize, out: &mut [u8]) -> Result<()> {
        self.memory.read_at(self.start(buffer), out)
    }

    fn start(&self, buffer: usize) -> usize {
        buffer * self.message_bytes
    }
}
