//! The responder: waits for the Request, and answers the Request.

use tcp_lite::Instant;

use super::frame_reader::FrameReader;
use super::{
    ConfigError, Depths, Enhanced, FrameBytes, MpaConfig, Negotiated, PrivateData, PrivateDataTooLong,
    Revision, Rtr, RtrKind, RtrKinds, Step,
};
use crate::mpa::frame::{ENHANCED_BYTES, Frame, FrameKind, MAX_PRIVATE_DATA, private_data};
use crate::mpa::{MpaError, StartupFault};

/// A Request. The ULP decides whether to accept it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The revision of the Request, 1 or 2.
    pub revision: u8,
    /// Whether the peer wants markers.
    pub markers: bool,
    /// Whether the peer wants CRCs.
    pub crc: bool,
    /// Whether the peer will send an RTR. With or without an RTR, this endpoint may send only after the
    /// peer's first FPDU has arrived.
    pub peer_to_peer: bool,
    /// The depths that the peer sent; `None` if the peer sent no depths.
    pub peer: Option<Depths>,
    /// Maximum number of bytes of private data in the Reply: 508, or 512 after an unenhanced Request.
    pub private_data_limit: usize,
    /// The private data of the peer's ULP.
    pub private_data: PrivateData,
}

/// The terms on which the ULP accepts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accept<'a> {
    /// Maximum number of the peer's Reads to serve at a time, limited by [`MpaConfig::max_ird`]. `None`: the
    /// configured number.
    pub ird: Option<u16>,
    /// Maximum number of Reads to issue at a time, limited by [`MpaConfig::ord`]. `None`: the configured
    /// number.
    pub ord: Option<u16>,
    /// The smallest ORD with which the ULP can use the connection.
    pub min_ord: u16,
    /// Whether to ask the peer for markers. `None`: the configured setting.
    pub markers: Option<bool>,
    /// Whether to ask for CRCs. `None`: the configured setting.
    pub crc: Option<bool>,
    /// Private data for the peer's ULP.
    pub private_data: &'a [u8],
}

/// Why the ULP's answer to a Request is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponderError {
    /// No Request has arrived, or the Request has already been answered.
    #[error("no request waits for an answer")]
    NoRequest,
    /// The ORD of the connection would be less than the ULP needs, usually because the peer serves too few
    /// Reads. The Request still waits for an answer. The caller should [`reject`](Responder::reject) the
    /// Request with the number in `needed`.
    #[error("the peer serves fewer reads than the {needed} that are needed")]
    InsufficientIrd {
        /// The value of [`Accept::min_ord`].
        needed: u16,
    },
    /// The private data does not fit into the Reply. The Request still waits for an answer.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

#[derive(Clone, Debug)]
enum State {
    WaitRequest,
    /// The ULP decides on the Request. The ULP already has the private data.
    Decide {
        request: Frame,
        rx_start: u64,
    },
    /// The ULP has accepted. The responder may not send an FPDU or a marker before it has received the first
    /// FPDU.
    RxOnly,
    Full,
    Over,
}

/// The responder's half of startup, up to the first FPDU that it receives.
#[derive(Clone, Debug)]
pub struct Responder {
    config: MpaConfig,
    state: State,
    reader: FrameReader,
    deadline: Option<Instant>,
}

impl Responder {
    /// Returns a responder that waits for a Request, which must be complete by `deadline`. The responder
    /// sends nothing before the Request.
    ///
    /// # Errors
    /// The contradiction in the configuration ([`MpaConfig::validate`]).
    pub fn listen(config: MpaConfig, deadline: Instant) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            state: State::WaitRequest,
            reader: FrameReader::default(),
            deadline: Some(deadline),
        })
    }

    /// Consumes bytes of the stream, in order. The first byte has stream offset `offset`. When the function
    /// has returned an event, the ULP must call [`accept`](Self::accept) or [`reject`](Self::reject). After
    /// this answer no byte is consumed.
    ///
    /// # Errors
    /// [`StartupFault`] (code 4) if the Request is invalid or not acceptable, or if bytes arrive after the
    /// Request and before the answer. The caller must close the connection without a Reply.
    pub fn receive(&mut self, offset: u64, bytes: &[u8]) -> Result<Step<ConnectRequest>, StartupFault> {
        let result = match self.state {
            State::WaitRequest => match self.reader.take_private(bytes) {
                // On this path, private data that arrives byte by byte is cheap: the large Request is not
                // moved for each byte.
                Some(consumed) => return Ok(Step { consumed, event: None }),
                None => self.read_request(offset, bytes),
            },
            State::Decide { .. } if !bytes.is_empty() => Err(StartupFault::EarlyBytes),
            State::Decide { .. } | State::RxOnly | State::Full | State::Over => {
                Ok(Step { consumed: 0, event: None })
            }
        };
        // `inspect_err` is not used, since this method would copy a Request with all its private data.
        if result.is_err() {
            self.end();
        }
        result
    }

    #[inline(never)]
    fn read_request(&mut self, offset: u64, bytes: &[u8]) -> Result<Step<ConnectRequest>, StartupFault> {
        // RFC 5044 section 7.1.2 (MPA-176, MPA-177): the responder waits for a whole valid Request; a
        // malformed Request is an error, after which TCP is closed.
        let (consumed, frame) = self.reader.take(bytes, FrameKind::Request)?;
        let Some(request) = frame else {
            return Ok(Step { consumed, event: None });
        };
        // RFC 6581 sections 6 and 10 (MPA2-027, MPA2-100): revision 1 is accepted with every configuration.
        // RFC 6581 section 10 (MPA2-104): an enhanced Request is an error if enhanced startup is disabled.
        // RFC 5044 section 7.1.1 (MPA-165): a Request with a revision that is neither 1 nor the configured
        // one is an error, after which TCP is closed.
        match (request.revision, self.config.revision) {
            (1, _) | (2, Revision::Two) => {}
            (2, Revision::One) if request.enhanced.is_some() => return Err(StartupFault::NotEnhanced),
            (revision, _) => return Err(StartupFault::Revision(revision)),
        }
        if consumed < bytes.len() {
            return Err(StartupFault::EarlyBytes);
        }
        let event = ConnectRequest {
            revision: request.revision,
            markers: request.markers,
            crc: request.crc,
            peer_to_peer: request.enhanced.is_some_and(|enhanced| enhanced.peer_to_peer),
            // RFC 6581 section 9.1 (MPA2-058): the ULP receives the peer's depths.
            peer: request.enhanced.map(|enhanced| enhanced.depths),
            private_data_limit: reply_limit(&request),
            private_data: request.private_data.clone(),
        };
        self.state = State::Decide { request, rx_start: offset + consumed as u64 };
        self.deadline = None;
        Ok(Step { consumed, event: Some(event) })
    }

    /// Accepts the Request. Returns the result of startup and the Reply, which the caller must send at once.
    /// From now on FPDUs may arrive. In the peer-to-peer model the first FPDU must arrive by `rtr_deadline`.
    ///
    /// # Errors
    /// [`ResponderError`] says why the Request cannot be accepted in this way. After an error nothing has
    /// changed.
    pub fn accept(
        &mut self,
        accept: Accept<'_>,
        rtr_deadline: Instant,
    ) -> Result<(Negotiated, FrameBytes), ResponderError> {
        let State::Decide { request, rx_start } = &self.state else {
            return Err(ResponderError::NoRequest);
        };
        let config = MpaConfig {
            markers: accept.markers.unwrap_or(self.config.markers),
            crc: accept.crc.unwrap_or(self.config.crc),
            ..self.config
        };
        let (ird, ord, enhanced) = self.answer(request, accept.ird, accept.ord);
        // RFC 6581 section 9.1 (MPA2-063): an ORD that the ULP cannot use is error code 6.
        if ord < accept.min_ord {
            return Err(ResponderError::InsufficientIrd { needed: accept.min_ord });
        }
        let reply = reply(&config, request, false, enhanced, accept.private_data)?;
        let negotiated = Negotiated {
            revision: request.revision,
            // RFC 5044 section 7.1.1 (MPA-154, MPA-155, MPA-309): bit M of the Request decides.
            tx_markers: request.markers,
            rx_markers: config.markers,
            // RFC 5044 sections 4.4, 7.1.1 and C.1 (MPA-085, MPA-086, MPA-158, MPA-159, MPA-298): CRCs are
            // used in both directions if at least one endpoint asks for them, and otherwise in no direction.
            crc: config.crc || request.crc,
            ird,
            ord,
            peer: request.enhanced,
            rtr: match enhanced {
                Some(Enhanced { peer_to_peer: true, rtr, .. }) => Rtr::Expect(rtr),
                _ => Rtr::None,
            },
            private_data: request.private_data.clone(),
            rx_start: *rx_start,
        };
        self.deadline = matches!(negotiated.rtr, Rtr::Expect(_)).then_some(rtr_deadline);
        self.state = State::RxOnly;
        Ok((negotiated, reply))
    }

    /// Rejects the Request. Returns the Reply, which the caller must send at once. MPA ends, and the TCP
    /// connection stays open for the ULP. If the peer's IRD was too small, `needed_ord` is the IRD that the
    /// ULP needs: the Reply contains this number as its ORD. (This is error code 6, which only this endpoint
    /// reports.)
    ///
    /// # Errors
    /// [`ResponderError`] says why the Request cannot be rejected in this way. After an error nothing has
    /// changed.
    pub fn reject(&mut self, ulp_data: &[u8], needed_ord: Option<u16>) -> Result<FrameBytes, ResponderError> {
        let State::Decide { request, .. } = &self.state else {
            return Err(ResponderError::NoRequest);
        };
        let (_, _, mut enhanced) = self.answer(request, None, None);
        if let (Some(enhanced), Some(needed)) = (&mut enhanced, needed_ord) {
            enhanced.depths.ord = needed.min(Depths::MAX);
        }
        let reply = reply(&self.config, request, true, enhanced, ulp_data)?;
        self.end();
        Ok(reply)
    }

    /// Returns this endpoint's IRD and ORD, and the enhanced part of the Reply (RFC 6581 sections 9.1 and
    /// 9.2).
    fn answer(&self, request: &Frame, ird: Option<u16>, ord: Option<u16>) -> (u16, u16, Option<Enhanced>) {
        // The configuration limits the depths that the ULP asks for.
        let own_ird = ird.map_or(self.config.ird, |ird| ird.min(self.config.max_ird)).min(Depths::MAX);
        let own_ord = ord.map_or(self.config.ord, |ord| ord.min(self.config.ord)).min(Depths::MAX);
        // RFC 6581 section 10 (MPA2-096, MPA2-098, MPA2-102, MPA2-103): the Reply is enhanced if and only if
        // the Request is enhanced.
        let Some(asked) = request.enhanced else {
            return (own_ird, own_ord, None);
        };
        // RFC 6581 section 9.2 (MPA2-093): without bit A, the kinds of the Request are ignored.
        let rtr = if asked.peer_to_peer { self.answer_rtr(asked.rtr, own_ird) } else { RtrKinds::empty() };
        // An RTR of kind Read needs an IRD of at least 1, even if the peer's ORD is 0.
        let least = u16::from(rtr.contains(RtrKinds::READ));
        // RFC 6581 section 9.1 (MPA2-071, MPA2-073): if the peer's depth is 0x3fff, this endpoint's depth is
        // unchanged, and the Reply also has 0x3fff. The two directions are independent of each other.
        let (ird, ird_field) = match asked.depths.ord {
            Depths::LEFT_TO_ULP => (own_ird.max(least), Depths::LEFT_TO_ULP),
            wanted => (wanted.min(own_ird).max(least), wanted.min(own_ird).max(least)),
        };
        // RFC 6581 section 9.1 (MPA2-061): ORD is at most the peer's IRD.
        let (ord, ord_field) = match asked.depths.ird {
            Depths::LEFT_TO_ULP => (own_ord, Depths::LEFT_TO_ULP),
            served => (own_ord.min(served), own_ord.min(served)),
        };
        // RFC 6581 section 9.2 (MPA2-080, MPA2-091): the Reply has the same bit A as the Request.
        let depths = Depths { ird: ird_field, ord: ord_field };
        (ird, ord, Some(Enhanced { peer_to_peer: asked.peer_to_peer, rtr, depths }))
    }

    /// Returns the RTR kinds of the Reply: the kinds that both endpoints support or, without a common kind,
    /// the kinds that this endpoint supports. If this endpoint's IRD is 0, it supports Read only if it has no
    /// other kind. With `single_rtr` the result is only one of these kinds.
    fn answer_rtr(&self, asked: RtrKinds, own_ird: u16) -> RtrKinds {
        let without_read = self.config.rtr - RtrKinds::READ;
        let supported = if own_ird == 0 && !without_read.is_empty() { without_read } else { self.config.rtr };
        // RFC 6581 section 9.2 (MPA2-083, MPA2-085): the Reply names at least one kind that this endpoint
        // supports.
        let common = asked & supported;
        let named = if common.is_empty() { supported } else { common };
        if !self.config.single_rtr {
            return named;
        }
        [RtrKind::Write, RtrKind::Read, RtrKind::Send]
            .map(RtrKinds::from)
            .into_iter()
            .find(|kind| named.contains(*kind))
            .unwrap_or(named)
    }

    /// Whether the responder may send FPDUs and markers. Before it has received the first valid FPDU, it may
    /// not even send a Terminate.
    pub const fn may_send(&self) -> bool {
        // RFC 5044 section 7.1.2 (MPA-193): the responder may send only after it has received one valid FPDU.
        matches!(self.state, State::Full)
    }

    /// Records that a valid FPDU of any kind was received. From now on the responder may send FPDUs.
    pub fn on_fpdu(&mut self) {
        if matches!(self.state, State::RxOnly) {
            self.state = State::Full;
            self.deadline = None;
        }
    }

    /// Returns the time by which the peer must send more bytes. Returns `None` while the ULP decides, or if
    /// no more bytes are expected.
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
                self.end();
                Err(MpaError::StartupTimeout)
            }
            _ => Ok(()),
        }
    }

    /// Ends startup after the TCP connection has ended (FIN, RST or loss). Returns the error to report, or
    /// `None` if startup had already ended.
    pub fn on_closed(&mut self) -> Option<MpaError> {
        let over = matches!(self.state, State::Full | State::Over);
        self.end();
        (!over).then_some(MpaError::Closed)
    }

    fn end(&mut self) {
        self.state = State::Over;
        self.deadline = None;
    }
}

/// Returns the maximum number of bytes of the ULP's private data in the Reply to `request`.
fn reply_limit(request: &Frame) -> usize {
    match request.enhanced {
        Some(_) => MAX_PRIVATE_DATA - ENHANCED_BYTES,
        None => MAX_PRIVATE_DATA,
    }
}

/// Returns the Reply to `request`, in the same revision. Fails if the private data is too long.
fn reply(
    config: &MpaConfig,
    request: &Frame,
    reject: bool,
    enhanced: Option<Enhanced>,
    ulp_data: &[u8],
) -> Result<FrameBytes, PrivateDataTooLong> {
    let frame = Frame {
        kind: FrameKind::Reply,
        markers: config.markers,
        // RFC 5044 section 7.1.1 (MPA-159): bit C of the Reply says whether CRCs will be in use, for peers
        // that check only the Reply.
        crc: config.crc || request.crc,
        reject,
        revision: request.revision,
        enhanced,
        private_data: private_data(ulp_data, reply_limit(request))?,
    };
    frame.encode()
}
