//! Events of the engine become events of programs.
//!
//! [`on_event`] runs after a poll, with the engine locked, so events come one after the other.

use std::net::SocketAddr;
use std::sync::Arc;

use iwarp::verbs::{CmEvent, CmEventKind, CmId, ConnectionError};
use libc::c_int;
use tcp_lite::CloseReason;

use super::channel::Event;
use super::id::{Id, Requested};
use crate::hello::Hello;
use crate::process::Process;
use crate::qp::Qp;
use crate::{ib, sys};

/// An event of the engine.
pub(crate) fn on_event(process: &'static Process, event: CmEvent) {
    if ib::takes(process, &event) {
        return;
    }
    let CmEvent { id: cm, listener, kind, .. } = event;
    if let CmEventKind::ConnectRequest { private_data, remote, peer_ird, peer_ord, .. } = kind {
        let Some(listener) = listener else { return };
        return on_request(process, cm, &listener, &private_data, remote, [peer_ird, peer_ord]);
    }
    let ids = process.ids.lock();
    let Some(&address) = ids.get(&cm) else { return };
    // SAFETY: an identifier of the table lives, as the table is locked.
    let Ok(id) = (unsafe { Id::of(address as *mut sys::rdma_cm_id) }) else { return };
    if id.state().undecided {
        // The peer is gone, and accepting fails. As with the kernel, there is no event for that.
        return;
    }
    match kind {
        CmEventKind::Established { private_data, ord, ird, .. } => {
            set_qp_state(id, sys::IBV_QPS_RTS);
            let mut state = id.state();
            state.connected = true;
            if state.source.is_none_or(|source| source.port() == 0)
                && let Some((local, _)) = cm.addresses()
            {
                id.set_source(&mut state, local);
            }
            drop(state);
            let private_data = Hello::strip(&private_data);
            let conn = sys::rdma_conn_param {
                responder_resources: u8::try_from(ird).unwrap_or(u8::MAX),
                initiator_depth: u8::try_from(ord).unwrap_or(u8::MAX),
                ..Default::default()
            };
            let event = Event::new(id.as_c(), &id.acked, sys::RDMA_CM_EVENT_ESTABLISHED, 0);
            id.push(event.with_param(private_data, conn));
        }
        CmEventKind::Rejected { private_data, .. } => {
            set_qp_state(id, sys::IBV_QPS_ERR);
            let private_data = Hello::strip(&private_data);
            let event = Event::new(id.as_c(), &id.acked, sys::RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED);
            id.push(event.with_param(private_data, sys::rdma_conn_param::default()));
        }
        CmEventKind::ConnectError { error, .. } => {
            set_qp_state(id, sys::IBV_QPS_ERR);
            let (kind, status) = kind_of(&error);
            id.announce(kind, status);
        }
        CmEventKind::Disconnected { .. } => {
            set_qp_state(id, sys::IBV_QPS_ERR);
            id.announce(sys::RDMA_CM_EVENT_DISCONNECTED, 0);
        }
        // No identifier of this library has a stream before MPA. Requests were handled above.
        _ => {}
    }
}

/// A peer asks a listener of the program for a connection.
fn on_request(
    process: &'static Process,
    cm: CmId,
    listener: &CmId,
    private_data: &[u8],
    remote: SocketAddr,
    [peer_ird, peer_ord]: [Option<u16>; 2],
) {
    let mut ids = process.ids.lock();
    // A request for a listener that is gone is rejected as it is dropped.
    let Some(&address) = ids.get(listener) else { return };
    // SAFETY: an identifier of the table lives, as the table is locked.
    let Ok(listener) = (unsafe { Id::of(address as *mut sys::rdma_cm_id) }) else { return };
    let fields = listener.fields();
    let Ok(child) = Id::make(process, fields.channel, fields.context, fields.ps) else { return };
    let (hello, private_data) =
        Hello::split(private_data).map_or((None, private_data), |(hello, rest)| (Some(hello), rest));
    let limit = |depth: Option<u16>| u8::try_from(depth.unwrap_or(1)).unwrap_or(u8::MAX);
    let requested = Requested { responder_resources: limit(peer_ord), initiator_depth: limit(peer_ird) };
    {
        let mut state = child.state();
        state.cm = Some(cm.clone());
        state.requested = requested;
        state.undecided = true;
        state.events = Arc::clone(&listener.state().events);
        let source = local_address(listener, &cm, hello);
        child.set_source(&mut state, source);
        child.set_destination(&mut state, hello.map_or(remote, |hello| hello.visible));
    }
    if child.set_device().is_err() {
        return;
    }
    ids.insert(cm, child.as_c() as usize);
    let conn = sys::rdma_conn_param {
        responder_resources: requested.responder_resources,
        initiator_depth: requested.initiator_depth,
        ..Default::default()
    };
    let event = Event::new(listener.as_c(), &listener.acked, sys::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    let child = Box::leak(child).as_c();
    listener.push(event.with_new_id(child).with_param(private_data, conn));
}

/// The address at which a peer has reached a listener, as programs see it.
fn local_address(listener: &Id, cm: &CmId, hello: Option<Hello>) -> SocketAddr {
    let bound = listener.state().source.unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
    if !bound.ip().is_unspecified() {
        return bound;
    }
    match (hello, cm.addresses()) {
        // On one host, an address reaches itself.
        (Some(hello), _) => {
            let net = &listener.process.net;
            SocketAddr::new(net.source_for(hello.visible.ip()).unwrap_or(net.address()), bound.port())
        }
        (None, Some((local, _))) => local,
        (None, None) => bound,
    }
}

/// Sets the state of the identifier's queue pair, if it has one.
fn set_qp_state(id: &Id, state: sys::ibv_qp_state) {
    let Some(number) = id.state().qp else { return };
    id.process.qps.with(number, |qp| {
        // SAFETY: a queue pair of the table lives, as the table is locked.
        let qp = unsafe { Qp::of(qp as *mut sys::ibv_qp) };
        qp.set_state(&mut qp.attributes(), state);
    });
}

/// The event for a connection that could not be made.
fn kind_of(error: &ConnectionError) -> (u32, c_int) {
    match error {
        ConnectionError::Rejected | ConnectionError::Tcp(CloseReason::Refused | CloseReason::Reset) => {
            (sys::RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED)
        }
        ConnectionError::NoRoute
        | ConnectionError::Tcp(CloseReason::NoNeighbor | CloseReason::Unreachable) => {
            (sys::RDMA_CM_EVENT_UNREACHABLE, -libc::EHOSTUNREACH)
        }
        ConnectionError::Tcp(CloseReason::TimedOut)
        | ConnectionError::StartupTimeout
        | ConnectionError::DecisionTimeout => (sys::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        ConnectionError::PortInUse => (sys::RDMA_CM_EVENT_CONNECT_ERROR, -libc::EADDRINUSE),
        ConnectionError::NoResources => (sys::RDMA_CM_EVENT_CONNECT_ERROR, -libc::ENOMEM),
        _ => (sys::RDMA_CM_EVENT_CONNECT_ERROR, -libc::ECONNRESET),
    }
}
