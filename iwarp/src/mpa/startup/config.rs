//! What an endpoint brings into startup.

use thiserror::Error;

use super::RtrKinds;
use crate::mpa::frame::{Depths, ENHANCED_BYTES, Enhanced, MAX_PRIVATE_DATA};

/// The highest revision an endpoint speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// RFC 5044.
    One,
    /// RFC 6581.
    #[default]
    Two,
}

/// What an endpoint asks for and allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpaConfig {
    /// M: the peer is to send markers, so that out-of-order FPDUs can be placed. Linux siw refuses this.
    pub markers: bool,
    /// C. Off only where the path is protected at least as well as by CRCs end to end (RFC 5044 section 4.4).
    pub crc: bool,
    /// As initiator: with what to begin. As responder: up to what to accept.
    pub revision: Revision,
    /// As initiator: ask for the peer-to-peer model (A). As responder: no effect, the initiator decides.
    pub peer_to_peer: bool,
    /// RTR kinds to offer and to accept. A Send is known to no other peer and has to be asked for.
    pub rtr: RtrKinds,
    /// As responder: name only one RTR kind in the Reply, Write before Read before Send.
    pub single_rtr: bool,
    /// Reads from the peer served at a time, 0 allowed.
    pub ird: u16,
    /// Reads issued at a time, 0 allowed.
    pub ord: u16,
    /// How far `ird` may be raised where the responder's ORD asks for it; beyond: code 6.
    pub max_ird: u16,
    /// Send 0x3fff for both depths: the ULP sees to them. Known peers take it for a number.
    pub depths_left_to_ulp: bool,
    /// As initiator in the client-server model: bear FPDUs that the responder sends before it has seen one,
    /// as Linux siw does, against RFC 5044 section 7.1.2 rule 4.
    pub bear_early_fpdus: bool,
    /// As initiator: where the peer closed without a Reply, one more try with revision 1 is wanted
    /// ([`Initiator::fallback`](super::Initiator::fallback)).
    pub fallback: bool,
}

impl Default for MpaConfig {
    fn default() -> Self {
        Self {
            markers: false,
            crc: true,
            revision: Revision::Two,
            peer_to_peer: true,
            rtr: RtrKinds::WRITE | RtrKinds::READ,
            single_rtr: false,
            ird: 128,
            ord: 128,
            max_ird: 128,
            depths_left_to_ulp: false,
            bear_early_fpdus: true,
            fallback: false,
        }
    }
}

/// A configuration that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Peer-to-peer, or listening with revision 2, without any RTR kind.
    #[error("no RTR kind: revision 2 needs one at least")]
    NoRtr,
    /// Peer-to-peer needs revision 2.
    #[error("peer-to-peer needs revision 2")]
    Revision,
    /// `max_ird` is below `ird`.
    #[error("max_ird is below ird")]
    MaxIrd,
}

impl MpaConfig {
    /// RFC 5044's startup, client-server.
    pub fn revision_one() -> Self {
        Self { revision: Revision::One, peer_to_peer: false, ..Self::default() }
    }

    /// Bytes of private data a ULP may pass.
    pub const fn private_data_limit(&self) -> usize {
        match self.revision {
            Revision::One => MAX_PRIVATE_DATA,
            Revision::Two => MAX_PRIVATE_DATA - ENHANCED_BYTES,
        }
    }

    /// Looks for contradictions.
    ///
    /// # Errors
    /// [`ConfigError`] names them.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.peer_to_peer && self.revision == Revision::One {
            return Err(ConfigError::Revision);
        }
        if self.max_ird < self.ird {
            return Err(ConfigError::MaxIrd);
        }
        if self.revision == Revision::Two && self.rtr.is_empty() {
            return Err(ConfigError::NoRtr);
        }
        Ok(())
    }

    /// The depths to put into a Request.
    pub(super) fn request_depths(&self) -> Depths {
        if self.depths_left_to_ulp {
            return Depths { ird: Depths::LEFT_TO_ULP, ord: Depths::LEFT_TO_ULP };
        }
        // A Read as RTR takes one, even where the ULP asks for none.
        let least = u16::from(self.peer_to_peer && self.rtr.contains(RtrKinds::READ));
        Depths { ird: self.ird.min(Depths::MAX), ord: self.ord.max(least).min(Depths::MAX) }
    }

    /// The enhanced part of a Request, if this is an enhanced endpoint.
    pub(super) fn request(&self) -> Option<Enhanced> {
        (self.revision == Revision::Two).then(|| Enhanced {
            peer_to_peer: self.peer_to_peer,
            rtr: if self.peer_to_peer { self.rtr } else { RtrKinds::empty() },
            depths: self.request_depths(),
        })
    }
}
