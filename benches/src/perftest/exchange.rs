//! The control connection, which carries only Sends.

use std::collections::VecDeque;

use iwarp::memory::Access;
use iwarp::verbs::{
    CmId, CompletionQueue, MemoryRegion, ProtectionDomain, QpInit, QueuePair, RecvRequest, SendOp,
    SendRequest, WcOpcode,
};

use crate::endpoint::{Endpoint, checked};
use crate::errors::Error;
use crate::params::CYCLE_BUFFER;
use crate::perftest::wire::{self, Dest, Report};

/// Size in bytes of a receive buffer. perftest's messages have at most 56 bytes, and the messages between two
/// iwperfs are longer.
pub const MESSAGE_BYTES: usize = 256;

/// Number of receives kept posted. perftest needs one receive. The other receives are for a peer that sends
/// several messages without waiting for ours.
const RECEIVES: usize = 4;

/// Cache line size, as perftest announces it.
const CACHE_LINE: u32 = 64;

/// A function that is called while this side waits for a message. The function polls the data path, and
/// returns whether the poll did any work.
pub type OnIdle<'a> = &'a mut dyn FnMut() -> Result<bool, Error>;

/// An [`OnIdle`] that polls nothing.
pub fn nothing() -> Result<bool, Error> {
    Ok(false)
}

/// The control connection of a test.
pub struct Control {
    /// Whether this side sends first.
    pub is_client: bool,
    id: CmId,
    link: ControlLink,
    inbox: VecDeque<Vec<u8>>,
    sends_done: u64,
    sends_posted: u64,
}

/// A queue pair for control messages, with posted receives.
pub struct ControlLink {
    /// The queue pair with which to connect or accept.
    pub qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl ControlLink {
    /// Makes a link that is not connected.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn new(end: &mut Endpoint) -> Result<Self, Error> {
        let cq = end.create_cq(64)?;
        let memory = end.pd.reg_mr((RECEIVES + 1) * MESSAGE_BYTES, Access::LOCAL_WRITE)?;
        let qp = create_qp(&end.pd, &cq)?;
        let link = Self { qp, cq, memory };
        link.post_receives()?;
        Ok(link)
    }

    /// Replaces the queue pair after a refused connection has made it unusable.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn renew(&mut self, pd: &ProtectionDomain) -> Result<(), Error> {
        // The requests of the old queue pair are flushed. The completions of these requests are dropped.
        while self.cq.poll_one().is_some() {}
        self.qp = create_qp(pd, &self.cq)?;
        self.post_receives()
    }

    fn post_receives(&self) -> Result<(), Error> {
        (0..RECEIVES).try_for_each(|slot| self.post_recv(slot))
    }

    fn post_recv(&self, slot: usize) -> Result<(), Error> {
        let sge = self.memory.sge(slot * MESSAGE_BYTES, MESSAGE_BYTES);
        Ok(self.qp.post_recv(&RecvRequest::new(slot as u64, sge))?)
    }
}

fn create_qp(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<QueuePair, Error> {
    Ok(pd.create_qp(&QpInit { max_send_wr: 8, max_recv_wr: 8, ..QpInit::new(cq) })?)
}

impl Control {
    /// Makes the control connection on a connected link.
    pub fn new(link: ControlLink, id: CmId, is_client: bool) -> Self {
        Self { is_client, id, link, inbox: VecDeque::new(), sends_done: 0, sends_posted: 0 }
    }

    /// The identifier of the connection.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Whether a message of the peer has arrived.
    ///
    /// # Errors
    /// Returns [`Error::Completion`] if a request failed, or [`Error::Verbs`] if a verbs call fails.
    pub fn has_message(&mut self) -> Result<bool, Error> {
        self.reap()?;
        Ok(!self.inbox.is_empty())
    }

    /// Sends our message and receives the peer's message. The client sends first, and the server receives
    /// first. Calls `serve` while it waits.
    ///
    /// # Errors
    /// Returns [`Error::Silent`] if nothing arrives within the time limit, [`Error::Disconnected`] if the
    /// control connection ends, or [`Error::Interrupted`] if the run is interrupted. Returns
    /// [`Error::Completion`] if a request failed, [`Error::Verbs`] if a verbs call fails, or an error of
    /// `serve`.
    pub fn exchange(&mut self, end: &mut Endpoint, ours: &[u8], serve: OnIdle<'_>) -> Result<Vec<u8>, Error> {
        if self.is_client {
            self.send(end, ours, serve)?;
            return self.receive(end, serve);
        }
        let theirs = self.receive(end, serve)?;
        self.send(end, ours, serve)?;
        Ok(theirs)
    }

    /// Exchanges perftest's first messages: version, cycle buffer, cache line and MTU.
    ///
    /// # Errors
    /// Returns [`Error::Exchange`] if the peer sends something else, or an error of
    /// [`exchange`](Self::exchange).
    pub fn prefix(&mut self, end: &mut Endpoint, mtu: u16) -> Result<(), Error> {
        let version = self.exchange(end, &wire::encode_version(), &mut nothing)?;
        wire::decode_version(&version)?;
        for number in [CYCLE_BUFFER, CACHE_LINE] {
            let theirs = self.exchange(end, &number.to_be_bytes(), &mut nothing)?;
            wire::decode_u32(&theirs)?;
        }
        let theirs = self.exchange(end, &wire::encode_mtu(mtu), &mut nothing)?;
        wire::decode_mtu(&theirs)?;
        Ok(())
    }

    /// Sends our destination, and returns the peer's destination.
    ///
    /// # Errors
    /// Returns an error of [`exchange`](Self::exchange), or [`Error::Exchange`] if the peer's message has
    /// another length.
    pub fn dest(&mut self, end: &mut Endpoint, ours: &Dest, serve: OnIdle<'_>) -> Result<Dest, Error> {
        Dest::decode(&self.exchange(end, &ours.encode(), serve)?)
    }

    /// Sends our report, and returns the peer's report. Each report has five messages.
    ///
    /// # Errors
    /// Returns an error of [`exchange`](Self::exchange), or [`Error::Exchange`] if the peer's message has
    /// another length.
    pub fn report(&mut self, end: &mut Endpoint, ours: &Report, serve: OnIdle<'_>) -> Result<Report, Error> {
        let mut theirs = [[0; 8]; 5];
        for (ours, theirs) in ours.encode().iter().zip(&mut theirs) {
            *theirs = *wire::exactly(&self.exchange(end, ours, serve)?, "a report")?;
        }
        Ok(Report::decode(&theirs))
    }

    fn send(&mut self, end: &mut Endpoint, bytes: &[u8], serve: OnIdle<'_>) -> Result<(), Error> {
        let at = RECEIVES * MESSAGE_BYTES;
        self.link.memory.write_at(at, bytes)?;
        let sge = self.link.memory.sge(at, bytes.len());
        self.link.qp.post_send(&SendRequest::new(0, SendOp::Send, sge))?;
        self.sends_posted += 1;
        self.wait(end, serve, |control| (control.sends_done == control.sends_posted).then_some(()))
    }

    fn receive(&mut self, end: &mut Endpoint, serve: OnIdle<'_>) -> Result<Vec<u8>, Error> {
        self.wait(end, serve, |control| control.inbox.pop_front())
    }

    fn wait<T>(
        &mut self,
        end: &mut Endpoint,
        serve: OnIdle<'_>,
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Error> {
        const DOING: &str = "exchanging messages with it";
        let mut silence = crate::silence::SilenceDetector::new(end);
        loop {
            let mut moved = end.driver.poll()? | serve()?;
            moved |= self.reap()?;
            if let Some(found) = look(self) {
                return Ok(found);
            }
            if moved {
                end.driver.busy();
                continue;
            }
            end.driver.idle()?;
            if !silence.check(end, DOING)? {
                continue;
            }
            if let Some(error) = end.ended(&self.id) {
                self.reap()?;
                return look(self).ok_or(Error::Disconnected { doing: DOING, error });
            }
        }
    }

    fn reap(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        while let Some(completion) = self.link.cq.poll_one() {
            moved = true;
            match completion.opcode {
                // The peer's close has flushed a receive. The event of the connection has the reason.
                WcOpcode::Recv if completion.status == iwarp::verbs::WcStatus::WrFlushError => {}
                WcOpcode::Recv => {
                    checked(&completion, "a control receive")?;
                    let slot = completion.wr_id as usize;
                    let mut bytes = vec![0; (completion.byte_len as usize).min(MESSAGE_BYTES)];
                    self.link.memory.read_at(slot * MESSAGE_BYTES, &mut bytes)?;
                    self.inbox.push_back(bytes);
                    // Posting fails if the peer has already closed the connection, after which no message
                    // arrives.
                    let _closing = self.link.post_recv(slot);
                }
                _ => {
                    checked(&completion, "a control message")?;
                    self.sends_done += 1;
                }
            }
        }
        Ok(moved)
    }
}
