//! The part of the *source*, the side that posts messages: posts messages, checks the results of Reads and
//! atomics, and records which messages the peer has received.

use iwarp::verbs::{AtomicOp, RemoteAddr, SendFlags, SendOp, SendRequest, VerbsError};

use super::Path;
use super::layout::{ControlCell, WrId};
use crate::errors::Error;
use crate::params::{ATOMIC_BYTES, AtomicKind, Test, Verb};
use crate::perftest::wire::Dest;
use crate::validate::{self, GUARD, Message};

impl Path {
    /// Posts as many of the first `limit` messages of each queue pair as the depth of the queue, the credits
    /// and, with validation, the slots allow. `None` means that there is no limit. If the parameters have a
    /// rate, posts only messages that are due. Returns whether a message was posted.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn post(&mut self, limit: Option<u64>) -> Result<bool, Error> {
        if self.params.rate.is_some() {
            return self.post_due(limit);
        }
        self.ask_where_full(limit)?;
        let mut moved = false;
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            self.flows[index].is_ready = false;
            while let Some(count) = self.may_post(index, limit) {
                match self.post_messages(index, count, limit) {
                    Ok(()) => moved = true,
                    Err(VerbsError::QueueFull(_)) => {
                        self.wake(index);
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(moved)
    }

    pub(super) fn may_post(&self, index: usize, limit: Option<u64>) -> Option<u64> {
        let flow = &self.flows[index];
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(flow.posted));
        let count = u64::from(self.params.post_list).min(left);
        let in_flight = flow.posted - flow.completed;
        let mut fits = count > 0 && in_flight + count <= u64::from(self.params.tx_depth) && !flow.asking;
        if self.params.test.has_credits() {
            fits &= flow.posted + count - flow.confirmed.min(flow.posted) < u64::from(self.rx_depth).max(2);
        }
        if self.params.validate {
            let slots = u64::from(self.params.slots(self.size));
            fits &= match self.params.test {
                Test::WriteBw | Test::WriteImmBw => flow.posted - flow.confirmed < slots,
                _ => in_flight < slots,
            };
        }
        fits.then_some(count)
    }

    pub(super) fn post_messages(
        &mut self,
        index: usize,
        count: u64,
        limit: Option<u64>,
    ) -> Result<(), VerbsError> {
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        let mut unsignaled = false;
        for step in 0..count {
            let number = self.flows[index].posted + step;
            let last_of_list = step + 1 == count && count > 1;
            let due = (number + 1).is_multiple_of(u64::from(self.completion_period()));
            let signaled = last_of_list || due || Some(number + 1) == limit || self.checks_answers();
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
        self.totals.posted += posted;
        if posted > 0 {
            flow.unsignaled = unsignaled;
        }
        self.list = list;
        outcome
    }

    /// Number of messages for each requested completion. With validation, the number is at most the number of
    /// slots.
    pub(super) fn completion_period(&self) -> u32 {
        if self.params.rate.is_some() && !self.confirms_by_flush() {
            // Each message needs a completion, since the completion ends a latency.
            1
        } else if self.params.validate {
            self.params.cq_mod.min(self.params.slots(self.size))
        } else {
            self.params.cq_mod
        }
    }

    pub(super) fn checks_answers(&self) -> bool {
        self.params.validate && self.params.test.verb().is_answered()
    }

    pub(super) fn request(
        &self,
        index: usize,
        number: u64,
        signaled: bool,
    ) -> Result<SendRequest, VerbsError> {
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
            Verb::WriteImmediate => {
                SendOp::WriteImmediate { remote: remote(slot), data: number.to_be_bytes() }
            }
            Verb::Atomic => SendOp::Atomic { remote: remote(0), op: self.atomic(index, number) },
        };
        if self.checks_answers() {
            self.memory.data.write_at(local, &vec![GUARD; stride])?;
        } else if self.params.validate {
            self.write_pattern(index, number, local)?;
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(
            SendFlags::INLINE,
            self.params.inline >= self.size && !self.params.test.verb().is_answered(),
        );
        flags.set(SendFlags::ZERO_COPY, self.params.zero_copy);
        let sge = self.memory.data.sge(local, self.size as usize);
        Ok(SendRequest::new(WrId::data(index, number).encode(), op, sge).flags(flags))
    }

    /// The operation of atomic `number`. The peer's word, which begins with 0, counts the atomics.
    fn atomic(&self, index: usize, number: u64) -> AtomicOp {
        let count = self.flows[index].atomics_before + number;
        match self.params.atomic {
            AtomicKind::FetchAdd => AtomicOp::FetchAdd { add: 1, mask: 0 },
            AtomicKind::CompareSwap => AtomicOp::CmpSwap {
                compare: count,
                compare_mask: u64::MAX,
                swap: count.wrapping_add(1),
                swap_mask: u64::MAX,
            },
        }
    }

    /// Checks that atomic `number` has returned the number of earlier atomics.
    pub(super) fn check_atomic(&mut self, index: usize, number: u64) -> Result<(), Error> {
        let (stride, slots) = (self.params.stride(self.size), u64::from(self.params.slots(self.size)));
        let at = self.memory.local(index) + (number % slots) as usize * stride;
        let mut bytes = [0; ATOMIC_BYTES as usize];
        self.memory.data.read_at(at, &mut bytes)?;
        self.messages_checked += 1;
        let (expected, value) = (self.flows[index].atomics_before + number, u64::from_ne_bytes(bytes));
        if value != expected {
            self.record_error(format!(
                "atomic {number} of queue pair {index} has returned {value}, not {expected}"
            ));
        }
        Ok(())
    }

    pub(super) fn write_pattern(&self, index: usize, number: u64, at: usize) -> Result<(), VerbsError> {
        let mut bytes = vec![0; self.size as usize];
        validate::fill(self.message(index, number, self.is_client).key(), 0, &mut bytes);
        self.memory.data.write_at(at, &bytes)
    }

    pub(super) fn message(&self, index: usize, number: u64, from_client: bool) -> Message {
        Message { seed: self.params.seed, from_client, qp: index as u32, size: self.size, number }
    }

    /// Whether all queue pairs have posted `limit` messages, and all these messages are completed and, if the
    /// peer confirms messages, also confirmed. `None` means the messages posted so far. Asks the peer for a
    /// missing confirmation. With `None`, a queue pair may post one more message to get a completion.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn source_done(&mut self, limit: Option<u64>) -> Result<bool, Error> {
        self.flush_posted()?;
        if limit.is_some_and(|limit| self.totals.posted < limit * self.flows.len() as u64) {
            return Ok(false);
        }
        let mut done = self.pacing_done();
        self.ask_where_full(limit)?;
        for index in 0..self.flows.len() {
            if limit.is_none() && self.flows[index].unsignaled {
                // The time ended within a completion period, so one more message is posted to request a
                // completion.
                let end = Some(self.flows[index].posted + 1);
                if self.may_post(index, end).is_some() {
                    self.post_messages(index, 1, end)?;
                }
                done = false;
                continue;
            }
            let flow = &self.flows[index];
            let all = limit.unwrap_or(flow.posted);
            if self.uses_marks() && !flow.asking && flow.confirmed < flow.posted && flow.posted >= all {
                self.ask(index)?;
            }
            let flow = &self.flows[index];
            let confirmed = !self.is_confirmed_by_target() || flow.confirmed >= all;
            done &= flow.posted >= all && flow.completed >= all && confirmed;
        }
        Ok(done)
    }

    /// Asks for the confirmation of Writes on each queue pair that, because of validation, cannot post
    /// further messages before the confirmation.
    pub(super) fn ask_where_full(&mut self, limit: Option<u64>) -> Result<(), Error> {
        if !self.params.validate || !self.uses_marks() {
            return Ok(());
        }
        for index in 0..self.flows.len() {
            let flow = &self.flows[index];
            if !flow.asking && flow.confirmed < flow.posted && self.may_post(index, limit).is_none() {
                self.ask(index)?;
            }
        }
        Ok(())
    }

    pub(super) fn look_at_credit(&mut self) -> Result<(), Error> {
        for index in 0..self.flows.len() {
            let flow = &mut self.flows[index];
            let mut cell = [0; 4];
            self.memory.control.read_at(ControlCell::Credit.at(index), &mut cell)?;
            // The cell counts modulo 2^32. A value that counts more messages than were posted is ignored.
            let ahead = u32::from_ne_bytes(cell).wrapping_sub(flow.confirmed as u32);
            if ahead > 0 && u64::from(ahead) <= flow.posted - flow.confirmed {
                flow.confirmed += u64::from(ahead);
                self.wake(index);
            }
        }
        Ok(())
    }

    pub(super) fn check_read(&mut self, index: usize, number: u64) -> Result<(), Error> {
        let (stride, slots) = (self.params.stride(self.size), u64::from(self.params.slots(self.size)));
        let at = self.memory.local(index) + (number % slots) as usize * stride;
        let mut bytes = vec![0; stride];
        self.memory.data.read_at(at, &mut bytes)?;
        let (message, guard) = bytes.split_at(self.size as usize);
        let key = self.exposed_key(index, !self.is_client);
        self.messages_checked += 1;
        if let Some(bad) = validate::first_difference(key, self.read_offset(number) as u64, message) {
            self.record_error(format!(
                "read {number} of queue pair {index} ({} bytes) differs at byte {bad}",
                self.size
            ));
        } else if let Some(bad) = validate::first_touched(guard) {
            self.record_error(format!(
                "read {number} of queue pair {index}: byte {bad} after the sink was written"
            ));
        }
        Ok(())
    }

    /// Offset of Read `number` in the peer's exposed half. With validation, successive Reads usually have
    /// different offsets if the half is longer than a message.
    pub(super) fn read_offset(&self, number: u64) -> usize {
        let room = self.memory.half - self.size as usize;
        if self.params.validate { (number as usize).wrapping_mul(7919) % (room + 1) } else { 0 }
    }

    /// The last byte of the message in the exposed half. The peer's Write sets this byte.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    #[inline]
    pub fn last_byte(&self) -> Result<u8, Error> {
        let at = self.memory.exposed(0) + self.size as usize - 1;
        Ok(self.memory.data.load_u8(at)?)
    }

    /// Posts message `number` of a latency test. The last byte of a Write is `last`.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn post_ping(&mut self, number: u64, last: u8) -> Result<(), Error> {
        let request = self.request(0, number, true)?;
        if self.params.test == Test::WriteLat {
            self.memory.data.write_at(self.memory.local(0) + self.size as usize - 1, &[last])?;
        }
        self.flows[0].qp.post_send(&request)?;
        self.flows[0].posted += 1;
        Ok(())
    }

    /// With validation, checks Write `number` of a latency test, except for the last byte, which is a
    /// counter.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn check_ping(&mut self, number: u64) -> Result<(), Error> {
        if !self.params.validate {
            return Ok(());
        }
        let mut bytes = vec![0; self.size as usize - 1];
        self.memory.data.read_at(self.memory.exposed(0), &mut bytes)?;
        let message = self.message(0, number, !self.is_client);
        self.messages_checked += 1;
        if let Some(first_error) = validate::first_error(&message, &bytes) {
            self.record_error(first_error);
        }
        Ok(())
    }
}
