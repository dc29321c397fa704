//! Connections that programs set up out of band, as on InfiniBand. Each side learns the GID (or LID) and
//! queue pair number of the other side without the connection manager, and moves its queue pair to RTR.
//!
//! iWARP needs a TCP connection with an initiator. Each side knows a GID and the number of both queue pairs,
//! and so the addresses of both on the wire. So the sides agree on the roles without a message. The side with
//! the smaller pair of address and number is the initiator, and connects when its queue pair enters RTR. The
//! other side listens. All queue pairs of a process share one port. A connection request for a queue pair
//! that is not in RTR yet is parked until the queue pair enters RTR, but not for ever. `ibv_modify_qp` never
//! waits for the peer, since one thread may set up both sides.

use std::net::{IpAddr, SocketAddr};

use iwarp::verbs::{CmId, ConnParam, ListenOptions, VerbsError};

use crate::ffi::abi::{EINVAL, Outcome};
use crate::ffi::sys;
use crate::ibverbs::engine_qps::EngineQps;
use crate::net::{PrivateDataHeader, QpNumbers, mapped};
use crate::process::Process;
use crate::process::limits;
use crate::process::oob_connections::{Expected, MAX_PARKED, PARKED};

/// The port of out-of-band connections on every address of a wire. (The port has the number of RFC 7306,
/// whose messages these connections use.)
const PORT: u16 = 7306;

/// Maximum code of `min_rnr_timer`, which has five bits.
const MAX_RNR_TIMER: u8 = 31;

/// A queue pair's part of an out-of-band connection.
#[derive(Default)]
pub(crate) struct OobConnection {
    cm: Option<CmId>,
}

/// The name of a queue pair: the address of its process on the wire, and its number. The queue pair with the
/// smaller name is the initiator.
type QpName = ([u8; 16], u32);

/// Starts to listen for out-of-band connections, unless this process already listens. This function is called
/// when a queue pair enters INIT, since a peer may then connect to the queue pair.
pub(crate) fn prepare(process: &Process) -> Outcome<()> {
    let mut state = process.oob.state();
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

/// The peer's end of a connection.
#[derive(Clone, Copy)]
pub(crate) struct RemoteQp {
    address: IpAddr,
    number: u32,
}

impl RemoteQp {
    /// The peer that a program names by an address vector and a number.
    pub(crate) fn of(process: &Process, vector: &sys::ibv_ah_attr, number: u32) -> Outcome<Self> {
        Ok(Self { address: remote_of(process, vector, number)?, number })
    }

    /// Whether this is queue pair `number` of this process.
    pub(crate) fn is(&self, process: &Process, number: u32) -> bool {
        self.name() == (process.net.mapped_address(), number)
    }

    fn name(&self) -> QpName {
        (mapped(self.address).octets(), self.number)
    }
}

/// Connects a queue pair to its peer, or accepts the peer's connection request, now or when the request
/// arrives. This function is called when the queue pair enters RTR. `number` is the number that the program
/// sees.
pub(crate) fn start(
    process: &Process,
    number: u32,
    engine_qps: &EngineQps,
    peer: RemoteQp,
    attr: &sys::ibv_qp_attr,
    connection: &mut OobConnection,
) -> Outcome<()> {
    let visible = SocketAddr::new(process.net.address(), PORT);
    let pair = QpNumbers { from: number, to: peer.number };
    let mut param = ConnParam {
        responder_resources: u16::from(attr.max_dest_rd_atomic.clamp(1, limits::MAX_RD_ATOM)),
        // The program sets the initiator's depth only at RTS, but the connection is made earlier.
        initiator_depth: limits::MAX_RD_ATOM.into(),
        ib_semantics: true,
        min_rnr_timer: attr.min_rnr_timer & MAX_RNR_TIMER,
        outlives_peer: true,
        // The initiator waits until its peer has also entered RTR, but at most this long.
        timeout: PARKED,
        ..ConnParam::default()
    };
    let header = PrivateDataHeader { visible, pair: Some(pair) };
    param.private_data.try_extend_from_slice(&header.bytes()).map_err(|_| EINVAL)?;
    let ours: QpName = (process.net.mapped_address(), number);
    let expected = Expected {
        remote: peer.address,
        remote_qp: peer.number,
        qp: engine_qps.qp.clone(),
        param: param.clone(),
    };
    if ours <= peer.name() {
        // A queue pair that is connected to itself both listens and connects.
        if ours == peer.name() {
            process.oob.state().expected.insert(number, expected);
        }
        let cm = process.context.create_id(&process.channel);
        cm.connect(engine_qps.sender(), SocketAddr::new(peer.address, PORT), &param)?;
        connection.cm = Some(cm);
        return Ok(());
    }
    let asked = QpNumbers { from: pair.to, to: pair.from };
    // Each turn takes a parked request, and the peer cannot ask again as fast as requests are taken.
    loop {
        let mut state = process.oob.state();
        let Some(cm) = process.oob.take_parked(&mut state, peer.address, asked) else {
            state.expected.insert(number, expected);
            return Ok(());
        };
        drop(state);
        match cm.accept(&engine_qps.qp, &param) {
            Ok(()) => {
                connection.cm = Some(cm);
                return Ok(());
            }
            // The peer has given up in the meantime. The call succeeds, as if the peer had not asked yet.
            Err(VerbsError::Invalid(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends the out-of-band connection of a queue pair, and removes the queue pair from the tables of such
/// connections. This function is called when the queue pair is reset or destroyed.
pub(crate) fn stop(process: &Process, number: u32, connection: &mut OobConnection) {
    process.retry_timeouts.remove(&process.engine, number);
    process.loopback_qps.remove(number);
    let expected = process.oob.state().expected.remove(&number);
    drop(expected);
    drop(connection.cm.take());
}

/// The address on the wire for an address vector of the program and the number of the peer's queue pair.
/// Every GID of ours has the same address on the wire, so a valid `sgid_index` makes no difference.
pub(crate) fn remote_of(process: &Process, vector: &sys::ibv_ah_attr, number: u32) -> Outcome<IpAddr> {
    if vector.is_global != 0 {
        if usize::from(vector.grh.sgid_index) >= process.net.gid_count() {
            return Err(EINVAL);
        }
        // SAFETY: `raw` is an array of bytes, which has no invalid values.
        return Ok(process.net.address_of_gid(unsafe { vector.grh.dgid.raw }, number));
    }
    if vector.dlid == 0 {
        return Err(EINVAL);
    }
    Ok(process.net.address_of_lid(vector.dlid))
}
