//! The responder: waits for the Request and answers it.

use tcp_lite::Instant;

use super::frame_reader::FrameReader;
use super::{
    ConfigError, Depths, Enhanced, FrameBytes, MpaConfig, Negotiated, PrivateData, PrivateDataTooLong,
    Revision, Rtr, RtrKind, RtrKinds, Step,
};
use crate::mpa::frame::{ENHANCED_BYTES, Frame, FrameKind, MAX_PRIVATE_DATA, private_data};
use crate::mpa::{MpaError, StartupFault};

/// A Request. The ULP decides on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The revision of the Request, 1 or 2.
    pub revision: u8,
    /// The peer wants markers.
    pub markers: bool,
    /// The peer wants CRCs.
    pub crc: bool,
    /// The peer will send an RTR. This end may send once it has arrived.
    pub peer_to_peer: bool,
    /// The peer's depths as it sent them; `None` if it sent none.
    pub peer: Option<Depths>,
    /// Bytes of private data that the Reply can carry: 508, or 512 to an unenhanced peer.
    pub private_data_limit: usize,
    /// The private data of the peer's ULP.
    pub private_data: PrivateData,
}

/// The terms on which the ULP accepts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accept<'a> {
    /// Maximum number of Reads to serve at a time; `None`: as configured.
    pub ird: Option<u16>,
    /// Maximum number of Reads to issue at a time; `None`: as configured.
    pub ord: Option<u16>,
    /// The smallest ORD with which the ULP can use the connection.
    pub min_ord: u16,
    /// Whether to ask the peer for markers; `None`: as configured.
    pub markers: Option<bool>,
    /// Whether to ask for CRCs; `None`: as configured.
    pub crc: Option<bool>,
    /// Private data for the peer's ULP.
    pub private_data: &'a [u8],
}

/// Why an answer to a Request is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponderError {
    /// There is no Request to answer, or it is answered already.
    #[error("no request waits for an answer")]
    NoRequest,
    /// The peer serves fewer Reads than the ULP needs. The Request still waits, and the caller should
    /// [`reject`](Responder::reject) it with the number in `needed`.
    #[error("the peer serves fewer reads than the {needed} that are needed")]
    InsufficientIrd {
        /// [`Accept::min_ord`].
        needed: u16,
    },
    /// The private data does not fit. The Request still waits.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

#[derive(Clone, Debug)]
enum State {
    WaitRequest,
    /// The ULP decides. The ULP already has the private data.
    Decide {
        request: Frame,
        rx_start: u64,
    },
    /// Accepted. No FPDU or marker may be sent before the first FPDU is received.
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
    /// Waits for a Request, which has to be complete by `deadline`. Sends nothing.
    ///
    /// # Errors
    /// A contradiction in the configuration: [`MpaConfig::validate`].
    pub fn listen(config: MpaConfig, deadline: Instant) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            state: State::WaitRequest,
            reader: FrameReader::default(),
            deadline: Some(deadline),
        })
    }

    /// Takes bytes of the stream, in order. The first of them has stream offset `offset`. After the event the
    /// ULP decides: [`accept`](Self::accept) or [`reject`](Self::reject). After the answer nothing is
    /// consumed.
    ///
    /// # Errors
    /// Code 4: the caller has to close the connection without a Reply. Bytes after the Request and before the
    /// answer are such an error too.
    pub fn receive(&mut self, offset: u64, bytes: &[u8]) -> Result<Step<ConnectRequest>, StartupFault> {
        let result = match self.state {
            State::WaitRequest => match self.reader.take_private(bytes) {
                // Private data that arrives byte by byte costs little: the large Request is not moved for
                // each byte.
                Some(consumed) => return Ok(Step { consumed, event: None }),
                None => self.read_request(offset, bytes),
            },
            State::Decide { .. } if !bytes.is_empty() => Err(StartupFault::EarlyBytes),
            State::Decide { .. } | State::RxOnly | State::Full | State::Over => {
                Ok(Step { consumed: 0, event: None })
            }
        };
        // `inspect_err` is not used, since it would copy a Request with all its private data.
        if result.is_err() {
            self.end();
        }
        result
    }

    #[inline(never)]
    fn read_request(&mut self, offset: u64, bytes: &[u8]) -> Result<Step<ConnectRequest>, StartupFault> {
        // RFC 5044 section 7.1.2 (MPA-176, MPA-177): the responder waits for a whole valid Request; a
        // malformed one is an error, which closes TCP.
        let (consumed, frame) = self.reader.take(bytes, FrameKind::Request)?;
        let Some(request) = frame else {
            return Ok(Step { consumed, event: None });
        };
        // RFC 6581 sections 6 and 10 (MPA2-027, MPA2-100): Requests of revision 1 are always accepted.
        // RFC 6581 section 10 (MPA2-104): an enhanced Request is an error where enhanced startup is off.
        // RFC 5044 section 7.1.1 (MPA-165): any other revision is an error, which closes TCP.
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
            // RFC 6581 section 9.1 (MPA2-058): the ULP gets the peer's depths.
            peer: request.enhanced.map(|enhanced| enhanced.depths),
            private_data_limit: reply_limit(&request),
            private_data: request.private_data.clone(),
        };
        self.state = State::Decide { request, rx_start: offset + consumed as u64 };
        self.deadline = None;
        Ok(Step { consumed, event: Some(event) })
    }

    /// Accepts the Request. Returns the result of startup and the Reply, which the caller sends at once.
    /// FPDUs may come from now on. In the peer-to-peer model the first one has to come by `rtr_deadline`.
    ///
    /// # Errors
    /// [`ResponderError`]. Nothing has changed then.
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
            // RFC 5044 section 7.1.1 (MPA-154, MPA-155, MPA-309): M of the Request decides.
            tx_markers: request.markers,
            rx_markers: config.markers,
            // RFC 5044 sections 4.4, 7.1.1 and C.1 (MPA-085, MPA-086, MPA-158, MPA-159, MPA-298): CRCs are
            // used in both directions if either end asks for them, and not otherwise.
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

    /// Rejects the Request. Returns the Reply, which the caller sends at once. MPA ends; the TCP connection
    /// stays open for the ULP. `needed_ord` says that the peer's IRD was too small and which IRD is needed
    /// (code 6, which is reported locally only).
    ///
    /// # Errors
    /// [`ResponderError`]. Nothing has changed then.
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

    /// Our IRD and ORD, and the enhanced part of the Reply (RFC 6581 sections 9.1 and 9.2).
    fn answer(&self, request: &Frame, ird: Option<u16>, ord: Option<u16>) -> (u16, u16, Option<Enhanced>) {
        // The configuration limits the numbers of the ULP.
        let own_ird = ird.map_or(self.config.ird, |ird| ird.min(self.config.max_ird)).min(Depths::MAX);
        let own_ord = ord.map_or(self.config.ord, |ord| ord.min(self.config.ord)).min(Depths::MAX);
        // RFC 6581 section 10 (MPA2-096, MPA2-098, MPA2-102, MPA2-103): the Reply is enhanced exactly when
        // the Request is.
        let Some(asked) = request.enhanced else {
            return (own_ird, own_ord, None);
        };
        // RFC 6581 section 9.2 (MPA2-093): without A, the kinds of the Request are ignored.
        let rtr = if asked.peer_to_peer { self.answer_rtr(asked.rtr, own_ird) } else { RtrKinds::empty() };
        // An RTR by Read takes one IRD, even when the peer's ORD is 0.
        let least = u16::from(rtr.contains(RtrKinds::READ));
        // RFC 6581 section 9.1 (MPA2-071, MPA2-073): a depth of 0x3fff leaves ours as it is and is answered
        // by 0x3fff. Each direction has its own.
        let (ird, ird_field) = match asked.depths.ord {
            Depths::LEFT_TO_ULP => (own_ird.max(least), Depths::LEFT_TO_ULP),
            wanted => (wanted.min(own_ird).max(least), wanted.min(own_ird).max(least)),
        };
        // RFC 6581 section 9.1 (MPA2-061): ORD is at most the peer's IRD.
        let (ord, ord_field) = match asked.depths.ird {
            Depths::LEFT_TO_ULP => (own_ord, Depths::LEFT_TO_ULP),
            served => (own_ord.min(served), own_ord.min(served)),
        };
        // RFC 6581 section 9.2 (MPA2-080, MPA2-091): the Reply has the A of the Request.
        let depths = Depths { ird: ird_field, ord: ord_field };
        (ird, ord, Some(Enhanced { peer_to_peer: asked.peer_to_peer, rtr, depths }))
    }

    /// The RTR kinds of the Reply: those that both ends support or, if they have none in common, all that
    /// this end supports.
    fn answer_rtr(&self, asked: RtrKinds, own_ird: u16) -> RtrKinds {
        let without_read = self.config.rtr - RtrKinds::READ;
        let supported = if own_ird == 0 && !without_read.is_empty() { without_read } else { self.config.rtr };
        // RFC 6581 section 9.2 (MPA2-083, MPA2-085): the Reply names at least one kind that this end
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

    /// Whether FPDUs and markers may be sent. Before the first valid FPDU is received, not even a Terminate
    /// may be sent.
    pub const fn may_send(&self) -> bool {
        // RFC 5044 section 7.1.2 (MPA-193): sending is allowed only after one valid FPDU was received.
        matches!(self.state, State::Full)
    }

    /// A valid FPDU of any kind was received: from now on FPDUs may be sent.
    pub fn on_fpdu(&mut self) {
        if matches!(self.state, State::RxOnly) {
            self.state = State::Full;
            self.deadline = None;
        }
    }

    /// The time by which the peer has to send more; `None` while the ULP decides, or when nothing is awaited.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Tells the current time.
    ///
    /// # Errors
    /// [`MpaError::StartupTimeout`] when the deadline has passed. The caller has to close the connection.
    pub fn on_timeout(&mut self, now: Instant) -> Result<(), MpaError> {
        match self.deadline {
            Some(deadline) if now >= deadline => {
                self.end();
                Err(MpaError::StartupTimeout)
            }
            _ => Ok(()),
        }
    }

    /// TCP has ended (FIN, RST or loss). Returns the error to report; `None` after startup.
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

/// Bytes of the ULP's private data that the Reply to `request` can carry.
fn reply_limit(request: &Frame) -> usize {
    match request.enhanced {
        Some(_) => MAX_PRIVATE_DATA - ENHANCED_BYTES,
        None => MAX_PRIVATE_DATA,
    }
}

/// The Reply to `request`, in the same revision.
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
        // RFC 5044 section 7.1.1 (MPA-159): C says whether CRCs will be in use, for peers that look only at
        // the Reply.
        crc: config.crc || request.crc,
        reject,
        revision: request.revision,
        enhanced,
        private_data: private_data(ulp_data, reply_limit(request))?,
    };
    frame.encode()
}
