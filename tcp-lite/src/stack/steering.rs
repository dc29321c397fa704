//! The methods of a stack that shares a host with other stacks, with one stack for each queue of the device
//! (see [`Member`]).

use dp::{Burst, Checksum, Mbuf};

use super::Stack;
use crate::facade::Instant;
use crate::four_tuple::FourTuple;
use crate::steering::{ClaimError, Handed, Member};

impl Stack {
    /// Makes this stack share a host with other stacks, each on a queue of one device. Call this method
    /// before any other method.
    pub fn join(&mut self, member: Member) {
        if member.leads() {
            member.publish_addresses(self.conflicts.states());
        } else {
            self.conflicts.stop_leading();
        }
        self.member = Some(Box::new(member));
    }

    /// Whether [`take_handed`](Self::take_handed) has something to do. The caller checks this value before
    /// each sleep.
    #[inline]
    pub fn has_handed(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.is_waiting())
    }

    /// Whether [`take_handed`](Self::take_handed) or [`flush_handed`](Self::flush_handed) has something to
    /// do.
    #[inline]
    pub fn has_to_hand(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.is_unflushed() || member.is_waiting())
    }

    /// Fills the free places of `out` with frames that other stacks of the host handed over. These frames
    /// arrived at the queues of the other stacks, but belong to our connections, or to the slow path if this
    /// stack is the host's leader. The caller passes the frames to [`input_next`](Self::input_next), like
    /// frames from the port. Neighbours that the leader has reported are entered into the neighbour table.
    pub fn take_handed(&mut self, now: Instant, out: &mut Burst) {
        self.advance(now);
        let Some(member) = &mut self.member else { return };
        let mut woken = false;
        while !out.is_full() {
            match member.next_handed() {
                Some(Handed::Frame(frame)) => {
                    self.counters.rx_handed_over += 1;
                    out.push(frame);
                }
                Some(Handed::Heard(heard)) => woken |= self.neighbors.heard(self.now, &heard),
                None => break,
            }
        }
        member.next_turn();
        if woken {
            self.wake_waiting(self.now);
        }
    }

    /// Makes the frames that were handed to other stacks since the last call visible to these stacks. Returns
    /// a mask of these stacks, with bit `n` for stack `n`. The caller wakes each of these stacks that sleeps.
    #[inline]
    pub fn flush_handed(&mut self) -> u64 {
        self.member.as_mut().map_or(0, |member| member.flush())
    }

    /// If this stack has become the leader of the host, begins to defend the addresses. If this stack is the
    /// leader, publishes the states of our addresses. Otherwise takes over the states that the leader has
    /// published. Returns whether taking over the states changed the state of an address.
    pub(super) fn follow_leader(&mut self, now: Instant) -> bool {
        let Some(member) = &mut self.member else { return false };
        self.conflicts.note_news();
        if member.note_news() {
            self.conflicts.lead(now);
        }
        if member.leads() {
            member.publish_addresses(self.conflicts.states());
            return false;
        }
        self.conflicts.follow(member.addresses())
    }

    /// Whether [`follow_leader`](Self::follow_leader) has something to do.
    #[inline]
    pub(super) fn has_news_of_host(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.has_news() || self.conflicts.has_news())
    }

    /// The other stack that has this connection; `None` if no other stack has it.
    pub(super) fn elsewhere(&mut self, tuple: &FourTuple) -> Option<u8> {
        let member = self.member.as_ref()?;
        if self.connections.find_next(tuple).is_some() { None } else { member.elsewhere(tuple) }
    }

    /// The leader of the host's stacks; `None` if this stack is the leader.
    pub(super) fn other_leader(&self) -> Option<u8> {
        self.member.as_ref().filter(|member| !member.leads()).map(|member| member.leader())
    }

    /// Hands a received frame to stack `to`.
    pub(super) fn hand_over(&mut self, to: u8, frame: Mbuf) {
        let Some(member) = &mut self.member else { return };
        match member.hand(to, Handed::Frame(frame)) {
            Ok(()) => self.counters.handed_over += 1,
            Err(_lost) => self.counters.handed_over_dropped += 1,
        }
    }

    /// Like [`hand_over`](Self::hand_over), for a TCP segment whose checksum was verified.
    pub(super) fn hand_over_verified(&mut self, to: u8, mut frame: Mbuf) {
        if frame.rx_checksum() == Checksum::Unknown {
            frame.set_rx_checksum(Checksum::Good);
        }
        self.hand_over(to, frame);
    }

    /// Claims a 4-tuple for this stack.
    ///
    /// # Errors
    /// [`ClaimError::Taken`] if a stack of the host has the 4-tuple or one with the same hash, or claims it
    /// at the same time. [`ClaimError::Full`] if the flow table has no free entry for the 4-tuple.
    pub(super) fn claim(&self, tuple: &FourTuple) -> Result<(), ClaimError> {
        self.member.as_ref().map_or(Ok(()), |member| member.claim(tuple))
    }

    /// Whether the device is expected to put frames of this connection into our queue. True if the device's
    /// rule is not known.
    pub(super) fn arrives_here(&self, tuple: &FourTuple) -> bool {
        self.member.as_ref().is_none_or(|member| member.arrives_here(tuple))
    }
}
