//! Connections that programs set up themselves, as on InfiniBand: each end learns the other's GID (or LID)
//! and queue pair number by its own means, and moves its queue pair to RTR.
//!
//! iWARP needs a TCP connection with an initiator. Both ends know both names, so they agree on the roles
//! without a word: the end with the smaller pair of GID and number connects when it enters RTR. The other end
//! listens, on one port for the whole process. A request for a queue pair that is not in RTR yet is parked
//! until it is. `ibv_modify_qp` never waits for the peer: one thread may set up both ends.

use std::net::{IpAddr, SocketAddr};

use iwarp::verbs::{CmEvent, CmEventKind, CmId, ConnParam, ListenOptions, QueuePair};

use crate::abi::{EINVAL, Errno, Outcome};
use crate::hello::{Hello, Pair};
use crate::net::of_gid;
use crate::process::Process;
use crate::rendezvous::{Expected, MAX_PARKED};
use crate::{limits, sys};

/// The port of these connections on every address of a wire: the number of the RFC whose messages they need.
const PORT: u16 = 7306;

/// What a queue pair has of its connection.
#[derive(Default)]
pub(crate) struct Link {
    cm: Option<CmId>,
}

/// The name of a queue pair: its GID and number, in the order that decides on the roles.
type Name = ([u8; 16], u32);

/// A queue pair enters INIT: from now on a peer may ask for it.
pub(crate) fn prepare(process: &Process) -> Outcome<()> {
    let mut state = process.rendezvous.state();
    if state.listener.is_some() {
        return Ok(());
    }
    let listener = process.context.create_id(&process.channel);
    let mut options = ListenOptions { backlog: MAX_PARKED, ..ListenOptions::new(PORT) };
    options.failures_per_address = None;
    options.responder.decision_timeout = None;
    listener.listen_with(&options)?;
    state.listener = Some(listener);
    Ok(())
}

/// A queue pair enters RTR: its peer is known. `number` is the one that programs know.
pub(crate) fn start(
    process: &Process,
    number: u32,
    qp: &QueuePair,
    attr: &sys::ibv_qp_attr,
    link: &mut Link,
) -> Outcome<()> {
    let remote = remote_of(process, &attr.ah_attr)?;
    let ours: Name = (process.net.gid(), number);
    let theirs: Name = (crate::net::mapped(remote).octets(), attr.dest_qp_num);
    let visible = SocketAddr::new(process.net.address(), PORT);
    let pair = Pair { from: number, to: attr.dest_qp_num };
    let mut param = ConnParam {
        responder_resources: u16::from(attr.max_dest_rd_atomic.clamp(1, limits::MAX_RD_ATOM)),
        // Known with RTS only, and the connection is made before it.
        initiator_depth: limits::MAX_RD_ATOM.into(),
        ib_semantics: true,
        ..ConnParam::default()
    };
    let hello = Hello { visible, pair: Some(pair) };
    param.private_data.try_extend_from_slice(&hello.bytes()).map_err(|_| EINVAL)?;
    if ours == theirs {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if ours < theirs {
        let cm = process.context.create_id(&process.channel);
        cm.connect(qp, SocketAddr::new(remote, PORT), &param)?;
        link.cm = Some(cm);
        return Ok(());
    }
    let mut state = process.rendezvous.state();
    let asked = Pair { from: pair.to, to: pair.from };
    if let Some(cm) = process.rendezvous.take_parked(&mut state, remote, asked) {
        drop(state);
        cm.accept(qp, &param)?;
        link.cm = Some(cm);
        return Ok(());
    }
    let expected = Expected { remote, remote_qp: attr.dest_qp_num, qp: qp.clone(), param };
    state.expected.insert(number, expected);
    Ok(())
}

/// A queue pair is reset or destroyed.
pub(crate) fn stop(process: &Process, number: u32, link: &mut Link) {
    let expected = process.rendezvous.state().expected.remove(&number);
    drop(expected);
    drop(link.cm.take());
}

/// The address that a program's address vector names.
fn remote_of(process: &Process, vector: &sys::ibv_ah_attr) -> Outcome<IpAddr> {
    if vector.is_global != 0 {
        // SAFETY: every member of the union is bytes.
        return Ok(of_gid(unsafe { vector.grh.dgid.raw }));
    }
    if vector.dlid == 0 {
        return Err(EINVAL);
    }
    Ok(process.net.address_of_lid(vector.dlid))
}

/// Handles an event of these connections. Returns whether it was one.
pub(crate) fn takes(process: &Process, event: &CmEvent) -> bool {
    let CmEventKind::ConnectRequest { private_data, remote, .. } = &event.kind else { return false };
    let mut state = process.rendezvous.state();
    if event.listener.is_none() || event.listener != state.listener {
        return false;
    }
    // A request without the numbers of queue pairs is rejected as it is dropped.
    let Some((Hello { pair: Some(pair), .. }, _)) = Hello::split(private_data) else { return true };
    let from = remote.ip();
    let is_expected = state
        .expected
        .get(&pair.to)
        .is_some_and(|expected| expected.remote == from && expected.remote_qp == pair.from);
    if is_expected && let Some(expected) = state.expected.remove(&pair.to) {
        drop(state);
        // A queue pair that was destroyed meanwhile refuses, and the request is rejected.
        let _ = event.id.accept(&expected.qp, &expected.param);
    } else {
        process.rendezvous.park(&mut state, event.id.clone(), from, pair);
    }
    true
}
