//! The shared receive queues of both hosts, and their events.

use iwarp::verbs::{AsyncEventKind, RecvRequest, SharedReceiveQueue, SrqInit, VerbsError};

use super::super::memory::application;
use super::super::operations;
use super::super::streams::DEPTH;
use super::{Done, World};
use crate::common::Host;
use testkit::dice::Dice;

/// Minimum length in bytes of most buffers, which is enough for most messages.
const USUAL: usize = 5000;

/// Minimum length in bytes of the other buffers, which may be too short.
const SHORT: usize = 600;

pub(super) fn make(host: &Host) -> SharedReceiveQueue {
    host.pd.create_srq(&SrqInit { max_wr: DEPTH, ..SrqInit::default() }).unwrap()
}

impl World {
    /// Posts a buffer of at least `len` bytes for the next message of any stream.
    pub(super) fn receive_shared(&mut self, dice: &mut Dice, side: usize, len: Option<usize>) -> Done {
        let op = self.next_op();
        let usual = if dice.one_in(operations::FAULT_EVERY) { SHORT } else { USUAL };
        let len = len.unwrap_or_else(|| operations::length(dice)).max(usual);
        let Some(spans) = operations::scatter(dice, &self.model, application(side), len) else {
            return Ok(());
        };
        let sg_list = spans.iter().map(|span| operations::sge(&self.model, span)).collect();
        self.note(|| format!("host {side} receives into {op}: {spans:?}"));
        let is_full = self.model.shared[side].len() >= DEPTH;
        match self.shared[side].post_recv(&RecvRequest { wr_id: op, sg_list }) {
            Ok(()) if is_full => Err(format!("shared receive {op} was taken by a queue that is full")),
            Ok(()) => {
                self.model.posted_shared(side, op, spans);
                Ok(())
            }
            Err(VerbsError::QueueFull(_)) if is_full => Ok(()),
            Err(VerbsError::LocalProtection(_)) if self.unsteady(&spans) => Ok(()),
            Err(error) => Err(format!("shared receive {op} was refused: {error}")),
        }
    }

    /// Arms the event that reports when few buffers are left.
    pub(super) fn arm(&mut self, dice: &mut Dice, side: usize) -> Done {
        let limit = dice.index(6);
        self.note(|| format!("host {side} arms its limit: {limit}"));
        self.shared[side].arm_limit(limit).map_err(|error| error.to_string())?;
        self.model.shared[side].limit = limit;
        self.shared_events()
    }

    /// Checks that no stream holds a buffer while no message is under way.
    pub(super) fn shared_at_rest(&self) -> Done {
        (0..2).try_for_each(|side| {
            let (posted, open) = (self.shared[side].query().posted, self.model.shared[side].len());
            if posted == open {
                Ok(())
            } else {
                Err(format!("host {side}: {posted} shared receives wait, not {open}"))
            }
        })
    }

    /// Reads the events of the shared receive queues, after all completions, and checks the queues.
    pub(super) fn shared_events(&mut self) -> Done {
        for side in [0, 1] {
            let events = self.host(side).context.async_events();
            while let Some(event) = events.poll().map_err(|error| error.to_string())? {
                match event.kind {
                    AsyncEventKind::SrqLimitReached if event.number == self.shared[side].srq_num() => {
                        self.model.limit_reached(side)?;
                    }
                    AsyncEventKind::LastWqeReached => {
                        let by =
                            self.numbers.get(&(side, event.number)).ok_or("an event of no queue pair")?;
                        self.model.last_receive(*by)?;
                    }
                    AsyncEventKind::QpFatal
                    | AsyncEventKind::QpRequestError
                    | AsyncEventKind::QpAccessError => {}
                    other => return Err(format!("host {side}: an event out of place: {other:?}")),
                }
            }
            let attr = self.shared[side].query();
            let open = self.model.shared[side].len();
            if attr.outstanding != open {
                return Err(format!("host {side}: {} shared receives are out, not {open}", attr.outstanding));
            }
            self.model.check_shared(side, attr.posted, attr.limit)?;
        }
        Ok(())
    }
}
