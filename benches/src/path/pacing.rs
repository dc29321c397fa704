//! Messages at a given rate. The latency of a message is measured from its due time until the target (the
//! peer of the side that posts messages) has confirmed the message.
//!
//! When a Read or atomic completes, the target has answered it. A Write or Send usually completes when the
//! local TCP has accepted it. This completion shows nothing about the target. So a zero-length Read follows.
//! The target answers this Read only after its RDMAP has delivered all earlier messages (RFC 5040 section
//! 5.5). One such Read covers all messages posted since the previous such Read. A peer that is not iwperf may
//! allow no Reads. Therefore, with such a peer, a latency ends with the completion of the message.
//!
//! So, with iwperf on both sides, a latency is a full round trip, plus the time that the message has waited
//! before it could be posted.

use std::collections::VecDeque;

use dp::Clock;
use iwarp::verbs::{RemoteAddr, SendFlags, SendOp, SendRequest, VerbsError};

use super::Path;
use super::layout::{Kind, WrId};
use super::paced::{FLUSHES, Paced, PacedFlow};
use crate::errors::Error;
use crate::latency::Latencies;
use crate::rate::Schedule;
use crate::runs::LoadFigures;

impl Path {
    /// Begins to post at the rate of the parameters, if the parameters have a rate. The first message is due
    /// at `start` (in cycles).
    pub fn start_pacing(&mut self, start: u64, hz: u64) {
        let Some(rate) = self.params.rate else { return };
        let asked_messages_per_s = rate.messages_per_s(self.size);
        let depth = self.params.tx_depth as usize;
        let flow = || PacedFlow { due: VecDeque::with_capacity(depth), ..PacedFlow::default() };
        self.paced = Some(Box::new(Paced {
            schedule: Schedule::new(start, hz, asked_messages_per_s, self.params.burst),
            asked_messages_per_s,
            latencies: Latencies::new(false),
            by_flush: self.confirms_by_flush(),
            hz,
            next: 0,
            flows: self.flows.iter().map(|_| flow()).collect(),
            unflushed: Vec::with_capacity(self.flows.len()),
            unsent: 0,
        }));
    }

    /// Whether a zero-length Read confirms earlier messages.
    pub(super) fn confirms_by_flush(&self) -> bool {
        self.with_iwperf && self.params.rate.is_some() && !self.params.test.verb().is_answered()
    }

    /// Posts the messages that are due, as far as there is room. Returns whether a message was posted.
    pub(super) fn post_due(&mut self, limit: Option<u64>) -> Result<bool, Error> {
        self.ask_where_full(limit)?;
        let now = Clock::cycles();
        let mut moved = false;
        while self.paced.as_ref().is_some_and(|paced| paced.schedule.is_due(now)) {
            let Some(index) = self.flow_with_room(limit) else { break };
            match self.post_messages(index, 1, limit) {
                Ok(()) => moved = true,
                Err(VerbsError::QueueFull(_)) => break,
                Err(error) => return Err(error.into()),
            }
            let Some(paced) = &mut self.paced else { break };
            let due = paced.schedule.take();
            let flow = &mut paced.flows[index];
            flow.due.push_back(due);
            if paced.by_flush && !std::mem::replace(&mut flow.is_unflushed, true) {
                paced.unflushed.push(index);
            }
        }
        self.flush_posted()?;
        Ok(moved)
    }

    /// The next queue pair in turn that may post a message, or `None` if no queue pair may post a message.
    fn flow_with_room(&mut self, limit: Option<u64>) -> Option<usize> {
        let (first, count) = (self.paced.as_ref()?.next, self.flows.len());
        let index = (0..count)
            .map(|step| (first + step) % count)
            .find(|&index| self.may_post(index, limit).is_some())?;
        self.paced.as_mut()?.next = (index + 1) % count;
        Some(index)
    }

    /// Posts a zero-length Read on each queue pair that has posted messages since its last such Read. A queue
    /// pair with the maximum number of such Reads in flight is left for a later call.
    pub(super) fn flush_posted(&mut self) -> Result<(), Error> {
        let (Some(paced), most) = (&mut self.paced, FLUSHES.min(self.params.outs)) else { return Ok(()) };
        let mut failure = None;
        let Paced { flows: paced_flows, unflushed, .. } = &mut **paced;
        unflushed.retain(|&index| {
            let (flow, paced) = (&mut self.flows[index], &mut paced_flows[index]);
            if paced.flushes_in_flight >= most {
                return true;
            }
            let remote = RemoteAddr { addr: flow.remote.vaddr, rkey: flow.remote.rkey };
            let wr_id = WrId { kind: Kind::Flush, qp: index as u16, number: flow.posted };
            let flush = SendRequest::empty(wr_id.encode(), SendOp::Read { remote });
            match flow.qp.post_send(&flush.flags(SendFlags::SIGNALED)) {
                Ok(()) => {
                    paced.flushes_in_flight += 1;
                    paced.is_unflushed = false;
                    false
                }
                Err(VerbsError::QueueFull(_)) => true,
                Err(error) => {
                    failure = Some(error);
                    true
                }
            }
        });
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Confirms the messages before a zero-length Read that has completed.
    pub(super) fn on_flush(&mut self, index: usize, posted: u64) {
        let Some(paced) = &mut self.paced else { return };
        paced.flows[index].flushes_in_flight -= 1;
        paced.confirm(index, posted, Clock::cycles());
    }

    /// Confirms messages by the completion of a message, if no zero-length Read confirms them.
    pub(super) fn on_paced_completion(&mut self, index: usize, completed: u64) {
        let Some(paced) = &mut self.paced else { return };
        if !paced.by_flush {
            paced.confirm(index, completed, Clock::cycles());
        }
    }

    /// Whether the latencies of all posted messages are known.
    pub(super) fn pacing_done(&self) -> bool {
        self.paced.as_ref().is_none_or(|paced| paced.flows.iter().all(|flow| flow.due.is_empty()))
    }

    /// Ends the posting of due messages at `now`. The latency of a due message that was not posted is its
    /// wait so far.
    pub fn stop_pacing(&mut self, now: u64) {
        let Some(paced) = &mut self.paced else { return };
        while paced.schedule.is_due(now) {
            let due = paced.schedule.take();
            paced.latencies.record_cycles(now - due, paced.hz);
            paced.unsent += 1;
        }
    }

    /// The figures of the run that has just ended, if the run had a rate.
    pub fn take_load(&mut self) -> Option<LoadFigures> {
        let Paced { latencies, asked_messages_per_s, by_flush, unsent, .. } = *self.paced.take()?;
        Some(LoadFigures {
            asked_messages_per_s,
            confirmed: by_flush || self.params.test.verb().is_answered(),
            unsent,
            latency: latencies.summary(latencies.count()),
            latencies,
        })
    }
}
