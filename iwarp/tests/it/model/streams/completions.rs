//! The completions that are allowed, and what each completion says about other requests.

use iwarp::verbs::{WcStatus, WorkCompletion};

use super::super::memory::{Flow, StreamEnd, cut};
use super::{Arriving, Found, Model, Received, Sent, Stream};

impl Model {
    /// Checks a completion of the send queue.
    pub(crate) fn completed_send(&mut self, by: StreamEnd, wc: &WorkCompletion) -> Result<Found, String> {
        let (stream, side) = by;
        let end = &self.streams[stream].ends[side];
        if !end.sent.iter().any(|sent| sent.op == wc.wr_id) {
            return Err(format!("request {} is not open: completed twice, or never posted", wc.wr_id));
        }
        let mut ended = Vec::new();
        while let Some(sent) = self.streams[stream].ends[side].sent.pop_front() {
            if sent.op == wc.wr_id {
                let mut found = if wc.status == WcStatus::Success {
                    self.succeeded_send(by, &sent, wc)
                } else {
                    self.failed_send(by, &sent, wc)
                }?;
                found.ended.splice(..0, ended);
                return Ok(found);
            }
            if sent.meaning.signaled || sent.late {
                return Err(format!("request {} completed before {}, posted earlier", wc.wr_id, sent.op));
            }
            if sent.hopeless && wc.status == WcStatus::Success {
                return Err(sent.unjust());
            }
            self.memory.fetched(sent.op);
            ended.extend(self.done(&sent));
        }
        unreachable!("it is open")
    }

    fn succeeded_send(&mut self, by: StreamEnd, sent: &Sent, wc: &WorkCompletion) -> Result<Found, String> {
        let Sent { op, meaning, late, .. } = sent;
        let (stream, side) = by;
        self.succeeded += 1;
        if sent.hopeless {
            return Err(sent.unjust());
        }
        let expected = (meaning.completes, meaning.byte_len as u32);
        if (wc.opcode, wc.byte_len) != expected {
            return Err(format!(
                "request {op} completed as {:?}, not as {expected:?}",
                (wc.opcode, wc.byte_len)
            ));
        }
        if *late || !meaning.signaled || wc.cause.is_some() {
            return Err(format!("request {op} must not succeed (late: {late}) or make this completion"));
        }
        self.memory.fetched(*op);
        if meaning.flow == Flow::In {
            // The peer generated the answer after it had placed and delivered everything before the request.
            let peer = &self.streams[stream].ends[1 - side];
            if let Some(before) = peer.arriving.iter().find(|arriving| arriving.op < *op) {
                return Err(format!("the answer to {op} overtook the delivery of message {}", before.op));
            }
            let spans = self.memory.settle(|effect| effect.by == by && effect.op <= *op);
            return Ok(Found { spans, ended: Vec::new() });
        }
        Ok(Found { spans: Vec::new(), ended: self.done(sent).into_iter().collect() })
    }

    fn failed_send(&mut self, by: StreamEnd, sent: &Sent, wc: &WorkCompletion) -> Result<Found, String> {
        let (stream, side) = by;
        let Stream { ends, possible_ends } = &mut self.streams[stream];
        self.failed += 1;
        if possible_ends.is_empty() {
            return Err(format!("request {} failed ({}) on a stream that nothing ends", sent.op, wc.status));
        }
        if wc.status != WcStatus::WrFlushError {
            let allowed = possible_ends.iter().any(|possible| possible.blames_send(side, wc.status));
            if !allowed || sent.late || std::mem::replace(&mut ends[side].blamed_send, true) {
                return Err(format!(
                    "request {} must not be blamed: {} ({possible_ends:?})",
                    sent.op, wc.status
                ));
            }
        }
        self.never_lost_by_a_close(stream, side, sent.op)?;
        Ok(Found { spans: Vec::new(), ended: self.undone(sent).into_iter().collect() })
    }

    /// Checks a completion of the receive queue.
    pub(crate) fn completed_receive(&mut self, by: StreamEnd, wc: &WorkCompletion) -> Result<Found, String> {
        let (stream, side) = by;
        let op = wc.wr_id;
        let shared = self.streams[stream].ends[side].shared;
        let received = if shared {
            self.taken(stream, side, op)?
        } else {
            let received = self.streams[stream].ends[side].received.pop_front();
            received.filter(|received| received.op == op).ok_or("a receive that is not the oldest")?
        };
        let found = self.ended_receive(by, wc, &received);
        if shared {
            self.note_shared_ends(side);
        }
        found
    }

    fn ended_receive(
        &mut self,
        by: StreamEnd,
        wc: &WorkCompletion,
        received: &Received,
    ) -> Result<Found, String> {
        let (stream, side) = by;
        let op = wc.wr_id;
        let Stream { ends, possible_ends } = &mut self.streams[stream];
        let end = &mut ends[side];
        if wc.status != WcStatus::Success {
            self.failed += 1;
            end.flushed_recv = true;
            if possible_ends.is_empty() {
                return Err(format!("receive {op} failed ({}) on a stream that nothing ends", wc.status));
            }
            if wc.status != WcStatus::WrFlushError {
                let allowed = possible_ends.iter().any(|possible| possible.blames_recv(side, wc.status));
                if !allowed || received.late || std::mem::replace(&mut end.blamed_recv, true) {
                    return Err(format!(
                        "receive {op} must not be blamed: {} ({possible_ends:?})",
                        wc.status
                    ));
                }
            }
            return Ok(Found::default());
        }
        self.succeeded += 1;
        if end.flushed_recv || received.late {
            return Err(format!("receive {op} succeeded after the queue was flushed"));
        }
        let Some(Arriving { op: sent, message, cut_off }) = end.arriving.pop_front() else {
            return Err(format!("receive {op} completed, but no message was sent"));
        };
        if cut_off {
            return Err(format!("message {sent} was delivered behind an error of its stream"));
        }
        let invalidated = message.invalidates.map(|(key, _)| key);
        let told = (wc.opcode, wc.byte_len as usize, wc.solicited, wc.immediate, wc.invalidated);
        let meant = (message.opcode, message.len, message.solicited, message.immediate, invalidated);
        if told != meant {
            return Err(format!("message {sent} was sent as {meant:?} and received as {told:?}"));
        }
        if end.shared {
            self.memory.fill(sent, op, &cut(&received.spans, 0, message.len));
        }
        let peer = (stream, 1 - side);
        let mut spans =
            self.memory.settle(|effect| effect.by == peer && effect.flow == Flow::Out && effect.op <= sent);
        // The rest of the buffer, behind the message, must be unchanged.
        spans.extend(&received.spans);
        let ended = message.invalidates.and_then(|(_, name)| name).into_iter().collect();
        Ok(Found { spans, ended })
    }

    /// Checks that no request fails that this side posted before it closed gracefully, if nothing else can
    /// end the stream.
    fn never_lost_by_a_close(&self, stream: usize, side: usize, op: u64) -> Result<(), String> {
        if self.streams[stream].closed_by() == Some(side) {
            return Err(format!("request {op} was posted before a graceful close, and lost"));
        }
        Ok(())
    }
}
