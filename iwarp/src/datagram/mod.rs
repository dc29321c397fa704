//! A queue pair of type UD in its engine: writes posted messages into packets, and delivers received messages
//! to receive requests. Each message is one packet ([`roce`](crate::roce)).
//!
//! A datagram may be lost, so a send completes as soon as its packet is written. A received message whose
//! Q_Key is wrong, which finds no receive request, or which is too long for its receive request is dropped
//! and counted, as devices do. With a shared receive queue, a message that is too long ends the queue pair:
//! its receive request was already taken from the other queue pairs.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::{EpochGuard, Fault, PdId, Stag};
use crate::queues::{
    AddressVector, Payload, Pending, PreparedPayload, QpConsumer, QpShared, RecvRequest, SendEntry,
    SendFlags, SendOp, Sge, WcOpcode, WcStatus, WorkCompletion, send_opcode,
};
use crate::roce::{self, DEFAULT_PKEY, GRH_BYTES, Qpn, UdSend};

/// A queue pair of type UD that is open in an engine. The value owns the queue pair's consumer.
pub(crate) struct DatagramQp {
    qp: Arc<QpShared>,
    consumer: QpConsumer,
    /// The empty queue for the records of started requests, which no datagram needs.
    records: VecDeque<Pending>,
    /// The number of the queue pair on the wire.
    number: Qpn,
    /// The protection domain of the buffers in receive requests.
    recv_pd: PdId,
    /// The packet sequence number of the next message.
    psn: u32,
}

/// The next message to send: its destination, and the number of bytes of its UDP payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) to: AddressVector,
    pub(crate) bytes: usize,
}

/// The result of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A receive request is complete.
    Delivered,
    /// The message was dropped: its Q_Key is not that of the queue pair.
    WrongQkey,
    /// The message was dropped: no receive request is posted.
    NotReady,
    /// The message was dropped: it is too long for its receive request, which the next message uses.
    TooLong,
    /// The receive request has failed, and the queue pair must end.
    Failed,
}

/// Why a message could not be written: its memory, or the fields of its request, are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidSend(pub(crate) WcStatus);

impl From<Fault> for InvalidSend {
    fn from(_: Fault) -> Self {
        Self(WcStatus::LocalProtectionError)
    }
}

impl DatagramQp {
    /// Takes the consumer of `qp`, which has `number` on the wire.
    pub(crate) fn new(qp: Arc<QpShared>, number: Qpn) -> Self {
        let recv_pd = qp.receives.shared_pd().unwrap_or(qp.config.pd.id());
        let (consumer, records) = qp.consumer.take();
        Self { consumer, records, qp, number, recv_pd, psn: 0 }
    }

    pub(crate) fn qp(&self) -> &Arc<QpShared> {
        &self.qp
    }

    /// Gives the consumer back, flushes all requests, and enters `Error`. `failure` is the status of the
    /// oldest send request, if this request has failed.
    pub(crate) fn end(mut self, failure: Option<InvalidSend>) {
        let cause = self.qp.state.cause();
        if let Some(InvalidSend(status)) = failure {
            self.consumer.fail_next_send(&self.qp.sends, &self.qp.signals, status, cause);
        }
        self.consumer.abandon_recvs(&self.qp.receives, cause);
        self.qp.consumer.put_back(self.consumer, self.records);
        self.qp.enter_error();
    }

    // ---- sending ----

    /// Returns the oldest request that may be sent; `None` if there is none, or if the send queue is held.
    pub(crate) fn next(&self) -> Option<Result<Outgoing, InvalidSend>> {
        let request = self.consumer.next_send()?;
        if self.qp.sends.is_held() {
            self.qp.sends.report_held(&self.qp.signals);
            return None;
        }
        match request.prepared {
            PreparedPayload::InvalidMemory => Some(Err(InvalidSend(WcStatus::LocalProtectionError))),
            PreparedPayload::InvalidLength => Some(Err(InvalidSend(WcStatus::LocalLengthError))),
            PreparedPayload::Unprepared | PreparedPayload::Registered(_) | PreparedPayload::Inline => Some(
                self.header_of(request)
                    .map(|(to, send)| Outgoing { to, bytes: send.frame_bytes(request.length as usize) }),
            ),
        }
    }

    /// Returns the destination and the headers of a request.
    fn header_of(&self, request: &SendEntry) -> Result<(AddressVector, UdSend), InvalidSend> {
        let invalid = InvalidSend(WcStatus::LocalQpOperationError);
        let SendOp::Datagram { to, remote_qpn, remote_qkey, immediate } = request.op else {
            return Err(invalid);
        };
        let send = UdSend {
            solicited: request.flags.contains(SendFlags::SOLICITED),
            pkey: DEFAULT_PKEY,
            dest_qp: Qpn::new(remote_qpn).ok_or(invalid)?,
            psn: self.psn,
            qkey: roce::effective_qkey(remote_qkey, self.qp.attributes.qkey()),
            src_qp: self.number,
            immediate,
        };
        Ok((to, send))
    }

    /// Writes the message of the [next](Self::next) request behind the IP and UDP headers of `packet`, which
    /// end at `at`, and completes the packet with its ICRC.
    pub(crate) fn write(
        &self,
        guard: &EpochGuard<'_>,
        packet: &mut [u8],
        at: usize,
    ) -> Result<(), InvalidSend> {
        let invalid = InvalidSend(WcStatus::LocalQpOperationError);
        let request = self.consumer.next_send().ok_or(invalid)?;
        let (_, send) = self.header_of(request)?;
        let udp_payload = &mut packet[at..];
        let payload = send.write(request.length as usize, udp_payload);
        let out = &mut udp_payload[payload];
        match &*request.payload {
            Payload::Inline(bytes) => out.copy_from_slice(bytes),
            Payload::Gather(sg_list) => gather(guard, self.qp.config.pd.id(), sg_list, out)?,
        }
        roce::seal(packet).map_err(|_| invalid)
    }

    /// Completes the oldest request, whose packet was written or dropped.
    pub(crate) fn complete_next(&mut self) {
        let Some(request) = self.consumer.next_send() else { return };
        let (wr_id, opcode) = (request.wr_id, send_opcode(&request.op));
        let signaled = request.flags.contains(SendFlags::SIGNALED);
        self.psn = self.psn.wrapping_add(1) & 0xFF_FFFF;
        self.consumer.remove_send();
        let completion = self.qp.sends.succeeded(wr_id, opcode, 0);
        self.consumer.complete_send(&self.qp.sends, &self.qp.signals, signaled, completion);
    }

    // ---- receiving ----

    /// Delivers a message, whose packet was checked, to the next receive request. `payload` is the range of
    /// the message in the IP packet.
    pub(crate) fn receive(
        &mut self,
        guard: &EpochGuard<'_>,
        packet: &[u8],
        send: &UdSend,
        payload: Range<usize>,
    ) -> Arrival {
        if send.qkey != self.qp.attributes.qkey() {
            return Arrival::WrongQkey;
        }
        let Self { qp, consumer, .. } = self;
        if consumer.taken_recvs() == 0 && !consumer.take_recv(&qp.receives, &qp.signals) {
            return Arrival::NotReady;
        }
        let Some(request) = consumer.recv() else { return Arrival::NotReady };
        let (wr_id, bytes) = (request.wr_id, GRH_BYTES + payload.len());
        if request.length() < bytes as u64 {
            if !qp.receives.are_shared() {
                return Arrival::TooLong;
            }
            let failed = qp.receives.failed(wr_id, WcStatus::LocalLengthError, None);
            consumer.complete_recv(&qp.receives, failed);
            return Arrival::Failed;
        }
        // A packet that was checked has an IP header.
        let Ok(grh) = roce::grh(packet) else { return Arrival::TooLong };
        let placed = scatter(guard, self.recv_pd, request, [&grh, &packet[payload]]);
        if placed.is_err() {
            let failed = qp.receives.failed(wr_id, WcStatus::LocalProtectionError, None);
            consumer.complete_recv(&qp.receives, failed);
            return Arrival::Failed;
        }
        let completion = qp.receives.succeeded(wr_id, WcOpcode::Recv, bytes as u32);
        let immediate = send.immediate.map(|[a, b, c, d]| [a, b, c, d, 0, 0, 0, 0]);
        let completion = WorkCompletion {
            immediate,
            solicited: send.solicited,
            source_qpn: send.src_qp.get(),
            is_ipv6: packet[0] >> 4 == 6,
            ..completion
        };
        consumer.complete_recv(&qp.receives, completion);
        Arrival::Delivered
    }
}

/// Copies the elements of a request to `out`, which has as many bytes.
fn gather(guard: &EpochGuard<'_>, pd: PdId, sg_list: &[Sge], mut out: &mut [u8]) -> Result<(), Fault> {
    for sge in sg_list {
        let (front, rest) = out.split_at_mut(sge.length as usize);
        guard.check_source(Stag(sge.lkey), sge.addr, u64::from(sge.length), pd)?.fetch(0, front)?;
        out = rest;
    }
    Ok(())
}

/// Places the pieces, one after the other, in the elements of a receive request, which have room for them.
fn scatter(guard: &EpochGuard<'_>, pd: PdId, request: &RecvRequest, pieces: [&[u8]; 2]) -> Result<(), Fault> {
    let mut elements = request.sg_list.iter();
    let mut room = Sge::default();
    for mut piece in pieces {
        while !piece.is_empty() {
            if room.length == 0 {
                room = *elements.next().ok_or(Fault::Bounds)?;
                continue;
            }
            let (front, rest) = piece.split_at(piece.len().min(room.length as usize));
            let bytes = front.len() as u64;
            guard.check_sink(Stag(room.lkey), room.addr, bytes, pd)?.place(0, front)?;
            room.addr += bytes;
            room.length -= front.len() as u32;
            piece = rest;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::{QpInit, QpType, SendRequest, test_objects};

    /// Bytes of the headers of IPv4 and UDP.
    const HEADERS: usize = 28;

    /// Each message has the next packet sequence number, which has 24 bits.
    #[test]
    fn messages_are_numbered() {
        let (resources, pd, cq) = test_objects();
        let init = QpInit { qp_type: QpType::Ud { max_message: 256 }, early_sends: true, ..QpInit::new(&cq) };
        let qp = QpShared::new(&pd, &init).unwrap();
        let op = SendOp::Datagram {
            to: AddressVector::new("10.0.0.2".parse().unwrap()),
            remote_qpn: 9,
            remote_qkey: 3,
            immediate: None,
        };
        (0..3).for_each(|wr_id| qp.queue_send(&SendRequest::empty(wr_id, op)).unwrap());
        let participant = resources.memory.join();
        let guard = participant.enter();
        let mut ud = DatagramQp::new(qp, Qpn::new(7).unwrap());
        ud.psn = 0xFF_FFFE;
        for psn in [0xFF_FFFE, 0xFF_FFFF, 0] {
            let Outgoing { bytes, .. } = ud.next().unwrap().unwrap();
            let mut packet = vec![0; HEADERS + bytes];
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&((HEADERS + bytes) as u16).to_be_bytes());
            packet[9] = 17;
            packet[24..26].copy_from_slice(&((8 + bytes) as u16).to_be_bytes());
            ud.write(&guard, &mut packet, HEADERS).unwrap();
            let (send, payload) = UdSend::of_packet(&packet).unwrap();
            assert_eq!((send.psn, send.qkey, send.src_qp.get(), send.dest_qp.get()), (psn, 3, 7, 9));
            assert!(payload.is_empty());
            ud.complete_next();
        }
        assert!(ud.next().is_none());
        drop(guard);
        ud.end(None);
    }
}
