//! Connections that programs set up out of band, until both sides are ready.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use iwarp::mpa::StartupFault;
use iwarp::verbs::{CmEvent, CmEventKind, CmId, ConnParam, ConnectionError, QueuePair};

use crate::ffi::abi;
use crate::net::{PrivateDataHeader, QpNumbers};

/// Maximum time that a connection request waits until its queue pair enters RTR.
pub(crate) const PARKED: Duration = Duration::from_secs(600);

/// Maximum number of parked requests.
pub(crate) const MAX_PARKED: usize = 16_384;

/// The out-of-band connections of a process that are being set up.
#[derive(Default)]
pub(crate) struct OobConnections {
    state: Mutex<State>,
    parked: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) listener: Option<CmId>,
    /// Queue pairs in RTR that wait for a peer's request, by number.
    pub(crate) expected: HashMap<u32, Expected>,
    pub(crate) parked: Vec<ParkedRequest>,
}

/// A queue pair in RTR that waits for the peer's connection request.
pub(crate) struct Expected {
    pub(crate) remote: IpAddr,
    pub(crate) remote_qp: u32,
    pub(crate) qp: QueuePair,
    pub(crate) param: ConnParam,
}

/// A connection request whose queue pair is not in RTR yet.
pub(crate) struct ParkedRequest {
    pub(crate) cm: CmId,
    pub(crate) from: IpAddr,
    pub(crate) pair: QpNumbers,
    pub(crate) until: Instant,
}

impl OobConnections {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Handles a connection request for an out-of-band connection. Returns `false` for any other event.
    pub(crate) fn takes(&self, event: &CmEvent) -> bool {
        if let CmEventKind::ConnectError { error: error @ ConnectionError::Startup(fault), .. } = &event.kind
            && *fault == StartupFault::OtherType
        {
            abi::log(|| format!("not connected to the peer's queue pair: {error}"));
        }
        let CmEventKind::ConnectRequest { private_data, remote, .. } = &event.kind else { return false };
        let mut state = self.state();
        if event.listener.is_none() || event.listener != state.listener {
            return false;
        }
        // A request without queue pair numbers is dropped, which rejects the request.
        let Some((PrivateDataHeader { pair: Some(pair), .. }, _)) = PrivateDataHeader::split(private_data)
        else {
            return true;
        };
        let from = remote.ip();
        let is_expected = state
            .expected
            .get(&pair.to)
            .is_some_and(|expected| expected.remote == from && expected.remote_qp == pair.from);
        if is_expected && let Some(expected) = state.expected.remove(&pair.to) {
            drop(state);
            // If the queue pair was destroyed in the meantime, `accept` fails, and the request is rejected.
            let _ = event.id.accept(&expected.qp, &expected.param);
        } else {
            self.park(&mut state, event.id.clone(), from, pair);
        }
        true
    }

    /// Parks a request. If an earlier request of the same queue pairs is parked, the new request replaces it,
    /// since the peer has given up the earlier request.
    fn park(&self, state: &mut State, cm: CmId, from: IpAddr, pair: QpNumbers) {
        state.parked.retain(|parked| parked.from != from || parked.pair != pair);
        // If there is no room, the request is dropped, which rejects the request.
        if state.parked.len() < MAX_PARKED {
            state.parked.push(ParkedRequest { cm, from, pair, until: Instant::now() + PARKED });
            self.parked.store(state.parked.len(), Ordering::Relaxed);
        }
    }

    /// Removes and returns the parked request of a peer for one of our queue pairs.
    pub(crate) fn take_parked(&self, state: &mut State, from: IpAddr, pair: QpNumbers) -> Option<CmId> {
        let is_it = |parked: &ParkedRequest| parked.from == from && parked.pair == pair;
        let at = state.parked.iter().position(is_it)?;
        let parked = state.parked.swap_remove(at);
        self.parked.store(state.parked.len(), Ordering::Relaxed);
        Some(parked.cm)
    }

    #[inline]
    pub(crate) fn has_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed) > 0
    }

    /// Rejects requests that have been parked for longer than [`PARKED`].
    pub(crate) fn sweep(&self) {
        if !self.has_parked() {
            return;
        }
        let mut state = self.state();
        let now = Instant::now();
        let (waiting, over): (Vec<_>, Vec<_>) = state.parked.drain(..).partition(|parked| parked.until > now);
        state.parked = waiting;
        self.parked.store(state.parked.len(), Ordering::Relaxed);
        drop(state);
        // Dropping a request that is neither accepted nor rejected yet rejects the request.
        drop(over);
    }
}
