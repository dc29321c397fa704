//! The configuration of a queue pair, which is fixed when the queue pair is created. The checks of requests
//! against the configuration are in `prepare.rs`.

use std::sync::Arc;

use crate::memory::StreamId;
use crate::queues::usage::within;
use crate::queues::{MAX_INLINE, MAX_SGE, PdShared, QpGrants, QpInit, QpType, Resources, VerbsError};
use crate::rdmap::Extensions;

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    /// Maximum number of elements of a send request, at most [`MAX_SGE`].
    max_send_sge: u8,
    /// As `max_send_sge`, for the requests that the fast path of posting accepts. 0 for the types other than
    /// RC, since only the general path refuses operations by the type.
    max_fast_sge: u8,
    max_recv_sge: u8,
    /// Maximum number of bytes of an inline request, at most [`MAX_INLINE`].
    max_inline: u8,
}

const _: () = assert!(MAX_SGE <= u8::MAX as usize);
const _: () = assert!(MAX_INLINE <= u8::MAX as usize);

impl Caps {
    /// # Errors
    /// [`VerbsError::Limit`] if an option exceeds a limit of the context or of a request.
    fn new(init: &QpInit<'_>, max_qp_wr: usize) -> Result<Self, VerbsError> {
        within("max_qp_wr", init.max_send_wr.max(init.max_recv_wr), max_qp_wr)?;
        within("MAX_SGE", init.max_send_sge.max(init.max_recv_sge), MAX_SGE)?;
        within("MAX_INLINE", init.max_inline, MAX_INLINE)?;
        Ok(Self {
            max_send_sge: init.max_send_sge as u8,
            max_fast_sge: if init.qp_type == QpType::Rc { init.max_send_sge as u8 } else { 0 },
            max_recv_sge: init.max_recv_sge as u8,
            max_inline: init.max_inline as u8,
        })
    }

    pub(crate) fn max_send_sge(&self) -> usize {
        self.max_send_sge.into()
    }

    #[inline]
    pub(super) fn max_fast_sge(&self) -> usize {
        self.max_fast_sge.into()
    }

    pub(crate) fn max_recv_sge(&self) -> usize {
        self.max_recv_sge.into()
    }

    pub(crate) fn max_inline(&self) -> usize {
        self.max_inline.into()
    }
}

/// The configuration of a queue pair, which never changes.
pub(crate) struct QpConfig {
    /// The number of the queue pair. Dropping the configuration frees the number.
    pub(crate) num: u32,
    /// The number of the queue pair's stream.
    pub(crate) stream: StreamId,
    pub(crate) pd: Arc<PdShared>,
    pub(crate) caps: Caps,
    pub(crate) early_sends: bool,
    pub(crate) extensions: Extensions,
    pub(crate) grants: QpGrants,
    pub(crate) qp_type: QpType,
    pub(crate) own_multicast: bool,
}

impl QpConfig {
    /// Checks the options, and allocates a number for the queue pair.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if an option exceeds a limit. [`VerbsError::Invalid`] if objects in the options
    /// cannot be used together.
    pub(super) fn new(pd: &Arc<PdShared>, init: &QpInit<'_>) -> Result<Self, VerbsError> {
        let context = &pd.resources;
        let caps = Caps::new(init, context.limits.max_qp_wr)?;
        // RFC 5042 section 7.1 (SEC-164): a completion queue serves only the context that created it.
        for cq in [init.send_cq, init.recv_cq] {
            context.same(cq.shared.resources())?;
        }
        if let Some(srq) = init.srq {
            context.same(&srq.shared.pd.resources)?;
        }
        if init.srq.is_some_and(|srq| srq.shared.one_pd && srq.shared.pd.id() != pd.id()) {
            return Err(VerbsError::Invalid(
                "the shared receive queue is of another protection domain, and serves its own alone (SrqInit::one_pd)".into(),
            ));
        }
        Ok(Self {
            num: context.take_qp_num()?,
            stream: context.next_stream(),
            pd: Arc::clone(pd),
            caps,
            early_sends: init.early_sends,
            extensions: init.extensions,
            grants: init.grants,
            qp_type: init.qp_type,
            own_multicast: init.own_multicast,
        })
    }

    pub(crate) fn resources(&self) -> &Arc<Resources> {
        &self.pd.resources
    }

    /// Whether the queue pair is of type UC.
    pub(crate) fn is_unreliable(&self) -> bool {
        self.qp_type == QpType::Uc
    }

    /// Returns the number of inbound requests that an IRD allows.
    pub(super) fn read_slots_for(&self, ird: u16) -> usize {
        request_buffers(self.extensions, ird) as usize
    }
}

impl Drop for QpConfig {
    fn drop(&mut self) {
        self.resources().free_qp_num(self.num);
    }
}

/// Returns the number of buffers of DDP queue 1: IRD buffers for Read Requests and, with atomics, IRD further
/// buffers for Atomic Requests (RFC 7306 section 5.2.2 item 4).
pub(crate) fn request_buffers(extensions: Extensions, ird: impl Into<u32>) -> u32 {
    // RFC 7306 section 5.2.2 (EXT-098, EXT-191): the buffers for atomics are additional to the buffers for
    // Reads.
    let kinds = if extensions.contains(Extensions::ATOMICS) { 2 } else { 1 };
    kinds * ird.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::test_objects;

    /// Each option is checked against its own limit. If an option is refused, no number is used; dropping a
    /// configuration frees its number.
    #[test]
    fn options_beyond_a_limit_take_no_number() {
        let (resources, pd, cq) = test_objects();
        let most = resources.limits.max_qp_wr;
        let usual = QpInit::new(&cq);
        let most_of_all = QpInit { max_send_wr: most, max_recv_wr: most, ..usual };
        for (init, is_allowed) in [
            (most_of_all, true),
            (QpInit { max_send_wr: most + 1, ..usual }, false),
            (QpInit { max_recv_wr: most + 1, ..usual }, false),
            (QpInit { max_send_sge: MAX_SGE + 1, ..usual }, false),
            (QpInit { max_recv_sge: MAX_SGE + 1, ..usual }, false),
            (QpInit { max_inline: MAX_INLINE + 1, ..usual }, false),
        ] {
            let made = QpConfig::new(&pd, &init);
            assert_eq!(made.is_ok(), is_allowed);
            assert_eq!(resources.quotas.qp.usage().used, usize::from(is_allowed));
            drop(made);
            assert_eq!(resources.quotas.qp.usage().used, 0);
        }
    }

    #[test]
    fn the_limits_and_the_stream_are_its_own() {
        let (_, pd, cq) = test_objects();
        let init = QpInit { max_send_sge: 3, max_recv_sge: 4, max_inline: 5, ..QpInit::new(&cq) };
        let [first, second] = [(); 2].map(|()| QpConfig::new(&pd, &init).unwrap());
        let caps = &first.caps;
        assert_eq!([caps.max_send_sge(), caps.max_recv_sge(), caps.max_inline()], [3, 4, 5]);
        assert!(first.num != second.num && first.stream != second.stream);
        assert_eq!([first.read_slots_for(7), first.read_slots_for(0)], [14, 0]);
        let init = QpInit { extensions: Extensions::IMMEDIATE, ..init };
        assert_eq!(QpConfig::new(&pd, &init).unwrap().read_slots_for(7), 7);
    }
}
