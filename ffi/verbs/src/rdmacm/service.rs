//! The state of an identifier of a datagram service.

use std::net::IpAddr;
use std::sync::Arc;

use iwarp::roce::DATAGRAM_QKEY;

use crate::ffi::abi::{EINVAL, Outcome};
use crate::ffi::pending_acks::PendingAcks;
use crate::ffi::sys;
use crate::process::sidr::Origin;

/// The step of an identifier of a datagram service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Step {
    /// The identifier may be bound, and may have the address of a peer.
    #[default]
    Begun,
    /// The route to the peer is resolved.
    Routed,
    Listens,
    /// The identifier has asked its peer. The answer may have arrived.
    Asked,
    /// The identifier was made for a question that the program has not decided.
    Undecided(Origin),
    /// The program has accepted or rejected the question.
    Decided,
}

/// What only identifiers of datagram services have.
#[derive(Debug, Default)]
pub(crate) struct Datagram {
    pub(crate) step: Step,
    /// The Q_Key of the identifier, which its queue pair has. `None` until the identifier needs one.
    qkey: Option<u32>,
    /// The multicast groups that the identifier has joined.
    pub(crate) joins: Vec<Arc<Join>>,
}

impl Datagram {
    /// The Q_Key of the identifier. If it has none, it gets the Q_Key of `rdma_cm`'s services.
    pub(crate) fn qkey(&mut self) -> u32 {
        *self.qkey.get_or_insert(DATAGRAM_QKEY)
    }

    /// Takes the Q_Key of the peer. Fails if the identifier has another Q_Key.
    pub(crate) fn take_qkey(&mut self, qkey: u32) -> Outcome<()> {
        match qkey != 0 && *self.qkey.get_or_insert(qkey) == qkey {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }

    /// Records that the route to the peer is resolved. As in the kernel, this happens once.
    pub(crate) fn route(&mut self) -> Outcome<()> {
        if self.step != Step::Begun {
            return Err(EINVAL);
        }
        self.step = Step::Routed;
        Ok(())
    }

    /// Whether the identifier listens or has a peer, so that its addresses are final.
    pub(crate) fn is_in_use(&self) -> bool {
        !matches!(self.step, Step::Begun | Step::Routed)
    }
}

/// A group that an identifier has joined.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) group: IpAddr,
    /// False if the identifier only sends to the group.
    pub(crate) receives: bool,
    /// Attaches the queue pair of an identifier, which the program has not destroyed, to the group.
    pub(crate) attach: fn(*mut sys::rdma_cm_id, &Self) -> Outcome<()>,
    /// Counts the delivered event of the join that is not acknowledged.
    pub(crate) pending_acks: PendingAcks,
}
