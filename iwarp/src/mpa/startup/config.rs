//! The configuration of an endpoint for startup.

use thiserror::Error;

use super::RtrKinds;
use crate::mpa::frame::{Depths, ENHANCED_BYTES, Enhanced, MAX_PRIVATE_DATA};

/// The highest revision that an endpoint implements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// Revision 1, RFC 5044.
    One,
    /// Revision 2, RFC 6581.
    #[default]
    Two,
}

/// The settings that an endpoint requests and allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpaConfig {
    /// Bit M: whether to ask the peer to send markers, so that out-of-order FPDUs can be placed. Linux siw
    /// rejects an MPA Request that asks for markers.
    pub markers: bool,
    /// Bit C: whether to use CRCs. May be `false` only if the whole path is protected at least as well as by
    /// CRCs (RFC 5044 section 4.4).
    pub crc: bool,
    /// For an initiator, the revision of the Request. For a responder, the highest revision to accept.
    pub revision: Revision,
    /// For an initiator, whether to ask for the peer-to-peer model (bit A). No effect for a responder, since
    /// the initiator decides.
    pub peer_to_peer: bool,
    /// The RTR kinds to offer and to accept. No other known implementation uses a Send, so a Send is not
    /// among the default kinds.
    pub rtr: RtrKinds,
    /// For a responder, whether to name only one RTR kind in the Reply: the first possible kind in the order
    /// Write, Read, Send.
    pub single_rtr: bool,
    /// Maximum number of the peer's Reads that this endpoint serves at a time. May be 0.
    pub ird: u16,
    /// Maximum number of Reads that this endpoint issues at a time. May be 0.
    pub ord: u16,
    /// For an initiator, the maximum to which it raises `ird` if the responder's ORD is larger. If the ORD is
    /// larger than this maximum, startup fails with code 6. For a responder, the maximum of
    /// [`Accept::ird`](super::Accept::ird).
    pub max_ird: u16,
    /// For an initiator, whether its Request has 0x3fff for both depths. MPA then does not negotiate the
    /// depths, but leaves them to the ULPs. Linux siw reads 0x3fff as a number.
    pub depths_left_to_ulp: bool,
    /// For an initiator in the client-server model, whether to accept FPDUs that the responder sends before
    /// the responder has received an FPDU. Linux siw sends such FPDUs, which violates RFC 5044 section 7.1.2
    /// rule 4.
    pub tolerate_early_fpdus: bool,
    /// For an initiator, whether to try once more with revision 1 if the peer closes the connection without a
    /// Reply ([`Initiator::may_fall_back`](super::Initiator::may_fall_back)).
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
            // A larger depth allows more Reads in flight, but needs more request records for each connection.
            ird: 128,
            ord: 128,
            max_ird: 128,
            depths_left_to_ulp: false,
            tolerate_early_fpdus: true,
            fallback: false,
        }
    }
}

/// Why a configuration cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The configuration has revision 2, but no RTR kind.
    #[error("no RTR kind: revision 2 needs one at least")]
    NoRtr,
    /// The configuration has the peer-to-peer model, but not revision 2.
    #[error("peer-to-peer needs revision 2")]
    Revision,
    /// `max_ird` is less than `ird`.
    #[error("max_ird is below ird")]
    MaxIrd,
}

impl MpaConfig {
    /// Returns the configuration for the startup of RFC 5044 in the client-server model.
    pub fn revision_one() -> Self {
        Self { revision: Revision::One, peer_to_peer: false, ..Self::default() }
    }

    /// Returns the maximum number of bytes of private data that a ULP may pass for a Request.
    pub const fn private_data_limit(&self) -> usize {
        match self.revision {
            Revision::One => MAX_PRIVATE_DATA,
            Revision::Two => MAX_PRIVATE_DATA - ENHANCED_BYTES,
        }
    }

    /// Checks that the configuration has no contradiction.
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
        // RFC 6581 section 9.2 (MPA2-079): an enhanced responder supports at least one RTR kind.
        if self.revision == Revision::Two && self.rtr.is_empty() {
            return Err(ConfigError::NoRtr);
        }
        Ok(())
    }

    pub(super) fn request_depths(&self) -> Depths {
        if self.depths_left_to_ulp {
            return Depths { ird: Depths::LEFT_TO_ULP, ord: Depths::LEFT_TO_ULP };
        }
        // An RTR of kind Read needs an ORD of at least 1, even if the ULP asks for 0.
        let least = u16::from(self.peer_to_peer && self.rtr.contains(RtrKinds::READ));
        Depths { ird: self.ird.min(Depths::MAX), ord: self.ord.max(least).min(Depths::MAX) }
    }

    /// Returns the enhanced part of a Request, or `None` if the revision is 1.
    pub(super) fn request(&self) -> Option<Enhanced> {
        // RFC 6581 section 10 (MPA2-099): revision 1 has no enhanced data.
        (self.revision == Revision::Two).then(|| Enhanced {
            // RFC 6581 section 9.2 (MPA2-077, MPA2-090): bit A names the requested model.
            peer_to_peer: self.peer_to_peer,
            // RFC 6581 section 9.2 (MPA2-078): with bit A, all supported kinds are offered.
            rtr: if self.peer_to_peer { self.rtr } else { RtrKinds::empty() },
            depths: self.request_depths(),
        })
    }
}
