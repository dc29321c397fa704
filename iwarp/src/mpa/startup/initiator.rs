//! The initiator: sends the Request and waits for the Reply.

use tcp_lite::Instant;

use super::frame_reader::FrameReader;
use super::{
    ConfigError, Depths, Enhanced, FrameBytes, MpaConfig, Negotiated, PrivateData, PrivateDataTooLong, Rtr,
    RtrKind, RtrKinds, Step,
};
use crate::mpa::frame::{Frame, FrameKind, private_data};
use crate::mpa::{MpaError, StartupFault};

/// Why startup cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The configuration has a contradiction ([`MpaConfig::validate`]).
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The private data of the ULP does not fit into the Request.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// The contents of a Reply with bit R set. MPA ends, and the TCP connection stays open for the ULP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Revision of the Reply.
    pub revision: u8,
    /// The enhanced data of the Reply, if any. Its ORD is the value that the responder's ULP needs (RFC 6581
    /// section 9.1).
    pub peer: Option<Enhanced>,
    /// The private data of the responder's ULP.
    pub private_data: PrivateData,
}

/// How startup ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitiatorEvent {
    /// Full Operation: the initiator may send FPDUs. If [`Negotiated::rtr`] has an RTR, this RTR must be the
    /// first FPDU.
    Accepted(Negotiated),
    /// The responder's ULP has rejected the connection.
    Rejected(Rejected),
    /// The Reply accepts the connection, but this endpoint cannot meet the Reply's terms: code 6 or 7. The
    /// only FPDU to send is a Terminate, with the framing of `negotiated`. After the Terminate the connection
    /// is closed.
    Unmet {
        /// [`MpaError::InsufficientIrd`] or [`MpaError::NoMatchingRtr`].
        error: MpaError,
        /// The framing of the Terminate, and the peer's depths for the ULP. No RTR is sent.
        negotiated: Negotiated,
    },
}

/// The initiator's half of startup.
///
/// Until startup has ended, the initiator may send only the Request.
#[derive(Clone, Debug)]
pub struct Initiator {
    config: MpaConfig,
    request: Option<Enhanced>,
    reader: FrameReader,
    /// The time by which the Reply must be complete; `None` after startup.
    deadline: Option<Instant>,
}

impl Initiator {
    /// Returns the initiator and the Request, which the caller must send at once. The Reply must be complete
    /// by `deadline`.
    ///
    /// # Errors
    /// [`StartError`]: the configuration has a contradiction, or the private data is too long.
    pub fn start(
        config: MpaConfig,
        ulp_data: &[u8],
        deadline: Instant,
    ) -> Result<(Self, FrameBytes), StartError> {
        config.validate()?;
        // RFC 5044 section 7.1.2 (MPA-174): the initiator begins with a Request.
        let enhanced = config.request();
        let frame = Frame {
            kind: FrameKind::Request,
            markers: config.markers,
            crc: config.crc,
            reject: false,
            // RFC 5044 section 7.1.1 (MPA-164), RFC 6581 section 6 (MPA2-025): the revision is 2 with
            // enhanced data, and otherwise 1.
            revision: if enhanced.is_some() { 2 } else { 1 },
            enhanced,
            private_data: private_data(ulp_data, config.private_data_limit())?,
        };
        let bytes = frame.encode()?;
        Ok((
            Self { config, request: enhanced, reader: FrameReader::default(), deadline: Some(deadline) },
            bytes,
        ))
    }

    /// Consumes bytes of the stream, in order. The first byte has stream offset `offset`.
    ///
    /// Bytes after the Reply are not consumed. After an accepting Reply these bytes are FPDUs that the
    /// responder sent early, which are allowed only with [`MpaConfig::tolerate_early_fpdus`] and without the
    /// peer-to-peer model. After a rejecting Reply these bytes belong to the ULP. When the function has
    /// returned an event, later calls consume no byte.
    ///
    /// # Errors
    /// [`StartupFault`] (code 4) if the Reply is invalid or not acceptable, or if bytes follow the Reply too
    /// early. The caller must close the connection.
    pub fn receive(&mut self, offset: u64, bytes: &[u8]) -> Result<Step<InitiatorEvent>, StartupFault> {
        if self.deadline.is_none() {
            return Ok(Step { consumed: 0, event: None });
        }
        let result = self.read_reply(offset, bytes);
        if !matches!(result, Ok(Step { event: None, .. })) {
            self.deadline = None;
        }
        result
    }

    fn read_reply(&mut self, offset: u64, bytes: &[u8]) -> Result<Step<InitiatorEvent>, StartupFault> {
        // RFC 5044 section 7.1.2 (MPA-188, MPA-189): a malformed Reply is an error, after which TCP is
        // closed.
        let (consumed, frame) = self.reader.take(bytes, FrameKind::Reply)?;
        let Some(reply) = frame else {
            return Ok(Step { consumed, event: None });
        };
        let event = self.evaluate(reply, offset + consumed as u64)?;
        let early = consumed < bytes.len();
        let tolerated =
            self.config.tolerate_early_fpdus && self.request.is_none_or(|request| !request.peer_to_peer);
        if early && !tolerated && matches!(event, InitiatorEvent::Accepted(_)) {
            // RFC 5044 section 7.1.2 rule 4: the responder has not received an FPDU yet.
            return Err(StartupFault::EarlyBytes);
        }
        Ok(Step { consumed, event: Some(event) })
    }

    fn evaluate(&self, reply: Frame, rx_start: u64) -> Result<InitiatorEvent, StartupFault> {
        // RFC 5044 section 7.1.1 (MPA-165): a Reply whose revision is neither 1 nor that of the Request is an
        // error, after which TCP is closed.
        match (self.request, reply.revision) {
            (_, 1) | (Some(_), 2) => {}
            (None, 2) if reply.enhanced.is_some() => return Err(StartupFault::NotEnhanced),
            (_, revision) => return Err(StartupFault::Revision(revision)),
        }
        let peer = reply.enhanced;
        // RFC 5044 section 7.1.2 (MPA-190): a set bit R is no error: MPA ends, and TCP stays open. RFC 6581
        // section 9.1 (MPA2-068): the ULP receives the responder's depths even after a reject.
        if reply.reject {
            let Frame { revision, private_data, .. } = reply;
            return Ok(InitiatorEvent::Rejected(Rejected { revision, peer, private_data }));
        }
        let mut negotiated = Negotiated {
            // RFC 5044 section 3 (MPA-037): the ULP learns the revision of the peer.
            revision: reply.revision,
            // RFC 5044 section 7.1.1 (MPA-154, MPA-155, MPA-310): bit M of the Reply decides.
            tx_markers: reply.markers,
            rx_markers: self.config.markers,
            // RFC 5044 sections 4.4, 7.1.1 and C.1 (MPA-085, MPA-086, MPA-158, MPA-159, MPA-298): CRCs are
            // used in both directions if at least one endpoint asks for them, and otherwise in no direction.
            crc: self.config.crc || reply.crc,
            ird: self.config.ird,
            ord: self.config.ord,
            // RFC 6581 section 9.1 (MPA2-058): the ULP receives the peer's depths.
            peer,
            rtr: Rtr::None,
            private_data: reply.private_data,
            rx_start,
        };
        let outcome = match (self.request, reply.enhanced) {
            (Some(request), Some(reply)) => self.negotiate(request, reply),
            // RFC 6581 section 10: the Reply to an enhanced Request must be enhanced. A responder with an
            // unenhanced Reply expects no RTR. Without the peer-to-peer model, an unenhanced Reply is
            // accepted nevertheless: the depths are then not negotiated.
            (Some(Enhanced { peer_to_peer: true, .. }), None) => return Err(StartupFault::NoPeerToPeer),
            (Some(_) | None, _) => return Ok(InitiatorEvent::Accepted(negotiated)),
        };
        Ok(match outcome {
            Ok((ird, ord, rtr)) => {
                negotiated.ird = ird;
                negotiated.ord = ord;
                negotiated.rtr = rtr;
                InitiatorEvent::Accepted(negotiated)
            }
            Err(error) => InitiatorEvent::Unmet { error, negotiated },
        })
    }

    /// Returns IRD, ORD and RTR after an enhanced Reply (RFC 6581 sections 9.1 and 9.2). Fails if this
    /// endpoint cannot meet the terms of the Reply.
    fn negotiate(&self, request: Enhanced, reply: Enhanced) -> Result<(u16, u16, Rtr), MpaError> {
        // RFC 6581 section 9.2 (MPA2-087): if the endpoints ask for different models, the connection ends.
        if request.peer_to_peer != reply.peer_to_peer {
            return Err(MpaError::NoMatchingRtr);
        }
        let MpaConfig { ird, ord, max_ird, .. } = self.config;
        // An RTR of kind Read is one of the Reads that the responder's IRD limits.
        let serves = reply.depths.ird > 0;
        // RFC 6581 section 9.1 (MPA2-065, MPA2-072): ORD is at most the responder's IRD. If that IRD is
        // 0x3fff, ORD is unchanged.
        let ord = match reply.depths.ird {
            Depths::LEFT_TO_ULP => ord,
            served => ord.min(served),
        };
        // RFC 6581 section 9.1 (MPA2-064, MPA2-074): IRD is at least the responder's ORD. If that ORD is
        // 0x3fff, IRD is unchanged. RFC 6581 section 9.1 (MPA2-066): if IRD cannot be raised to the
        // responder's ORD, the connection ends.
        let ird = match reply.depths.ord {
            Depths::LEFT_TO_ULP => ird,
            wanted if wanted > max_ird => {
                return Err(MpaError::InsufficientIrd { wanted, available: max_ird });
            }
            wanted => ird.max(wanted),
        };
        // RFC 6581 section 9.2 (MPA2-093): without bit A, the kinds are ignored.
        if !request.peer_to_peer {
            return Ok((ird, ord, Rtr::None));
        }
        let mut common = request.rtr & reply.rtr;
        if !serves {
            common -= RtrKinds::READ;
        }
        // RFC 6581 section 9.2 (MPA2-086, MPA2-087): the initiator sends an RTR of a kind that both endpoints
        // support. If no such kind exists, the connection ends.
        [RtrKind::Write, RtrKind::Read, RtrKind::Send]
            .into_iter()
            .find(|kind| common.contains((*kind).into()))
            .map(|kind| (ird, ord, Rtr::Send(kind)))
            .ok_or(MpaError::NoMatchingRtr)
    }

    /// Returns the time by which the Reply must be complete, or `None` after startup.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Compares the current time with the deadline, and ends startup if the deadline has passed.
    ///
    /// # Errors
    /// [`MpaError::StartupTimeout`] if the deadline has passed. The caller must close the connection.
    pub fn on_timeout(&mut self, now: Instant) -> Result<(), MpaError> {
        match self.deadline {
            Some(deadline) if now >= deadline => {
                self.deadline = None;
                Err(MpaError::StartupTimeout)
            }
            _ => Ok(()),
        }
    }

    /// Ends startup after the TCP connection has ended (FIN, RST or loss). Returns the error to report, or
    /// `None` if startup had already ended.
    pub fn on_closed(&mut self) -> Option<MpaError> {
        self.deadline.take().map(|_| MpaError::Closed)
    }

    /// Whether the caller may try again with revision 1 on a new connection if the peer closes this
    /// connection. Returns `true` if the Request has revision 2 and no byte of a Reply has arrived: such a
    /// peer may not support revision 2 (RFC 6581 section 10). Always `false` without [`MpaConfig::fallback`].
    pub fn may_fall_back(&self) -> bool {
        self.config.fallback && self.request.is_some() && self.reader.is_empty()
    }
}
