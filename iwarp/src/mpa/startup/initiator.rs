//! The side that sends the Request.

use tcp_lite::Instant;

use super::inbox::Inbox;
use super::{
    ConfigError, Depths, Enhanced, FrameBytes, MpaConfig, Negotiated, PrivateData, PrivateDataTooLong,
    Revision, Rtr, RtrKind, RtrKinds, Step,
};
use crate::mpa::frame::{Frame, FrameKind, private_data};
use crate::mpa::{MpaError, StartupFault};

/// Why startup could not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// See [`MpaConfig::validate`].
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The ULP's private data does not fit.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// A Reply with R set. MPA is left, the TCP connection stays open and is the ULP's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Revision of the Reply.
    pub revision: u8,
    /// What the responder sent of depths: its ORD is what its ULP needs (RFC 6581 section 9.1).
    pub peer: Option<Enhanced>,
    /// Its ULP's private data.
    pub private_data: PrivateData,
}

/// The end of startup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitiatorEvent {
    /// Full Operation: FPDUs may be sent, the RTR of [`Negotiated::rtr`] first.
    Accepted(Negotiated),
    /// The responder's ULP said no.
    Rejected(Rejected),
    /// The Reply accepts, and its terms cannot be met: code 6 or 7. The only FPDU to be sent is a Terminate,
    /// framed as `negotiated` says; then the connection is closed.
    Unmet {
        /// [`MpaError::InsufficientIrd`] or [`MpaError::NoMatchingRtr`].
        error: MpaError,
        /// Framing, and the peer's depths for the ULP. No RTR.
        negotiated: Negotiated,
    },
}

/// The initiator's half of startup.
///
/// Before [`InitiatorEvent::Accepted`] nothing but the Request may be sent, after it anything.
#[derive(Clone, Debug)]
pub struct Initiator {
    config: MpaConfig,
    request: Option<Enhanced>,
    inbox: Inbox,
    /// `None` when startup is over.
    deadline: Option<Instant>,
}

impl Initiator {
    /// Makes the Request, which is to be sent at once. The Reply has to be complete by `deadline`.
    ///
    /// # Errors
    /// [`StartError`]: a configuration or private data that cannot be sent.
    pub fn start(
        config: MpaConfig,
        ulp_data: &[u8],
        deadline: Instant,
    ) -> Result<(Self, FrameBytes), StartError> {
        config.validate()?;
        let enhanced = config.request();
        let frame = Frame {
            kind: FrameKind::Request,
            markers: config.markers,
            crc: config.crc,
            reject: false,
            revision: if enhanced.is_some() { 2 } else { 1 },
            enhanced,
            private_data: private_data(ulp_data, config.private_data_limit())?,
        };
        let bytes = frame.encode()?;
        Ok((Self { config, request: enhanced, inbox: Inbox::default(), deadline: Some(deadline) }, bytes))
    }

    /// Bytes of the stream, in order; the first of them has stream offset `offset`.
    ///
    /// With the event, bytes not consumed are FPDUs the responder sent early (borne only where
    /// [`MpaConfig::bear_early_fpdus`] says so), or the ULP's after a reject. Afterwards nothing is consumed.
    ///
    /// # Errors
    /// Code 4: the connection is to be closed.
    pub fn receive(&mut self, offset: u64, bytes: &[u8]) -> Result<Step<InitiatorEvent>, MpaError> {
        if self.deadline.is_none() {
            return Ok(Step { consumed: 0, event: None });
        }
        let result = self.take(offset, bytes);
        if !matches!(result, Ok(Step { event: None, .. })) {
            self.deadline = None;
        }
        Ok(result?)
    }

    fn take(&mut self, offset: u64, bytes: &[u8]) -> Result<Step<InitiatorEvent>, StartupFault> {
        let (consumed, frame) = self.inbox.take(bytes, FrameKind::Reply)?;
        let Some(reply) = frame else {
            return Ok(Step { consumed, event: None });
        };
        let event = self.judge(reply, offset + consumed as u64)?;
        let early = consumed < bytes.len();
        let borne = self.config.bear_early_fpdus && self.request.is_none_or(|request| !request.peer_to_peer);
        if early && !borne && matches!(event, InitiatorEvent::Accepted(_)) {
            // RFC 5044 section 7.1.2 rule 4: the responder has not seen an FPDU yet.
            return Err(StartupFault::EarlyBytes);
        }
        Ok(Step { consumed, event: Some(event) })
    }

    fn judge(&self, reply: Frame, rx_start: u64) -> Result<InitiatorEvent, StartupFault> {
        match (self.request, reply.revision) {
            (_, 1) | (Some(_), 2) => {}
            (None, 2) if reply.enhanced.is_some() => return Err(StartupFault::NotEnhanced),
            (_, revision) => return Err(StartupFault::Revision(revision)),
        }
        let peer = reply.enhanced;
        if reply.reject {
            let Frame { revision, private_data, .. } = reply;
            return Ok(InitiatorEvent::Rejected(Rejected { revision, peer, private_data }));
        }
        let mut negotiated = Negotiated {
            revision: reply.revision,
            tx_markers: reply.markers,
            rx_markers: self.config.markers,
            crc: self.config.crc || reply.crc,
            ird: self.config.ird,
            ord: self.config.ord,
            peer,
            rtr: Rtr::None,
            private_data: reply.private_data,
            rx_start,
        };
        let agreed = match (self.request, reply.enhanced) {
            (Some(request), Some(reply)) => self.agree(request, reply),
            // RFC 6581 section 10 has an enhanced Request answered enhanced. Nobody would wait for an RTR.
            (Some(Enhanced { peer_to_peer: true, .. }), None) => return Err(StartupFault::NoPeerToPeer),
            (Some(_) | None, _) => return Ok(InitiatorEvent::Accepted(negotiated)),
        };
        Ok(match agreed {
            Ok((ird, ord, rtr)) => {
                negotiated.ird = ird;
                negotiated.ord = ord;
                negotiated.rtr = rtr;
                InitiatorEvent::Accepted(negotiated)
            }
            Err(error) => InitiatorEvent::Unmet { error, negotiated },
        })
    }

    /// IRD, ORD and RTR after an enhanced Reply (RFC 6581 sections 9.1, 9.2).
    fn agree(&self, request: Enhanced, reply: Enhanced) -> Result<(u16, u16, Rtr), MpaError> {
        if request.peer_to_peer != reply.peer_to_peer {
            return Err(MpaError::NoMatchingRtr);
        }
        let MpaConfig { ird, ord, max_ird, .. } = self.config;
        // A Read as RTR needs a place at the peer.
        let serves = reply.depths.ird > 0;
        let ord = match reply.depths.ird {
            Depths::LEFT_TO_ULP => ord,
            served => ord.min(served),
        };
        let ird = match reply.depths.ord {
            Depths::LEFT_TO_ULP => ird,
            wanted if wanted > max_ird => {
                return Err(MpaError::InsufficientIrd { wanted, available: max_ird });
            }
            wanted => ird.max(wanted),
        };
        if !request.peer_to_peer {
            return Ok((ird, ord, Rtr::None));
        }
        let mut common = request.rtr & reply.rtr;
        if !serves {
            common -= RtrKinds::READ;
        }
        [RtrKind::Write, RtrKind::Read, RtrKind::Send]
            .into_iter()
            .find(|kind| common.contains((*kind).into()))
            .map(|kind| (ird, ord, Rtr::Send(kind)))
            .ok_or(MpaError::NoMatchingRtr)
    }

    /// By when the Reply has to be complete; `None` once startup is over.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The time is `now`.
    ///
    /// # Errors
    /// [`MpaError::StartupTimeout`] when the deadline has passed: the connection is to be closed.
    pub fn on_timeout(&mut self, now: Instant) -> Result<(), MpaError> {
        match self.deadline {
            Some(deadline) if now >= deadline => {
                self.deadline = None;
                Err(MpaError::StartupTimeout)
            }
            _ => Ok(()),
        }
    }

    /// TCP ended (FIN, RST or loss). What to report; `None` when startup was over.
    pub fn on_closed(&mut self) -> Option<MpaError> {
        self.deadline.take().map(|_| MpaError::Closed)
    }

    /// What to try on a new connection after the peer closed this one without a Reply: perhaps it does not
    /// know revision 2 (RFC 6581 section 10). Only where [`MpaConfig::fallback`] asks for it.
    pub fn fallback(&self) -> Option<MpaConfig> {
        (self.config.fallback && self.request.is_some() && self.inbox.is_empty()).then_some(MpaConfig {
            revision: Revision::One,
            peer_to_peer: false,
            ..self.config
        })
    }
}
