//! The side that waits for the Request and answers it.

use tcp_lite::Instant;

use super::inbox::Inbox;
use super::{
    ConfigError, Depths, Enhanced, FrameBytes, MpaConfig, Negotiated, PrivateData, PrivateDataTooLong,
    Revision, Rtr, RtrKind, RtrKinds, Step,
};
use crate::mpa::frame::{ENHANCED_BYTES, Frame, FrameKind, MAX_PRIVATE_DATA, private_data};
use crate::mpa::{MpaError, StartupFault};

/// A Request, for the ULP to decide on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Its revision, 1 or 2.
    pub revision: u8,
    /// The peer wants markers.
    pub markers: bool,
    /// The peer wants CRCs.
    pub crc: bool,
    /// The peer will send an RTR, so that this side may speak first once that has come.
    pub peer_to_peer: bool,
    /// The peer's depths as it sent them; `None` if it sent none.
    pub peer: Option<Depths>,
    /// Bytes of private data that the Reply may carry: 508, or 512 towards an unenhanced peer.
    pub private_data_limit: usize,
    /// The peer ULP's private data.
    pub private_data: PrivateData,
}

/// What the ULP brings when it accepts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accept<'a> {
    /// Reads to serve at a time, at most; `None`: as configured.
    pub ird: Option<u16>,
    /// Reads it would like to issue at a time; `None`: as configured.
    pub ord: Option<u16>,
    /// The ORD below which the connection is of no use.
    pub min_ord: u16,
    /// Whether the peer is to send markers; `None`: as configured.
    pub markers: Option<bool>,
    /// Whether CRCs are asked for here; `None`: as configured.
    pub crc: Option<bool>,
    /// For the peer's ULP.
    pub private_data: &'a [u8],
}

/// Why a Request cannot be answered so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponderError {
    /// There is no Request to decide on, or not any more.
    #[error("no request waits for an answer")]
    NoRequest,
    /// The peer serves fewer Reads than are needed. The Request still waits: for
    /// [`reject`](Responder::reject), which is to name that number.
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
    /// The ULP decides. The private data is the ULP's already.
    Decide {
        request: Frame,
        rx_start: u64,
    },
    /// Accepted; no FPDU or marker may be sent before one has been received.
    RxOnly,
    Full,
    Over,
}

/// The responder's half of startup, to the first FPDU received.
#[derive(Clone, Debug)]
pub struct Responder {
    config: MpaConfig,
    state: State,
    inbox: Inbox,
    deadline: Option<Instant>,
}

impl Responder {
    /// Waits for a Request, which has to be complete by `deadline`. Nothing is sent.
    ///
    /// # Errors
    /// See [`MpaConfig::validate`].
    pub fn listen(config: MpaConfig, deadline: Instant) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { config, state: State::WaitRequest, inbox: Inbox::default(), deadline: Some(deadline) })
    }

    /// Bytes of the stream, in order; the first of them has stream offset `offset`. With the event it is the
    /// ULP's turn: [`accept`](Self::accept) or [`reject`](Self::reject). After an answer nothing is consumed.
    ///
    /// # Errors
    /// Code 4: the connection is to be closed without a Reply. So too where bytes follow the Request before
    /// it is answered.
    pub fn receive(&mut self, offset: u64, bytes: &[u8]) -> Result<Step<ConnectRequest>, MpaError> {
        let result = match self.state {
            State::WaitRequest => self.take(offset, bytes),
            State::Decide { .. } if !bytes.is_empty() => Err(StartupFault::EarlyBytes),
            State::Decide { .. } | State::RxOnly | State::Full | State::Over => {
                Ok(Step { consumed: 0, event: None })
            }
        };
        Ok(result.inspect_err(|_| self.end())?)
    }

    fn take(&mut self, offset: u64, bytes: &[u8]) -> Result<Step<ConnectRequest>, StartupFault> {
        let (consumed, frame) = self.inbox.take(bytes, FrameKind::Request)?;
        let Some(request) = frame else {
            return Ok(Step { consumed, event: None });
        };
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
            peer: request.enhanced.map(|enhanced| enhanced.depths),
            private_data_limit: reply_limit(&request),
            private_data: request.private_data.clone(),
        };
        self.state = State::Decide { request, rx_start: offset + consumed as u64 };
        self.deadline = None;
        Ok(Step { consumed, event: Some(event) })
    }

    /// Accepts: gives what was agreed on and the Reply, which is to be sent at once. FPDUs are to be expected
    /// from now on; in the peer-to-peer model the first has to come by `rtr_deadline`.
    ///
    /// # Errors
    /// [`ResponderError`]; nothing has changed then.
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
        if ord < accept.min_ord {
            return Err(ResponderError::InsufficientIrd { needed: accept.min_ord });
        }
        let reply = reply(&config, request, false, enhanced, accept.private_data)?;
        let negotiated = Negotiated {
            revision: request.revision,
            tx_markers: request.markers,
            rx_markers: config.markers,
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

    /// Rejects: gives the Reply, which is to be sent at once. MPA is left; the TCP connection stays open and
    /// is the ULP's. `needed_ord` says that the peer's IRD was too small and what it would have to be (code
    /// 6, told locally).
    ///
    /// # Errors
    /// [`ResponderError`]; nothing has changed then.
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

    /// Our IRD and ORD, and the enhanced part of the Reply (RFC 6581 sections 9.1, 9.2).
    fn answer(&self, request: &Frame, ird: Option<u16>, ord: Option<u16>) -> (u16, u16, Option<Enhanced>) {
        // What is configured bounds what the ULP brings.
        let own_ird = ird.map_or(self.config.ird, |ird| ird.min(self.config.max_ird)).min(Depths::MAX);
        let own_ord = ord.map_or(self.config.ord, |ord| ord.min(self.config.ord)).min(Depths::MAX);
        let Some(asked) = request.enhanced else {
            return (own_ird, own_ord, None);
        };
        let rtr = if asked.peer_to_peer { self.answer_rtr(asked.rtr, own_ird) } else { RtrKinds::empty() };
        // A Read RTR takes one, whatever the peer's ORD says.
        let least = u16::from(rtr.contains(RtrKinds::READ));
        // Each direction alone: what the peer leaves to its ULP stays as it is here.
        let (ird, ird_field) = match asked.depths.ord {
            Depths::LEFT_TO_ULP => (own_ird.max(least), Depths::LEFT_TO_ULP),
            wanted => (wanted.min(own_ird).max(least), wanted.min(own_ird).max(least)),
        };
        let (ord, ord_field) = match asked.depths.ird {
            Depths::LEFT_TO_ULP => (own_ord, Depths::LEFT_TO_ULP),
            served => (own_ord.min(served), own_ord.min(served)),
        };
        let depths = Depths { ird: ird_field, ord: ord_field };
        (ird, ord, Some(Enhanced { peer_to_peer: asked.peer_to_peer, rtr, depths }))
    }

    /// The RTR kinds to name: those in common or, if there are none, all that are supported here.
    fn answer_rtr(&self, asked: RtrKinds, own_ird: u16) -> RtrKinds {
        let without_read = self.config.rtr - RtrKinds::READ;
        let supported = if own_ird == 0 && !without_read.is_empty() { without_read } else { self.config.rtr };
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

    /// Whether FPDUs and markers may be sent: not before one valid FPDU has been received (RFC 5044 section
    /// 7.1.2 rule 4), not even a Terminate.
    pub const fn may_send(&self) -> bool {
        matches!(self.state, State::Full)
    }

    /// A valid FPDU was received, of whatever kind: from now on FPDUs may be sent.
    pub fn on_fpdu(&mut self) {
        if matches!(self.state, State::RxOnly) {
            self.state = State::Full;
            self.deadline = None;
        }
    }

    /// By when the peer has to go on; `None` while it is the ULP's turn, or nothing is awaited.
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
                self.end();
                Err(MpaError::StartupTimeout)
            }
            _ => Ok(()),
        }
    }

    /// TCP ended (FIN, RST or loss). What to report; `None` when startup was over.
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

/// Bytes of ULP data that the Reply to `request` may carry.
fn reply_limit(request: &Frame) -> usize {
    match request.enhanced {
        Some(_) => MAX_PRIVATE_DATA - ENHANCED_BYTES,
        None => MAX_PRIVATE_DATA,
    }
}

/// The answer to `request`, in its revision.
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
        // What will be in use: a peer may look at the Reply alone.
        crc: config.crc || request.crc,
        reject,
        revision: request.revision,
        enhanced,
        private_data: private_data(ulp_data, reply_limit(request))?,
    };
    frame.encode()
}
