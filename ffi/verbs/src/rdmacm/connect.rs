//! Listening, connecting, accepting, disconnecting.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use iwarp::verbs::{
    CmId, ConnParam, ListenOptions, MAX_PRIVATE_DATA, QpState, QueuePair, RNR_RETRY_FOR_EVER, VerbsError,
};
use libc::{c_int, c_void};

use super::dispatch;
use super::id::{Id, RequestedDepths, State};
use crate::ffi::abi::{self, EINVAL, Errno, Outcome};
use crate::ffi::{resources, sys};
use crate::ibverbs::qp::Qp;
use crate::ibverbs::work_request::bytes_at;
use crate::net::{Claim, Lookup, PrivateDataHeader};
use crate::process::limits;

/// The time for a connection to be set up. A server may take its time to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests that wait for a decision at least, whatever number a program gives: as many as the events of a
/// channel. A device lets the requests of a burst come again, which TCP does not.
const BACKLOG: usize = 16_384;

const ECONNRESET: Errno = Errno(libc::ECONNRESET);
const ENOTCONN: Errno = Errno(libc::ENOTCONN);

/// See `rdma_listen(3)`.
///
/// # Safety
/// `id` lives.
#[unsafe(export_name = "uw_rdma_listen")]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut sys::rdma_cm_id, backlog: c_int) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that lives.
        let this = unsafe { Id::of(id) }?;
        if this.state().source.is_none() {
            super::address::bind(this, SocketAddr::from(([0; 4], 0)))?;
        }
        let backlog = usize::try_from(backlog).unwrap_or(0);
        resources::check_for_object(BACKLOG * resources::REQUEST_BYTES)?;
        with_new_cm(this, |cm| listen_alone(this, cm, backlog))?;
        Ok(0)
    })
}

/// Listens, if no other identifier has the address.
fn listen_alone(id: &Id, cm: CmId, backlog: usize) -> Outcome<()> {
    let mut state = id.state();
    if state.cm.is_some() {
        return Err(EINVAL);
    }
    let visible = state.source.ok_or(EINVAL)?;
    id.process.ports.listen(id.as_c() as usize, visible.port())?;
    start_to_listen(id, &mut state, cm, visible, backlog)
}

/// Runs `act` with a new identifier of the engine, whose events are for `id` if `act` succeeds.
fn with_new_cm(id: &Id, act: impl FnOnce(CmId) -> Outcome<()>) -> Outcome<()> {
    let process = id.process;
    let cm = process.context.create_id(&process.channel);
    // Without the lock of the state: events lock the table first.
    process.ids.insert(&cm, id.as_c() as usize, dispatch::on_event);
    act(cm.clone()).inspect_err(|_| process.ids.remove(&cm))
}

fn start_to_listen(id: &Id, state: &mut State, cm: CmId, visible: SocketAddr, backlog: usize) -> Outcome<()> {
    let net = &id.process.net;
    let claim = Claim::new(visible.ip(), state.family_only, false);
    if state.name.is_none() {
        state.name = net.take_name(visible, &claim)?;
    }
    let port = match net.reaches(&claim) {
        true => listen(&cm, state, visible.port(), backlog)?,
        false => visible.port(),
    };
    if let Some(name) = &mut state.name {
        net.publish(name, port)?;
    }
    // Last: a call that fails leaves the identifier as it was, and may be made again.
    state.cm = Some(cm);
    Ok(())
}

/// Listens on the wire, on `port` or, where names lead to it, on any other.
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
            // Two addresses of the host, one port, one process: on the wire they have ports of their own.
            let others = (1024..=u16::MAX).rev();
            others
                .into_iter()
                .find(|&other| cm.listen_with(&options(other)).is_ok())
                .ok_or(Errno(libc::EADDRINUSE))
        }
        Err(_) => Err(Errno(libc::EADDRINUSE)),
    }
}

/// The parameters of the program, for the engine.
///
/// # Safety
/// `param` is NULL or readable, and its private data as well.
unsafe fn param_of(
    id: &Id,
    state: &State,
    param: *const sys::rdma_conn_param,
    default: RequestedDepths,
) -> Outcome<ConnParam> {
    let mut out = ConnParam { timeout: CONNECT_TIMEOUT, ..ConnParam::default() };
    // Both ends are of this library: they tell each other what MPA has no place for.
    if id.process.net.is_private() {
        let visible = state.source.ok_or(EINVAL)?;
        let header = PrivateDataHeader { visible, pair: None };
        out.private_data.try_extend_from_slice(&header.bytes()).map_err(|_| EINVAL)?;
        out.ib_semantics = true;
    }
    let mut depths = default;
    // SAFETY: the caller's promise.
    if let Some(param) = unsafe { param.as_ref() } {
        // SAFETY: the caller's promise.
        let bytes = unsafe { bytes_at(param.private_data.cast(), param.private_data_len.into()) };
        out.private_data.try_extend_from_slice(bytes).map_err(|_| EINVAL)?;
        out.rnr_retry = match param.rnr_retry_count {
            // Programs leave it at 0 and send ahead of the receives all the same, as fio does.
            0 => RNR_RETRY_FOR_EVER,
            count => count.min(RNR_RETRY_FOR_EVER),
        };
        depths = RequestedDepths {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
        };
    }
    // 255 asks for as much as there is (`RDMA_MAX_RESP_RES`). Programs say 0 and Read all the same: the
    // drivers of iWARP raise it, too.
    let limit = |depth: u8| u16::from(depth.clamp(1, limits::MAX_RD_ATOM));
    out.responder_resources = limit(depths.responder_resources);
    out.initiator_depth = limit(depths.initiator_depth);
    Ok(out)
}

/// The queue pair to connect: that of the identifier, or the one that the parameters name.
///
/// # Safety
/// `param` is NULL or readable.
unsafe fn qp_of(id: &Id, param: *const sys::rdma_conn_param) -> Outcome<&Qp> {
    let own = id.fields().qp;
    if !own.is_null() {
        // SAFETY: a queue pair of an identifier is destroyed before it, and the identifier knows that.
        return Ok(unsafe { Qp::of(own) });
    }
    // SAFETY: the caller's promise.
    let number = unsafe { param.as_ref() }.ok_or(EINVAL)?.qp_num;
    let qp = id.process.qps.find(number).ok_or(EINVAL)?;
    // SAFETY: a queue pair of the table lives, unless the program destroys it while it connects it.
    Ok(unsafe { Qp::of(qp as *mut sys::ibv_qp) })
}

/// The connection of the identifier changes the state of this queue pair from now on.
fn manage(state: &mut State, qp: &Qp) {
    state.qp = Some(qp.number());
    qp.manage();
}

/// How long a listener may take to appear: it costs a program that connects to nobody this much time.
const APPEARS_WITHIN: Duration = Duration::from_millis(200);
/// The same where it is likely to come.
const COMES_WITHIN: Duration = Duration::from_secs(5);

/// The listener to connect to.
///
/// A server may tell a client its port before it listens, or listen anew for each connection. A network and
/// its drivers are slower than that, and a `local` wire is not. So a listener is given a little time to
/// appear, and more if its address is bound, or if the process lives that has listened there before: it may
/// wait for a processor. If that process has ended, there is nothing to wait for.
fn find(id: &Id, destination: SocketAddr) -> Outcome<Lookup> {
    let net = &id.process.net;
    let begun = Instant::now();
    let mut asked_before = false;
    loop {
        let peer = net.find(destination)?;
        if matches!(peer, Lookup::At(_) | Lookup::NoAnswer) {
            return Ok(peer);
        }
        let soon = begun.elapsed() < APPEARS_WITHIN;
        // Once at first, and then not often: it asks each process of the wire.
        let may_come = match peer {
            Lookup::NotFound if asked_before && soon => true,
            Lookup::NotFound => net.lives(destination)?.unwrap_or(soon),
            _ => true,
        };
        asked_before = true;
        if !may_come || begun.elapsed() >= COMES_WITHIN {
            return Ok(peer);
        }
        std::thread::sleep(if soon { Duration::from_micros(500) } else { Duration::from_millis(20) });
    }
}

/// See `rdma_connect(3)`.
///
/// # Safety
/// `id` lives, `param` is NULL or readable.
#[unsafe(export_name = "uw_rdma_connect")]
pub(crate) unsafe extern "C" fn rdma_connect(
    id: *mut sys::rdma_cm_id,
    param: *mut sys::rdma_conn_param,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that lives.
        let this = unsafe { Id::of(id) }?;
        // SAFETY: the caller's promise is passed on.
        let qp = unsafe { qp_of(this, param) }?;
        let destination = this.state().destination.ok_or(EINVAL)?;
        resources::check_for_object(0)?;
        let peer = find(this, destination)?;
        let Lookup::At(remote) = peer else {
            manage(&mut this.state(), qp);
            qp.fail()?;
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
            // SAFETY: the caller's promise is passed on.
            let param = unsafe { param_of(this, &state, param, default) }?;
            manage(&mut state, qp);
            cm.connect(&qp.current().qp, remote, &param)?;
            state.cm = Some(cm);
            Ok(())
        })?;
        this.complete()?;
        Ok(0)
    })
}

/// See `rdma_accept(3)`.
///
/// # Safety
/// `id` lives, `param` is NULL or readable.
#[unsafe(export_name = "uw_rdma_accept")]
pub(crate) unsafe extern "C" fn rdma_accept(
    id: *mut sys::rdma_cm_id,
    param: *mut sys::rdma_conn_param,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that lives.
        let this = unsafe { Id::of(id) }?;
        // SAFETY: the caller's promise is passed on.
        let qp = unsafe { qp_of(this, param) }?;
        let mut state = this.state();
        let cm = state.cm.clone().ok_or(EINVAL)?;
        // SAFETY: the caller's promise is passed on.
        let param = unsafe { param_of(this, &state, param, state.requested) }?;
        manage(&mut state, qp);
        // Before the events of the connection come.
        let was_undecided = std::mem::take(&mut state.undecided);
        drop(state);
        let of_engine = qp.current().qp.clone();
        if let Err(error) = cm.accept(&of_engine, &param) {
            this.state().undecided = was_undecided;
            let error = undecidable(error, was_undecided);
            if error == ECONNRESET {
                qp.fail()?;
            }
            return Err(error);
        }
        await_acceptance(this, qp, &of_engine)?;
        this.complete()?;
        Ok(0)
    })
}

/// Why the engine takes no decision on a request: the peer is gone, if the program has not decided before.
fn undecidable(error: VerbsError, was_undecided: bool) -> Errno {
    match error {
        VerbsError::Invalid(_) if was_undecided => ECONNRESET,
        error => error.into(),
    }
}

/// Waits until the engine has accepted a request, which takes it one poll. The queue pair is in RTS then, as
/// after the call of librdmacm and the kernel's drivers: programs post sends at once. They leave when the
/// peer may get them.
///
/// The peer may be gone. Then the call fails, the queue pair is in ERR, and there is no event.
fn await_acceptance(id: &Id, qp: &Qp, of_engine: &QueuePair) -> Outcome<()> {
    while of_engine.state() == QpState::Idle {
        id.process.engine.turn();
    }
    // It has depths from the moment that it is connected.
    if of_engine.query().ord.is_none() {
        qp.fail()?;
        return Err(ECONNRESET);
    }
    id.state().accepted = true;
    qp.enter_rts();
    Ok(())
}

/// See `rdma_reject(3)`.
///
/// # Safety
/// `id` lives, the private data is readable.
#[unsafe(export_name = "uw_rdma_reject")]
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut sys::rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that lives.
        let this = unsafe { Id::of(id) }?;
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
        // SAFETY: the caller's promise.
        let of_program = unsafe { bytes_at(private_data.cast(), length.into()) };
        bytes.try_extend_from_slice(of_program).map_err(|_| EINVAL)?;
        let mut state = this.state();
        cm.reject(&bytes).map_err(|error| undecidable(error, state.undecided))?;
        state.undecided = false;
        drop(state);
        // Programs end next, also by `_exit`: the peer gets the answer all the same.
        this.process.engine.poll();
        Ok(0)
    })
}

/// See `rdma_reject(3)`: there are no options to go with it.
///
/// # Safety
/// As [`rdma_reject`].
#[unsafe(export_name = "uw_rdma_reject_ece")]
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut sys::rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { rdma_reject(id, private_data, length) }
}

/// Whether data passes, though the event of the connection may be on its way to the program.
fn is_streaming(id: &Id) -> bool {
    let number = id.state().qp;
    let mut is_streaming = false;
    id.process.qps.with(number.unwrap_or(0), |qp| {
        // SAFETY: a queue pair of the table lives, as the table is locked.
        is_streaming = unsafe { Qp::of(qp as *mut sys::ibv_qp) }.state() == sys::IBV_QPS_RTS;
    });
    is_streaming
}

/// See `rdma_disconnect(3)`.
///
/// # Safety
/// `id` lives.
#[unsafe(export_name = "uw_rdma_disconnect")]
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut sys::rdma_cm_id) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that lives.
        let this = unsafe { Id::of(id) }?;
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

/// See `rdma_establish(3)`: a connection of iWARP is established without it.
///
/// # Safety
/// `id` lives.
#[unsafe(export_name = "uw_rdma_establish")]
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut sys::rdma_cm_id) -> c_int {
    abi::minus_one(|| if id.is_null() { Err(EINVAL) } else { Ok(0) })
}

/// See `rdma_notify(3)`.
///
/// # Safety
/// `id` lives.
#[unsafe(export_name = "uw_rdma_notify")]
pub(crate) unsafe extern "C" fn rdma_notify(_id: *mut sys::rdma_cm_id, _event: sys::ibv_event_type) -> c_int {
    0
}
