//! The data path of a test: queue pairs, their memory, and the handling of completions.
//!
//! Each queue pair uses two halves of one region, which it may share with other queue pairs. The *local* half
//! is used by the queue pair's own requests. The peer writes to, reads from, or sends into the *exposed*
//! half. A small second region holds, for each queue pair, the cells for credits and the messages between two
//! iwperfs ([`mark`]).
//!
//! In bandwidth tests, Sends and Writes with Immediate Data need credits, because iWARP ends a connection if
//! such a message finds no receive. As in perftest on iWARP, the receiver counts the messages for which it
//! has posted a new receive request. From time to time it writes this number (32 bits, in the machine's byte
//! order) to the address in the sender's [`Dest`].

mod layout;
pub mod mark;
mod paced;
mod pacing;
mod source;
mod target;

use std::collections::VecDeque;
use std::sync::Arc;

use iwarp::memory::Access;
use iwarp::verbs::{
    CmId, CompletionQueue, ProtectionDomain, QpInit, QueuePair, SendRequest, WcOpcode, WorkCompletion,
};

use crate::endpoint::{Endpoint, checked};
use crate::errors::Error;
use crate::params::{Params, Test, Verb};
use crate::perftest::wire::Dest;
use layout::{ControlCell, Kind, Memory, WrId};

/// Number of receives posted for marks.
const MARK_RECEIVES: u32 = layout::MARK_SLOTS as u32;

/// Maximum number of completions polled at a time.
const BATCH: usize = 64;

/// The data path of one side.
pub struct Path {
    /// The parameters that both sides agreed on.
    pub params: Params,
    /// Queue pairs, in the order of their numbers.
    pub flows: Vec<Flow>,
    /// The first difference that validation found.
    pub first_error: Option<String>,
    /// Number of messages that this side has validated.
    pub messages_checked: u64,
    is_client: bool,
    with_iwperf: bool,
    size: u32,
    rx_depth: u32,
    receives_at_a_time: usize,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    memory: Arc<Memory>,
    batch: Vec<WorkCompletion>,
    list: Vec<SendRequest>,
    paced: Option<Box<paced::Paced>>,
    /// Queue pairs that may have room for a message, because a completion or a credit has arrived.
    ready: VecDeque<usize>,
    /// Message counts over all queue pairs.
    totals: Totals,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    posted: u64,
    completed: u64,
}

/// One queue pair, and its counts. Most counts begin again with each run.
pub struct Flow {
    /// The connection of the queue pair.
    pub id: CmId,
    /// The location of the peer's memory.
    pub remote: Dest,
    qp: QueuePair,
    /// Number of messages posted.
    pub posted: u64,
    /// Number of messages whose request has completed.
    pub completed: u64,
    /// Number of messages that the peer has confirmed.
    pub confirmed: u64,
    /// Number of messages received.
    pub received: u64,
    unsignaled: bool,
    asking: bool,
    is_ready: bool,
    credit_told: u64,
    /// The location of the peer's credit cell.
    pub credit: Dest,
    /// Completed receives, which will be posted again together.
    taken: Vec<u32>,
    extra_in_flight: usize,
    /// Number of atomics posted in earlier runs. The peer's word has counted these atomics.
    atomics_before: u64,
}

/// The purpose of memory whose location the peer has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The cell for the credits of this side.
    Credit,
    /// The memory for the peer's messages.
    Data,
}

impl Path {
    /// Creates the regions and completion queues for `params`, but no queue pair.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`], for instance if memory is short.
    pub fn new(
        end: &mut Endpoint,
        params: &Params,
        is_client: bool,
        with_iwperf: bool,
    ) -> Result<Self, Error> {
        let (qps, half, buffers) = (params.qps as usize, params.half_bytes(), params.buffers() as usize);
        let access = match params.test.verb() {
            Verb::Read => Access::LOCAL_WRITE | Access::REMOTE_READ,
            Verb::Atomic => Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
            Verb::Write | Verb::WriteImmediate | Verb::Send => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        };
        let memory = Memory {
            data: end.pd.reg_mr(2 * half * buffers, access)?,
            control: end
                .pd
                .reg_mr(layout::CONTROL_BYTES * qps, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            half,
            buffers,
        };
        let rx_depth = params.receives();
        let send_entries = qps * params.sends() as usize;
        let recv_entries = qps * (rx_depth.max(MARK_RECEIVES)) as usize;
        let path = Self {
            params: params.clone(),
            flows: Vec::with_capacity(qps),
            first_error: None,
            messages_checked: 0,
            is_client,
            with_iwperf,
            size: params.size,
            rx_depth,
            receives_at_a_time: params.receives_at_a_time() as usize,
            send_cq: end.create_cq(send_entries)?,
            recv_cq: end.create_cq(recv_entries)?,
            memory: Arc::new(memory),
            batch: Vec::with_capacity(BATCH),
            list: Vec::with_capacity(params.post_list as usize),
            paced: None,
            ready: VecDeque::with_capacity(qps),
            totals: Totals::default(),
        };
        path.fill_exposed()?;
        Ok(path)
    }

    /// Creates an unconnected queue pair.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn create_qp(&self, pd: &ProtectionDomain) -> Result<QueuePair, Error> {
        Ok(pd.create_qp(&QpInit {
            recv_cq: &self.recv_cq,
            max_send_wr: self.params.sends() as usize,
            max_recv_wr: self.rx_depth.max(MARK_RECEIVES) as usize,
            ..QpInit::new(&self.send_cq)
        })?)
    }

    /// Adds a connected queue pair and posts its receives.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn add(&mut self, qp: QueuePair, id: CmId) -> Result<(), Error> {
        let (index, at_a_time) = (self.flows.len(), self.receives_at_a_time);
        self.flows.push(Flow {
            id,
            remote: Dest::default(),
            qp,
            posted: 0,
            completed: 0,
            confirmed: 0,
            received: 0,
            unsignaled: false,
            asking: false,
            is_ready: false,
            credit_told: 0,
            credit: Dest::default(),
            taken: Vec::with_capacity(at_a_time),
            extra_in_flight: 0,
            atomics_before: 0,
        });
        if self.params.test.verb().uses_receives() {
            let slots: Vec<u32> = (0..self.rx_depth).collect();
            slots.chunks(at_a_time).try_for_each(|slots| self.post_receives(index, slots))
        } else if self.uses_marks() {
            (0..MARK_RECEIVES).try_for_each(|slot| self.post_receives(index, &[slot]))
        } else {
            Ok(())
        }
    }

    /// The description of queue pair `index` that is sent to the peer. A bandwidth test of Sends needs only
    /// the credit cell, whose location is then sent for both purposes, as in perftest.
    pub fn dest(&self, index: usize, place: Purpose, out_reads: u32, gid: [u8; 16]) -> Dest {
        let Memory { data, control, .. } = &*self.memory;
        let has_cell = self.params.test.has_credits();
        let (rkey, vaddr) = if has_cell && (place == Purpose::Credit || self.params.test == Test::SendBw) {
            (control.rkey(), control.addr() + ControlCell::Credit.at(index) as u64)
        } else {
            (data.rkey(), data.addr() + self.memory.exposed(index) as u64)
        };
        let qpn = self.flows.get(index).map_or(0, |flow| flow.qp.qp_num());
        Dest { lid: 0, out_reads, qpn, psn: 0, rkey, vaddr, gid }
    }

    /// Starts a run with messages of `size` bytes. Sets to zero the counts of posted, completed and confirmed
    /// messages and, in tests that use receives, also the counts of received messages and of credits.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn begin(&mut self, size: u32) -> Result<(), Error> {
        self.size = size;
        self.totals = Totals::default();
        for index in 0..self.flows.len() {
            self.wake(index);
            self.post_taken(index, 1)?;
        }
        for (index, flow) in self.flows.iter_mut().enumerate() {
            flow.atomics_before += flow.posted;
            (flow.posted, flow.completed, flow.confirmed, flow.unsignaled) = (0, 0, 0, false);
            if self.params.test.verb().uses_receives() {
                (flow.received, flow.credit_told) = (0, 0);
                self.memory.control.write_at(ControlCell::Credit.at(index), &[0; 4])?;
            }
        }
        Ok(())
    }

    /// Number of messages posted on all queue pairs.
    pub fn posted(&self) -> u64 {
        self.totals.posted
    }

    /// Number of messages whose request has completed, counted over all queue pairs.
    pub fn completed(&self) -> u64 {
        self.totals.completed
    }

    /// Number of messages received on all queue pairs.
    pub fn received(&self) -> u64 {
        self.flows.iter().map(|flow| flow.received).sum()
    }

    /// Adds queue pair `index` to the queue pairs that may have room for a message.
    fn wake(&mut self, index: usize) {
        if !std::mem::replace(&mut self.flows[index].is_ready, true) {
            self.ready.push_back(index);
        }
    }

    /// Number of bytes of a message in the present run.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether the peer confirms messages.
    pub fn is_confirmed_by_target(&self) -> bool {
        self.params.test.verb().is_answered() || self.with_iwperf
    }

    fn uses_marks(&self) -> bool {
        self.with_iwperf && self.params.test == Test::WriteBw
    }

    /// Polls the completion queues. If the test has credits, also reads the peer's credits, and may send
    /// credits. Returns whether there was a completion.
    ///
    /// # Errors
    /// Returns [`Error::Completion`] if a request failed, [`Error::Verbs`] if a verbs call fails, or
    /// [`Error::Exchange`] for a wrong mark.
    pub fn poll(&mut self) -> Result<bool, Error> {
        let moved = self.reap(true)? | self.reap(false)?;
        if self.params.test.has_credits() {
            self.look_at_credit()?;
            if !moved && self.with_iwperf {
                // This side is idle, so it sends the remaining credits, which confirm the last messages.
                (0..self.flows.len()).try_for_each(|index| {
                    self.post_taken(index, 1)?;
                    self.send_credit(index, 1)
                })?;
            }
        }
        Ok(moved)
    }

    fn reap(&mut self, sends: bool) -> Result<bool, Error> {
        let mut batch = std::mem::take(&mut self.batch);
        let queue = if sends { &self.send_cq } else { &self.recv_cq };
        while batch.len() < BATCH {
            match queue.poll_one() {
                Some(completion) => batch.push(completion),
                None => break,
            }
        }
        let moved = !batch.is_empty();
        let outcome = batch.iter().try_for_each(|completion| self.on_completion(completion));
        batch.clear();
        self.batch = batch;
        outcome.map(|()| moved)
    }

    fn on_completion(&mut self, completion: &WorkCompletion) -> Result<(), Error> {
        let WrId { kind, qp, number } = WrId::decode(completion.wr_id);
        let (index, name) = (qp as usize, self.params.test.name());
        if matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvImmediate) {
            checked(completion, "a receive")?;
            return match kind {
                Kind::Mark => self.on_mark(index, number as u32, completion.byte_len),
                _ => self.on_message(index, number as u32, completion),
            };
        }
        checked(completion, name)?;
        match kind {
            Kind::Data => {
                let before = std::mem::replace(&mut self.flows[index].completed, number + 1);
                self.totals.completed += number + 1 - before;
                self.wake(index);
                self.on_paced_completion(index, number + 1);
                if self.params.test.verb().is_answered() {
                    self.flows[index].confirmed = number + 1;
                    match self.params.test.verb() {
                        Verb::Read if self.params.validate => self.check_read(index, number)?,
                        Verb::Atomic if self.params.validate => self.check_atomic(index, number)?,
                        _ => {}
                    }
                }
            }
            Kind::Mark | Kind::Credit => {
                self.flows[index].extra_in_flight -= 1;
                self.wake(index);
            }
            Kind::Flush => self.on_flush(index, number),
        }
        Ok(())
    }
}
