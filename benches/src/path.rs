//! The data path of a test: queue pairs, their memory, and what happens when something completes.
//!
//! Each queue pair has two halves of one region: the *local* half that its own requests use, and the *exposed* half
//! that the peer writes to, reads from, or sends into. A small second region holds, per queue pair, the credit
//! cell of Sends and the messages between two iwperfs ([`mark`]).
//!
//! Sends need credits, because iWARP ends a connection whose Send finds no receive. perftest on iWARP has them: the
//! receiver now and then writes how many messages it has taken (32 bits, of the machine's order) to the address in
//! the sender's [`Dest`].

mod layout;
pub mod mark;

use std::sync::Arc;

use iwarp::memory::Access;
use iwarp::verbs::{
    CmId, CompletionQueue, MemoryRegion, ProtectionDomain, QpInit, QueuePair, RecvRequest, RemoteAddr,
    SendFlags, SendOp, SendRequest, VerbsError, WcOpcode, WorkCompletion,
};

use crate::endpoint::{Endpoint, checked};
use crate::errors::Error;
use crate::params::{Params, Test, Verb};
use crate::perftest::wire::Dest;
use crate::validate::{self, GUARD, Message};
use layout::{Control, Kind, WrId};
use mark::Mark;

/// Receives posted for marks.
const MARK_RECEIVES: u32 = layout::MARK_SLOTS as u32;

/// Requests of ours beside the data: marks and credits.
const EXTRA_SENDS: usize = 32;

/// Completions reaped at a time.
const BATCH: usize = 64;

/// Everything of one end that carries data.
pub struct Path {
    /// What both ends agreed on.
    pub params: Params,
    /// Queue pairs, in the order of their numbers.
    pub flows: Vec<Flow>,
    /// What validation found first, if anything.
    pub complaint: Option<String>,
    /// Messages that validation has looked at here.
    pub messages_checked: u64,
    is_client: bool,
    with_iwperf: bool,
    size: u32,
    rx_depth: u32,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    memory: Arc<Memory>,
    batch: Vec<WorkCompletion>,
    list: Vec<SendRequest>,
}

/// The two regions.
struct Memory {
    data: MemoryRegion,
    control: MemoryRegion,
    half: usize,
}

/// One queue pair and its counts, which start anew with every size.
pub struct Flow {
    /// Its connection.
    pub id: CmId,
    /// Where the peer's memory is.
    pub remote: Dest,
    qp: QueuePair,
    /// Messages posted.
    pub posted: u64,
    /// Messages whose request has completed.
    pub completed: u64,
    /// Messages that the peer has confirmed.
    pub confirmed: u64,
    /// Messages received.
    pub received: u64,
    unsignaled: bool,
    asking: bool,
    credit_told: u64,
    extra_in_flight: usize,
}

impl Path {
    /// Regions and completion queues for `params`; no queue pair yet.
    ///
    /// # Errors
    /// [`Error::Verbs`], also for too little memory.
    pub fn new(
        end: &mut Endpoint,
        params: &Params,
        is_client: bool,
        with_iwperf: bool,
    ) -> Result<Self, Error> {
        let (qps, half) = (params.qps as usize, params.half_octets());
        let access = match params.test.verb() {
            Verb::Read => Access::LOCAL_WRITE | Access::REMOTE_READ,
            Verb::Write | Verb::Send => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        };
        let memory = Memory {
            data: end.pd.reg_mr(2 * half * qps, access)?,
            control: end
                .pd
                .reg_mr(layout::CONTROL_OCTETS * qps, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            half,
        };
        let rx_depth = params.rx_depth();
        let send_entries = qps * (params.tx_depth as usize + EXTRA_SENDS);
        let recv_entries = qps * (rx_depth.max(MARK_RECEIVES)) as usize;
        let path = Self {
            params: params.clone(),
            flows: Vec::with_capacity(qps),
            complaint: None,
            messages_checked: 0,
            is_client,
            with_iwperf,
            size: params.size,
            rx_depth,
            send_cq: end.create_cq(send_entries)?,
            recv_cq: end.create_cq(recv_entries)?,
            memory: Arc::new(memory),
            batch: Vec::with_capacity(BATCH),
            list: Vec::with_capacity(params.post_list as usize),
        };
        path.fill_exposed()?;
        Ok(path)
    }

    /// A queue pair to be connected.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn create_qp(&self, pd: &ProtectionDomain) -> Result<QueuePair, Error> {
        Ok(pd.create_qp(&QpInit {
            send_cq: &self.send_cq,
            recv_cq: &self.recv_cq,
            max_send_wr: self.params.tx_depth as usize + EXTRA_SENDS,
            max_recv_wr: self.rx_depth.max(MARK_RECEIVES) as usize,
            sq_sig_all: false,
        })?)
    }

    /// Adds a connected queue pair and posts its receives.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn add(&mut self, qp: QueuePair, id: CmId) -> Result<(), Error> {
        let index = self.flows.len();
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
            credit_told: 0,
            extra_in_flight: 0,
        });
        if self.params.test.verb() == Verb::Send {
            (0..self.rx_depth).try_for_each(|slot| self.post_recv(index, slot))
        } else if self.uses_marks() {
            (0..MARK_RECEIVES).try_for_each(|slot| self.post_recv(index, slot))
        } else {
            Ok(())
        }
    }

    /// What to tell the peer of queue pair `index`.
    pub fn dest(&self, index: usize, out_reads: u32, gid: [u8; 16]) -> Dest {
        let Memory { data, control, .. } = &*self.memory;
        let (rkey, vaddr) = if self.params.test == Test::SendBw {
            (control.rkey(), control.addr() + Control::Credit.at(index) as u64)
        } else {
            (data.rkey(), data.addr() + self.memory.exposed(index, self.params.qps as usize) as u64)
        };
        let qpn = self.flows.get(index).map_or(0, |flow| flow.qp.qp_num());
        Dest { lid: 0, out_reads, qpn, psn: 0, rkey, vaddr, gid }
    }

    /// Starts with messages of `size` octets: all counts are zero again.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn begin(&mut self, size: u32) -> Result<(), Error> {
        self.size = size;
        for (index, flow) in self.flows.iter_mut().enumerate() {
            (flow.posted, flow.completed, flow.confirmed, flow.unsignaled) = (0, 0, 0, false);
            if self.params.test.verb() == Verb::Send {
                (flow.received, flow.credit_told) = (0, 0);
                self.memory.control.write_at(Control::Credit.at(index), &[0; 4])?;
            }
        }
        Ok(())
    }

    /// Octets of a message now.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether the peer tells what it has got.
    pub fn is_confirmed_by_target(&self) -> bool {
        self.params.test.verb() == Verb::Read || self.with_iwperf
    }

    fn uses_marks(&self) -> bool {
        self.with_iwperf && self.params.test == Test::WriteBw
    }

    /// Reaps what has completed. Returns whether anything had.
    ///
    /// # Errors
    /// [`Error::Completion`], [`Error::Verbs`].
    pub fn turn(&mut self) -> Result<bool, Error> {
        let moved = self.reap(true)? | self.reap(false)?;
        if self.params.test == Test::SendBw {
            self.look_at_credit()?;
            if !moved && self.with_iwperf {
                // Nothing else to do: tell the rest, which confirms the last messages.
                (0..self.flows.len()).try_for_each(|index| self.tell_credit(index, 1))?;
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
        if completion.opcode == WcOpcode::Recv {
            checked(completion, "a receive")?;
            return match kind {
                Kind::Mark => self.on_mark(index, number as u32, completion.byte_len),
                _ => self.on_message(index, number as u32, completion.byte_len),
            };
        }
        checked(completion, name)?;
        match kind {
            Kind::Data => {
                self.flows[index].completed = number + 1;
                if self.params.test.verb() == Verb::Read {
                    self.flows[index].confirmed = number + 1;
                    if self.params.validate {
                        self.check_read(index, number)?;
                    }
                }
            }
            Kind::Mark | Kind::Credit => self.flows[index].extra_in_flight -= 1,
        }
        Ok(())
    }

    // ----- the source -----

    /// Posts as much as depth, credit and window allow of `limit` messages of each queue pair (`None`: no end).
    /// Returns whether anything was posted.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn post(&mut self, limit: Option<u64>) -> Result<bool, Error> {
        let mut moved = false;
        for index in 0..self.flows.len() {
            while let Some(count) = self.may_post(index, limit) {
                match self.post_messages(index, count, limit) {
                    Ok(()) => moved = true,
                    Err(VerbsError::QueueFull(_)) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(moved)
    }

    fn may_post(&self, index: usize, limit: Option<u64>) -> Option<u64> {
        let flow = &self.flows[index];
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(flow.posted));
        let count = u64::from(self.params.post_list).min(left);
        let in_flight = flow.posted - flow.completed;
        let mut fits = count > 0 && in_flight + count <= u64::from(self.params.tx_depth) && !flow.asking;
        if self.params.test == Test::SendBw {
            fits &= flow.posted + count - flow.confirmed.min(flow.posted) < u64::from(self.rx_depth).max(2);
        }
        if self.params.validate {
            let slots = u64::from(self.params.slots(self.size));
            fits &= match self.params.test {
                Test::WriteBw => flow.posted - flow.confirmed < slots,
                _ => in_flight < slots,
            };
        }
        fits.then_some(count)
    }

    fn post_messages(&mut self, index: usize, count: u64, limit: Option<u64>) -> Result<(), VerbsError> {
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        let mut unsignaled = false;
        for step in 0..count {
            let number = self.flows[index].posted + step;
            let last_of_list = step + 1 == count && count > 1;
            let due = (number + 1).is_multiple_of(u64::from(self.completion_period()));
            let signaled = last_of_list || due || Some(number + 1) == limit || self.checks_reads();
            unsignaled = !signaled;
            match self.request(index, number, signaled) {
                Ok(request) => list.push(request),
                Err(error) => {
                    self.list = list;
                    return Err(error);
                }
            }
        }
        let flow = &mut self.flows[index];
        let (posted, outcome) = match list.as_slice() {
            [one] => flow.qp.post_send(one).map_or_else(|e| (0, Err(e)), |()| (1, Ok(()))),
            many => {
                flow.qp.post_send_list(many).map_or_else(|(n, e)| (n as u64, Err(e)), |()| (count, Ok(())))
            }
        };
        flow.posted += posted;
        if posted > 0 {
            flow.unsignaled = unsignaled;
        }
        self.list = list;
        outcome
    }

    /// A completion is asked for every so many messages: never more than have a slot.
    fn completion_period(&self) -> u32 {
        if self.params.validate {
            self.params.cq_mod.min(self.params.slots(self.size))
        } else {
            self.params.cq_mod
        }
    }

    fn checks_reads(&self) -> bool {
        self.params.validate && self.params.test.verb() == Verb::Read
    }

    fn request(&self, index: usize, number: u64, signaled: bool) -> Result<SendRequest, VerbsError> {
        let (stride, slots) = (self.params.stride(self.size), u64::from(self.params.slots(self.size)));
        let slot = (number % slots) as usize * stride;
        let local = self.memory.local(index) + slot;
        let remote = |offset: usize| {
            let Dest { vaddr, rkey, .. } = self.flows[index].remote;
            RemoteAddr { addr: vaddr.wrapping_add(offset as u64), rkey }
        };
        let op = match self.params.test.verb() {
            Verb::Write => SendOp::Write { remote: remote(slot) },
            Verb::Read => SendOp::Read { remote: remote(self.read_offset(number)) },
            Verb::Send => SendOp::Send,
        };
        if self.checks_reads() {
            self.memory.data.write_at(local, &vec![GUARD; stride])?;
        } else if self.params.validate {
            self.write_pattern(index, number, local)?;
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags
            .set(SendFlags::INLINE, self.params.inline >= self.size && self.params.test.verb() != Verb::Read);
        let sge = self.memory.data.sge(local, self.size as usize);
        Ok(SendRequest::new(WrId::data(index, number).encode(), op, sge).flags(flags))
    }

    fn write_pattern(&self, index: usize, number: u64, at: usize) -> Result<(), VerbsError> {
        let mut octets = vec![0; self.size as usize];
        validate::fill(self.message(index, number, self.is_client).key(), 0, &mut octets);
        self.memory.data.write_at(at, &octets)
    }

    fn message(&self, index: usize, number: u64, from_client: bool) -> Message {
        Message { seed: self.params.seed, from_client, qp: index as u32, size: self.size, number }
    }

    /// Whether all `flows` have posted `limit` messages (`None`: as many as they have), had them completed and
    /// confirmed; asks the peer for the confirmation when only that is missing.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn source_done(&mut self, limit: Option<u64>) -> Result<bool, Error> {
        let mut done = true;
        for index in 0..self.flows.len() {
            if limit.is_none() && self.flows[index].unsignaled {
                // Ended by time in the middle of a completion period: one more message that tells.
                let end = Some(self.flows[index].posted + 1);
                if self.may_post(index, end).is_some() {
                    self.post_messages(index, 1, end)?;
                }
                done = false;
                continue;
            }
            let flow = &self.flows[index];
            let all = limit.unwrap_or(flow.posted);
            let window_full = self.params.validate && self.may_post(index, limit).is_none();
            if self.uses_marks()
                && !flow.asking
                && flow.confirmed < flow.posted
                && (flow.posted >= all || window_full)
            {
                self.ask(index)?;
            }
            let flow = &self.flows[index];
            let confirmed = !self.is_confirmed_by_target() || flow.confirmed >= all;
            done &= flow.posted >= all && flow.completed >= all && confirmed;
        }
        Ok(done)
    }

    fn look_at_credit(&mut self) -> Result<(), Error> {
        for (index, flow) in self.flows.iter_mut().enumerate() {
            let mut cell = [0; 4];
            self.memory.control.read_at(Control::Credit.at(index), &mut cell)?;
            // The cell counts modulo 2^32; never more than was posted.
            let ahead = u32::from_ne_bytes(cell).wrapping_sub(flow.confirmed as u32);
            if u64::from(ahead) <= flow.posted - flow.confirmed {
                flow.confirmed += u64::from(ahead);
            }
        }
        Ok(())
    }

    fn check_read(&mut self, index: usize, number: u64) -> Result<(), Error> {
        let (stride, slots) = (self.params.stride(self.size), u64::from(self.params.slots(self.size)));
        let at = self.memory.local(index) + (number % slots) as usize * stride;
        let mut octets = vec![0; stride];
        self.memory.data.read_at(at, &mut octets)?;
        let (message, guard) = octets.split_at(self.size as usize);
        let key = self.exposed_key(index, !self.is_client);
        self.messages_checked += 1;
        if let Some(bad) = validate::first_difference(key, self.read_offset(number) as u64, message) {
            self.complain(format!(
                "read {number} of queue pair {index} ({} octets) differs at octet {bad}",
                self.size
            ));
        } else if let Some(bad) = validate::first_touched(guard) {
            self.complain(format!(
                "read {number} of queue pair {index}: octet {bad} behind the sink was written"
            ));
        }
        Ok(())
    }

    /// Where read `number` starts in the peer's exposed half: elsewhere each time when validating.
    fn read_offset(&self, number: u64) -> usize {
        let room = self.memory.half - self.size as usize;
        if self.params.validate { (number as usize).wrapping_mul(7919) % (room + 1) } else { 0 }
    }

    // ----- the target -----

    /// What the exposed halves hold before anything arrives.
    fn fill_exposed(&self) -> Result<(), Error> {
        if !self.params.validate || self.params.test == Test::WriteLat {
            return Ok(());
        }
        let mut chunk = vec![GUARD; 1 << 16];
        for index in 0..self.params.qps as usize {
            let base = self.memory.exposed(index, self.params.qps as usize);
            for offset in (0..self.memory.half).step_by(chunk.len()) {
                let length = chunk.len().min(self.memory.half - offset);
                if self.params.test.verb() == Verb::Read {
                    validate::fill(
                        self.exposed_key(index, self.is_client),
                        offset as u64,
                        &mut chunk[..length],
                    );
                }
                self.memory.data.write_at(base + offset, &chunk[..length])?;
            }
        }
        Ok(())
    }

    fn exposed_key(&self, index: usize, of_client: bool) -> u64 {
        Message { seed: self.params.seed, from_client: of_client, qp: index as u32, size: 0, number: 0 }.key()
    }

    fn post_recv(&self, index: usize, slot: u32) -> Result<(), Error> {
        let (sge, kind) = if self.params.test.verb() == Verb::Send {
            let at = if self.params.validate && self.params.test == Test::SendBw {
                slot as usize * self.params.stride(self.params.size)
            } else {
                0
            };
            let at = self.memory.exposed(index, self.params.qps as usize) + at;
            (self.memory.data.sge(at, self.params.size as usize), Kind::Data)
        } else {
            (self.memory.control.sge(Control::MarkIn(slot).at(index), Mark::OCTETS), Kind::Mark)
        };
        let wr_id = WrId { kind, qp: index as u16, number: u64::from(slot) };
        Ok(self.flows[index].qp.post_recv(&RecvRequest::new(wr_id.encode(), sge))?)
    }

    fn on_message(&mut self, index: usize, slot: u32, length: u32) -> Result<(), Error> {
        let number = self.flows[index].received;
        self.flows[index].received += 1;
        if self.params.validate {
            let at = self.memory.exposed(index, self.params.qps as usize);
            let slot_at = if self.params.test == Test::SendBw {
                slot as usize * self.params.stride(self.params.size)
            } else {
                0
            };
            if length == self.size {
                self.check_message(index, number, at + slot_at, self.params.stride(self.size))?;
            } else {
                self.complain(format!(
                    "message {number} of queue pair {index} has {length} octets, not {}",
                    self.size
                ));
            }
        }
        self.post_recv(index, slot)?;
        if self.params.test == Test::SendBw {
            self.tell_credit(index, u64::from(self.rx_depth / 3).max(1))
        } else {
            Ok(())
        }
    }

    /// Compares the message at `at`, with the guard up to `span` octets, and puts guards in its place.
    fn check_message(&mut self, index: usize, number: u64, at: usize, span: usize) -> Result<(), Error> {
        let mut octets = vec![0; span];
        self.memory.data.read_at(at, &mut octets)?;
        let message = self.message(index, number, !self.is_client);
        let (body, guard) = octets.split_at(self.size as usize);
        self.messages_checked += 1;
        if let Some(complaint) = validate::complaint(&message, body) {
            self.complain(complaint);
        } else if let Some(bad) = validate::first_touched(guard) {
            self.complain(format!("octet {bad} behind message {number} of queue pair {index} was written"));
        }
        octets.fill(GUARD);
        Ok(self.memory.data.write_at(at, &octets)?)
    }

    fn complain(&mut self, complaint: String) {
        self.complaint.get_or_insert(complaint);
    }

    /// Tells the sender how many messages were taken, when that is `step` more than it knows.
    fn tell_credit(&mut self, index: usize, step: u64) -> Result<(), Error> {
        let flow = &mut self.flows[index];
        let nowhere = flow.remote.rkey == 0;
        if flow.received - flow.credit_told < step || flow.extra_in_flight >= EXTRA_SENDS / 2 || nowhere {
            return Ok(());
        }
        let at = Control::CreditOut.at(index);
        self.memory.control.write_at(at, &(flow.received as u32).to_ne_bytes())?;
        let Dest { vaddr, rkey, .. } = flow.remote;
        let op = SendOp::Write { remote: RemoteAddr { addr: vaddr, rkey } };
        let wr_id = WrId { kind: Kind::Credit, qp: index as u16, number: flow.received };
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        match flow
            .qp
            .post_send(&SendRequest::new(wr_id.encode(), op, self.memory.control.sge(at, 4)).flags(flags))
        {
            Ok(()) => (flow.credit_told, flow.extra_in_flight) = (flow.received, flow.extra_in_flight + 1),
            // The queue is full of our own messages: the next turn tells.
            Err(VerbsError::QueueFull(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    // ----- marks -----

    fn ask(&mut self, index: usize) -> Result<(), Error> {
        let Flow { posted, confirmed, .. } = self.flows[index];
        let mark = Mark {
            is_answer: false,
            good: true,
            size: self.size,
            first: confirmed,
            count: posted - confirmed,
        };
        self.flows[index].asking = true;
        self.send_mark(index, &mark)
    }

    fn send_mark(&mut self, index: usize, mark: &Mark) -> Result<(), Error> {
        let flow = &mut self.flows[index];
        flow.extra_in_flight += 1;
        let at = Control::MarkOut.at(index);
        self.memory.control.write_at(at, &mark.encode())?;
        let wr_id = WrId { kind: Kind::Mark, qp: index as u16, number: 0 };
        let sge = self.memory.control.sge(at, Mark::OCTETS);
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        Ok(flow.qp.post_send(&SendRequest::new(wr_id.encode(), SendOp::Send, sge).flags(flags))?)
    }

    fn on_mark(&mut self, index: usize, slot: u32, length: u32) -> Result<(), Error> {
        let mut octets = [0; Mark::OCTETS];
        self.memory.control.read_at(Control::MarkIn(slot).at(index), &mut octets)?;
        let mark = Mark::decode(&octets[..(length as usize).min(Mark::OCTETS)])?;
        self.post_recv(index, slot)?;
        if mark.is_answer {
            let flow = &mut self.flows[index];
            (flow.asking, flow.confirmed) = (false, mark.first + mark.count);
            if !mark.good {
                self.complain("the target found a difference".into());
            }
            return Ok(());
        }
        let before = self.complaint.is_none();
        if self.params.validate {
            self.check_window(index, &mark)?;
        }
        let good = before && self.complaint.is_none();
        self.send_mark(index, &Mark { is_answer: true, good, ..mark })
    }

    /// Checks all messages that a mark covers.
    fn check_window(&mut self, index: usize, mark: &Mark) -> Result<(), Error> {
        let own_size = std::mem::replace(&mut self.size, mark.size);
        let (slots, stride) = (u64::from(self.params.slots(mark.size)), self.params.stride(mark.size));
        if mark.count > slots || slots as usize * stride > self.memory.half {
            return Err(Error::Exchange(format!(
                "a mark over {} messages of {} octets",
                mark.count, mark.size
            )));
        }
        let base = self.memory.exposed(index, self.params.qps as usize);
        for number in mark.first..mark.first + mark.count {
            self.check_message(index, number, base + (number % slots) as usize * stride, stride)?;
        }
        self.size = own_size;
        Ok(())
    }

    // ----- latency: one message at a time -----

    /// The last octet of the exposed half's message: what the peer's Write puts there.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    #[inline]
    pub fn last_octet(&self) -> Result<u8, Error> {
        let at = self.memory.exposed(0, 1) + self.size as usize - 1;
        Ok(self.memory.data.load_u8(at)?)
    }

    /// Posts message `number` whose last octet is `last`.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn post_ping(&mut self, number: u64, last: u8) -> Result<(), Error> {
        let request = self.request(0, number, true)?;
        if self.params.test == Test::WriteLat {
            self.memory.data.write_at(self.memory.local(0) + self.size as usize - 1, &[last])?;
        }
        self.flows[0].qp.post_send(&request)?;
        self.flows[0].posted += 1;
        Ok(())
    }

    /// Checks a Write's message but for its last octet, which counts.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn check_ping(&mut self, number: u64) -> Result<(), Error> {
        if !self.params.validate {
            return Ok(());
        }
        let mut octets = vec![0; self.size as usize - 1];
        self.memory.data.read_at(self.memory.exposed(0, 1), &mut octets)?;
        let message = self.message(0, number, !self.is_client);
        self.messages_checked += 1;
        if let Some(complaint) = validate::complaint(&message, &octets) {
            self.complain(complaint);
        }
        Ok(())
    }
}
