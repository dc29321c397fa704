//! Invalidation of an STag on the data path, by a request of the consumer's send queue or by the peer.

use crate::memory::access::{Access, Accessor};
use crate::memory::epoch::EpochGuard;
use crate::memory::fault::Fault;
use crate::memory::slot::Traits;
use crate::memory::stag::Stag;

impl EpochGuard<'_> {
    /// Invalidates an STag for a request of the consumer's send queue. Waits for the epochs that are open on
    /// other threads. When this function returns, no engine writes the memory or copies bytes from it any
    /// more through the STag or through windows that are bound to it.
    ///
    /// If the STag names a window of type 2, the request must be in the queue pair that bound the window. A
    /// window of type 1 cannot be invalidated: the consumer ends its binding by another bind request.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] if the STag is unknown or already invalid. [`Fault::NotAssociated`] if the STag
    /// belongs to another protection domain, or names a window of another queue pair.
    /// [`Fault::NotInvalidatable`] if the STag names a window of type 1.
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
        // RFC 5042 appendix A (SEC-177): once a server has invalidated the STag, the peer cannot change any
        // byte of the memory through this STag.
        self.shared().synchronize();
        Ok(())
    }

    /// Invalidates an STag for a Send with Invalidate of the peer on stream `by`. The STag must be for this
    /// stream only, since a peer must not invalidate memory of other streams (RFC 5042 section 6.4.5). The
    /// function does not wait for other engines, since no other engine serves this stream.
    ///
    /// RFC 5040 sections 5.3, 7.2 and 8.1.1 (RDMAP-249, RDMAP-335, RDMAP-336, RDMAP-356): the STag is valid,
    /// associated with the stream, and not shared.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] if the STag is unknown or already invalid, or gives no right to peers.
    /// [`Fault::NotInvalidatable`] if the STag belongs to another stream or to a whole protection domain, or
    /// if peers may not invalidate the STag.
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
