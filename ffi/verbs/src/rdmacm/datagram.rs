//! Identifiers of datagram services (`RDMA_PS_UDP`): looking up the queue pair of a service, and answering
//! such questions.
//!
//! There is no connection. `rdma_connect` asks the other host for the number and the Q_Key of the service's
//! queue pair, and `rdma_accept` answers. Programs are written for the kernel's events
//! (`cma_sidr_rep_handler` and `cma_ib_req_handler` of `drivers/infiniband/core/cma.c`):
//!
//! | end | the peer | event |
//! |---|---|---|
//! | active | accepts | `ESTABLISHED`, with the address and the queue pair of the service |
//! | active | accepts with another Q_Key than that of our queue pair | `ADDR_ERROR` -22 |
//! | active | rejects | `UNREACHABLE` 2 (`IB_SIDR_REJECT`), with its private data |
//! | active | has no such service | `UNREACHABLE` 1 (`IB_SIDR_UNSUPPORTED`) |
//! | active | does not answer | `UNREACHABLE` -110 |
//! | passive | asks | `CONNECT_REQUEST` |
//!
//! The private data in an event has the length of the field in the message, as in the kernel: the program's
//! data is followed by zeros.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use iwarp::roce::{CmAddresses, Qpn, SidrReply, SidrRequest};
use libc::c_int;

use super::address::find;
use super::event_channel::Event;
use super::id::Id;
use super::service::Step;
use crate::ffi::abi::{EINVAL, Outcome};
use crate::ffi::{resources, sys};
use crate::ibverbs::ah;
use crate::ibverbs::qp::Qp;
use crate::ibverbs::work_request::bytes_at;
use crate::net::{Claim, Lookup};
use crate::process::sidr::{Origin, SidrEvent};

/// Listens for questions. Fails if another identifier is bound to the address or to an overlapping address.
pub(super) fn listen(id: &Id, backlog: usize) -> Outcome<()> {
    let (process, number) = (id.process, id.as_c() as usize);
    let (visible, claim) = {
        let mut state = id.state();
        if state.datagram.step != Step::Begun || state.destination.is_some() {
            return Err(EINVAL);
        }
        let visible = state.source.ok_or(EINVAL)?;
        let claim = Claim::new(visible.ip(), state.family_only, false);
        id.ports().listen(number, visible.port())?;
        if state.name.is_none() {
            state.name = process.net.take_name(id.space(), visible, &claim)?;
        }
        state.datagram.step = Step::Listens;
        (visible, claim)
    };
    // A handler locks the state, so the state is not locked while the table of the services is locked.
    process.sidr.listen(number, visible.port(), claim, backlog, on_event);
    let published = process.sidr.open(&process.context, &process.default_pd).and_then(|()| {
        let publish = |name| process.net.publish(name, visible.port());
        Ok(id.state().name.as_mut().map_or(Ok(()), publish)?)
    });
    published.inspect_err(|_| {
        process.sidr.forget(number);
        id.state().datagram.step = Step::Begun;
    })
}

/// Copies the private data of a program to a field of a message. Fails if the field is shorter.
///
/// # Safety
/// `param` is NULL or readable, and its private data is readable.
unsafe fn put_private_data(param: *const sys::rdma_conn_param, field: &mut [u8]) -> Outcome<()> {
    // SAFETY: the caller promises that `param` is NULL or readable.
    let Some(param) = (unsafe { param.as_ref() }) else { return Ok(()) };
    // SAFETY: the caller promises that the private data is readable.
    let bytes = unsafe { bytes_at(param.private_data.cast(), param.private_data_len.into()) };
    field.get_mut(..bytes.len()).ok_or(EINVAL)?.copy_from_slice(bytes);
    Ok(())
}

/// Asks the peer of the identifier for its queue pair. The answer arrives as an event.
///
/// # Safety
/// `param` is NULL or readable, and its private data is readable.
pub(super) unsafe fn connect(id: &Id, param: *const sys::rdma_conn_param) -> Outcome<()> {
    let process = id.process;
    let (source, destination) = {
        let state = id.state();
        if state.datagram.step != Step::Routed {
            return Err(EINVAL);
        }
        (state.source.ok_or(EINVAL)?, state.destination.ok_or(EINVAL)?)
    };
    let mut private_data = [0; SidrRequest::PRIVATE_BYTES];
    let (header, of_program) = private_data.split_at_mut(CmAddresses::LEN);
    header.copy_from_slice(&CmAddresses { source, destination: destination.ip() }.to_bytes());
    // SAFETY: the caller promises that `param` and its private data are readable.
    unsafe { put_private_data(param, of_program) }?;
    resources::check_for_object(0)?;
    process.sidr.open(&process.context, &process.default_pd)?;
    let peer = find(id, destination)?;
    id.state().datagram.step = Step::Asked;
    match peer {
        Lookup::At(remote) => {
            let request = SidrRequest { private_data, ..SidrRequest::of_port(remote.port()) };
            process.sidr.ask(id.as_c() as usize, remote.ip(), request, on_event);
            // This poll sends the question.
            process.engine.poll();
        }
        Lookup::NoAnswer => id.announce(sys::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        // The name service knows all listeners of the wire, so nobody has to be asked.
        Lookup::Bound | Lookup::NotFound => {
            let event = new_event(id, sys::RDMA_CM_EVENT_UNREACHABLE, SidrReply::UNSUPPORTED.into());
            id.push(event.with_ud_param(&[0; SidrReply::PRIVATE_BYTES], sys::rdma_ud_param::default()));
        }
    }
    Ok(())
}

/// Answers the question of the identifier with the identifier's queue pair or, if the identifier has none,
/// with the queue pair whose number is in the parameters. If the call fails, the question is rejected.
///
/// # Safety
/// `param` is NULL or readable, and its private data is readable.
pub(super) unsafe fn accept(id: &Id, param: *const sys::rdma_conn_param) -> Outcome<()> {
    let Step::Undecided(origin) = id.state().datagram.step else { return Err(EINVAL) };
    let mut reply = origin.answer(SidrReply::VALID);
    let own = id.fields().qp;
    let number = match own.is_null() {
        // SAFETY: the queue pair is not destroyed yet: `rdma_destroy_qp` sets the field to NULL.
        false => Some(unsafe { Qp::of(own) }.number()),
        // SAFETY: the caller promises that `param` is NULL or readable.
        true => unsafe { param.as_ref() }.map(|param| param.qp_num),
    };
    // SAFETY: the caller promises that `param` and its private data are readable.
    let filled = unsafe { put_private_data(param, &mut reply.private_data) };
    let qpn = number.and_then(Qpn::new).filter(|qpn| *qpn != Qpn::NONE);
    let result = filled.and(qpn.ok_or(EINVAL));
    match result {
        Ok(qpn) => (reply.qpn, reply.qkey) = (qpn, id.state().datagram.qkey()),
        Err(_) => reply = origin.answer(SidrReply::REJECTED),
    }
    id.decide(&origin, &reply)?;
    result.map(|_| ())
}

/// Rejects the question of the identifier.
///
/// # Safety
/// The private data is readable.
pub(super) unsafe fn reject(id: &Id, private_data: *const u8, length: u8) -> Outcome<()> {
    let Step::Undecided(origin) = id.state().datagram.step else { return Err(EINVAL) };
    let mut reply = origin.answer(SidrReply::REJECTED);
    let param = sys::rdma_conn_param {
        private_data: private_data.cast(),
        private_data_len: length,
        ..Default::default()
    };
    // SAFETY: `param` is a local value, and the caller promises that the private data is readable.
    unsafe { put_private_data(&raw const param, &mut reply.private_data) }?;
    id.decide(&origin, &reply)
}

/// Moves the queue pair of the identifier to ERR. The peer is not told: it has no connection either.
pub(super) fn disconnect(id: &Id) -> Outcome<()> {
    let own = id.fields().qp;
    if !own.is_null() {
        // SAFETY: the queue pair is not destroyed yet: `rdma_destroy_qp` sets the field to NULL.
        unsafe { Qp::of(own) }.fail()?;
    }
    if id.state().datagram.is_in_use() { Ok(()) } else { Err(EINVAL) }
}

/// Handles an event of the identifier at `address`, which is not destroyed during the call. Returns the new
/// identifier of a question.
fn on_event(address: usize, event: SidrEvent<'_>) -> Option<usize> {
    // SAFETY: an identifier that has a handler is not freed while the handler runs.
    let id = unsafe { Id::of(address as *mut sys::rdma_cm_id) }.ok()?;
    // After the removal of the device, an identifier gets no event.
    if id.process.removal.is_over() {
        return None;
    }
    match event {
        SidrEvent::Request { origin, addresses, private_data } => {
            return on_request(id, origin, addresses, private_data);
        }
        SidrEvent::Reply(reply, from) => on_reply(id, reply, from),
        SidrEvent::TimedOut => id.announce(sys::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
    }
    None
}

fn new_event(id: &Id, kind: u32, status: c_int) -> Event {
    Event::new(id.as_c(), &id.pending_acks, kind, status)
}

fn on_reply(id: &Id, reply: &SidrReply, from: IpAddr) {
    let mut param = sys::rdma_ud_param::default();
    let (kind, status) = match reply.status {
        SidrReply::VALID => match id.state().datagram.take_qkey(reply.qkey) {
            Ok(()) => {
                param.ah_attr = ah::attr_of_address(id.process, from);
                (param.qp_num, param.qkey) = (reply.qpn.get(), reply.qkey);
                (sys::RDMA_CM_EVENT_ESTABLISHED, 0)
            }
            Err(error) => (sys::RDMA_CM_EVENT_ADDR_ERROR, -error.0),
        },
        status => (sys::RDMA_CM_EVENT_UNREACHABLE, status.into()),
    };
    id.push(new_event(id, kind, status).with_ud_param(&reply.private_data, param));
}

fn on_request(listener: &Id, origin: Origin, addresses: CmAddresses, private_data: &[u8]) -> Option<usize> {
    let fields = listener.fields();
    resources::check_for_object(0).ok()?;
    let child = Id::make(listener.process, fields.channel, fields.context, fields.ps).ok()?;
    {
        let mut state = child.state();
        state.datagram.step = Step::Undecided(origin);
        state.undecided = true;
        state.is_passive = true;
        let (port, events) = {
            let of_listener = listener.state();
            (of_listener.source.map_or(0, |source| source.port()), Arc::clone(&of_listener.events))
        };
        state.events = events;
        child.set_source(&mut state, SocketAddr::new(addresses.destination, port));
        child.set_destination(&mut state, addresses.source);
    }
    child.set_device().ok()?;
    let event = new_event(listener, sys::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    let child = Box::leak(child).as_c();
    let event = event.with_new_id(child).with_ud_param(private_data, sys::rdma_ud_param::default());
    listener.push(event);
    Some(child as usize)
}
