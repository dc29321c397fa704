//! One host: its engine, and the objects that its user holds.

use std::net::SocketAddr;
use std::time::Duration;

use dp::Mempool;
use iwarp::engine::Engine;
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, CqOptions, EventChannel, FastOptions, FastRegion,
    MemoryRegion, MemoryWindow, MrOptions, ProtectionDomain, QpGrants, QpInit, QpState, QueuePair,
    SharedReceiveQueue, SrqInit,
};

use super::super::ledger::Ledger;
use super::super::rig::PORT;
use super::work;
use crate::input::Input;

/// Maximum number of objects of a kind that a user holds: more than some limits of the context.
const HELD: usize = 10;

/// A queue pair and its completion queues. The user may drop its own handles of these completion queues
/// separately.
pub(super) struct Queues {
    pub(super) qp: QueuePair,
    pub(super) cqs: [CompletionQueue; 2],
    sq_sig_all: bool,
    srq: bool,
}

/// One host.
pub(super) struct Side {
    pub(super) engine: Box<Engine>,
    pub(super) context: Context,
    pub(super) pool: Mempool,
    pub(super) channel: EventChannel,
    pub(super) address: SocketAddr,
    pub(super) listener: Option<CmId>,
    pub(super) pds: Vec<ProtectionDomain>,
    pub(super) cqs: Vec<CompletionQueue>,
    pub(super) srqs: Vec<SharedReceiveQueue>,
    pub(super) regions: Vec<MemoryRegion>,
    pub(super) windows: Vec<MemoryWindow>,
    pub(super) fasts: Vec<FastRegion>,
    pub(super) qps: Vec<Queues>,
    pub(super) ids: Vec<CmId>,
    /// Identifiers of connection requests.
    pub(super) asking: Vec<CmId>,
    pub(super) ledger: Ledger,
}

fn pick<'a, T>(input: &mut Input<'_>, of: &'a [T]) -> Option<&'a T> {
    if of.is_empty() { None } else { of.get(input.below(of.len())) }
}

/// Stores an object if it was created and if the user holds fewer than [`HELD`] such objects.
fn keep<T, E>(held: &mut Vec<T>, made: Result<T, E>) {
    if held.len() < HELD
        && let Ok(made) = made
    {
        held.push(made);
    }
}

fn drop_one<T>(input: &mut Input<'_>, held: &mut Vec<T>) -> Option<T> {
    if held.is_empty() { None } else { Some(held.swap_remove(input.below(held.len()))) }
}

impl Side {
    pub(super) fn new(engine: Box<Engine>, context: Context, pool: Mempool, address: SocketAddr) -> Self {
        let channel = context.create_event_channel().expect("within the limit");
        Self {
            engine,
            context,
            pool,
            channel,
            address,
            listener: None,
            pds: Vec::new(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            regions: Vec::new(),
            windows: Vec::new(),
            fasts: Vec::new(),
            qps: Vec::new(),
            ids: Vec::new(),
            asking: Vec::new(),
            ledger: Ledger::default(),
        }
    }

    pub(super) fn pick_region(&self, input: &mut Input<'_>) -> Option<&MemoryRegion> {
        pick(input, &self.regions)
    }

    pub(super) fn pick_window(&self, input: &mut Input<'_>) -> Option<&MemoryWindow> {
        pick(input, &self.windows)
    }

    pub(super) fn pick_fast(&self, input: &mut Input<'_>) -> Option<&FastRegion> {
        pick(input, &self.fasts)
    }

    pub(super) fn create(&mut self, input: &mut Input<'_>, what: usize) {
        let Some(pd) = pick(input, &self.pds).cloned() else {
            return keep(&mut self.pds, self.context.alloc_pd());
        };
        match what {
            0 => keep(&mut self.pds, self.context.alloc_pd()),
            1 => {
                let strict = [None, Some(true), Some(false)][input.below(3)];
                let options = CqOptions { strict, ..CqOptions::new(input.pick(&[64, 1, 4, 0, 513])) };
                keep(&mut self.cqs, self.context.create_cq_with(&options));
            }
            2 => {
                let (max_wr, max_sge) = (input.pick(&[8, 1, 0, 65]), input.pick(&[4, 1, 8, 9]));
                let init = SrqInit { max_wr, max_sge, ..SrqInit::default() };
                keep(&mut self.srqs, pd.create_srq(&init));
            }
            3 => {
                let qp = pick(input, &self.qps).filter(|_| input.one_in(3));
                let options = MrOptions {
                    qp: qp.map(|queues| &queues.qp),
                    key: input.u8(),
                    keep: input.one_in(4),
                    ..MrOptions::new(work::access(input))
                };
                keep(&mut self.regions, pd.reg_mr_with(input.pick(&[2048, 1, 4096, 0, 100]), &options));
            }
            4 => keep(&mut self.windows, pd.alloc_mw(work::kind(input))),
            5 => keep(
                &mut self.fasts,
                pd.alloc_fast_mr(input.pick(&[2048, 1, 100, 0]), &FastOptions::default()),
            ),
            _ => self.create_qp(input, &pd),
        }
    }

    fn create_qp(&mut self, input: &mut Input<'_>, pd: &ProtectionDomain) {
        let (Some(send_cq), Some(recv_cq)) = (pick(input, &self.cqs), pick(input, &self.cqs)) else { return };
        let bits = input.u8();
        let srq = pick(input, &self.srqs).filter(|_| bits & 1 != 0);
        let init = QpInit {
            recv_cq,
            srq,
            max_send_wr: [8, 1, 16, 65][usize::from(bits >> 1 & 3)],
            max_recv_wr: [8, 1, 16, 0][usize::from(bits >> 3 & 3)],
            max_send_sge: 4,
            max_recv_sge: if bits & 0x20 == 0 { 4 } else { 9 },
            max_inline: 64,
            sq_sig_all: bits & 0x40 == 0,
            grants: if bits & 0x80 == 0 { QpGrants::all() } else { QpGrants::empty() },
            ..QpInit::new(send_cq)
        };
        let (sq_sig_all, has_srq, cqs) = (init.sq_sig_all, srq.is_some(), [send_cq.clone(), recv_cq.clone()]);
        let made = pd.create_qp(&init);
        keep(&mut self.qps, made.map(|qp| Queues { qp, cqs, sq_sig_all, srq: has_srq }));
    }

    pub(super) fn destroy(&mut self, input: &mut Input<'_>) {
        match input.below(10) {
            0 => drop(drop_one(input, &mut self.pds)),
            1 => drop(drop_one(input, &mut self.cqs)),
            2 => drop(drop_one(input, &mut self.srqs)),
            3 | 4 => {
                if let Some(region) = drop_one(input, &mut self.regions)
                    && let Err(bound) = region.deregister()
                {
                    self.regions.push(*bound.region);
                }
            }
            5 => drop(drop_one(input, &mut self.windows)),
            6 => drop(drop_one(input, &mut self.fasts)),
            7 => {
                if let Some(queues) = drop_one(input, &mut self.qps) {
                    self.ledger.forget(queues.qp.qp_num());
                    self.reap_of(&queues);
                    // If `queues` holds the last handles of the completion queues, later completions are
                    // lost.
                }
            }
            8 => drop(drop_one(input, &mut self.ids)),
            _ => drop(drop_one(input, &mut self.asking)),
        }
    }

    pub(super) fn post_send(&mut self, input: &mut Input<'_>, peer: &Self) {
        let wr_id = self.ledger.next();
        let Some(queues) = pick(input, &self.qps) else { return };
        let request = work::send(input, wr_id, self, peer);
        let signaled = queues.sq_sig_all || request.flags.contains(iwarp::verbs::SendFlags::SIGNALED);
        let (qp_num, posted) = (queues.qp.qp_num(), queues.qp.post_send(&request));
        if posted.is_ok() {
            self.ledger.post(wr_id, Some(qp_num), !signaled);
        }
    }

    pub(super) fn post_recv(&mut self, input: &mut Input<'_>) {
        let wr_id = self.ledger.next();
        let request = work::receive(input, wr_id, self);
        if input.one_in(4) {
            if let Some(srq) = pick(input, &self.srqs)
                && srq.post_recv(&request).is_ok()
            {
                self.ledger.post(wr_id, None, true);
            }
        } else if let Some(queues) = pick(input, &self.qps) {
            let (qp_num, posted) = (queues.qp.qp_num(), queues.qp.post_recv(&request));
            if posted.is_ok() {
                assert!(!queues.srq, "posted to a queue that is shared");
                self.ledger.post(wr_id, Some(qp_num), false);
            }
        }
    }

    pub(super) fn modify(&mut self, input: &mut Input<'_>) {
        match input.below(10) {
            0 | 1 => {
                if let Some(queues) = pick(input, &self.qps) {
                    let states =
                        [QpState::Error, QpState::Closing, QpState::Terminate, QpState::Idle, QpState::Rts];
                    let _refused = queues.qp.modify(input.pick(&states));
                }
            }
            2 => {
                if let Some(queues) = pick(input, &self.qps) {
                    queues.qp.drain();
                    queues.qp.arm_high_water(input.below(4));
                }
            }
            3 => {
                if let Some(cq) = pick(input, &self.cqs) {
                    let _refused = cq.resize(input.pick(&[64, 1, 0, 16, 600]));
                    let _refused = cq.req_notify(input.one_in(2));
                }
            }
            4 => {
                if let Some(srq) = pick(input, &self.srqs) {
                    let _refused = srq.arm_limit(input.below(10));
                }
            }
            5 => {
                let (access, key) = (work::access(input), input.u8());
                if !self.regions.is_empty() {
                    let which = input.below(self.regions.len());
                    let _refused = self.regions[which].reregister(access, key);
                }
            }
            6 => {
                if let Some(region) = self.pick_region(input) {
                    region.invalidate();
                }
            }
            7 => {
                if let Some(fast) = self.pick_fast(input) {
                    fast.invalidate();
                }
            }
            8 => {
                let wr_id = self.ledger.next();
                let (window, region) = (self.pick_window(input), self.pick_region(input));
                if let (Some(window), Some(region), Some(queues)) = (window, region, pick(input, &self.qps)) {
                    let (at, bytes, access) =
                        (input.size().into(), input.size().into(), Access::REMOTE_WRITE);
                    let qp_num = queues.qp.qp_num();
                    let posted = queues.qp.bind_mw(wr_id, window, (region, at, bytes), access);
                    if posted.is_ok() {
                        self.ledger.post(wr_id, Some(qp_num), false);
                    }
                }
            }
            _ => {
                if let Some(region) = self.pick_region(input) {
                    let mut bytes = [0; 16];
                    let _beyond = region.read_at(input.size() as usize, &mut bytes);
                    let _beyond = region.write_at(input.size() as usize, &bytes);
                }
            }
        }
    }

    fn param(input: &mut Input<'_>) -> ConnParam {
        let bits = input.u8();
        let depth = |at: u8| [4, 0, 1, 2000][usize::from(bits >> at & 3)];
        ConnParam {
            responder_resources: depth(0),
            initiator_depth: depth(2),
            markers: bits & 0x10 != 0,
            peer_to_peer: bits & 0x40 == 0,
            timeout: Duration::from_secs(5),
            ..ConnParam::default()
        }
    }

    pub(super) fn connect(&mut self, input: &mut Input<'_>, remote: SocketAddr) {
        let Some(queues) = pick(input, &self.qps) else { return };
        let id = match pick(input, &self.ids).filter(|_| input.one_in(6)) {
            Some(id) => id.clone(),
            None => self.context.create_id(&self.channel),
        };
        let asked = id.connect(&queues.qp, remote, &Self::param(input));
        keep(&mut self.ids, asked.map(|()| id));
    }

    pub(super) fn answer(&mut self, input: &mut Input<'_>, peer: &Self) {
        let Some(id) = drop_one(input, &mut self.asking) else { return };
        let queues = if input.one_in(12) { pick(input, &peer.qps) } else { pick(input, &self.qps) };
        match queues {
            Some(queues) if !input.one_in(8) => {
                if id.accept(&queues.qp, &Self::param(input)).is_err() {
                    return keep(&mut self.asking, Ok::<_, ()>(id));
                }
                keep(&mut self.ids, Ok::<_, ()>(id));
            }
            _ => drop(id.reject(input.bytes(8))),
        }
    }

    pub(super) fn listen(&mut self) {
        let id = self.context.create_id(&self.channel);
        self.listener = id.listen(PORT, 4, Duration::from_secs(5)).is_ok().then_some(id);
    }

    /// Handles events and completions, and checks limits.
    pub(super) fn look(&mut self) {
        while let Some(event) = self.channel.poll() {
            if matches!(event.kind, CmEventKind::ConnectRequest { .. }) {
                keep(&mut self.asking, Ok::<_, ()>(event.id));
            }
        }
        while let Ok(Some(_)) = self.context.async_events().poll() {}
        for usage in self.context.usage().all() {
            assert!(usage.used <= usage.limit, "{usage:?}");
        }
        for queues in &self.qps {
            let attr = queues.qp.query();
            assert!(attr.send_outstanding <= attr.max_send_wr, "{attr:?}");
            assert!(attr.recv_outstanding <= attr.max_recv_wr, "{attr:?}");
        }
    }

    fn reap_of(&mut self, queues: &Queues) {
        for cq in &queues.cqs {
            self.ledger.reap(cq, |_| {});
        }
    }

    pub(super) fn reap(&mut self) {
        let Self { cqs, qps, ledger, .. } = self;
        for cq in cqs.iter().chain(qps.iter().flat_map(|queues| &queues.cqs)) {
            ledger.reap(cq, |_| {});
        }
        for queues in qps.iter() {
            if queues.cqs.iter().any(CompletionQueue::overflowed) {
                // The completion queue reports that completions were lost.
                ledger.forget(queues.qp.qp_num());
            }
        }
    }

    /// Drops the objects that the user holds. The engine, the context and the event channel remain.
    pub(super) fn let_go(&mut self) {
        self.listener = None;
        self.ids.clear();
        self.asking.clear();
        self.qps.clear();
        self.srqs.clear();
        self.windows.clear();
        self.regions.clear();
        self.fasts.clear();
        self.cqs.clear();
        self.pds.clear();
    }
}
