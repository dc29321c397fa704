//! One rping connection: its memory, its queue pair, and its adverts.

use iwarp::memory::Access;
use iwarp::verbs::{
    CmId, CompletionQueue, ConnParam, MemoryRegion, ProtectionDomain, QpInit, QueuePair, RecvRequest, SendOp,
    SendRequest, WcOpcode,
};

use super::wire::{ADVERT_BYTES, Advert};
use crate::endpoint::{Endpoint, checked};
use crate::errors::Error;
use crate::silence::SilenceDetector;

/// Size in bytes of a receive buffer. It is longer than an advert, so that a longer message is detected.
const RECV_BYTES: usize = 64;

/// Number of receives kept posted. One receive would suffice, since rping's adverts alternate.
const RECEIVES: u64 = 2;

pub(super) struct Link {
    pub(super) data: MemoryRegion,
    adverts: MemoryRegion,
    cq: CompletionQueue,
    qp: QueuePair,
    inbox: std::collections::VecDeque<Advert>,
    done: u64,
    posted: u64,
}

impl Link {
    /// Makes a link with `bytes` bytes of memory for the data.
    pub(super) fn new(end: &mut Endpoint, bytes: usize) -> Result<Self, Error> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let data = end.pd.reg_mr(bytes, access)?;
        let adverts = end.pd.reg_mr((RECEIVES as usize + 1) * RECV_BYTES, Access::LOCAL_WRITE)?;
        let cq = end.create_cq(64)?;
        let qp = create_qp(&end.pd, &cq)?;
        let link = Self { data, adverts, cq, qp, inbox: Default::default(), done: 0, posted: 0 };
        link.post_receives()?;
        Ok(link)
    }

    /// The queue pair to connect. For each `attempt` after the first, makes a new queue pair.
    pub(super) fn qp(&mut self, attempt: usize, pd: &ProtectionDomain) -> Result<QueuePair, Error> {
        if attempt > 0 {
            while self.cq.poll_one().is_some() {}
            self.qp = create_qp(pd, &self.cq)?;
            self.post_receives()?;
        }
        Ok(self.qp.clone())
    }

    fn post_receives(&self) -> Result<(), Error> {
        (0..RECEIVES).try_for_each(|slot| self.post_recv(slot))
    }

    fn post_recv(&self, slot: u64) -> Result<(), Error> {
        let sge = self.adverts.sge(slot as usize * RECV_BYTES, RECV_BYTES);
        Ok(self.qp.post_recv(&RecvRequest::new(slot, sge))?)
    }

    pub(super) fn send(&mut self, end: &mut Endpoint, id: &CmId, advert: &Advert) -> Result<(), Error> {
        let at = RECEIVES as usize * RECV_BYTES;
        self.adverts.write_at(at, &advert.encode())?;
        let sge = self.adverts.sge(at, ADVERT_BYTES);
        self.post(end, id, &SendRequest::new(0, SendOp::Send, sge))
    }

    /// Posts `request` and waits for its completion.
    pub(super) fn post(&mut self, end: &mut Endpoint, id: &CmId, request: &SendRequest) -> Result<(), Error> {
        self.qp.post_send(request)?;
        self.posted += 1;
        match self.wait(end, id, |link| (link.done == link.posted).then_some(()))? {
            Some(()) => Ok(()),
            None => Err(Error::Disconnected { doing: DOING, error: None }),
        }
    }

    /// Waits for the peer's next advert. Returns `None` if the peer closed the connection gracefully instead.
    pub(super) fn receive(&mut self, end: &mut Endpoint, id: &CmId) -> Result<Option<Advert>, Error> {
        self.wait(end, id, |link| link.inbox.pop_front())
    }

    fn wait<T>(
        &mut self,
        end: &mut Endpoint,
        id: &CmId,
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut silence = SilenceDetector::new(end);
        loop {
            let moved = end.driver.poll()? | self.reap()?;
            if let Some(found) = look(self) {
                return Ok(Some(found));
            }
            if moved {
                end.driver.busy();
                continue;
            }
            end.driver.idle()?;
            if !silence.check(end, DOING)? {
                continue;
            }
            match end.ended(id) {
                None => {}
                Some(None) => {
                    self.reap()?;
                    return Ok(look(self));
                }
                Some(error) => return Err(Error::Disconnected { doing: DOING, error }),
            }
        }
    }

    fn reap(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        while let Some(completion) = self.cq.poll_one() {
            moved = true;
            if completion.status == iwarp::verbs::WcStatus::WrFlushError {
                // The event of the connection has the reason.
                continue;
            }
            if completion.opcode != WcOpcode::Recv {
                checked(&completion, "a round's request")?;
                self.done += 1;
                continue;
            }
            checked(&completion, "a receive")?;
            let mut bytes = [0; RECV_BYTES];
            let length = (completion.byte_len as usize).min(RECV_BYTES);
            self.adverts.read_at(completion.wr_id as usize * RECV_BYTES, &mut bytes[..length])?;
            self.inbox.push_back(Advert::decode(&bytes[..length])?);
            // Posting fails if the peer is already closing, after which no advert arrives.
            let _closing = self.post_recv(completion.wr_id);
        }
        Ok(moved)
    }
}

const DOING: &str = "in a round";

fn create_qp(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<QueuePair, Error> {
    Ok(pd.create_qp(&QpInit { max_send_wr: 8, max_recv_wr: 8, ..QpInit::new(cq) })?)
}

/// Parameters for one outstanding Read in each direction, as rping requests.
pub(super) fn conn_param(end: &Endpoint) -> ConnParam {
    ConnParam { responder_resources: 1, initiator_depth: 1, timeout: end.timeout, ..ConnParam::default() }
}
