//! What users bring: parameters of a connection, of a listener, of a stream in front of MPA.

use std::time::Duration;

use arrayvec::ArrayVec;
use tcp_lite::AddressFilter;

use crate::mpa::startup::{Depths, MpaConfig, Revision, RtrKinds};
use crate::verbs::VerbsError;

/// Private data of one MPA startup frame, bytes.
pub const MAX_PRIVATE_DATA: usize = 512;

/// Bytes of these that revision 2 takes for IRD and ORD.
pub(super) const ENHANCED_BYTES: usize = 4;

/// Reads in flight in one direction: what a connection may ask for, well below RFC 6581's 0x3ffe.
const MAX_DEPTH: u16 = 1024;

/// How a silent peer is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keepalive {
    /// As the engine's [`TcpConfig`](tcp_lite::TcpConfig) says.
    #[default]
    Engine,
    /// Not at all, while nothing is sent.
    Off,
    /// By probes of this connection's own.
    Probe {
        /// Idle time before the first probe.
        idle: Duration,
        /// Time between probes.
        interval: Duration,
        /// Unanswered probes before the connection is given up.
        probes: u8,
    },
}

/// How a connection is asked for or accepted (`rdma_conn_param`).
#[derive(Clone, Debug)]
pub struct ConnParam {
    /// Sent with the MPA Request or Reply: up to 512 bytes, 508 with revision 2's enhanced data.
    pub private_data: ArrayVec<u8, MAX_PRIVATE_DATA>,
    /// Reads of the peer that we serve at a time (IRD).
    pub responder_resources: u16,
    /// Reads of ours outstanding at a time (ORD).
    pub initiator_depth: u16,
    /// When accepting: the ORD below which the connection is of no use. A peer that serves fewer Reads is
    /// rejected and told this number (RFC 6581 section 9.1).
    pub min_initiator_depth: u16,
    /// When connecting: leave both depths to the private data (0x3fff in the Request). Known peers take that
    /// for a number.
    pub depths_left_to_ulp: bool,
    /// Ask the peer to send markers (they let out-of-order FPDUs be placed). siw rejects this.
    pub markers: bool,
    /// MPA revision to ask for: 2 (RFC 6581) or 1.
    pub mpa_revision: u8,
    /// Offer peer-to-peer setup (an RTR frame), revision 2 only.
    pub peer_to_peer: bool,
    /// RTR kinds to offer. A Send is known to no other peer and has to be asked for.
    pub rtr: RtrKinds,
    /// Where a peer closes without an answer to a Request of revision 2, try once more with revision 1
    /// (RFC 6581 section 10). Depths and who speaks first are the ULP's matter then; `Established` says so.
    pub fallback: bool,
    /// When connecting without peer-to-peer setup: bear FPDUs that the responder sends before it has seen one
    /// (against RFC 5044 section 7.1.2), as siw does.
    pub bear_early_fpdus: bool,
    /// As the responder to a peer without RTR, send nothing before the peer's first FPDU (RFC 5044 section
    /// 7.1.2). Off only for protocols whose server speaks first, with peers known to bear it: perftest's
    /// Write latency on siw.
    pub await_first_fpdu: bool,
    /// Time for TCP and MPA startup together; when accepting, for the RTR.
    pub timeout: Duration,
    /// Ends the connection when no FPDU has come or gone for so long; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// How a silent peer is noticed.
    pub keepalive: Keepalive,
    /// The engine to use; `None`: the one with the fewest connections.
    pub engine: Option<usize>,
    /// Our port; `None`: a random one.
    pub local_port: Option<u16>,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: ArrayVec::new(),
            responder_resources: 128,
            initiator_depth: 128,
            min_initiator_depth: 0,
            depths_left_to_ulp: false,
            markers: false,
            mpa_revision: 2,
            peer_to_peer: true,
            rtr: RtrKinds::WRITE | RtrKinds::READ,
            fallback: false,
            bear_early_fpdus: true,
            await_first_fpdu: true,
            timeout: Duration::from_secs(10),
            idle_timeout: None,
            keepalive: Keepalive::Engine,
            engine: None,
            local_port: None,
        }
    }
}

impl ConnParam {
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        if !matches!(self.mpa_revision, 1 | 2) {
            return Err(VerbsError::Invalid(format!("MPA revision {}: use 1 or 2", self.mpa_revision)));
        }
        let config = self.mpa_config(true);
        let (got, max) = (self.private_data.len(), config.private_data_limit());
        if got > max {
            return Err(VerbsError::TooLong { got: got as u64, max: max as u64 });
        }
        if self.responder_resources > MAX_DEPTH || self.initiator_depth > MAX_DEPTH {
            return Err(VerbsError::Invalid(format!("IRD and ORD are at most {MAX_DEPTH}")));
        }
        if self.min_initiator_depth > self.initiator_depth {
            return Err(VerbsError::Invalid("min_initiator_depth is above initiator_depth".into()));
        }
        config.validate().map_err(|error| VerbsError::Invalid(error.to_string()))
    }

    /// What they mean for MPA, with the engine's setting of CRCs.
    pub(crate) fn mpa_config(&self, crc: bool) -> MpaConfig {
        let revision = if self.mpa_revision == 1 { Revision::One } else { Revision::Two };
        MpaConfig {
            markers: self.markers,
            crc,
            revision,
            peer_to_peer: self.peer_to_peer && revision == Revision::Two,
            rtr: self.rtr,
            ird: self.responder_resources,
            ord: self.initiator_depth,
            max_ird: self.responder_resources.max(MpaConfig::default().max_ird),
            depths_left_to_ulp: self.depths_left_to_ulp,
            bear_early_fpdus: self.bear_early_fpdus,
            fallback: self.fallback,
            ..MpaConfig::default()
        }
    }

    /// The same with private data.
    ///
    /// # Errors
    /// [`VerbsError::TooLong`] above 512 bytes.
    pub fn with_private_data(mut self, bytes: &[u8]) -> Result<Self, VerbsError> {
        self.private_data.clear();
        self.private_data
            .try_extend_from_slice(bytes)
            .map_err(|_| VerbsError::TooLong { got: bytes.len() as u64, max: MAX_PRIVATE_DATA as u64 })?;
        Ok(self)
    }
}

/// What a responder admits of a peer's Request, and how long it waits.
#[derive(Clone, Debug)]
pub struct ResponderOptions {
    /// Time for the Request, from when it may come.
    pub startup_timeout: Duration,
    /// Time for the user to accept or reject; the peer is rejected after it. `None`: as long as the peer
    /// waits.
    pub decision_timeout: Option<Duration>,
    /// Know revision 2. Without, an enhanced Request closes the connection (RFC 6581 section 10).
    pub enhanced: bool,
    /// RTR kinds that are known here, one at least.
    pub rtr: RtrKinds,
    /// Name one RTR kind in a Reply only, Write before Read before Send: for peers that want just one.
    pub single_rtr: bool,
    /// Private data of a Request, at most; a longer one closes the connection.
    pub max_private_data: usize,
    /// IRD of a connection, at most, whatever is accepted with.
    pub max_ird: u16,
    /// ORD of a connection, at most, whatever is accepted with.
    pub max_ord: u16,
    /// Reject peers that want markers from us. They cost the sender.
    pub refuse_markers: bool,
}

impl Default for ResponderOptions {
    fn default() -> Self {
        Self {
            startup_timeout: Duration::from_secs(10),
            decision_timeout: Some(Duration::from_secs(60)),
            enhanced: true,
            rtr: RtrKinds::WRITE | RtrKinds::READ,
            single_rtr: false,
            max_private_data: MAX_PRIVATE_DATA,
            max_ird: MAX_DEPTH,
            max_ord: MAX_DEPTH,
            refuse_markers: false,
        }
    }
}

impl ResponderOptions {
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        self.mpa_config().validate().map_err(|error| VerbsError::Invalid(error.to_string()))
    }

    /// What they mean for MPA.
    pub(crate) fn mpa_config(&self) -> MpaConfig {
        let depth = |depth: u16| depth.min(Depths::MAX);
        MpaConfig {
            revision: if self.enhanced { Revision::Two } else { Revision::One },
            peer_to_peer: false,
            rtr: self.rtr,
            single_rtr: self.single_rtr,
            ird: depth(self.max_ird),
            ord: depth(self.max_ord),
            max_ird: depth(self.max_ird),
            ..MpaConfig::default()
        }
    }
}

/// Buffers of a connection in streaming mode, in front of MPA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Bytes of the peer that wait to be read, at most; TCP's window closes behind them.
    pub recv_bytes: usize,
    /// Bytes of ours that TCP has not taken, at most.
    pub send_bytes: usize,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { recv_bytes: 16 << 10, send_bytes: 16 << 10 }
    }
}

impl StreamOptions {
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        const MAX: usize = 16 << 20;
        if [self.recv_bytes, self.send_bytes].iter().all(|bytes| (1..=MAX).contains(bytes)) {
            Ok(())
        } else {
            Err(VerbsError::Invalid(format!("buffers of a stream have 1 to {MAX} bytes")))
        }
    }
}

/// How a port is listened on. Every bound is the listener's, over all engines, but for the half-open ones,
/// which are each engine's. Who is refused costs no RDMA object; each refusal is counted
/// ([`ListenerStats`](super::ListenerStats)).
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The port, on every address of every engine.
    pub port: u16,
    /// Connections at a time that are not accepted or rejected yet.
    pub backlog: usize,
    /// Of these, from one address; `None`: all of them.
    pub backlog_per_address: Option<usize>,
    /// Connections at a time, those in the backlog included.
    pub max_connections: usize,
    /// Of these, from one address; `None`: all of them.
    pub max_per_address: Option<usize>,
    /// Connections that one address may have taken on in a second, by each engine; `None`: as many as it
    /// begins. Those that come to nothing count: a peer that connects and fails, over and over, costs as much
    /// as many who stay.
    pub rate_per_address: Option<u32>,
    /// Connections that one address may have fail by its fault in a second, by each engine; `None`: as many
    /// as do. Its fault are a Request that is none, or does not come in time, whatever a Terminate of ours
    /// says of what it has sent, and a Terminate of its own. Beyond that its SYNs get no answer for the rest
    /// of the second, so that who shares the address with it connects when that is over.
    pub failures_per_address: Option<u32>,
    /// TCP connections at a time that are not established; `None`: the engine's
    /// [`Limits::backlog`](tcp_lite::Limits::backlog), which is never exceeded.
    pub half_open: Option<usize>,
    /// Of these, from one address; `None`: all of them.
    pub half_open_per_address: Option<usize>,
    /// Who may connect at all.
    pub filter: AddressFilter,
    /// What is admitted of a Request.
    pub responder: ResponderOptions,
    /// Connections begin in streaming mode, with such buffers; `None`: with MPA at once.
    pub streaming: Option<StreamOptions>,
}

/// [`ListenOptions::failures_per_address`]: what that costs is below a thousandth of a core, and no program
/// that works fails as often.
const FAILURES_PER_ADDRESS: u32 = 32;

impl ListenOptions {
    /// `port` with room for 16,384 connections, 128 of them undecided, from anybody; 32 of an address may
    /// fail in a second.
    pub fn new(port: u16) -> Self {
        Self {
            port,
            backlog: 128,
            backlog_per_address: None,
            max_connections: 16_384,
            max_per_address: None,
            rate_per_address: None,
            failures_per_address: Some(FAILURES_PER_ADDRESS),
            half_open: None,
            half_open_per_address: None,
            filter: AddressFilter::default(),
            responder: ResponderOptions::default(),
            streaming: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), VerbsError> {
        self.responder.check()?;
        self.streaming.map_or(Ok(()), |stream| stream.check())
    }
}
