//! Taking an STag away on the data path: as the consumer asks in its send queue, or as the peer does.

use crate::memory::access::{Access, Accessor};
use crate::memory::fault::Fault;
use crate::memory::quiescence::EpochGuard;
use crate::memory::slot::Traits;
use crate::memory::stag::Stag;

impl EpochGuard {
    /// Invalidates an STag as the consumer asked in its send queue. When this returns, nothing behind it
    /// changes or is read any more, nor behind windows that are bound to it: it waits for the turns that
    /// other engines are in.
    ///
    /// A window of type 2 goes only by the queue pair that bound it, one of type 1 by being bound again.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when unknown or invalid already, [`Fault::NotAssociated`] when it belongs to
    /// another protection domain or queue pair, [`Fault::NotInvalidatable`] for a window of type 1.
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
        self.shared().synchronize();
        Ok(())
    }

    /// Invalidates an STag as a peer asked on stream `by` (Send with Invalidate). Only an STag of that one
    /// stream is: what several streams may use, one of them must not take from the others (RFC 5042 section
    /// 6.4.5). As no other engine can be serving its peer, there is nothing to wait for.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when unknown or invalid already, [`Fault::NotInvalidatable`] when it belongs to
    /// another stream or to a protection domain, or is not to be invalidated by peers.
    pub fn invalidate_remote(&self, stag: Stag, by: Accessor) -> Result<(), Fault> {
        let (lease, record) = self.shared().lookup(stag)?;
        if !record.access.intersects(Access::REMOTE) {
            return Err(Fault::InvalidStag);
        }
        if record.stream != Some(by.stream) || record.traits.intersects(Traits::KEPT | Traits::REBOUND_ONLY) {
            return Err(Fault::NotInvalidatable);
        }
        if lease.revoke() { Ok(()) } else { Err(Fault::InvalidStag) }
    }
}
