//! Queue pair 1 of the device, by which connection managers exchange messages. The kernel owns this queue
//! pair on hardware, and the library owns it here: programs do not see it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use iwarp::memory::Access;
use iwarp::roce::{self, GRH_BYTES, GSI_QKEY, MAD_BYTES, Qpn, SidrMessage};
use iwarp::verbs::{
    AddressVector, CompletionQueue, Context, CqOptions, DatagramOptions, MemoryRegion, ProtectionDomain,
    QpInit, QpType, QueuePair, RecvRequest, SendOp, SendRequest, VerbsError, WcOpcode, WcStatus,
};

/// Number of posted receives. A message that finds no receive is lost, and its sender repeats it.
const RECEIVES: usize = 256;
/// Maximum number of messages that are posted and not sent yet.
const SENDS: usize = 64;
/// Number of bytes of a received message.
const RECEIVED_BYTES: usize = GRH_BYTES + MAD_BYTES;
/// Distance of the buffers of receives.
const STRIDE: usize = RECEIVED_BYTES.next_multiple_of(64);

pub(super) struct Gsi {
    qp: QueuePair,
    cq: CompletionQueue,
    received: MemoryRegion,
    sent: MemoryRegion,
    /// The buffers of `sent` that are free.
    free: Mutex<Vec<usize>>,
    /// Number of received datagrams that are no messages.
    ignored: AtomicU64,
}

impl Gsi {
    /// Opens the queue pair, and posts its receives.
    pub(super) fn open(context: &Context, pd: &ProtectionDomain) -> Result<Self, VerbsError> {
        let cq = context.create_cq_with(&CqOptions::new(RECEIVES + SENDS))?;
        let init = QpInit {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            qp_type: QpType::Ud { max_message: MAD_BYTES as u16 },
            early_sends: true,
            ..QpInit::new(&cq)
        };
        let gsi = Self {
            qp: pd.create_qp(&init)?,
            received: pd.reg_mr(RECEIVES * STRIDE, Access::LOCAL_WRITE)?,
            sent: pd.reg_mr(SENDS * MAD_BYTES, Access::LOCAL_WRITE)?,
            free: Mutex::new((0..SENDS).collect()),
            ignored: AtomicU64::new(0),
            cq,
        };
        for buffer in 0..RECEIVES {
            gsi.post_receive(buffer)?;
        }
        let options =
            DatagramOptions { number: Some(Qpn::GSI.get()), qkey: GSI_QKEY, ..DatagramOptions::default() };
        context.open_datagrams(&gsi.qp, &options)?;
        Ok(gsi)
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().expect("no holder of this lock panics")
    }

    fn post_receive(&self, buffer: usize) -> Result<(), VerbsError> {
        let sge = self.received.sge(buffer * STRIDE, RECEIVED_BYTES);
        self.qp.post_recv(&RecvRequest::new(buffer as u64, sge))
    }

    /// Whether a completion waits for [`poll`](Self::poll).
    #[inline]
    pub(super) fn has_completions(&self) -> bool {
        !self.cq.is_empty()
    }

    /// Passes the messages that have arrived to `take`, each with the address on the wire of its sender.
    pub(super) fn poll(&self, mut take: impl FnMut(IpAddr, &SidrMessage)) {
        for _ in 0..RECEIVES + SENDS {
            let Some(completion) = self.cq.poll_one() else { return };
            let buffer = completion.wr_id as usize;
            if completion.opcode != WcOpcode::Recv {
                self.free().push(buffer);
                continue;
            }
            if completion.status != WcStatus::Success {
                continue;
            }
            match self.message_in(buffer, completion.byte_len as usize) {
                Some((from, message)) => take(from, &message),
                None => _ = self.ignored.fetch_add(1, Ordering::Relaxed),
            }
            // A receive is refused only if the queue pair has ended.
            let _ = self.post_receive(buffer);
        }
    }

    /// Returns the message in a buffer of `bytes` bytes, and the address of its sender.
    fn message_in(&self, buffer: usize, bytes: usize) -> Option<(IpAddr, SidrMessage)> {
        let mut datagram = [0; RECEIVED_BYTES];
        let datagram = datagram.get_mut(..bytes)?;
        self.received.read_at(buffer * STRIDE, datagram).ok()?;
        let (grh, payload) = datagram.split_first_chunk()?;
        Some((roce::source_of(grh)?.source, SidrMessage::parse(payload).ok()?))
    }

    /// Posts a message. If no buffer is free, the message is lost, as if the wire had lost it.
    pub(super) fn send(&self, to: IpAddr, mad: &[u8; MAD_BYTES]) {
        let Some(buffer) = self.free().pop() else { return };
        let op = SendOp::Datagram {
            to: AddressVector::new(to),
            remote_qpn: Qpn::GSI.get(),
            remote_qkey: GSI_QKEY,
            immediate: None,
        };
        let at = buffer * MAD_BYTES;
        let posted = self.sent.write_at(at, mad).and_then(|()| {
            self.qp.post_send(&SendRequest::new(buffer as u64, op, self.sent.sge(at, MAD_BYTES)))
        });
        if posted.is_err() {
            self.free().push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use dp::link::{LinkConfig, pair};
    use iwarp::engine::{Engine, EngineConfig};
    use iwarp::roce::{SidrReply, SidrRequest};
    use iwarp::verbs::{ContextConfig, SendFlags};

    use super::*;

    struct Host {
        context: Context,
        pd: ProtectionDomain,
        gsi: Gsi,
        engine: Engine,
    }

    fn hosts() -> [Host; 2] {
        let (left, right) = pair(&LinkConfig::default());
        let host = |port: Box<dyn dp::Port>, address| {
            let context = Context::new(ContextConfig::default()).unwrap();
            let config = EngineConfig::new(&*port, &[address]).unwrap();
            let engine = Engine::new(&context, port, config).unwrap();
            let pd = context.alloc_pd().unwrap();
            Host { gsi: Gsi::open(&context, &pd).unwrap(), context, pd, engine }
        };
        [host(left, "10.0.0.1/24"), host(right, "10.0.0.2/24")]
    }

    /// Polls until the second host has a message, or for some time if there is none.
    fn exchange(hosts: &mut [Host; 2]) -> Vec<(IpAddr, SidrMessage)> {
        let mut found = Vec::new();
        for _ in 0..2000 {
            for host in hosts.iter_mut() {
                host.engine.poll();
                host.gsi.poll(|from, message| found.push((from, *message)));
            }
        }
        found
    }

    #[test]
    fn messages_pass_between_the_queue_pairs_1_of_two_hosts() {
        let mut hosts = hosts();
        let request = SidrRequest { request_id: 7, ..SidrRequest::of_port(5) };
        let [ours, theirs]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        // More messages than buffers, and the receives are posted again.
        for _ in 0..2 * RECEIVES / SENDS {
            (0..SENDS).for_each(|_| hosts[0].gsi.send(theirs, &request.to_bytes()));
            let found = exchange(&mut hosts);
            assert_eq!(found.len(), SENDS);
            assert!(found.iter().all(|message| *message == (ours, SidrMessage::Request(request))));
        }
        let reply = request.refusal(SidrReply::UNSUPPORTED);
        hosts[1].gsi.send(ours, &reply.to_bytes());
        assert_eq!(exchange(&mut hosts), [(theirs, SidrMessage::Reply(reply))]);
        assert!(hosts.iter().all(|host| host.gsi.free().len() == SENDS && !host.gsi.has_completions()));
    }

    #[test]
    fn a_message_without_a_buffer_is_lost() {
        let mut hosts = hosts();
        let [first, _] = &hosts;
        let mad = SidrRequest::of_port(5).to_bytes();
        (0..SENDS + 5).for_each(|_| first.gsi.send("10.0.0.2".parse().unwrap(), &mad));
        assert_eq!(exchange(&mut hosts).len(), SENDS);
    }

    #[test]
    fn datagrams_that_are_no_messages_are_counted_and_dropped() {
        let mut hosts = hosts();
        let cq = hosts[0].context.create_cq_with(&CqOptions::new(16)).unwrap();
        let init = QpInit { qp_type: QpType::Ud { max_message: 512 }, ..QpInit::new(&cq) };
        let qp = hosts[0].pd.create_qp(&init).unwrap();
        let options = DatagramOptions { qkey: GSI_QKEY, ..DatagramOptions::default() };
        hosts[0].context.open_datagrams(&qp, &options).unwrap();
        exchange(&mut hosts);
        let memory = hosts[0].pd.reg_mr(MAD_BYTES, Access::LOCAL_WRITE).unwrap();
        memory.write_at(0, &[1, 7, 2, 3]).unwrap();
        let op = SendOp::Datagram {
            to: AddressVector::new("10.0.0.2".parse().unwrap()),
            remote_qpn: 1,
            remote_qkey: GSI_QKEY,
            immediate: None,
        };
        for bytes in [0, 4, 255, 256] {
            let request = SendRequest::new(9, op, memory.sge(0, bytes)).flags(SendFlags::SIGNALED);
            qp.post_send(&request).unwrap();
        }
        assert!(exchange(&mut hosts).is_empty());
        assert_eq!(hosts[1].gsi.ignored.load(Ordering::Relaxed), 4);
    }
}
