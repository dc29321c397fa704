//! A server lends buffers to clients. The clients do not trust the server or each other. The table lists what
//! RFC 5042 appendix A requires of such a server, and how this example complies:
//!
//! | | appendix A | here |
//! |---|---|---|
//! | scope | an STag is limited to one stream | a window of type 2, bound to the client's queue pair |
//! | rights | write-only buffers get no read right, and only the intended data is exposed | the window's rights and range; the region has none for peers |
//! | stale data | none in a buffer that a peer may read | zeroed before each loan |
//! | change after indication | the STag is invalid before the server reads the buffer | [`Lender::take_back`]: checks that the client invalidated it, otherwise does so |
//! | aliasing | one client at a time | a buffer is lent again only after it was taken back |

use iwarp::memory::Access;
use iwarp::verbs::{
    MemoryRegion, MemoryWindow, ProtectionDomain, QueuePair, SendFlags, SendOp, SendRequest, VerbsError,
    WindowKind, WorkCompletion,
};

/// Buffers of one size, each of which is free or lent.
pub(crate) struct Lender {
    pd: ProtectionDomain,
    /// The memory of all buffers, registered without rights for peers.
    region: MemoryRegion,
    bytes: usize,
    free: Vec<usize>,
}

/// A buffer that one client may use.
pub(crate) struct Loan {
    buffer: usize,
    window: MemoryWindow,
}

/// How a client has returned a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// The client has invalidated the STag.
    Given,
    /// The server has invalidated the STag, because the client has not done so.
    Taken,
}

impl Lender {
    pub(crate) fn new(pd: &ProtectionDomain, buffers: usize, bytes: usize) -> Result<Self, VerbsError> {
        let region = pd.reg_mr(buffers * bytes, Access::LOCAL_WRITE | Access::MW_BIND)?;
        Ok(Self { pd: pd.clone(), region, bytes, free: (0..buffers).rev().collect() })
    }

    /// Lends a buffer that contains `contents`, followed by zeros, to the peer of `qp` only. Returns `None`
    /// if all buffers are lent. The bind takes effect before requests that are posted to `qp` afterwards,
    /// such as the message with [`Loan::name`]. The queue pair needs the grant
    /// [`QpGrants::BIND_WINDOWS`](iwarp::verbs::QpGrants).
    pub(crate) fn lend(
        &mut self,
        qp: &QueuePair,
        access: Access,
        contents: &[u8],
    ) -> Result<Option<Loan>, VerbsError> {
        let Some(buffer) = self.free.pop() else { return Ok(None) };
        let mut bytes = vec![0; self.bytes];
        // RFC 5042 appendix A (SEC-179): the contents and the zeros overwrite the bytes of earlier clients.
        bytes[..contents.len()].copy_from_slice(contents);
        self.region.write_at(buffer * self.bytes, &bytes)?;
        let window = self.pd.alloc_mw(WindowKind::Type2)?;
        let mut bind = window.bind(
            &self.region,
            (buffer * self.bytes) as u64,
            self.bytes as u64,
            access & Access::REMOTE,
        );
        bind.zero_based = true;
        qp.post_send(&SendRequest::empty(0, SendOp::BindWindow(bind)).flags(SendFlags::empty()))?;
        Ok(Some(Loan { buffer, window }))
    }

    /// Takes back the buffer of `loan`. `done` is the completion of the message by which the client has
    /// returned the buffer. Returns the buffer's bytes, and how the client has returned the buffer. The bytes
    /// no longer change, because the buffer's STag is invalid now even if the client has not invalidated it.
    pub(crate) fn take_back(
        &mut self,
        loan: Loan,
        done: &WorkCompletion,
    ) -> Result<(Vec<u8>, Return), VerbsError> {
        // RFC 5042 appendix A (SEC-177): the STag becomes invalid before the server reads the bytes.
        let given = done.invalidated == Some(loan.name()) && !loan.window.is_bound();
        // `drop` returns when no engine uses the window any more.
        drop(loan.window);
        let bytes = self.look(loan.buffer)?;
        self.free.push(loan.buffer);
        Ok((bytes, if given { Return::Given } else { Return::Taken }))
    }

    /// Returns the bytes of a buffer.
    pub(crate) fn look(&self, buffer: usize) -> Result<Vec<u8>, VerbsError> {
        let mut bytes = vec![0; self.bytes];
        self.region.read_at(buffer * self.bytes, &mut bytes)?;
        Ok(bytes)
    }
}

impl Loan {
    /// Returns the STag that the client receives. Tagged offsets of this STag start at 0.
    pub(crate) fn name(&self) -> u32 {
        self.window.rkey()
    }
}
