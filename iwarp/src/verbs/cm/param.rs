//! The parameters of a connection, of a listener, and of a stream before MPA.

use std::time::Duration;

use arrayvec::ArrayVec;
use tcp_lite::AddressFilter;

use crate::mpa::startup::{Depths, MpaConfig, Revision, RtrKinds};
use crate::verbs::{QueuePair, VerbsError};

pub(super) use crate::mpa::frame::ENHANCED_BYTES;
pub use crate::mpa::frame::MAX_PRIVATE_DATA;

/// Maximum number of bytes after the private data that offer [`ConnParam::ib_semantics`], or agree to them.
pub(crate) const AGREEMENT_BYTES: usize = 12;

/// The value of [`ConnParam::rnr_retry`] that sets no limit.
pub const RNR_RETRY_FOR_EVER: u8 = 7;

/// The highest code of [`ConnParam::min_rnr_timer`].
const MAX_RNR_TIMER: u8 = 31;

/// The highest depth that a connection may request. RFC 6581 allows 0x3ffe. Each outstanding Read needs a
/// record, so a lower limit bounds the memory of a connection.
const MAX_DEPTH: u16 = 1024;

/// Whether TCP probes a peer that is silent, and how (RFC 9293 section 3.8.4).
///
/// When a peer disappears without a FIN or RST, the connection ends at the first of these times:
///
/// | when | after | configured by |
/// |---|---|---|
/// | our bytes are not acknowledged | 10 s | [`TcpConfig::user_timeout`](tcp_lite::TcpConfig::user_timeout) of the engine; backed-off retransmissions ([`rto_max`](tcp_lite::TcpConfig::rto_max)) do not extend it |
/// | all bytes are acknowledged, and nothing is heard | `idle + probes * interval`: 5 s + 4 * 1 s | this type, or [`TcpConfig::keepalive_idle`](tcp_lite::TcpConfig::keepalive_idle) and the fields next to it |
/// | the port has no link | 10 s; 0.5 s with one peer only ([`PortInfo::point_to_point`](dp::PortInfo::point_to_point)) | [`TcpConfig::link_timeout`](tcp_lite::TcpConfig::link_timeout) |
///
/// To detect a lost peer sooner, shorten the first two times. With the following values, the loss of the peer
/// is detected after a quarter of a second on an idle connection, and after one second on a connection with
/// unacknowledged bytes. A connection to a live peer also ends if the peer's engine is not polled for that
/// long:
///
/// ```
/// # use std::time::Duration;
/// # use iwarp::engine::EngineConfig;
/// # use iwarp::verbs::{ConnParam, KeepalivePolicy};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (port, _) = dp::link::pair(&dp::link::LinkConfig::default());
/// let mut config = EngineConfig::new(&*port, &["10.0.0.1/24"])?;
/// config.stack.tcp.user_timeout = tcp_lite::Duration::from_secs(1);
/// let (idle, interval) = (Duration::from_millis(100), Duration::from_millis(50));
/// let keepalive = KeepalivePolicy::Probe { idle, interval, probes: 3 };
/// let param = ConnParam { keepalive, ..ConnParam::default() };
/// # let _ = (config, param);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepalivePolicy {
    /// The engine's setting ([`TcpConfig::keepalive`](tcp_lite::TcpConfig::keepalive)). A connection that
    /// leaves streaming mode keeps the policy that it had in streaming mode.
    #[default]
    Engine,
    /// No probes: while nothing is sent, TCP does not notice a silent peer.
    Off,
    /// Probes with parameters for this connection ([`tcp_lite::Keepalive`]).
    Probe {
        /// Time without a segment from the peer before the first probe. Probes are sent only while none of
        /// our bytes wait for an acknowledgement.
        idle: Duration,
        /// Time from each probe to the next probe, and from the last probe to the end of the connection.
        interval: Duration,
        /// Number of unanswered probes after which the connection ends.
        probes: u8,
    },
}

/// Parameters of a connection (`rdma_conn_param`).
#[derive(Clone, Debug)]
pub struct ConnParam {
    /// Private data of the MPA Request or Reply: at most 512 bytes. With revision 2, the enhanced data
    /// reduces the limit to 508 bytes. [`ib_semantics`](Self::ib_semantics) reduces the limit by 12 more
    /// bytes. Default: empty.
    pub private_data: ArrayVec<u8, MAX_PRIVATE_DATA>,
    /// Maximum number of the peer's Reads that are served at a time (IRD), and also of its atomics. Default:
    /// 128.
    pub responder_resources: u16,
    /// Maximum number of our outstanding Reads and atomics (ORD). Default: 128.
    pub initiator_depth: u16,
    /// When accepting: the lowest acceptable ORD. A peer that serves fewer Reads is rejected, and the Reply
    /// contains this number (RFC 6581 section 9.1). Default: 0.
    pub min_initiator_depth: u16,
    /// When connecting: the two programs negotiate the depths in the private data, so the Request has the
    /// value 0x3fff in place of each depth. Other known implementations read this value as a depth.
    /// Default: `false`.
    pub depths_left_to_ulp: bool,
    /// Requests markers from the peer, which make it possible to place out-of-order FPDUs. siw rejects such a
    /// Request. Default: `false`.
    pub markers: bool,
    /// The MPA revision of the Request: 2 (RFC 6581) or 1. Default: 2.
    pub mpa_revision: u8,
    /// Offers peer-to-peer setup (an RTR message); revision 2 only. Default: `true`.
    pub peer_to_peer: bool,
    /// The RTR kinds to offer. Send is not among the defaults because no other known implementation supports
    /// it. Default: Write and Read.
    pub rtr: RtrKinds,
    /// If a peer closes without an answer to a Request of revision 2, tries once more with revision 1 (RFC
    /// 6581 section 10). With revision 1, the programs have to negotiate the depths, and which side sends
    /// first. `Established::fell_back` reports the second attempt. Default: `false`.
    pub fallback: bool,
    /// When connecting without peer-to-peer setup: tolerates FPDUs that the responder sends before it has
    /// received an FPDU. siw sends such FPDUs, against RFC 5044 section 7.1.2. Default: `true`.
    pub tolerate_early_fpdus: bool,
    /// As the responder to a peer without RTR: sends nothing before the first FPDU of the peer (RFC 5044
    /// section 7.1.2). Disable this only if the protocol's server sends first and the peer is known to
    /// tolerate early FPDUs, for example for perftest's Write latency test on siw. Default: `true`.
    pub await_first_fpdu: bool,
    /// Offers InfiniBand's semantics where they go beyond iWARP's, or agrees to them when accepting.
    /// InfiniBand's semantics are in effect if both peers request them (`Established::ib_semantics`), and
    /// never with a peer that runs another implementation. With InfiniBand's semantics:
    ///
    /// - Immediate Data completes a receive request with [`WorkCompletion::immediate`]. The request's buffer
    ///   is not changed, and may be empty.
    /// - [`SendOp::SendImmediate`] is allowed.
    /// - A Send or Immediate Data of the peer that finds no receive request does not end the stream. Once
    ///   there is a receive request, the peer sends this message and all later messages again. The peer may
    ///   abort the message after a time ([`rnr_retry`](Self::rnr_retry)). While the message waits, our Reads
    ///   and atomics are answered, and our requests complete. If this side closes, the close does not wait
    ///   for the message, and the message is lost.
    ///
    /// - A Send or Write completes when the peer has accepted the request. A Send is accepted when the
    ///   message is in the buffer of a receive request, and a Write when its data is in the memory of the
    ///   peer. The peer's engine acknowledges the bytes in the poll that places them, or soon afterwards.
    ///   Requests after a message that waits for a receive request complete after that message. If the peer
    ///   refuses a request, this request fails, and all later requests are flushed. A message that reaches a
    ///   peer after that peer has closed resets the connection. A Send completes before an answer to it is
    ///   received. A graceful close waits until the peer has posted receive requests for our messages. If the
    ///   engine's `close_timeout` passes without progress, the remaining requests are flushed.
    ///
    /// If a proxy on the path terminates the TCP connection, the proxy's acknowledgements say nothing about
    /// the peer. The responder detects such a proxy by TCP's initial sequence numbers, and then does not
    /// agree.
    ///
    /// The offer is twelve bytes after the private data of the Request, and the agreement is eight bytes
    /// after the private data of the Reply. This implementation removes these bytes; another implementation
    /// passes them to its user as private data. A peer with an older version of the offer reports accepted
    /// messages in another way. The Request of such a peer is rejected, and the private data of the Reply
    /// says why. Default: `false`.
    ///
    /// [`WorkCompletion::immediate`]: crate::verbs::WorkCompletion::immediate
    /// [`SendOp::SendImmediate`]: crate::verbs::SendOp::SendImmediate
    pub ib_semantics: bool,
    /// With [`ib_semantics`](Self::ib_semantics): how long a message of the peer waits for a receive request.
    /// After this time the stream ends with Terminate 1/2/02, as it does without the agreement. `None`: for
    /// ever. Default: `None`.
    pub rnr_timeout: Option<Duration>,
    /// With [`ib_semantics`](Self::ib_semantics): how often the peer retries a message that finds no receive
    /// request here: 0 to 6 times, or 7 for ever (`rnr_retry_count`). The peer may replace this number by its
    /// own ([`QueuePair::set_rnr_retry`](crate::verbs::QueuePair::set_rnr_retry)). Default: 7.
    pub rnr_retry: u8,
    /// With [`ib_semantics`](Self::ib_semantics): the time between two of these retries, as a code of
    /// InfiniBand from 0 to 31 (`min_rnr_timer`). Code 1 is 10 us, 31 is 491.52 ms, and 0 is 655.36 ms. A
    /// time of less than 4 ms counts as 4 ms. Default: 0.
    pub min_rnr_timer: u8,
    /// With [`ib_semantics`](Self::ib_semantics): the queue pair stays usable when the peer ends the
    /// connection. On InfiniBand, no message reports the end of a connection. The queue pair's receive
    /// requests stay posted. When the retry time
    /// ([`QueuePair::set_retry_time`](crate::verbs::QueuePair::set_retry_time)) after the end of the
    /// connection has passed, the oldest send that is open completes with
    /// [`WcStatus::RetryExceeded`](crate::verbs::WcStatus::RetryExceeded), and all other requests are
    /// flushed. If no send is open at that time, the next send that is posted fails in the same way. If no
    /// connection is made because the peer is unreachable or rejects it, the oldest send completes with this
    /// status at once. A peer that has died ends the queue pair in any case. If one of our requests fails
    /// here, for instance because its memory is invalid, the connection ends without a Terminate. Default:
    /// `false`.
    pub outlives_peer: bool,
    /// When connecting: maximum time for the TCP handshake and MPA startup together, or for each of them if
    /// streaming mode comes between them. When accepting: maximum time for the RTR. The error of a timeout is
    /// TCP's during the TCP handshake, and [`StartupTimeout`](crate::verbs::ConnectionError::StartupTimeout)
    /// afterwards. Default: 10 s.
    pub timeout: Duration,
    /// Ends the connection when nothing was sent or received during this time: no FPDU, and in streaming mode
    /// no byte. `None`: never. Default: `None`.
    pub idle_timeout: Option<Duration>,
    /// Keepalive probes of this connection, which replace the engine's setting.
    /// Default: [`KeepalivePolicy::Engine`].
    pub keepalive: KeepalivePolicy,
    /// When connecting: the index of the engine; `None`: the engine with the fewest connections. Default:
    /// `None`.
    pub engine: Option<usize>,
    /// When connecting: the local port; `None`: a random port. Default: `None`.
    pub local_port: Option<u16>,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: ArrayVec::new(),
            // More Reads in flight hide a longer delay, but each Read needs a record at both peers.
            responder_resources: 128,
            initiator_depth: 128,
            min_initiator_depth: 0,
            depths_left_to_ulp: false,
            markers: false,
            mpa_revision: 2,
            peer_to_peer: true,
            rtr: RtrKinds::WRITE | RtrKinds::READ,
            fallback: false,
            tolerate_early_fpdus: true,
            await_first_fpdu: true,
            ib_semantics: false,
            rnr_timeout: None,
            rnr_retry: RNR_RETRY_FOR_EVER,
            min_rnr_timer: 0,
            outlives_peer: false,
            timeout: Duration::from_secs(10),
            idle_timeout: None,
            keepalive: KeepalivePolicy::Engine,
            engine: None,
            local_port: None,
        }
    }
}

impl ConnParam {
    /// Checks the parameters for a connection of this queue pair. Returns whether the queue pair is of type
    /// UC.
    pub(super) fn check_for(&self, qp: &QueuePair) -> Result<bool, VerbsError> {
        self.check()?;
        let is_unreliable = qp.shared.config.is_unreliable();
        if is_unreliable && !self.ib_semantics {
            let text = "a queue pair of type UC needs InfiniBand's semantics (ConnParam::ib_semantics)";
            return Err(VerbsError::Invalid(text.into()));
        }
        Ok(is_unreliable)
    }

    pub(super) fn check(&self) -> Result<(), VerbsError> {
        if !matches!(self.mpa_revision, 1 | 2) {
            return Err(VerbsError::Invalid(format!("MPA revision {}: use 1 or 2", self.mpa_revision)));
        }
        let config = self.mpa_config(true);
        let max = config.private_data_limit() - if self.ib_semantics { AGREEMENT_BYTES } else { 0 };
        let got = self.private_data.len();
        if got > max {
            return Err(VerbsError::TooLong { got: got as u64, max: max as u64 });
        }
        if self.rnr_retry > RNR_RETRY_FOR_EVER || self.min_rnr_timer > MAX_RNR_TIMER {
            let (retry, timer) = (self.rnr_retry, self.min_rnr_timer);
            return Err(VerbsError::Invalid(format!(
                "an rnr_retry of {retry} and a min_rnr_timer of {timer}: use up to 7, and up to 31"
            )));
        }
        if self.responder_resources > MAX_DEPTH || self.initiator_depth > MAX_DEPTH {
            return Err(VerbsError::Invalid(format!("IRD and ORD are at most {MAX_DEPTH}")));
        }
        if self.min_initiator_depth > self.initiator_depth {
            return Err(VerbsError::Invalid("min_initiator_depth is above initiator_depth".into()));
        }
        config.validate().map_err(|error| VerbsError::Invalid(error.to_string()))
    }

    /// Returns the configuration of MPA, with the engine's setting of CRCs.
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
            tolerate_early_fpdus: self.tolerate_early_fpdus,
            fallback: self.fallback,
            ..MpaConfig::default()
        }
    }

    /// Returns the same parameters with `bytes` as private data.
    ///
    /// # Errors
    /// [`VerbsError::TooLong`] if there are more than 512 bytes.
    pub fn with_private_data(mut self, bytes: &[u8]) -> Result<Self, VerbsError> {
        self.private_data.clear();
        self.private_data
            .try_extend_from_slice(bytes)
            .map_err(|_| VerbsError::TooLong { got: bytes.len() as u64, max: MAX_PRIVATE_DATA as u64 })?;
        Ok(self)
    }
}

/// A responder's limits on Requests, and its timeouts.
#[derive(Clone, Debug)]
pub struct ResponderOptions {
    /// Maximum time until the Request arrives, from the moment when the peer may send it. Default: 10 s.
    pub startup_timeout: Duration,
    /// Maximum time for the user to accept or reject. After this time the peer is rejected. `None`: no limit
    /// here, although the peer may have its own limit. Default: 60 s.
    pub decision_timeout: Option<Duration>,
    /// Whether revision 2 is supported. If not, an enhanced Request closes the connection (RFC 6581 section
    /// 10). Default: `true`.
    pub enhanced: bool,
    /// The supported RTR kinds, at least one kind. Default: Write and Read.
    pub rtr: RtrKinds,
    /// Names only one RTR kind in a Reply, for peers that expect exactly one: Write if possible, else Read,
    /// else Send. Default: `false`.
    pub single_rtr: bool,
    /// Maximum number of bytes of private data in a Request. A Request with more private data closes the
    /// connection. Default: 512 bytes.
    pub max_private_data: usize,
    /// The highest IRD of a connection. A higher value in the parameters of `accept` is reduced. Default:
    /// 1024.
    pub max_ird: u16,
    /// The highest ORD of a connection. A higher value in the parameters of `accept` is reduced. Default:
    /// 1024.
    pub max_ord: u16,
    /// Rejects peers that request markers from us, since markers cost the sender work. On a connection that
    /// began in streaming mode, a `ConnectError` event follows. Default: `false`.
    pub refuse_markers: bool,
}

impl Default for ResponderOptions {
    fn default() -> Self {
        Self {
            // A silent peer stays in the backlog for this time.
            startup_timeout: Duration::from_secs(10),
            // The peer does not wait for ever if the user neither accepts nor rejects.
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

/// The buffers of a connection in streaming mode, before MPA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Maximum number of the peer's bytes that wait to be read. At this limit TCP's window closes.
    /// Default: 16 KiB.
    pub recv_bytes: usize,
    /// Maximum number of bytes that wait until TCP accepts them. Default: 16 KiB.
    pub send_bytes: usize,
}

impl Default for StreamOptions {
    fn default() -> Self {
        // Each connection in streaming mode allocates this memory, which suffices for the exchange before
        // MPA: it carries no bulk data.
        Self { recv_bytes: 16 << 10, send_bytes: 16 << 10 }
    }
}

impl StreamOptions {
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        // Bounds the memory that one call can allocate.
        const MAX: usize = 16 << 20;
        if [self.recv_bytes, self.send_bytes].iter().all(|bytes| (1..=MAX).contains(bytes)) {
            Ok(())
        } else {
            Err(VerbsError::Invalid(format!("buffers of a stream have 1 to {MAX} bytes")))
        }
    }
}

/// Options of a listener. Each limit applies to all engines together, except the limits on half-open
/// connections, rates and failures, which apply to each engine. A refused connection costs no RDMA object,
/// and is counted in [`ListenerStats`](super::ListenerStats).
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The port to listen on, on every address of every engine.
    pub port: u16,
    /// Maximum number of connections that are neither accepted nor rejected yet; 0 has the effect of 1.
    /// Default: 128.
    pub backlog: usize,
    /// Maximum number of connections from one address that are neither accepted nor rejected yet; `None`: no
    /// separate limit per address. Default: `None`.
    pub backlog_per_address: Option<usize>,
    /// Maximum number of connections, including the backlog. Default: 16,384.
    pub max_connections: usize,
    /// Maximum number of connections from one address; `None`: no separate limit per address.
    /// Default: `None`.
    pub max_per_address: Option<usize>,
    /// Maximum number of connections that one address may begin per second, on each engine; `None`: no limit.
    /// Failed connections count as well: a peer that connects and fails repeatedly costs as much as many
    /// peers that stay. Default: `None`.
    pub rate_per_address: Option<u32>,
    /// Maximum number of connections of one address that may fail through the peer's fault per second, on
    /// each engine; `None`: no limit. Faults are an invalid or late Request, a late RTR, a message for which
    /// we send a Terminate, and a Terminate of the peer. Once the limit is reached, SYNs of the address get
    /// no answer for the rest of the second. Default: 32.
    pub failures_per_address: Option<u32>,
    /// Maximum number of TCP connections that are not established; `None`: no limit other than
    /// [`Limits::backlog`](tcp_lite::Limits::backlog) of the engine, which applies in any case.
    /// Default: `None`.
    pub half_open: Option<usize>,
    /// Maximum number of TCP connections from one address that are not established; `None`: no separate limit
    /// per address. Default: `None`.
    pub half_open_per_address: Option<usize>,
    /// The addresses that may connect. Default: all.
    pub filter: AddressFilter,
    /// The limits on Requests. Default: those of [`ResponderOptions`].
    pub responder: ResponderOptions,
    /// Connections begin in streaming mode, with buffers of these sizes, and leave the backlog when they are
    /// announced; `None`: connections begin with MPA at once. Default: `None`.
    pub streaming: Option<StreamOptions>,
}

/// The default of [`ListenOptions::failures_per_address`]. A failed connection costs some 18 us of a core, so
/// 32 failures per second cost less than a thousandth of the core. A working program does not fail as often.
const FAILURES_PER_ADDRESS: u32 = 32;

impl ListenOptions {
    /// Returns the options of a listener on `port`, with the default of each other field.
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
