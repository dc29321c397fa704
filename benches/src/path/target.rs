//! The part of the *target*, the peer of the side that posts messages: receives Sends and Writes, checks
//! their bytes, sends credits, and answers marks.

use iwarp::verbs::{
    QpState, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, VerbsError, WorkCompletion,
};

use super::layout::{ControlCell, Kind, WrId};
use super::mark::Mark;
use super::{Flow, Path};
use crate::errors::Error;
use crate::params::EXTRA_SENDS;
use crate::params::{Test, Verb};
use crate::perftest::wire::Dest;
use crate::validate::{self, GUARD, Message};

impl Path {
    /// With validation, fills the exposed halves with their initial contents: the pattern that Reads return,
    /// or guard bytes. In the latency test of Writes, and in tests of atomics, the memory stays as it is.
    pub(super) fn fill_exposed(&self) -> Result<(), Error> {
        if !self.params.validate
            || self.params.test == Test::WriteLat
            || self.params.test.verb() == Verb::Atomic
        {
            return Ok(());
        }
        let mut chunk = vec![GUARD; 1 << 16];
        for index in 0..self.params.qps as usize {
            let base = self.memory.exposed(index);
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

    pub(super) fn exposed_key(&self, index: usize, of_client: bool) -> u64 {
        Message { seed: self.params.seed, from_client: of_client, qp: index as u32, size: 0, number: 0 }.key()
    }

    /// Posts the receives of these slots.
    pub(super) fn post_receives(&self, index: usize, slots: &[u32]) -> Result<(), Error> {
        let request = |&slot: &u32| {
            let (sge, kind) = match self.params.test.verb() {
                Verb::Send => {
                    let at = self.memory.exposed(index) + self.receive_offset(slot);
                    (self.memory.data.sge(at, self.params.size as usize), Kind::Data)
                }
                verb => {
                    let at = ControlCell::MarkIn(slot).at(index);
                    let kind = if verb == Verb::WriteImmediate { Kind::Data } else { Kind::Mark };
                    (self.memory.control.sge(at, Mark::BYTES), kind)
                }
            };
            RecvRequest::new(WrId { kind, qp: index as u16, number: u64::from(slot) }.encode(), sge)
        };
        if let [slot] = slots {
            return Ok(self.flows[index].qp.post_recv(&request(slot))?);
        }
        let requests: Vec<RecvRequest> = slots.iter().map(request).collect();
        Ok(self.flows[index].qp.post_recv_list(&requests).map_err(|(_posted, error)| error)?)
    }

    /// Offset of a Send's receive buffer.
    fn receive_offset(&self, slot: u32) -> usize {
        let own = self.params.validate && self.params.test == Test::SendBw;
        if own { slot as usize * self.params.stride(self.params.size) } else { 0 }
    }

    /// Posts the completed receives again, if there are at least `least` such receives.
    pub(super) fn post_taken(&mut self, index: usize, least: usize) -> Result<(), Error> {
        if self.flows[index].taken.len() < least.max(1) {
            return Ok(());
        }
        let mut taken = std::mem::take(&mut self.flows[index].taken);
        let posted = self.post_receives(index, &taken);
        taken.clear();
        self.flows[index].taken = taken;
        posted
    }

    pub(super) fn on_message(
        &mut self,
        index: usize,
        slot: u32,
        completion: &WorkCompletion,
    ) -> Result<(), Error> {
        let number = self.flows[index].received;
        self.flows[index].received += 1;
        if self.params.validate {
            self.check_arrival(index, number, slot, completion)?;
        }
        self.flows[index].taken.push(slot);
        self.post_taken(index, self.receives_at_a_time)?;
        if self.params.test.has_credits() {
            self.send_credit(index, u64::from(self.rx_depth / 3).max(1))
        } else {
            Ok(())
        }
    }

    fn check_arrival(
        &mut self,
        index: usize,
        number: u64,
        slot: u32,
        completion: &WorkCompletion,
    ) -> Result<(), Error> {
        let stride = self.params.stride(self.size);
        let offset = if self.params.test.verb() == Verb::WriteImmediate {
            if completion.immediate != Some(number.to_be_bytes()) {
                let told = completion.immediate;
                self.record_error(format!("message {number} of queue pair {index} came with {told:?}"));
                return Ok(());
            }
            (number % u64::from(self.params.slots(self.size))) as usize * stride
        } else if completion.byte_len == self.size {
            self.receive_offset(slot)
        } else {
            self.record_error(format!(
                "message {number} of queue pair {index} has {} bytes, not {}",
                completion.byte_len, self.size
            ));
            return Ok(());
        };
        self.check_message(index, number, self.memory.exposed(index) + offset, stride)
    }

    /// Checks the message at `at` and the guard behind it, which together have `span` bytes. Then overwrites
    /// the message and the guard with guard bytes.
    pub(super) fn check_message(
        &mut self,
        index: usize,
        number: u64,
        at: usize,
        span: usize,
    ) -> Result<(), Error> {
        let mut bytes = vec![0; span];
        self.memory.data.read_at(at, &mut bytes)?;
        let message = self.message(index, number, !self.is_client);
        let (body, guard) = bytes.split_at(self.size as usize);
        self.messages_checked += 1;
        if let Some(first_error) = validate::first_error(&message, body) {
            self.record_error(first_error);
        } else if let Some(bad) = validate::first_touched(guard) {
            self.record_error(format!("byte {bad} after message {number} of queue pair {index} was written"));
        }
        bytes.fill(GUARD);
        Ok(self.memory.data.write_at(at, &bytes)?)
    }

    pub(super) fn record_error(&mut self, first_error: String) {
        self.first_error.get_or_insert(first_error);
    }

    /// Sends a credit to the peer if this side has posted at least `step` receives again since its last
    /// credit. Sends no credit if too many marks and credits are in flight, or if the peer's credit cell is
    /// not known.
    pub(super) fn send_credit(&mut self, index: usize, step: u64) -> Result<(), Error> {
        let flow = &mut self.flows[index];
        let nowhere = flow.credit.rkey == 0;
        // A credit counts only messages for which a new receive request has been posted.
        let count = flow.received - flow.taken.len() as u64;
        if count.saturating_sub(flow.credit_told) < step
            || flow.extra_in_flight >= EXTRA_SENDS as usize / 2
            || nowhere
        {
            return Ok(());
        }
        let at = ControlCell::CreditOut.at(index);
        self.memory.control.write_at(at, &(count as u32).to_ne_bytes())?;
        let Dest { vaddr, rkey, .. } = flow.credit;
        let op = SendOp::Write { remote: RemoteAddr { addr: vaddr, rkey } };
        let wr_id = WrId { kind: Kind::Credit, qp: index as u16, number: count };
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        match flow
            .qp
            .post_send(&SendRequest::new(wr_id.encode(), op, self.memory.control.sge(at, 4)).flags(flags))
        {
            Ok(()) => (flow.credit_told, flow.extra_in_flight) = (count, flow.extra_in_flight + 1),
            // The queue is full of our own messages. The next poll tries again to send the credit.
            Err(VerbsError::QueueFull(_)) => {}
            // The peer has sent all its messages, and closes the connection.
            Err(VerbsError::InvalidState(QpState::Closing)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    pub(super) fn ask(&mut self, index: usize) -> Result<(), Error> {
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

    pub(super) fn send_mark(&mut self, index: usize, mark: &Mark) -> Result<(), Error> {
        let flow = &mut self.flows[index];
        flow.extra_in_flight += 1;
        let at = ControlCell::MarkOut.at(index);
        self.memory.control.write_at(at, &mark.encode())?;
        let wr_id = WrId { kind: Kind::Mark, qp: index as u16, number: 0 };
        let sge = self.memory.control.sge(at, Mark::BYTES);
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        Ok(flow.qp.post_send(&SendRequest::new(wr_id.encode(), SendOp::Send, sge).flags(flags))?)
    }

    pub(super) fn on_mark(&mut self, index: usize, slot: u32, length: u32) -> Result<(), Error> {
        let mut bytes = [0; Mark::BYTES];
        self.memory.control.read_at(ControlCell::MarkIn(slot).at(index), &mut bytes)?;
        let mark = Mark::decode(&bytes[..(length as usize).min(Mark::BYTES)])?;
        self.post_receives(index, &[slot])?;
        if mark.is_answer {
            let flow = &mut self.flows[index];
            (flow.asking, flow.confirmed) = (false, mark.first + mark.count);
            self.wake(index);
            if !mark.good {
                self.record_error("the target found a difference".into());
            }
            return Ok(());
        }
        let before = self.first_error.is_none();
        if self.params.validate {
            self.check_window(index, &mark)?;
        }
        let good = before && self.first_error.is_none();
        self.send_mark(index, &Mark { is_answer: true, good, ..mark })
    }

    /// Checks all messages that a mark covers. Returns [`Error::Exchange`] if the mark covers more messages
    /// than there are slots, or if the slots do not fit into the exposed half.
    pub(super) fn check_window(&mut self, index: usize, mark: &Mark) -> Result<(), Error> {
        let own_size = std::mem::replace(&mut self.size, mark.size);
        let (slots, stride) = (u64::from(self.params.slots(mark.size)), self.params.stride(mark.size));
        if mark.count > slots || slots as usize * stride > self.memory.half {
            return Err(Error::Exchange(format!(
                "a mark covers {} messages of {} bytes, which is not possible",
                mark.count, mark.size
            )));
        }
        let base = self.memory.exposed(index);
        for number in mark.first..mark.first + mark.count {
            self.check_message(index, number, base + (number % slots) as usize * stride, stride)?;
        }
        self.size = own_size;
        Ok(())
    }
}
