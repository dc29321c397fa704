//! The shared part of a protection domain, and the checks of a request against the domain.

use std::sync::Arc;

use crate::memory::{Access, PdId};

use super::usage::Permit;
use super::{RecvRequest, Resources, Sge, VerbsError};

pub(crate) struct PdShared {
    id: PdId,
    pub(crate) resources: Arc<Resources>,
    _permit: Permit,
}

impl PdShared {
    pub(crate) fn new(resources: &Arc<Resources>) -> Result<Arc<Self>, VerbsError> {
        let permit = resources.quotas.pd.take(1)?;
        let id = PdId(resources.next_pd_num()?);
        Ok(Arc::new(Self { id, resources: Arc::clone(resources), _permit: permit }))
    }

    pub(crate) fn id(&self) -> PdId {
        self.id
    }

    /// Checks a receive request: the number of its elements is at most `max_sge`, their length fits in 32
    /// bits, and their memory may be written.
    pub(crate) fn check_recv(&self, request: &RecvRequest, max_sge: usize) -> Result<(), VerbsError> {
        let (got, length) = (request.sg_list.len(), request.length());
        if got > max_sge {
            return Err(VerbsError::TooManySge { got, max: max_sge });
        }
        if length > u64::from(u32::MAX) {
            return Err(VerbsError::TooLong { got: length, max: u64::from(u32::MAX) });
        }
        match self.check_local(&request.sg_list, Access::LOCAL_WRITE) {
            // With `late_memory_checks` an element with invalid memory is accepted here. If a message is
            // later received into this element, the message fails.
            Err(VerbsError::LocalProtection(_)) if self.resources.late_memory_checks => Ok(()),
            checked => checked,
        }
    }

    /// Checks that the elements are registered in this protection domain, with these rights.
    pub(crate) fn check_local(&self, sg_list: &[Sge], access: Access) -> Result<(), VerbsError> {
        let memory = &self.resources.memory;
        sg_list.iter().try_for_each(|sge| {
            memory
                .check_local(self.id, sge.lkey, sge.addr, sge.length, access)
                .map_err(|fault| VerbsError::LocalProtection(fault.to_string()))
        })
    }
}
