//! Buffers lent to clients that trust neither the server nor one another, as RFC 5042 appendix A wants it of
//! a server:
//!
//! | | appendix A | here |
//! |---|---|---|
//! | scope | an STag is one stream's | a window of type 2, bound to the client's queue pair |
//! | rights | write-only buffers get no read right, and just the data meant is exposed | the window's rights and range; the region has none for peers |
//! | stale data | none in a buffer before a peer may read it | zeroed before each loan |
//! | change after indication | invalid before it is looked at | [`Lender::take_back`]: the client's invalidation is checked, else made up for |
//! | aliasing | one client at a time | a buffer is lent again only once it was taken back |

use iwarp::memory::Access;
use iwarp::verbs::{
    MemoryRegion, MemoryWindow, ProtectionDomain, QueuePair, SendFlags, SendOp, SendRequest, VerbsError,
    WindowKind, WorkCompletion,
};

/// Buffers of one size, free or lent.
pub(crate) struct Lender {
    pd: ProtectionDomain,
    /// All buffers, without any right of a peer.
    region: MemoryRegion,
    bytes: usize,
    free: Vec<usize>,
}

/// A buffer in the hands of one client.
pub(crate) struct Loan {
    buffer: usize,
    window: MemoryWindow,
}

/// How a buffer came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// The client invalidated its name itself.
    Given,
    /// It did not, and the server took it away.
    Taken,
}

impl Lender {
    pub(crate) fn new(pd: &ProtectionDomain, buffers: usize, bytes: usize) -> Result<Self, VerbsError> {
        let region = pd.reg_mr(buffers * bytes, Access::LOCAL_WRITE | Access::MW_BIND)?;
        Ok(Self { pd: pd.clone(), region, bytes, free: (0..buffers).rev().collect() })
    }

    /// Lends a buffer that begins with `contents` and is zeros behind, to the peer of `qp` alone; `None` when
    /// all are lent. What is posted to `qp` behind this, as the message with [`Loan::name`], finds it in
    /// effect. The queue pair was granted [`QpGrants::BIND_WINDOWS`](iwarp::verbs::QpGrants).
    pub(crate) fn lend(
        &mut self,
        qp: &QueuePair,
        access: Access,
        contents: &[u8],
    ) -> Result<Option<Loan>, VerbsError> {
        let Some(buffer) = self.free.pop() else { return Ok(None) };
        let mut bytes = vec![0; self.bytes];
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

    /// Takes a buffer back, when `done` says that the client is through with it, and returns what is in it:
    /// from here on it does not change. Whatever the client has invalidated, its name for this buffer is none
    /// any more.
    pub(crate) fn take_back(
        &mut self,
        loan: Loan,
        done: &WorkCompletion,
    ) -> Result<(Vec<u8>, Return), VerbsError> {
        let given = done.invalidated == Some(loan.name()) && !loan.window.is_bound();
        // Returns when no engine uses the window any more.
        drop(loan.window);
        let bytes = self.look(loan.buffer)?;
        self.free.push(loan.buffer);
        Ok((bytes, if given { Return::Given } else { Return::Taken }))
    }

    /// What is in a buffer.
    pub(crate) fn look(&self, buffer: usize) -> Result<Vec<u8>, VerbsError> {
        let mut bytes = vec![0; self.bytes];
        self.region.read_at(buffer * self.bytes, &mut bytes)?;
        Ok(bytes)
    }
}

impl Loan {
    /// The STag to tell the client. Its tagged offsets start at 0.
    pub(crate) fn name(&self) -> u32 {
        self.window.rkey()
    }
}
