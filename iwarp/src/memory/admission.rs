//! The checks of the data path: whether a stream, or a request of the consumer, may write to or read from
//! registered memory. `atomic.rs` has the check of atomics.

use crate::memory::access::{Access, Accessor, PdId};
use crate::memory::epoch::EpochGuard;
use crate::memory::fault::Fault;
use crate::memory::slot::Found;
use crate::memory::stag::Stag;
use crate::memory::transfer::{Source, Target};

/// Each check looks up the STag in the current table. The returned [`Target`] or [`Source`] checks the
/// registration again before each copy.
impl EpochGuard<'_> {
    /// Returns the target of an RDMA Write segment's payload (RFC 5041 section 7.1). `len` must not be 0.
    ///
    /// # Errors
    /// The [`Fault`] of the first check that fails. [`DdpError`](crate::ddp::DdpError) maps each fault to the
    /// codes of a Terminate.
    #[inline(always)]
    pub fn check_write(&self, stag: Stag, to: u64, len: u64, by: Accessor) -> Result<Target<'_>, Fault> {
        let (lease, record) = self.shared().lookup(stag)?;
        record.admit_remote(by, Access::REMOTE_WRITE)?;
        let ptr = record.locate(to, len)?;
        Ok(Target::new(self, lease, &record, ptr, len as usize))
    }

    /// Returns the source of the bytes that a Read Request asks for. `len` must not be 0.
    ///
    /// RFC 5040 section 7.2 (RDMAP-340): the source STag must be valid.
    ///
    /// # Errors
    /// The [`Fault`] of the first check that fails.
    /// [`TerminateError::of_read_fault`](crate::rdmap::TerminateError::of_read_fault) maps each fault to the
    /// codes of a Terminate.
    pub fn check_read(&self, stag: Stag, to: u64, len: u64, by: Accessor) -> Result<Source<'_>, Fault> {
        let (lease, record) = self.shared().lookup(stag)?;
        record.admit_remote(by, Access::REMOTE_READ)?;
        let ptr = record.locate(to, len)?;
        Ok(Source::new(self, lease, &record, ptr, len as usize))
    }

    /// Returns the target of bytes of a received Send, Immediate Data or response. The target is in an
    /// element of the consumer's own request. The caller has already checked a Read Response against its
    /// [`ReadSink`](crate::rdmap::ReadSink).
    ///
    /// # Errors
    /// The [`Fault`] of the first check that fails. If a Read Response fails a check, the Terminate has the
    /// codes of DDP.
    #[inline(always)]
    pub fn check_sink(&self, lkey: Stag, addr: u64, len: u64, pd: PdId) -> Result<Target<'_>, Fault> {
        let (lease, record) = self.shared().lookup(lkey)?;
        record.admit_local(pd, Access::LOCAL_WRITE)?;
        let ptr = record.locate(addr, len)?;
        Ok(Target::new(self, lease, &record, ptr, len as usize))
    }

    /// Returns the source of bytes of a Send or Write. The source is in an element of the consumer's own
    /// request.
    ///
    /// # Errors
    /// The [`Fault`] of the first check that fails. The consumer, not the peer, has caused the fault.
    #[inline(always)]
    pub fn check_source(&self, lkey: Stag, addr: u64, len: u64, pd: PdId) -> Result<Source<'_>, Fault> {
        let (lease, record) = self.shared().lookup(lkey)?;
        record.admit_local(pd, Access::empty())?;
        let ptr = record.locate(addr, len)?;
        Ok(Source::new(self, lease, &record, ptr, len as usize))
    }

    /// Does what [`check_source`](Self::check_source) does, for an STag that `MemoryTable::find_source` found
    /// when the request was posted. Returns `None` if a check fails, or if the STag has been revoked since
    /// then. In these cases the caller calls `check_source`.
    #[inline(always)]
    pub(crate) fn source_again(&self, found: Found, addr: u64, len: u64, pd: PdId) -> Option<Source<'_>> {
        let (lease, record) = self.shared().find_again(found)?;
        record.admit_local(pd, Access::empty()).ok()?;
        let ptr = record.locate(addr, len).ok()?;
        Some(Source::new(self, lease, &record, ptr, len as usize))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::{Base, MemoryTable, RegisterOptions};

    /// A found STag can be used only while its registration is unchanged, only in its own protection domain,
    /// and only within its range.
    #[test]
    fn a_found_source_is_used_only_while_all_checks_would_pass() {
        let (table, pd) = (MemoryTable::new(4, [1; 32]), PdId(1));
        let register = || {
            let region = Arc::new(dp::Region::new(4096).expect("a page"));
            let options = RegisterOptions { pd, base: Base::Zero, ..RegisterOptions::default() };
            table.register(region, &options).expect("a free slot")
        };
        let first = register();
        let lkey = first.stag();
        let addr = first.base_to();
        let found = table.find_source(pd, lkey.0, addr, 4096).unwrap().expect("it is registered");
        assert_eq!(table.find_source(pd, lkey.0, addr, 0).map(|found| found.is_none()), Ok(true));
        assert!(table.find_source(pd, lkey.0 ^ 1, addr, 4096).unwrap().is_none());
        assert_eq!(table.find_source(PdId(2), lkey.0, addr, 4096).err(), Some(Fault::NotAssociated));
        assert_eq!(table.find_source(pd, lkey.0, addr, 4097).err(), Some(Fault::Bounds));
        let engine = table.join();
        let is_found = |addr, len, pd| engine.enter().source_again(found, addr, len, pd).is_some();
        assert!(is_found(addr, 4096, pd));
        assert!(!is_found(addr, 4096, PdId(2)));
        assert!(!is_found(addr, 4097, pd) && !is_found(addr + 1, 4096, pd));
        drop(first);
        assert!(!is_found(addr, 4096, pd), "it was deregistered");
        let _second = register();
        assert!(!is_found(addr, 4096, pd), "another registration has its slot");
    }
}
