//! Invalidation of an STag on the data path, by a request of the consumer's send queue or by the peer.

use crate::memory::access::{Access, Accessor};
use crate::memory::epoch::EpochGuard;
use crate::memory::fault::Fault;
use crate::memory::slot::Traits;
use crate::memory::stag::Stag;

impl EpochGuard<'_> {
    /// Invalidates an STag for a request of the consumer's send queue. Waits for the open epochs of other
    /// engines: when this returns, no engine writes or reads the memory any more, neither through it nor
    /// through windows that are bound to it.
    ///
    /// Only the queue pair that bound a window of type 2 may invalidate it. A window of type 1 ends by being
    /// bound again.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when it is unknown or already invalid, [`Fault::NotAssociated`] when it belongs
    /// to another protection domain or queue pair, [`Fault::NotInvalidatable`] for a window of type 1.
    pub fn invalidate_local(&self, stag: Stag, by: Accessor) -> Result<(), Fault> {
        let (lease, record) = self.shared().lookup(stag)?;
        let is_window = record.traits.contains(Traits::WINDOW);
        if record.pd != by.pd || (is_window && !record.is_associated(by)) {
            return Err(Fault::NotAssociated);
        }
        if record.traits.contains(Traits::REBOUND_ONLY) {
            return Err(Fault::NotInvalidatable);
        }
        if !lease.revoke() {
            return Err(Fault::InvalidStag);
        }
        // RFC 5042 appendix A (SEC-177): once a server has invalidated the STag, the peer changes no byte
        // behind it.
        self.shared().synchronize();
        Ok(())
    }

    /// Invalidates an STag for a Send with Invalidate of the peer on stream `by`. It has to be an STag of
    /// this one stream, since a peer must not invalidate memory of other streams (RFC 5042 section 6.4.5). No
    /// other engine serves this stream, so there is nothing to wait for.
    ///
    /// RFC 5040 sections 5.3, 7.2 and 8.1.1 (RDMAP-249, RDMAP-335, RDMAP-336, RDMAP-356): the STag is valid,
    /// associated with the stream, and not shared.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when it is unknown or already invalid, [`Fault::NotInvalidatable`] when it
    /// belongs to another stream or to a protection domain, or when peers may not invalidate it.
    pub fn invalidate_remote(&self, stag: Stag, by: Accessor) -> Result<(), Fault> {
        let (lease, record) = self.shared().lookup(stag)?;
        if !record.access.intersects(Access::REMOTE) {
            return Err(Fault::InvalidStag);
        }
        if record.stream != Some(by.stream)
            || record.traits.intersects(Traits::NO_REMOTE_INVALIDATE | Traits::REBOUND_ONLY)
        {
            return Err(Fault::NotInvalidatable);
        }
        if lease.revoke() { Ok(()) } else { Err(Fault::InvalidStag) }
    }
}
