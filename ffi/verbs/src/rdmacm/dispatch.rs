//! Translates events of the engine into events for the program.
//!
//! [`on_event`] runs after a poll with the engine locked, so events are handled one after another.
//!
//! Programs are written for the kernel's events, which `cma_iw_handler` of `drivers/infiniband/core/cma.c`
//! generates for all iWARP drivers:
//!
//! | end | the peer | here | `cma_iw_handler` |
//! |---|---|---|---|
//! | active | accepts | `ESTABLISHED` | `ESTABLISHED` |
//! | active | rejects | `REJECTED` -111, with its private data | `REJECTED` (siw: -104) |
//! | active | does not listen (RST) | `REJECTED` -111 | `REJECTED` -111 |
//! | active | ends the connection before its Reply | `REJECTED` -104 | `REJECTED` -104 |
//! | active | does not answer in time | `UNREACHABLE` -110 | `UNREACHABLE` -110 |
//! | active | cannot be reached | `UNREACHABLE` -113 | `CONNECT_ERROR` |
//! | active | sends a Reply that is wrong, or that asks for too much | `CONNECT_ERROR` -104 | `CONNECT_ERROR` |
//! | passive | sends no whole Request, or a wrong Request | nothing | nothing |
//! | passive | sends a Request | `CONNECT_REQUEST` | `CONNECT_REQUEST` |
//! | passive | is gone before the program accepts or rejects | nothing: the program's call fails with `ECONNRESET` | the same |
//! | passive | sends its first FPDU | `ESTABLISHED` | `ESTABLISHED` (without an RTR: when the request is accepted) |
//! | passive | is gone before its first FPDU, or its first FPDU is wrong | `ESTABLISHED`, and `DISCONNECTED` | the same |
//! | both | ends an established connection | `DISCONNECTED` 0 | `DISCONNECTED` |
//! | both | resets an established connection, or sends or receives a Terminate | `DISCONNECTED` -104 | `DISCONNECTED` (siw: 0) |
//! | both | has ended the connection a second ago | `TIMEWAIT_EXIT` (as on InfiniBand) | nothing |
//! | both | stops answering | `DISCONNECTED` -110 (-113 if its host does not even answer ARP or NDP) | `DISCONNECTED` (siw: 0) |
//!
//! So an accepted request never leads to an event that reports a failed connection. Many servers exit at such
//! an event, so one bad client would end the service for all clients.

use std::net::SocketAddr;
use std::sync::Arc;

use iwarp::verbs::{CmEvent, CmEventKind, CmId, ConnectionError, QueuePair};
use libc::c_int;
use tcp_lite::CloseReason;

use super::event_channel::Event;
use super::id::{Id, RequestedDepths};
use crate::ffi::sys;
use crate::ibverbs::qp::Qp;
use crate::net::PrivateDataHeader;
use crate::process::cm_id_table::CmIds;
use crate::process::identity;

/// Handles an event of the identifier at `address`. The identifier is in the table `ids`, which is locked.
pub(super) fn on_event(ids: &mut CmIds, address: usize, event: &CmEvent) {
    // SAFETY: an identifier in the table is not freed while the table is locked.
    let Ok(id) = (unsafe { Id::of(address as *mut sys::rdma_cm_id) }) else { return };
    let cm = &event.id;
    // After the removal of the device, an identifier gets no event. A connection request is rejected.
    if id.process.removal.is_over() {
        if !matches!(event.kind, CmEventKind::ConnectRequest { .. }) {
            set_qp_state(id, sys::IBV_QPS_ERR);
        }
        return;
    }
    match &event.kind {
        CmEventKind::ConnectRequest { private_data, remote, peer_ird, peer_ord, .. } => {
            on_request(ids, id, cm, private_data, *remote, [*peer_ird, *peer_ord]);
        }
        CmEventKind::Established { private_data, ord, ird, peer, .. } => {
            with_qp(id, Qp::enter_rts);
            let mut state = id.state();
            if state.source.is_none_or(|source| source.port() == 0)
                && let Some((local, _)) = cm.addresses()
            {
                id.set_source(&mut state, local);
            }
            drop(state);
            // The value is the number of Reads that the peer may have outstanding, even if this side could
            // serve more Reads.
            let served = peer.map_or(*ird, |peer| peer.depths.ord.min(*ird));
            // A peer's Reply has private data, but a peer's first FPDU has none.
            let private_data =
                if id.state().is_passive { &[] } else { PrivateDataHeader::strip(private_data) };
            establish(id, private_data, [served, *ord]);
        }
        CmEventKind::Rejected { private_data, .. } => {
            set_qp_state(id, sys::IBV_QPS_ERR);
            let private_data = PrivateDataHeader::strip(private_data);
            let event =
                Event::new(id.as_c(), &id.pending_acks, sys::RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED);
            id.push(event.with_param(private_data, sys::rdma_conn_param::default()));
        }
        CmEventKind::ConnectError { error, .. } => {
            set_qp_state(id, sys::IBV_QPS_ERR);
            if !id.state().is_passive {
                let (kind, status) = kind_of(error);
                return id.announce(kind, status);
            }
            let depths = depths(id);
            // If this is false, the program has not accepted the request, and `rdma_accept` or `rdma_reject`
            // will fail. As with the kernel, the program receives no event.
            if depths.is_some() || id.state().accepted {
                establish(id, &[], depths.unwrap_or_default());
                disconnect(ids, id, cm, Some(error));
            }
        }
        CmEventKind::Disconnected { error, .. } => {
            set_qp_state(id, sys::IBV_QPS_ERR);
            disconnect(ids, id, cm, error.as_ref());
        }
        // The other kinds are for streams that are not set up by MPA. No identifier of this library has such
        // a stream.
        _ => {}
    }
}

/// Adds the event that a connection is established. The IRD is the number of Reads and atomics that this side
/// serves at a time, and the ORD is the number of Reads and atomics that this side may have outstanding.
fn establish(id: &Id, private_data: &[u8], [ird, ord]: [u16; 2]) {
    id.state().connected = true;
    let conn = sys::rdma_conn_param {
        responder_resources: u8::try_from(ird).unwrap_or(u8::MAX),
        initiator_depth: u8::try_from(ord).unwrap_or(u8::MAX),
        ..Default::default()
    };
    // librdmacm passes on the kernel's event `CONNECT_RESPONSE` of InfiniBand devices if the identifier has
    // no queue pair whose state librdmacm could change.
    let kind = match identity::pretends_ib() && id.fields().qp.is_null() && !id.state().is_passive {
        true => sys::RDMA_CM_EVENT_CONNECT_RESPONSE,
        false => sys::RDMA_CM_EVENT_ESTABLISHED,
    };
    let event = Event::new(id.as_c(), &id.pending_acks, kind, 0);
    id.push(event.with_param(private_data, conn));
}

/// Adds the event that a connection has ended. Begins the time-wait of the identifier, as InfiniBand devices
/// do, since some servers free the resources of a client only at its end.
fn disconnect(ids: &mut CmIds, id: &Id, cm: &CmId, error: Option<&ConnectionError>) {
    // librdmacm's rsockets ignore an event whose status is an error, so their threads would wait for ever.
    let status = if id.state().has_own_channel { 0 } else { error.map_or(0, status_of_end) };
    id.announce(sys::RDMA_CM_EVENT_DISCONNECTED, status);
    ids.begin_time_wait(cm, on_time_wait_exit);
}

/// Adds the event that the time-wait of the identifier at `address` is over. The table of identifiers is
/// locked. A synchronous identifier gets no such event, since its calls wait for other events.
fn on_time_wait_exit(address: usize) {
    // SAFETY: an identifier in the table is not freed while the table is locked.
    let Ok(id) = (unsafe { Id::of(address as *mut sys::rdma_cm_id) }) else { return };
    if !id.process.removal.is_over() && !id.state().has_own_channel {
        id.announce(sys::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    }
}

/// The IRD and ORD of the identifier's queue pair, or `None` if there is no queue pair, or if the queue pair
/// was never connected.
fn depths(id: &Id) -> Option<[u16; 2]> {
    let mut now = id.state().hidden_qp.as_ref().map(QueuePair::query);
    with_qp(id, |qp| now = Some(qp.current().qp.query()));
    let now = now?;
    now.ird.zip(now.ord).map(|(ird, ord)| [ird, ord])
}

/// Handles a peer's request to a listener of the program.
fn on_request(
    ids: &mut CmIds,
    listener: &Id,
    cm: &CmId,
    private_data: &[u8],
    remote: SocketAddr,
    [peer_ird, peer_ord]: [Option<u16>; 2],
) {
    let fields = listener.fields();
    let Ok(child) = Id::make(listener.process, fields.channel, fields.context, fields.ps) else { return };
    let (header, private_data) = PrivateDataHeader::split(private_data)
        .map_or((None, private_data), |(header, rest)| (Some(header), rest));
    let limit = |depth: Option<u16>| u8::try_from(depth.unwrap_or(1)).unwrap_or(u8::MAX);
    let requested =
        RequestedDepths { responder_resources: limit(peer_ord), initiator_depth: limit(peer_ird) };
    {
        let mut state = child.state();
        state.cm = Some(cm.clone());
        state.requested = requested;
        state.undecided = true;
        state.is_passive = true;
        state.events = Arc::clone(&listener.state().events);
        let source = local_address(listener, cm, header);
        child.set_source(&mut state, source);
        child.set_destination(&mut state, header.map_or(remote, |header| header.visible));
    }
    if child.set_device().is_err() {
        return;
    }
    ids.insert(cm, child.as_c() as usize, on_event);
    let conn = sys::rdma_conn_param {
        responder_resources: requested.responder_resources,
        initiator_depth: requested.initiator_depth,
        ..Default::default()
    };
    let event = Event::new(listener.as_c(), &listener.pending_acks, sys::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    let child = Box::leak(child).as_c();
    listener.push(event.with_new_id(child).with_param(private_data, conn));
}

/// Returns the local address of a new connection, as the program sees it. This address is the listener's
/// address, unless the listener is bound to a wildcard. For a wildcard, the result is the address to which
/// the peer has connected. But if the peer also uses this library (`header`), the result is the address from
/// which this host would connect to the peer.
fn local_address(listener: &Id, cm: &CmId, header: Option<PrivateDataHeader>) -> SocketAddr {
    let bound = listener.state().source.unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
    if !bound.ip().is_unspecified() {
        return bound;
    }
    match (header, cm.addresses()) {
        // The header does not contain the address to which the peer has connected.
        (Some(header), _) => {
            let net = &listener.process.net;
            SocketAddr::new(net.source_for(header.visible.ip()).unwrap_or(net.address()), bound.port())
        }
        (None, Some((local, _))) => local,
        (None, None) => bound,
    }
}

fn with_qp(id: &Id, act: impl FnOnce(&Qp)) {
    let Some(number) = id.state().qp else { return };
    id.process.qps.with(number, |qp| {
        // SAFETY: a queue pair in the table is not freed while the table is locked.
        act(unsafe { Qp::of(qp as *mut sys::ibv_qp) });
    });
}

/// Sets the state of the identifier's queue pair, if the identifier has a queue pair.
fn set_qp_state(id: &Id, state: sys::ibv_qp_state) {
    with_qp(id, |qp| qp.set_state(&mut qp.attributes(), state));
}

/// The event and its status for a connection that could not be set up.
fn kind_of(error: &ConnectionError) -> (u32, c_int) {
    match error {
        ConnectionError::Rejected | ConnectionError::Tcp(CloseReason::Refused) => {
            (sys::RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED)
        }
        ConnectionError::PeerClosed | ConnectionError::Tcp(CloseReason::Reset) => {
            (sys::RDMA_CM_EVENT_REJECTED, -libc::ECONNRESET)
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

/// The status of `RDMA_CM_EVENT_DISCONNECTED` after an error.
fn status_of_end(error: &ConnectionError) -> c_int {
    match error {
        // This error means that the program itself has ended the connection.
        ConnectionError::Tcp(CloseReason::Aborted) => 0,
        ConnectionError::Tcp(CloseReason::TimedOut)
        | ConnectionError::StartupTimeout
        | ConnectionError::CloseTimeout => -libc::ETIMEDOUT,
        ConnectionError::Tcp(CloseReason::NoNeighbor | CloseReason::Unreachable) => -libc::EHOSTUNREACH,
        _ => -libc::ECONNRESET,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iwarp::verbs::StreamError;
    use libc::{EADDRINUSE, ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENOMEM, ETIMEDOUT};

    /// Checks the rows of the module's table that need no peer.
    #[test]
    fn each_error_has_its_event_and_its_status() {
        use sys::RDMA_CM_EVENT_UNREACHABLE as UNREACHABLE;
        use sys::{RDMA_CM_EVENT_CONNECT_ERROR as CONNECT_ERROR, RDMA_CM_EVENT_REJECTED as REJECTED};
        let stream = ConnectionError::Stream(StreamError { layer: 0, etype: 0, code: 0, from_peer: true });
        let tcp = ConnectionError::Tcp;
        for (error, event, status, of_end) in [
            (ConnectionError::Rejected, REJECTED, ECONNREFUSED, ECONNRESET),
            (tcp(CloseReason::Refused), REJECTED, ECONNREFUSED, ECONNRESET),
            (tcp(CloseReason::Reset), REJECTED, ECONNRESET, ECONNRESET),
            (ConnectionError::PeerClosed, REJECTED, ECONNRESET, ECONNRESET),
            (tcp(CloseReason::TimedOut), UNREACHABLE, ETIMEDOUT, ETIMEDOUT),
            (ConnectionError::StartupTimeout, UNREACHABLE, ETIMEDOUT, ETIMEDOUT),
            (ConnectionError::CloseTimeout, CONNECT_ERROR, ECONNRESET, ETIMEDOUT),
            (ConnectionError::NoRoute, UNREACHABLE, EHOSTUNREACH, ECONNRESET),
            (tcp(CloseReason::NoNeighbor), UNREACHABLE, EHOSTUNREACH, EHOSTUNREACH),
            (tcp(CloseReason::Unreachable), UNREACHABLE, EHOSTUNREACH, EHOSTUNREACH),
            (tcp(CloseReason::LinkDown), CONNECT_ERROR, ECONNRESET, ECONNRESET),
            (tcp(CloseReason::Aborted), CONNECT_ERROR, ECONNRESET, 0),
            (ConnectionError::PortInUse, CONNECT_ERROR, EADDRINUSE, ECONNRESET),
            (ConnectionError::NoResources, CONNECT_ERROR, ENOMEM, ECONNRESET),
            (stream, CONNECT_ERROR, ECONNRESET, ECONNRESET),
        ] {
            assert_eq!(kind_of(&error), (event, -status), "{error:?}");
            assert_eq!(status_of_end(&error), -of_end, "{error:?}");
        }
    }
}
