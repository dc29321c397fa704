//! Two real engines on a bad wire. The steps of a run drive the engines, and the model checks them.

mod connections;
mod holdings;
mod regions;
mod shared;
mod windows;

use std::collections::HashMap;
use std::time::Duration;

use dp::link::{LinkConfig, LinkPlan};
use iwarp::verbs::{
    CmEventKind, CmId, ConnParam, MemoryWindow, QpState, QueuePair, RecvRequest, SendRequest,
    SharedReceiveQueue, VerbsError, WcOpcode, WorkCompletion,
};

use super::memory::{RegionId, Span, StreamEnd, application};
use super::names::Validity;
use super::operations::{self, Drawn};
use super::sabotage::Sabotage;
use super::steps::{Step, StepKind};
use super::streams::{Found, Model};
use super::wire::BitFlips;
use crate::common::{Host, PORT, Pair, Testbed};
use testkit::dice::Dice;

pub(crate) use regions::Registered;

use holdings::Holdings;

/// Maximum number of connections at a time.
pub(crate) const SLOTS: usize = 2;

/// Virtual time after which nothing is under way any more, which is longer than every timeout of TCP and of a
/// close.
const REST_US: i64 = 400_000_000;

/// Maximum number of polls within `REST_US`: an engine without work needs few polls.
const REST_POLLS: u64 = 100_000;

/// If nothing is due for this time, only keepalives are due later.
const IDLE_US: i64 = 10_000_000;

/// The configuration of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) link: LinkConfig,
    /// Packets with a flipped bit, in parts per million.
    turned_ppm: usize,
    pub(crate) markers: [bool; 2],
    pub(crate) crc: bool,
    /// IRD and ORD of each side.
    pub(crate) depths: [[u16; 2]; 2],
    pub(crate) max_send_wr: usize,
    /// Maximum number of bytes that a queue pair sends in one poll. With a small number, more events happen
    /// in the middle of a message.
    quantum_bytes: usize,
}

impl Setting {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let bad = dice.pick(&[0, 0, 1, 5, 20]);
        let mut plan = || LinkPlan {
            drop_ppm: bad * dice.index(2500) as u32,
            duplicate_ppm: bad * dice.index(2500) as u32,
            reorder_ppm: bad * dice.index(10_000) as u32,
            reorder_us: 1 + dice.index(500) as u32,
            corrupt_ppm: 0,
            delay_us: dice.pick(&[0, 0, 1, 20, 300]),
            drop_exactly: Vec::new(),
        };
        let (a_to_b, b_to_a) = (plan(), plan());
        let depth = |dice: &mut Dice| dice.pick(&[0, 1, 1, 2, 3, 8, 64]);
        Self {
            link: LinkConfig {
                mtu: dice.pick(&[1500, 1500, 9000, 576]),
                seed: dice.number(),
                a_to_b,
                b_to_a,
                ..LinkConfig::default()
            },
            turned_ppm: bad as usize * dice.index(1000),
            markers: [dice.one_in(2), dice.one_in(2)],
            crc: !dice.one_in(4),
            depths: [[depth(dice), depth(dice)], [depth(dice), depth(dice)]],
            max_send_wr: dice.pick(&[2, 8, 64]),
            quantum_bytes: dice.pick(&[1000, 4000, 16_000]),
        }
    }

    fn param(&self, side: usize) -> ConnParam {
        let [responder_resources, initiator_depth] = self.depths[side];
        ConnParam {
            responder_resources,
            initiator_depth,
            markers: self.markers[side],
            timeout: Duration::from_secs(60),
            ..ConnParam::default()
        }
    }
}

/// One endpoint of a live connection.
struct LiveEnd {
    by: StreamEnd,
    qp: Option<QueuePair>,
    id: CmId,
    qp_num: u32,
    state: QpState,
}

pub(crate) struct World {
    setting: Setting,
    pair: Pair,
    /// The objects and buffers that each host holds before the run begins.
    holdings: [Holdings; 2],
    listeners: Vec<CmId>,
    pub(crate) model: Model,
    memory: Vec<Option<Registered>>,
    windows: Vec<Option<MemoryWindow>>,
    shared: Vec<SharedReceiveQueue>,
    slots: [Option<usize>; SLOTS],
    live_ends: Vec<LiveEnd>,
    /// The endpoint to which a completion belongs, by host and queue pair number.
    numbers: HashMap<(usize, u32), StreamEnd>,
    last_op: u64,
    polls: u64,
    sabotage: Sabotage,
    pub(crate) log: Vec<String>,
}

type Done = Result<(), String>;

impl World {
    pub(crate) fn new(setting: Setting, sabotage: Sabotage) -> Self {
        let (unseen, seed) = (sabotage.is_wire(), setting.link.seed);
        let ppm = if unseen { 100_000 } else { setting.turned_ppm };
        let bed = Testbed::on(&setting.link)
            .hook_a(BitFlips::new(seed, ppm, unseen))
            .hook_b(BitFlips::new(!seed, ppm, unseen));
        let bed = bed.configure(|config| {
            config.crc = setting.crc;
            config.quantum_bytes = setting.quantum_bytes;
            // A wire with these faults may lose a segment and all its retransmissions within the default
            // `user_timeout` of 10 s. The 100 s that RFC 9293 section 3.8.3 requires for data (R2) allow for
            // more retransmissions, even after a slow handshake.
            config.stack.tcp.user_timeout = tcp_lite::Duration::from_secs(100);
            config.stack.tcp.keepalive_idle = Some(tcp_lite::Duration::from_secs(30));
            config.stack.tcp.keepalive_interval = tcp_lite::Duration::from_secs(5);
        });
        let pair = bed.hosts();
        let holdings = [&pair.a, &pair.b].map(Holdings::of);
        let listeners = [&pair.a, &pair.b].map(|host| {
            let listener = host.context.create_id(&host.channel);
            listener.listen(PORT, 16, Duration::from_secs(60)).unwrap();
            listener
        });
        let shared = [&pair.a, &pair.b].map(shared::make);
        let mut world = Self {
            setting,
            pair,
            holdings,
            listeners: listeners.into(),
            model: Model::default(),
            memory: Vec::new(),
            windows: Vec::new(),
            shared: shared.into(),
            slots: [None; SLOTS],
            live_ends: Vec::new(),
            numbers: HashMap::new(),
            last_op: 0,
            polls: 0,
            sabotage,
            log: Vec::new(),
        };
        world.pair.poll();
        world
    }

    pub(crate) fn run(&mut self, steps: &[Step]) -> Done {
        for step in steps {
            self.step(step)?;
        }
        self.rest()?;
        for slot in 0..SLOTS {
            self.close(slot, slot % 2);
        }
        self.rest()?;
        self.let_go()
    }

    fn step(&mut self, step: &Step) -> Done {
        let mut dice = Dice::new(step.dice);
        let (slot, side) = (dice.index(SLOTS), dice.index(2));
        match step.what {
            StepKind::Post => (0..1 + dice.index(3)).try_for_each(|_| self.post(&mut dice, slot, side)),
            StepKind::Receive => self.receive(&mut dice, slot, side, None),
            StepKind::Store => self.store(&mut dice, side),
            StepKind::Register => self.register(&mut dice, slot, side),
            StepKind::Revoke => self.revoke(&mut dice, side),
            StepKind::Connect => self.connect(&mut dice, slot, side),
            StepKind::Close => {
                self.close(slot, side);
                Ok(())
            }
            StepKind::Drop => {
                self.begin_message(&mut dice, slot)?;
                self.drop_queue_pair(slot, side);
                Ok(())
            }
            StepKind::Abort => {
                self.begin_message(&mut dice, slot)?;
                self.abort(slot, side)
            }
            StepKind::Arm => self.arm(&mut dice, side),
            StepKind::Poll => (0..1 + dice.index(12)).try_for_each(|_| self.poll()),
            StepKind::Rest => self.rest(),
        }
    }

    fn host(&self, side: usize) -> &Host {
        [&self.pair.a, &self.pair.b][side]
    }

    fn live_end(&mut self, by: StreamEnd) -> Option<&mut LiveEnd> {
        self.live_ends.iter_mut().find(|live_end| live_end.by == by)
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        self.log.push(format!("{:>9} us  {}", self.pair.now_us, text()));
    }

    fn next_op(&mut self) -> u64 {
        self.last_op += 1;
        self.last_op
    }

    // ---- posts ----

    fn post(&mut self, dice: &mut Dice, slot: usize, side: usize) -> Done {
        let Some(stream) = self.slots[slot] else { return Ok(()) };
        let (by, op) = ((stream, side), self.next_op());
        let Some(drawn) = operations::draw(dice, &self.model, by, op) else { return Ok(()) };
        self.post_drawn(dice, slot, by, drawn)
    }

    /// If an endpoint has a shared receive queue, in most cases sends it a message of several segments, and
    /// polls a few times, so that some of the segments arrive. The caller then ends the stream in the middle
    /// of the message.
    fn begin_message(&mut self, dice: &mut Dice, slot: usize) -> Done {
        let Some(stream) = self.slots[slot].filter(|_| !dice.one_in(4)) else { return Ok(()) };
        // The message reserves a buffer of the shared receive queue, which no other stream can use then.
        let shared = |side: &usize| self.model.streams[stream].ends[*side].shared;
        let Some(receiver) = [0, 1].into_iter().find(shared) else { return Ok(()) };
        let (by, op) = ((stream, 1 - receiver), self.next_op());
        let len = 4000 + dice.index(1000);
        if let Some(drawn) = operations::long_send(dice, &self.model, by, op, len) {
            self.post_drawn(dice, slot, by, drawn)?;
        }
        (0..1 + dice.index(3)).try_for_each(|_| self.poll())
    }

    fn post_drawn(&mut self, dice: &mut Dice, slot: usize, by: StreamEnd, drawn: Drawn) -> Done {
        let ((stream, side), Drawn { request, mut meaning }) = (by, drawn);
        let op = request.wr_id;
        // The test posts a receive request for most messages.
        let end = &self.model.streams[stream].ends[1 - side];
        let needs = if end.shared { self.model.spare(1 - side) == 0 } else { end.receives() == 0 };
        if let Some(message) = &meaning.message
            && needs
            && !dice.one_in(operations::FAULT_EVERY)
        {
            self.receive(dice, slot, 1 - side, Some(message.len))?;
        }
        // With a shared receive queue, it is unknown which buffer the message gets. Usually the message fits
        // into each of the buffers.
        let shared = self.model.streams[stream].ends[1 - side].shared;
        let long = meaning.message.as_ref().is_some_and(|message| message.len > self.model.least(1 - side));
        if shared && long && !dice.one_in(10) {
            return Ok(());
        }
        let Some(qp) = self.live_end(by).and_then(|live_end| live_end.qp.clone()) else { return Ok(()) };
        let state = qp.state();
        let late = matches!(state, QpState::Terminate | QpState::Error);
        // The user of this endpoint or of the peer has closed.
        let closed = self.model.streams[stream].ends[side].closed || state == QpState::Closing;
        let max = self.setting.max_send_wr;
        let SendRequest { op: what, flags, .. } = &request;
        self.note(|| {
            format!("{by:?} posts {op}: {what:?} {flags:?} {:?} {:?}", meaning.local, meaning.remote)
        });
        match self.hand_over(&qp, &request, &mut meaning) {
            Ok(()) if closed => Err(format!("request {op} was taken behind a graceful close")),
            Err(VerbsError::InvalidState(_)) if closed => Ok(()),
            Ok(()) => {
                let end = &self.model.streams[stream].ends[side];
                if !self.model.takes(&meaning.local) {
                    return Err(format!("request {op} was taken, but its memory is invalid"));
                }
                if end.owed() >= max {
                    return Err(format!("request {op} was taken by a send queue that is full"));
                }
                let gives = meaning.gives.clone().filter(|_| !late);
                self.model.posted(by, op, meaning, late);
                gives.map_or(Ok(()), |new_name| self.given(&new_name))
            }
            Err(VerbsError::QueueFull(_)) if self.model.streams[stream].ends[side].outstanding() >= max => {
                Ok(())
            }
            Err(VerbsError::LocalProtection(_)) if !self.model.takes(&meaning.local) => Ok(()),
            Err(VerbsError::LocalProtection(_)) if self.unsteady(&meaning.local) => Ok(()),
            Err(error) => Err(format!("request {op} was refused: {error}")),
        }
    }

    fn unsteady(&self, spans: &[Span]) -> bool {
        spans.iter().any(|span| self.model.memory.regions[span.region].life != Validity::Valid)
    }

    /// Posts a receive request for `len` bytes, or for a random length if `len` is `None`.
    fn receive(&mut self, dice: &mut Dice, slot: usize, side: usize, len: Option<usize>) -> Done {
        let Some(stream) = self.slots[slot] else { return Ok(()) };
        if self.model.streams[stream].ends[side].shared {
            return self.receive_shared(dice, side, len);
        }
        let (by, op) = ((stream, side), self.next_op());
        if self.model.streams[stream].ends[side].receives() >= 32 {
            return Ok(());
        }
        // Sometimes the buffer is one byte too short.
        let len = match len {
            Some(len) if len > 0 && dice.one_in(operations::FAULT_EVERY) => len - 1,
            Some(len) => len + dice.pick(&[0, 0, 1, 100]),
            None => operations::length(dice).max(2000),
        };
        let Some(spans) = operations::scatter(dice, &self.model, application(side), len) else {
            return Ok(());
        };
        let Some(qp) = self.live_end(by).and_then(|live_end| live_end.qp.clone()) else { return Ok(()) };
        let late = matches!(qp.state(), QpState::Terminate | QpState::Error);
        let sg_list = spans.iter().map(|span| operations::sge(&self.model, span)).collect();
        self.note(|| format!("{by:?} receives into {op}: {spans:?}"));
        match qp.post_recv(&RecvRequest { wr_id: op, sg_list }) {
            Ok(()) => {
                self.model.posted_receive(by, op, spans, late);
                Ok(())
            }
            Err(VerbsError::LocalProtection(_)) if self.unsteady(&spans) => Ok(()),
            Err(error) => Err(format!("receive {op} was refused: {error}")),
        }
    }

    // ---- time ----

    fn poll(&mut self) -> Done {
        self.poll_engines()?;
        self.completions()?;
        self.states()?;
        for side in [0, 1] {
            while let Some(event) = self.host(side).channel.poll() {
                match event.kind {
                    CmEventKind::Disconnected { error, .. } => self.ended(side, &event.id, error)?,
                    other => return Err(format!("host {side}: an event out of place: {other:?}")),
                }
            }
        }
        Ok(())
    }

    /// Reads completions. Completions of receives come first, since requests of the peer may depend on
    /// receives.
    fn completions(&mut self) -> Done {
        let mut sends = Vec::new();
        for side in [0, 1] {
            let taken: Vec<_> = std::iter::from_fn(|| self.host(side).cq.poll_one()).collect();
            for wc in self.sabotage.completions(taken) {
                let by = *self.numbers.get(&(side, wc.qp_num)).ok_or("a completion of no queue pair")?;
                self.note(|| format!("{by:?} completes {}: {:?} {}", wc.wr_id, wc.opcode, wc.status));
                if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvImmediate) {
                    let found = self.model.completed_receive(by, &wc)?;
                    self.verify(found)?;
                } else {
                    sends.push((by, wc));
                }
            }
        }
        sends.into_iter().try_for_each(|(by, wc): (StreamEnd, WorkCompletion)| {
            let found = self.model.completed_send(by, &wc)?;
            self.verify(found)
        })?;
        self.shared_events()
    }

    fn verify(&mut self, found: Found) -> Done {
        self.sabotage.memory(&self.memory, &found.spans);
        for span in &found.spans {
            let seen = self.seen(span);
            self.model.memory.check(span, &seen)?;
        }
        found.ended.into_iter().try_for_each(|name| self.gone(name))
    }

    /// Checks that the state of each queue pair never goes back, and that it is `Error` after the end of the
    /// stream.
    fn states(&mut self) -> Done {
        for live_end in &mut self.live_ends {
            let Some(qp) = &live_end.qp else { continue };
            let state = qp.state();
            if (state as u8) < live_end.state as u8 {
                return Err(format!(
                    "queue pair {} went from {:?} to {state:?}",
                    live_end.qp_num, live_end.state
                ));
            }
            let (stream, side) = live_end.by;
            let over = self.model.streams[stream].ends[side].over;
            if state == QpState::Idle || over && state != QpState::Error {
                return Err(format!("queue pair {} is in {state:?} (over: {over})", live_end.qp_num));
            }
            live_end.state = state;
        }
        Ok(())
    }

    /// Polls until nothing is under way. Then checks that all memory is as the model says.
    fn rest(&mut self) -> Done {
        let (end, last_poll) = (self.pair.now_us + REST_US, self.polls + REST_POLLS);
        loop {
            let before = self.pair.now_us;
            self.poll()?;
            let unrest = self.model.unrest();
            let is_idle = self.pair.now_us - before > IDLE_US || self.pair.is_asleep();
            if unrest.is_none() && is_idle {
                break;
            }
            if is_idle && self.sabotage.is_wire() {
                self.give_up_stalled();
            }
            if self.pair.now_us > end || self.polls > last_poll {
                return Err(unrest.unwrap_or_else(|| "the engines find no rest".into()));
            }
        }
        self.note(|| "all is at rest".into());
        let found = self.model.quiet()?;
        self.verify(found)?;
        let numbers: Vec<RegionId> = (0..self.memory.len()).filter(|&n| self.memory[n].is_some()).collect();
        self.sabotage.rest(&self.memory, &self.model.memory.regions);
        for &number in &numbers {
            let (span, seen) = self.whole(number);
            self.model.memory.check(&span, &seen)?;
        }
        self.model.memory.effects.clear();
        self.model.reopen_shared();
        for number in numbers {
            let (_, seen) = self.whole(number);
            match (
                self.model.memory.regions[number].life,
                self.memory[number].as_ref().is_some_and(|held| held.is_valid()),
            ) {
                (Validity::Coming, _) => return Err(format!("region {number} has not come")),
                (Validity::Gone, true) => return Err(format!("region {number} is valid again")),
                (Validity::Valid, false) => return Err(format!("nobody has invalidated region {number}")),
                (Validity::Ending, false) => self.model.memory.freeze(number, seen),
                (Validity::Ending, true) | (Validity::Valid, true) => {
                    let region = &mut self.model.memory.regions[number];
                    (region.life, region.taker) = (Validity::Valid, None);
                    region.base = seen.into_iter().map(Some).collect();
                }
                (Validity::Gone, false) => {}
            }
        }
        self.windows_at_rest()?;
        self.shared_at_rest()?;
        let streams = &self.model.streams;
        self.live_ends.retain(|live_end| !streams[live_end.by.0].is_over() || live_end.qp.is_some());
        Ok(())
    }
}
