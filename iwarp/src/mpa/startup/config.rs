//! The settings of an endpoint for startup.

use thiserror::Error;

use super::RtrKinds;
use crate::mpa::frame::{Depths, ENHANCED_BYTES, Enhanced, MAX_PRIVATE_DATA};

/// The highest revision that an endpoint implements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// RFC 5044.
    One,
    /// RFC 6581.
    #[default]
    Two,
}

/// The settings that an endpoint requests and allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpaConfig {
    /// M: asks the peer to send markers, so that out-of-order FPDUs can be placed. Linux siw refuses this.
    pub markers: bool,
    /// C. Off only where the path is protected at least as well as by CRCs end to end (RFC 5044 section 4.4).
    pub crc: bool,
    /// Initiator: the revision of the Request. Responder: the highest revision to accept.
    pub revision: Revision,
    /// Initiator: ask for the peer-to-peer model (A). Responder: no effect, the initiator decides.
    pub peer_to_peer: bool,
    /// RTR kinds to offer and to accept. No other known peer uses a Send, so it is off by default.
    pub rtr: RtrKinds,
    /// Responder: name only one RTR kind in the Reply, in the order Write, Read, Send.
    pub single_rtr: bool,
    /// Maximum number of the peer's Reads that are served at a time. May be 0.
    pub ird: u16,
    /// Maximum number of Reads that are issued at a time. May be 0.
    pub ord: u16,
    /// The limit to which `ird` is raised when the responder's ORD asks for it. Above it: code 6.
    pub max_ird: u16,
    /// Send 0x3fff for both depths, so that the ULPs agree on them. Known peers read it as a number.
    pub depths_left_to_ulp: bool,
    /// Initiator in the client-server model: accept FPDUs that the responder sends before it has received
    /// one. Linux siw does so, against RFC 5044 section 7.1.2 rule 4.
    pub tolerate_early_fpdus: bool,
    /// Initiator: try once more with revision 1 when the peer closes without a Reply
    /// ([`Initiator::may_fall_back`](super::Initiator::may_fall_back)).
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
            // More depth allows more Reads in flight, but needs more request records for each connection.
            ird: 128,
            ord: 128,
            max_ird: 128,
            depths_left_to_ulp: false,
            tolerate_early_fpdus: true,
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
    /// The startup of RFC 5044 in the client-server model.
    pub fn revision_one() -> Self {
        Self { revision: Revision::One, peer_to_peer: false, ..Self::default() }
    }

    /// Bytes of private data that a ULP may pass.
    pub const fn private_data_limit(&self) -> usize {
        match self.revision {
            Revision::One => MAX_PRIVATE_DATA,
            Revision::Two => MAX_PRIVATE_DATA - ENHANCED_BYTES,
        }
    }

    /// Checks for contradictions.
    ///
    /// # Errors
    /// [`ConfigError`] names the contradiction.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.peer_to_peer && self.revision == Revision::One {
            return Err(ConfigError::Revision);
        }
        if self.max_ird < self.ird {
            return Err(ConfigError::MaxIrd);
        }
        // RFC 6581 section 9.2 (MPA2-079): an enhanced responder supports one RTR kind at least.
        if self.revision == Revision::Two && self.rtr.is_empty() {
            return Err(ConfigError::NoRtr);
        }
        Ok(())
    }

    /// The depths of a Request.
    pub(super) fn request_depths(&self) -> Depths {
        if self.depths_left_to_ulp {
            return Depths { ird: Depths::LEFT_TO_ULP, ord: Depths::LEFT_TO_ULP };
        }
        // An RTR by Read needs an ORD of 1, even when the ULP asks for 0.
        let least = u16::from(self.peer_to_peer && self.rtr.contains(RtrKinds::READ));
        Depths { ird: self.ird.min(Depths::MAX), ord: self.ord.max(least).min(Depths::MAX) }
    }

    /// The enhanced part of a Request; `None` at revision 1.
    pub(super) fn request(&self) -> Option<Enhanced> {
        // RFC 6581 section 10 (MPA2-099): revision 1 has no enhanced data.
        (self.revision == Revision::Two).then(|| Enhanced {
            // RFC 6581 section 9.2 (MPA2-077, MPA2-090): A names the requested model.
            peer_to_peer: self.peer_to_peer,
            // RFC 6581 section 9.2 (MPA2-078): with A, all supported kinds are offered.
            rtr: if self.peer_to_peer { self.rtr } else { RtrKinds::empty() },
            depths: self.request_depths(),
        })
    }
}
