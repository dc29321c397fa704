//! The entry points for a received ULPDU, and the fast path.
//!
//! The engine passes a ULPDU that the deframer finds whole and in order in one segment of a received buffer
//! to [`deliver_usual`](Delivery::deliver_usual), and other ULPDUs to [`Delivery::deliver`]. Most ULPDUs take
//! the fast path. All others take the general path, [`deliver_any`](Delivery::deliver_any), which alone
//! reports errors. For a ULPDU that both paths accept, they have the same result (`tests.rs` compares them).

use dp::profile::{self, Layer};

use crate::ddp::{TaggedHeader, UntaggedHeader};
use crate::memory::{Access, Stag};
use crate::mpa::{Deframed, Ulpdu};
use crate::queues::WcOpcode;
use crate::rdmap::Opcode;

use super::{Delivery, Failure, NextSend};

/// The control bytes of DDP and RDMAP of a segment of an RDMA Write, without the last-segment bit.
const WRITE_CONTROL: [u8; 2] = {
    let header = Opcode::Write.tagged_header(Stag(0), 0, false);
    let [_, _, ddp, rdmap, ..] = header.to_words().first.to_be_bytes();
    [ddp, rdmap]
};

/// The control bytes of DDP and RDMAP of a Send that has one segment.
const SEND_CONTROL: [u8; 2] = {
    let rsvd_ulp = [Opcode::Send.control_byte(), 0, 0, 0, 0];
    let header = UntaggedHeader { last: true, rsvd_ulp, qn: 0, msn: 0, mo: 0 };
    let [_, _, ddp, rdmap, ..] = header.to_words().first.to_be_bytes();
    [ddp, rdmap]
};

impl Delivery<'_> {
    /// Handles a received ULPDU. A ULPDU in order is placed, unless it was placed before, and delivered. An
    /// out-of-order ULPDU of a Write, a Read Response or a Send is placed if all its checks pass; nothing is
    /// delivered, and no error is reported. Returns whether an out-of-order ULPDU was placed.
    pub(crate) fn deliver(&mut self, received: Deframed<'_>) -> Result<bool, Failure> {
        if let Deframed::InOrder(ulpdu) = received
            && let Some(bytes) = ulpdu.whole()
        {
            return self.deliver_usual(ulpdu.position(), bytes).map(|()| false);
        }
        self.deliver_any(received)
    }

    /// As [`deliver`](Self::deliver), for a ULPDU that is in order and contiguous. Its length field is at
    /// `position`. The fast path accepts a segment of a Write, and a Send of one segment that is empty or
    /// whose receive request has one element. Any other ULPDU, and a ULPDU that fails a check, takes the
    /// general path, [`deliver_any`](Self::deliver_any). In that case the fast path has counted and delivered
    /// nothing. The general path repeats the other steps without a further effect.
    #[inline(always)]
    pub(crate) fn deliver_usual(&mut self, position: u64, ulpdu: &[u8]) -> Result<(), Failure> {
        if self.write_whole(ulpdu) { Ok(()) } else { self.deliver_unwritten(position, ulpdu) }
    }

    /// The part of [`deliver_usual`](Self::deliver_usual) for all ULPDUs except usual segments of Writes.
    /// Never inlined, so that it does not slow down segments of Writes.
    #[inline(never)]
    fn deliver_unwritten(&mut self, position: u64, ulpdu: &[u8]) -> Result<(), Failure> {
        if self.send_whole(ulpdu) {
            return Ok(());
        }
        self.deliver_any(Deframed::InOrder(Ulpdu::in_one_run(position, ulpdu))).map(drop)
    }

    /// [`deliver_usual`](Self::deliver_usual) for a segment of a Write. Returns whether the segment was
    /// accepted. A zero-length Write needs no right: if this function refuses such a Write, the general path
    /// accepts it.
    #[inline(always)]
    fn write_whole(&mut self, ulpdu: &[u8]) -> bool {
        let Some((header, payload)) = ulpdu.split_first_chunk() else { return false };
        let [ddp, rdmap, s0, s1, s2, s3, to @ ..]: [u8; TaggedHeader::LEN] = *header;
        if [ddp & !TaggedHeader::LAST, rdmap] != WRITE_CONTROL {
            return false;
        }
        let stag = Stag(u32::from_be_bytes([s0, s1, s2, s3]));
        if !self.admits(Access::REMOTE_WRITE) || self.inbound.next_send != NextSend::UserMessage {
            return false;
        }
        let (to, len) = (u64::from_be_bytes(to), payload.len() as u64);
        let placed = profile::within(Layer::Place, || {
            self.guard
                .check_write(stag, to, len, self.state.by)
                .is_ok_and(|target| target.place(0, payload).is_ok())
        });
        if placed {
            self.counters.rx_fpdus += 1;
            self.counters.rx_placed_bytes += len;
            *self.may_send = true;
        }
        placed
    }

    /// [`deliver_usual`](Self::deliver_usual) for a Send. Returns whether the Send was accepted. If this
    /// function refuses a Send, it may already have bound a receive request, or processed the Send's limit.
    /// When the general path repeats these steps, they have no effect.
    #[inline]
    fn send_whole(&mut self, ulpdu: &[u8]) -> bool {
        match self.state.rules.have_queue_4() {
            false => self.send_whole_by::<false>(ulpdu),
            true => self.send_whole_by::<true>(ulpdu),
        }
    }

    /// [`send_whole`](Self::send_whole) by iWARP's rules, or with InfiniBand's semantics if `IB` is true.
    #[inline(always)]
    fn send_whole_by<const IB: bool>(&mut self, ulpdu: &[u8]) -> bool {
        let Some((header, payload)) = ulpdu.split_first_chunk() else { return false };
        let [ddp, rdmap, l0, l1, l2, l3, qn @ .., m0, m1, m2, m3, o0, o1, o2, o3]: [u8; UntaggedHeader::LEN] =
            *header;
        let msn = u32::from_be_bytes([m0, m1, m2, m3]);
        let is_usual = [ddp, rdmap] == SEND_CONTROL
            && qn == [0; 4]
            && [o0, o1, o2, o3] == [0; 4]
            && self.inbound.next_send == NextSend::UserMessage;
        if !is_usual {
            return false;
        }
        self.bind();
        if !self.inbound.queue_0.awaits_whole(msn) {
            return false;
        }
        // The limit may complete requests of ours. These requests complete before the receive: on InfiniBand,
        // the acknowledgement of a Send arrives before any answer to the Send.
        if IB {
            self.on_limit(u32::from_be_bytes([l0, l1, l2, l3]));
        }
        let Some(request) = self.state.consumer.recv() else { return false };
        let (wr_id, len) = (request.wr_id, payload.len() as u32);
        // RFC 5041 section 7.1 (DDP-163), RFC 5040 section 7.2 (RDMAP-332): DDP's checks pass before any byte
        // is placed.
        let (pd, guard) = (self.state.recv_pd, self.guard);
        let placed = match request.sg_list.as_slice() {
            _ if len == 0 => true,
            [sge] if len <= sge.length => profile::within(Layer::Place, || {
                guard
                    .check_sink(Stag(sge.lkey), sge.addr, u64::from(len), pd)
                    .is_ok_and(|target| target.place(0, payload).is_ok())
            }),
            _ => false,
        };
        if placed {
            self.inbound.queue_0.advance();
            if IB {
                self.on_taken(msn);
            }
            self.counters.rx_fpdus += 1;
            self.counters.rx_placed_bytes += u64::from(len);
            *self.may_send = true;
            // RFC 5040 sections 5.3 and 5.5 (RDMAP-239, RDMAP-275, RDMAP-276, RDMAP-288): the message is
            // delivered, so completions are in sending order.
            let completion = self.state.qp.receives.succeeded(wr_id, WcOpcode::Recv, len);
            if IB {
                self.state.complete_recv(completion);
            } else {
                self.state.consumer.complete_recv(&self.state.qp.receives, completion);
            }
        }
        placed
    }
}

#[cfg(test)]
mod tests;
