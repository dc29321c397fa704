//! Listening, connecting, accepting, rejecting and disconnecting.

use std::net::SocketAddr;
use std::time::Duration;

use iwarp::verbs::{
    CmId, ConnParam, CqOptions, ListenOptions, MAX_PRIVATE_DATA, QpInit, QpState, QueuePair,
    RNR_RETRY_FOR_EVER, VerbsError,
};
use libc::{c_int, c_void};

use super::address::find;
use super::id::{Id, RequestedDepths, State};
use super::{datagram, dispatch};
use crate::ffi::abi::{self, EINVAL, Errno, Outcome};
use crate::ffi::{resources, sys};
use crate::ibverbs::qp::Qp;
use crate::ibverbs::work_request::bytes_at;
use crate::net::{Claim, Lookup, PrivateDataHeader};
use crate::process::limits;

/// Timeout of connection setup. The timeout is long, since a server may take long to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Minimum backlog, even if a program asks for a smaller backlog. If a burst of requests overflows the
/// backlog, a hardware device tries again, but TCP does not.
const BACKLOG: usize = 16_384;

const ECONNRESET: Errno = Errno(libc::ECONNRESET);
const ENOTCONN: Errno = Errno(libc::ENOTCONN);

/// Implements `rdma_listen(3)`.
///
/// # Safety
/// `id` is valid.
#[unsafe(export_name = "uw_rdma_listen")]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut sys::rdma_cm_id, backlog: c_int) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        if this.state().source.is_none() {
            super::address::bind(this, SocketAddr::from(([0; 4], 0)))?;
        }
        let backlog = usize::try_from(backlog).unwrap_or(0);
        resources::check_for_object(BACKLOG * resources::REQUEST_BYTES)?;
        match this.is_datagram() {
            true => datagram::listen(this, backlog)?,
            false => with_new_cm(this, |cm| listen_alone(this, cm, backlog))?,
        }
        Ok(0)
    })
}

/// Listens. Fails if another identifier is bound to the address or to an overlapping address.
fn listen_alone(id: &Id, cm: CmId, backlog: usize) -> Outcome<()> {
    let mut state = id.state();
    if state.cm.is_some() {
        return Err(EINVAL);
    }
    let visible = state.source.ok_or(EINVAL)?;
    id.ports().listen(id.as_c() as usize, visible.port())?;
    start_to_listen(id, &mut state, cm, visible, backlog)
}

/// Runs `act` with a new engine identifier. If `act` succeeds, events of the new identifier go to `id`.
fn with_new_cm(id: &Id, act: impl FnOnce(CmId) -> Outcome<()>) -> Outcome<()> {
    let process = id.process;
    let cm = process.context.create_id(&process.channel);
    // The identifier's state must not be locked here, since events lock the table before the state.
    process.ids.insert(&cm, id.as_c() as usize, dispatch::on_event);
    act(cm.clone()).inspect_err(|_| process.ids.remove(&cm))
}

fn start_to_listen(id: &Id, state: &mut State, cm: CmId, visible: SocketAddr, backlog: usize) -> Outcome<()> {
    let net = &id.process.net;
    let claim = Claim::new(visible.ip(), state.family_only, false);
    if state.name.is_none() {
        state.name = net.take_name(id.space(), visible, &claim)?;
    }
    let port = match net.reaches(&claim) {
        true => listen(&cm, state, visible.port(), backlog)?,
        false => visible.port(),
    };
    if let Some(name) = &mut state.name {
        net.publish(name, port)?;
    }
    // The field `cm` is set last, so that the program may repeat the call if it fails.
    state.cm = Some(cm);
    Ok(())
}

/// Listens on the wire at `port`, and returns the port. If `port` is in use on a wire with names, listens at
/// any free port.
fn listen(cm: &CmId, state: &State, port: u16, backlog: usize) -> Outcome<u16> {
    let options = |port| {
        let mut options = ListenOptions { backlog: backlog.max(BACKLOG), ..ListenOptions::new(port) };
        options.failures_per_address = None;
        options.responder.startup_timeout = CONNECT_TIMEOUT;
        options.responder.decision_timeout = None;
        options
    };
    match cm.listen_with(&options(port)) {
        Ok(()) => Ok(port),
        Err(_) if state.name.is_some() => {
            // A process that listens at the same port of two host addresses needs two ports on the wire.
            let others = (1024..=u16::MAX).rev();
            others
                .into_iter()
                .find(|&other| cm.listen_with(&options(other)).is_ok())
                .ok_or(Errno(libc::EADDRINUSE))
        }
        Err(_) => Err(Errno(libc::EADDRINUSE)),
    }
}

/// Converts the program's connection parameters to the engine's.
///
/// # Safety
/// `param` is NULL or readable, and the private data of `param` are readable.
unsafe fn param_of(
    id: &Id,
    state: &State,
    param: *const sys::rdma_conn_param,
    default: RequestedDepths,
) -> Outcome<ConnParam> {
    let mut out = ConnParam { timeout: CONNECT_TIMEOUT, ..ConnParam::default() };
    // On a wire where both sides use this library, they exchange data for which MPA has no field.
    if id.process.net.is_private() {
        let visible = state.source.ok_or(EINVAL)?;
        let header = PrivateDataHeader { visible, pair: None };
        out.private_data.try_extend_from_slice(&header.bytes()).map_err(|_| EINVAL)?;
        out.ib_semantics = true;
    }
    let mut depths = default;
    // SAFETY: the caller promises that `param` is NULL or readable.
    if let Some(param) = unsafe { param.as_ref() } {
        // SAFETY: the caller promises that the private data are readable.
        let bytes = unsafe { bytes_at(param.private_data.cast(), param.private_data_len.into()) };
        out.private_data.try_extend_from_slice(bytes).map_err(|_| EINVAL)?;
        out.rnr_retry = match param.rnr_retry_count {
            // Some programs (for instance fio) leave `rnr_retry_count` at 0 and still send before receives
            // are posted.
            0 => RNR_RETRY_FOR_EVER,
            count => count.min(RNR_RETRY_FOR_EVER),
        };
        depths = RequestedDepths {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
        };
    }
    // 255 means the maximum (`RDMA_MAX_RESP_RES`). Some programs pass 0 and still use Reads. So 0 becomes 1,
    // as in iWARP drivers.
    let limit = |depth: u8| u16::from(depth.clamp(1, limits::MAX_RD_ATOM));
    out.responder_resources = limit(depths.responder_resources);
    out.initiator_depth = limit(depths.initiator_depth);
    Ok(out)
}

/// The queue pair of a connection at this end.
enum End<'a> {
    /// A queue pair of the program.
    Program(&'a Qp),
    /// A queue pair that the program does not see. The program has named a queue pair of type UD, which has
    /// no connections. UCX does so: it uses the private data and the end of a connection, and sends no
    /// message.
    Hidden(QueuePair),
}

impl End<'_> {
    /// Returns the queue pair to connect: the identifier's queue pair or, if the identifier has none, the one
    /// whose number is in the parameters.
    ///
    /// # Safety
    /// `param` is NULL or readable.
    unsafe fn of(id: &Id, param: *const sys::rdma_conn_param) -> Outcome<Self> {
        let own = id.fields().qp;
        if !own.is_null() {
            // SAFETY: the queue pair is not destroyed yet: `rdma_destroy_qp` sets the field `qp` of the
            // identifier to NULL.
            return Ok(Self::Program(unsafe { Qp::of(own) }));
        }
        // SAFETY: the caller promises that `param` is NULL or readable.
        let number = unsafe { param.as_ref() }.ok_or(EINVAL)?.qp_num;
        let qp = id.process.qps.find(number).ok_or(EINVAL)?;
        // SAFETY: a queue pair in the table has not been destroyed, and the program must not destroy a queue
        // pair while it connects the queue pair.
        let qp = unsafe { Qp::of(qp as *mut sys::ibv_qp) };
        if !qp.is_ud() {
            return Ok(Self::Program(qp));
        }
        let cq = id.process.context.create_cq_with(&CqOptions::new(2))?;
        let init = QpInit { max_send_wr: 1, max_recv_wr: 1, ..QpInit::new(&cq) };
        Ok(Self::Hidden(id.process.default_pd.create_qp(&init)?))
    }

    fn of_engine(&self) -> QueuePair {
        match self {
            Self::Program(qp) => qp.current().qp.clone(),
            Self::Hidden(qp) => qp.clone(),
        }
    }

    /// From now on, the identifier's connection changes the state of this queue pair.
    fn manage(&self, state: &mut State) {
        match self {
            Self::Program(qp) => {
                state.qp = Some(qp.number());
                qp.manage();
            }
            Self::Hidden(qp) => state.hidden_qp = Some(qp.clone()),
        }
    }

    /// Enters ERR.
    fn fail(&self) -> Outcome<()> {
        match self {
            Self::Program(qp) => qp.fail(),
            Self::Hidden(qp) => Ok(qp.modify(QpState::Error)?),
        }
    }

    fn enter_rts(&self) {
        if let Self::Program(qp) = self {
            qp.enter_rts();
        }
    }
}

/// Implements `rdma_connect(3)`.
///
/// # Safety
/// `id` is valid, and `param` is NULL or readable.
#[unsafe(export_name = "uw_rdma_connect")]
pub(crate) unsafe extern "C" fn rdma_connect(
    id: *mut sys::rdma_cm_id,
    param: *mut sys::rdma_conn_param,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        if this.is_datagram() {
            // SAFETY: the caller promises that `param` is NULL or readable, with readable private data.
            unsafe { datagram::connect(this, param) }?;
            this.complete()?;
            return Ok(0);
        }
        // SAFETY: the caller promises that `param` is NULL or readable.
        let end = unsafe { End::of(this, param) }?;
        let destination = this.state().destination.ok_or(EINVAL)?;
        resources::check_for_object(0)?;
        let peer = find(this, destination)?;
        let Lookup::At(remote) = peer else {
            end.manage(&mut this.state());
            end.fail()?;
            let (kind, status) = match peer {
                Lookup::NoAnswer => (sys::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
                _ => (sys::RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED),
            };
            this.announce(kind, status);
            this.complete()?;
            return Ok(0);
        };
        with_new_cm(this, |cm| {
            let mut state = this.state();
            if state.cm.is_some() {
                return Err(EINVAL);
            }
            let default = RequestedDepths { responder_resources: u8::MAX, initiator_depth: u8::MAX };
            // SAFETY: the caller promises that `param` is NULL or readable, with readable private data.
            let param = unsafe { param_of(this, &state, param, default) }?;
            end.manage(&mut state);
            cm.connect(&end.of_engine(), remote, &param)?;
            state.cm = Some(cm);
            Ok(())
        })?;
        this.complete()?;
        Ok(0)
    })
}

/// Implements `rdma_accept(3)`.
///
/// # Safety
/// `id` is valid, and `param` is NULL or readable.
#[unsafe(export_name = "uw_rdma_accept")]
pub(crate) unsafe extern "C" fn rdma_accept(
    id: *mut sys::rdma_cm_id,
    param: *mut sys::rdma_conn_param,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        if this.is_datagram() {
            // SAFETY: the caller promises that `param` is NULL or readable, with readable private data.
            unsafe { datagram::accept(this, param) }?;
            return Ok(0);
        }
        // SAFETY: the caller promises that `param` is NULL or readable.
        let end = unsafe { End::of(this, param) }?;
        let mut state = this.state();
        let cm = state.cm.clone().ok_or(EINVAL)?;
        // SAFETY: the caller promises that `param` is NULL or readable, with readable private data.
        let param = unsafe { param_of(this, &state, param, state.requested) }?;
        end.manage(&mut state);
        // The flag is cleared before the events of the connection arrive.
        let was_undecided = std::mem::take(&mut state.undecided);
        drop(state);
        let of_engine = end.of_engine();
        if let Err(error) = cm.accept(&of_engine, &param) {
            this.state().undecided = was_undecided;
            let error = undecidable(error, was_undecided);
            if error == ECONNRESET {
                end.fail()?;
            }
            return Err(error);
        }
        await_acceptance(this, &end, &of_engine)?;
        this.complete()?;
        Ok(0)
    })
}

/// The error number if the engine refuses to accept or reject a request. The result is `ECONNRESET` if the
/// program had neither accepted nor rejected the request before: in this case the peer is gone.
fn undecidable(error: VerbsError, was_undecided: bool) -> Errno {
    match error {
        VerbsError::Invalid(_) if was_undecided => ECONNRESET,
        error => error.into(),
    }
}

/// Waits until the engine has accepted a request, which takes one poll. Then the queue pair is in RTS, as
/// after `rdma_accept` with the kernel's drivers. Programs post sends at once, and the engine sends them as
/// soon as MPA allows.
///
/// If the peer is gone, the call fails and the queue pair enters ERR, but the program receives no event.
fn await_acceptance(id: &Id, end: &End<'_>, of_engine: &QueuePair) -> Outcome<()> {
    while of_engine.state() == QpState::Idle {
        id.process.engine.turn();
    }
    // A queue pair without an ORD was never connected.
    if of_engine.query().ord.is_none() {
        end.fail()?;
        return Err(ECONNRESET);
    }
    id.state().accepted = true;
    end.enter_rts();
    Ok(())
}

/// Implements `rdma_reject(3)`.
///
/// # Safety
/// `id` is valid, and the private data is readable.
#[unsafe(export_name = "uw_rdma_reject")]
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut sys::rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        if this.is_datagram() {
            // SAFETY: the caller promises that the private data is readable.
            unsafe { datagram::reject(this, private_data.cast(), length) }?;
            return Ok(0);
        }
        let state = this.state();
        let cm = state.cm.clone().ok_or(EINVAL)?;
        let mut bytes = arrayvec::ArrayVec::<u8, MAX_PRIVATE_DATA>::new();
        if this.process.net.is_private()
            && let Some(visible) = state.source
        {
            bytes
                .try_extend_from_slice(&PrivateDataHeader { visible, pair: None }.bytes())
                .map_err(|_| EINVAL)?;
        }
        drop(state);
        // SAFETY: the caller promises that the private data are readable.
        let of_program = unsafe { bytes_at(private_data.cast(), length.into()) };
        bytes.try_extend_from_slice(of_program).map_err(|_| EINVAL)?;
        let mut state = this.state();
        cm.reject(&bytes).map_err(|error| undecidable(error, state.undecided))?;
        state.undecided = false;
        drop(state);
        // This poll sends the answer to the peer, since the program may end now, even by `_exit`.
        this.process.engine.poll();
        Ok(0)
    })
}

/// Does the same as [`rdma_reject`], since ECE options are not supported.
///
/// # Safety
/// The conditions of [`rdma_reject`].
#[unsafe(export_name = "uw_rdma_reject_ece")]
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut sys::rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the caller promises that `id` is valid and that the private data are readable.
    unsafe { rdma_reject(id, private_data, length) }
}

/// Whether the connection is established, even if the program has not read the event yet.
fn is_streaming(id: &Id) -> bool {
    let (number, hidden) = {
        let state = id.state();
        (state.qp, state.hidden_qp.clone())
    };
    let mut is_streaming = hidden.is_some_and(|qp| qp.state() == QpState::Rts);
    id.process.qps.with(number.unwrap_or(0), |qp| {
        // SAFETY: a queue pair in the table is not freed while the table is locked.
        is_streaming = unsafe { Qp::of(qp as *mut sys::ibv_qp) }.state() == sys::IBV_QPS_RTS;
    });
    is_streaming
}

/// Implements `rdma_disconnect(3)`.
///
/// # Safety
/// `id` is valid.
#[unsafe(export_name = "uw_rdma_disconnect")]
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut sys::rdma_cm_id) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        if this.is_datagram() {
            datagram::disconnect(this)?;
            return Ok(0);
        }
        let (cm, connected) = {
            let state = this.state();
            (state.cm.clone(), state.connected)
        };
        let cm = cm.filter(|_| connected || is_streaming(this)).ok_or(ENOTCONN)?;
        cm.disconnect();
        this.complete()?;
        Ok(0)
    })
}

/// Implements `rdma_establish(3)`. A connection is established without this call.
///
/// # Safety
/// `id` is valid.
#[unsafe(export_name = "uw_rdma_establish")]
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut sys::rdma_cm_id) -> c_int {
    abi::minus_one(|| if id.is_null() { Err(EINVAL) } else { Ok(0) })
}

/// Implements `rdma_notify(3)`.
///
/// # Safety
/// `id` is valid.
#[unsafe(export_name = "uw_rdma_notify")]
pub(crate) unsafe extern "C" fn rdma_notify(_id: *mut sys::rdma_cm_id, _event: sys::ibv_event_type) -> c_int {
    0
}
