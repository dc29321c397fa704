//! The checks of the data path: the right of a stream to write to or read from registered memory.

use crate::memory::access::{Access, Accessor, PdId};
use crate::memory::epoch::EpochGuard;
use crate::memory::fault::Fault;
use crate::memory::stag::Stag;
use crate::memory::transfer::{Source, Target};

/// Each check reads the current table. The returned value checks again before each copy.
impl EpochGuard<'_> {
    /// The target of the payload of an RDMA Write segment (RFC 5041 section 7.1). `len` is not 0: an empty
    /// segment is not checked.
    ///
    /// # Errors
    /// The first check that fails; [`DdpError`](crate::ddp::DdpError) has its codes.
    #[inline(always)]
    pub fn check_write(&self, stag: Stag, to: u64, len: u64, by: Accessor) -> Result<Target<'_>, Fault> {
        let (lease, record) = self.shared().lookup(stag)?;
        record.admit_remote(by, Access::REMOTE_WRITE)?;
        let ptr = record.locate(to, len)?;
        Ok(Target::new(self, lease, &record, ptr, len as usize))
    }

    /// The source of the bytes that a Read Request asks for. `len` is not 0.
    ///
    /// RFC 5040 section 7.2 (RDMAP-340): the source STag is valid.
    ///
    /// # Errors
    /// The first check that fails;
    /// [`TerminateError::of_read_fault`](crate::rdmap::TerminateError::of_read_fault) has its codes.
    pub fn check_read(&self, stag: Stag, to: u64, len: u64, by: Accessor) -> Result<Source<'_>, Fault> {
        let (lease, record) = self.shared().lookup(stag)?;
        record.admit_remote(by, Access::REMOTE_READ)?;
        let ptr = record.locate(to, len)?;
        Ok(Source::new(self, lease, &record, ptr, len as usize))
    }

    /// The target of a received Send or Read Response: an element of the consumer's own request. A Read
    /// Response is checked against its [`ReadSink`](crate::rdmap::ReadSink) before.
    ///
    /// # Errors
    /// The first check that fails. For a Read Response it has DDP's codes.
    #[inline(always)]
    pub fn check_sink(&self, lkey: Stag, addr: u64, len: u64, pd: PdId) -> Result<Target<'_>, Fault> {
        let (lease, record) = self.shared().lookup(lkey)?;
        record.admit_local(pd, Access::LOCAL_WRITE)?;
        let ptr = record.locate(addr, len)?;
        Ok(Target::new(self, lease, &record, ptr, len as usize))
    }

    /// The source of the bytes of a Send or Write: an element of the consumer's own request.
    ///
    /// # Errors
    /// The first check that fails. It is an error of the consumer, not of the peer.
    #[inline(always)]
    pub fn check_source(&self, lkey: Stag, addr: u64, len: u64, pd: PdId) -> Result<Source<'_>, Fault> {
        let (lease, record) = self.shared().lookup(lkey)?;
        record.admit_local(pd, Access::empty())?;
        let ptr = record.locate(addr, len)?;
        Ok(Source::new(self, lease, &record, ptr, len as usize))
    }
}
