//! Queue pairs of type UD: two engines exchange datagrams.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dp::link::{self, LinkConfig};
use dp::{Below, Burst, Link, Port, PortBase, PortLayer, Sleep, Statistics};
use hosts::{ALL, Host, Pair};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::verbs::{
    AddressVector, AsyncEventKind, Context, ContextConfig, DatagramOptions, MemoryRegion, QpInit, QpState,
    QpType, QueuePair, RecvRequest, SendFlags, SendOp, SendRequest, SharedReceiveQueue, SrqInit, VerbsError,
    WcOpcode, WcStatus, WorkCompletion,
};

const QKEY: u32 = 0x1234;
const MAX_MESSAGE: u16 = 1024;
/// The bytes before the message in a receive buffer.
const GRH: usize = 40;
const GROUP: &str = "239.1.2.3";

/// A host's queue pair of datagrams, with a region: messages are sent from the first half, and received in
/// the second half.
struct End {
    qp: QueuePair,
    region: MemoryRegion,
    number: u32,
}

const HALF: usize = 8192;

fn ud_init(host: &Host) -> QpInit<'_> {
    QpInit { qp_type: QpType::Ud { max_message: MAX_MESSAGE }, ..QpInit::new(&host.cq) }
}

fn end_of(host: &Host, init: &QpInit<'_>, number: u32) -> End {
    let qp = host.pd.create_qp(init).unwrap();
    let options = DatagramOptions { number: Some(number), qkey: QKEY, ..DatagramOptions::default() };
    host.context.open_datagrams(&qp, &options).unwrap();
    End { qp, region: host.pd.reg_mr(2 * HALF, ALL).unwrap(), number }
}

fn end(host: &Host, number: u32) -> End {
    end_of(host, &ud_init(host), number)
}

/// Two hosts, each with one queue pair that is open.
fn ends() -> (Pair, End, End) {
    let mut pair = Pair::new(&LinkConfig::default());
    let (a, b) = (end(&pair.a, 0x10), end(&pair.b, 0x20));
    pair.run_us(10);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    (pair, a, b)
}

impl End {
    /// Posts a receive of `len` bytes at `offset` of the region's second half.
    fn recv(&self, wr_id: u64, offset: usize, len: usize) {
        self.qp.post_recv(&RecvRequest::new(wr_id, self.region.sge(HALF + offset, len))).unwrap();
    }

    /// Returns `len` bytes at `offset` of the region's second half.
    fn received(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(HALF + offset, &mut bytes).unwrap();
        bytes
    }

    /// A request that sends `len` bytes at the front of the region.
    fn request(&self, wr_id: u64, op: SendOp, len: usize) -> SendRequest {
        SendRequest::new(wr_id, op, self.region.sge(0, len))
    }
}

fn to(address: &str, remote_qpn: u32) -> SendOp {
    let to = AddressVector::new(address.parse().unwrap());
    SendOp::Datagram { to, remote_qpn, remote_qkey: QKEY, immediate: None }
}

fn succeeded(wc: &WorkCompletion, wr_id: u64, opcode: WcOpcode) {
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, WcStatus::Success, opcode), "{wc:?}");
}

/// A message arrives with its GRH, over IPv4 and IPv6. Both users get completions, and the receiver learns
/// the sender's number.
#[test]
fn a_message_arrives_behind_its_grh() {
    let (mut pair, a, b) = ends();
    a.region.write_at(0, &[7; 100]).unwrap();
    for (wr_id, address) in [(1, "10.0.0.2"), (2, "fd00::2")] {
        b.recv(wr_id, 0, 200);
        let vector = AddressVector {
            traffic_class: 0x20,
            hop_limit: 9,
            flow_label: 0x54321,
            ..AddressVector::new(address.parse().unwrap())
        };
        let op = SendOp::Datagram { to: vector, remote_qpn: b.number, remote_qkey: QKEY, immediate: None };
        a.qp.post_send(&a.request(wr_id + 10, op, 99)).unwrap();
        let wc = pair.wc_b();
        succeeded(&wc, wr_id, WcOpcode::Recv);
        assert_eq!((wc.byte_len as usize, wc.source_qpn, wc.immediate), (GRH + 99, a.number, None));
        assert_eq!(wc.is_ipv6, address.contains(':'));
        let wc = pair.wc_a();
        succeeded(&wc, wr_id + 10, WcOpcode::Send);
        assert_eq!(wc.source_qpn, 0);
        let bytes = b.received(0, GRH + 100);
        assert_eq!(bytes[GRH..], [&[7; 99][..], &[0]].concat());
        let grh = bytes[..GRH].try_into().unwrap();
        let source = iwarp::roce::source_of(&grh).unwrap();
        let expected: [IpAddr; 2] = match wr_id {
            1 => ["10.0.0.1", "10.0.0.2"].map(|it| it.parse().unwrap()),
            _ => ["fd00::1", "fd00::2"].map(|it| it.parse().unwrap()),
        };
        assert_eq!([source.source, source.destination], expected);
        assert_eq!((source.traffic_class, source.hop_limit), (0x20, 9));
        assert_eq!(source.flow_label, if wr_id == 2 { 0x54321 } else { 0 });
    }
    let (of_a, of_b) = (pair.a.engine.counters(), pair.b.engine.counters());
    assert_eq!((of_a.tx_ud, of_a.tx_ud_dropped, of_b.rx_ud), (2, 0, 2));
}

/// Inline bytes, several elements at both ends, immediate data, the solicited bit, and an empty message.
#[test]
fn all_forms_of_messages_arrive() {
    let (mut pair, a, b) = ends();
    let bytes: Vec<u8> = (0..200).collect();
    a.region.write_at(0, &bytes).unwrap();
    let elements = [(0, 40), (40, 3), (50, 60), (200, 500)];
    let mut recv = RecvRequest { wr_id: 1, ..RecvRequest::default() };
    recv.sg_list.extend(elements.map(|(offset, len)| b.region.sge(HALF + offset, len)));
    b.qp.post_recv(&recv).unwrap();
    let mut request = a.request(11, to("10.0.0.2", b.number), 33);
    request.sg_list.extend([a.region.sge(33, 0), a.region.sge(33, 67)]);
    a.qp.post_send(&request).unwrap();
    let wc = pair.wc_b();
    succeeded(&wc, 1, WcOpcode::Recv);
    assert_eq!((wc.byte_len, wc.solicited), (140, false));
    let placed = [b.received(40, 3), b.received(50, 60), b.received(200, 37)].concat();
    assert_eq!(placed, bytes[..100]);
    succeeded(&pair.wc_a(), 11, WcOpcode::Send);

    let vector = AddressVector::new("10.0.0.2".parse().unwrap());
    let op = SendOp::Datagram {
        to: vector,
        remote_qpn: b.number,
        // The highest bit selects the sender's own Q_Key.
        remote_qkey: 0x8000_0000,
        immediate: Some([1, 2, 3, 4]),
    };
    b.recv(2, 0, 300);
    let flags = SendFlags::INLINE | SendFlags::SOLICITED;
    a.qp.post_send(&a.request(12, op, 50).flags(flags)).unwrap();
    let wc = pair.wc_b();
    succeeded(&wc, 2, WcOpcode::Recv);
    assert_eq!((wc.byte_len, wc.solicited, wc.immediate), (90, true, Some([1, 2, 3, 4, 0, 0, 0, 0])));
    assert_eq!(b.received(GRH, 50), bytes[..50]);

    b.recv(3, 0, GRH);
    a.qp.post_send(&SendRequest::empty(13, to("10.0.0.2", b.number))).unwrap();
    let wc = pair.wc_b();
    assert_eq!((wc.wr_id, wc.byte_len), (3, GRH as u32));
    // The inline request generates no completion.
    succeeded(&pair.wc_a(), 13, WcOpcode::Send);
}

/// Datagrams that no queue pair takes are dropped and counted: a wrong Q_Key, an unknown number, no receive
/// request, a receive request that is too short. The sends succeed, and the queue pairs stay usable. A
/// receive request that is too short is used by the next message that fits.
#[test]
fn a_datagram_that_finds_no_place_is_dropped_and_counted() {
    let (mut pair, a, b) = ends();
    let send = |wr_id, remote_qpn, remote_qkey, len| {
        let vector = AddressVector::new("10.0.0.2".parse().unwrap());
        let op = SendOp::Datagram { to: vector, remote_qpn, remote_qkey, immediate: None };
        a.qp.post_send(&a.request(wr_id, op, len)).unwrap();
    };
    send(1, b.number, QKEY, 10);
    succeeded(&pair.wc_a(), 1, WcOpcode::Send);
    pair.run_us(1000);
    b.recv(5, 0, 100);
    for (wr_id, remote_qpn, qkey, len) in
        [(2, b.number, QKEY + 1, 10), (3, b.number + 1, QKEY, 10), (4, b.number, QKEY, 61)]
    {
        send(wr_id, remote_qpn, qkey, len);
        succeeded(&pair.wc_a(), wr_id, WcOpcode::Send);
    }
    send(5, b.number, QKEY, 60);
    succeeded(&pair.wc_b(), 5, WcOpcode::Recv);
    let counters = pair.b.engine.counters();
    assert_eq!((counters.rx_ud, counters.rx_ud_refused, counters.rx_ud_not_ready), (1, 2, 2));
    // No route leads to this host.
    a.qp.post_send(&a.request(6, to("192.0.2.1", b.number), 1)).unwrap();
    assert_eq!(
        [pair.wc_a(), pair.wc_a()].map(|wc| (wc.wr_id, wc.status)),
        [5, 6].map(|id| (id, WcStatus::Success))
    );
    assert_eq!(pair.a.engine.counters().tx_ud_dropped, 1);
    b.qp.set_qkey(QKEY + 1);
    b.recv(7, 0, 100);
    send(7, b.number, QKEY, 1);
    send(8, b.number, QKEY + 1, 1);
    succeeded(&pair.wc_b(), 7, WcOpcode::Recv);
    assert_eq!(pair.b.engine.counters().rx_ud_refused, 3);
}

/// A message has at most one path MTU, and only datagrams can be posted on a queue pair of type UD.
#[test]
fn requests_that_are_no_datagrams_are_refused() {
    let (mut pair, a, b) = ends();
    let longest = usize::from(MAX_MESSAGE);
    let long = a.qp.post_send(&a.request(1, to("10.0.0.2", b.number), longest + 1));
    assert!(matches!(long, Err(VerbsError::TooLong { got: 1025, max: 1024 })), "{long:?}");
    for op in [SendOp::Send, SendOp::LocalInvalidate { rkey: 1 }, SendOp::SendImmediate { data: [0; 4] }] {
        let refused = a.qp.post_send(&a.request(1, op, 1));
        assert!(matches!(refused, Err(VerbsError::Invalid(_))), "{op:?}: {refused:?}");
    }
    let (connected, c) = Pair::connected();
    let refused = c.qp_a.post_send(&SendRequest::empty(1, to("10.0.0.2", b.number)));
    assert!(matches!(refused, Err(VerbsError::Invalid(_))), "{refused:?}");
    drop(connected);
    assert!(matches!(a.qp.modify(QpState::Closing), Err(VerbsError::InvalidState(QpState::Rts))));
    b.recv(1, 0, GRH + longest);
    a.qp.post_send(&a.request(2, to("10.0.0.2", b.number), longest)).unwrap();
    assert_eq!(pair.wc_b().byte_len as usize, GRH + longest);
}

/// Requests that were posted before the queue pair was opened, and many requests at once, are sent in order.
#[test]
fn many_messages_are_sent_in_order() {
    let mut pair = Pair::new(&LinkConfig::default());
    let init = QpInit { max_send_wr: 300, max_recv_wr: 300, early_sends: true, ..ud_init(&pair.a) };
    let a = pair.a.pd.create_qp(&init).unwrap();
    let b = end_of(&pair.b, &QpInit { max_recv_wr: 300, ..ud_init(&pair.b) }, 0x20);
    (0..300).for_each(|wr_id| b.recv(wr_id, 0, 100));
    let region = pair.a.pd.reg_mr(64, ALL).unwrap();
    for wr_id in 0..300 {
        let request = SendRequest::new(wr_id, to("10.0.0.2", 0x20), region.sge(0, 8));
        let flags = if wr_id == 299 { SendFlags::SIGNALED } else { SendFlags::empty() };
        a.post_send(&request.flags(flags)).unwrap();
        if wr_id == 100 {
            let options = DatagramOptions { number: Some(0x10), qkey: QKEY, ..DatagramOptions::default() };
            pair.a.context.open_datagrams(&a, &options).unwrap();
        }
    }
    for wr_id in 0..300 {
        succeeded(&pair.wc_b(), wr_id, WcOpcode::Recv);
    }
    succeeded(&pair.wc_a(), 299, WcOpcode::Send);
    assert!(pair.a.cq.is_empty());
    pair.run_us(1_000_000);
    assert!(pair.is_asleep() || pair.a.engine.counters().tx_ud == 300);
}

/// All queue pairs that are attached to a group get a message to it, with a receive request each; others do
/// not.
#[test]
fn a_message_to_a_group_reaches_its_members() {
    let (mut pair, a, b) = ends();
    let group: IpAddr = GROUP.parse().unwrap();
    let others = [0x21, 0x22].map(|number| end(&pair.b, number));
    pair.run_us(10);
    pair.b.context.attach_group(&b.qp, group).unwrap();
    pair.b.context.attach_group(&others[0].qp, group).unwrap();
    let refused = pair.b.context.attach_group(&b.qp, "10.0.0.9".parse().unwrap());
    assert!(matches!(refused, Err(VerbsError::Invalid(_))));
    for (wr_id, end) in (1..).zip([&b, &others[0], &others[1]]) {
        end.recv(wr_id, 0, 200);
        end.recv(wr_id + 10, 0, 200);
    }
    pair.run_us(10);
    let multicast = || a.request(1, to(GROUP, 0xFF_FFFF), 30);
    a.qp.post_send(&multicast()).unwrap();
    assert_eq!([pair.wc_b(), pair.wc_b()].map(|wc| (wc.wr_id, wc.byte_len)), [(1, 70), (2, 70)]);
    pair.b.context.detach_group(&b.qp, group).unwrap();
    pair.run_us(10);
    a.qp.post_send(&multicast()).unwrap();
    assert_eq!(pair.wc_b().wr_id, 12);
    // A message to the group's address with the number of one queue pair is not valid.
    a.qp.post_send(&a.request(2, to(GROUP, 0x21), 30)).unwrap();
    pair.run_us(1000);
    assert_eq!(pair.b.engine.counters().rx_ud_invalid, 1);
    // The last member that ends leaves the group.
    drop(others);
    pair.run_us(10);
    a.qp.post_send(&multicast()).unwrap();
    pair.run_us(1000);
    let counters = pair.b.engine.counters();
    assert_eq!((counters.rx_ud, counters.stack.rx_datagram_dropped), (3, 1));
}

/// A port that records the groups that its engine sets.
struct Listening {
    below: Box<dyn Port>,
    set: Arc<Mutex<Vec<Vec<IpAddr>>>>,
}

impl PortLayer for Listening {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.below)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.below)
    }
}

impl Port for Listening {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.below.rx_burst(now_us, frames)
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.below.tx_burst(now_us, frames)
    }

    fn set_groups(&mut self, groups: &[IpAddr]) -> std::io::Result<()> {
        self.set.lock().unwrap().push(groups.to_vec());
        self.below.set_groups(groups)
    }
}

impl Link for Listening {}
impl Sleep for Listening {}
impl Statistics for Listening {}

/// The port receives the groups of all queue pairs, until the last member has detached or ended.
#[test]
fn the_port_receives_the_groups_of_queue_pairs() {
    let (port_a, below) = link::pair(&LinkConfig::default());
    let set = Arc::default();
    let port_b = Box::new(Listening { below, set: Arc::clone(&set) });
    let mut pair = Pair::over((port_a, port_b), &ContextConfig::default(), |_| {});
    let ends = [0x20, 0x21].map(|number| end(&pair.b, number));
    let groups: [IpAddr; 2] = [GROUP, "ff15::7"].map(|it| it.parse().unwrap());
    let taken = |pair: &mut Pair| {
        // The engine looks at its link, and at the members that have ended, every few milliseconds.
        pair.run_us(100_000);
        set.lock().unwrap().drain(..).next_back()
    };
    assert_eq!(taken(&mut pair), None);
    for end in &ends {
        pair.b.context.attach_group(&end.qp, groups[0]).unwrap();
    }
    assert_eq!(taken(&mut pair), Some(vec![groups[0]]));
    pair.b.context.attach_group(&ends[1].qp, groups[1]).unwrap();
    assert_eq!(taken(&mut pair), Some(groups.to_vec()));
    pair.b.context.detach_group(&ends[0].qp, groups[0]).unwrap();
    assert_eq!(taken(&mut pair), Some(groups.to_vec()));
    pair.b.context.detach_group(&ends[1].qp, groups[0]).unwrap();
    assert_eq!(taken(&mut pair), Some(vec![groups[1]]));
    drop(ends);
    assert_eq!(taken(&mut pair), Some(vec![]));
}

/// Datagrams wait until the Ethernet address of their next hop is known, however many there are. Queue pairs
/// with other destinations do not wait for them.
#[test]
fn a_burst_waits_for_an_unknown_neighbor() {
    const BURST: u64 = 128;
    let (mut pair, a, b) = ends();
    let beside = end(&pair.a, 0x11);
    for wr_id in 0..BURST {
        b.recv(wr_id, 0, GRH + 1);
        a.qp.post_send(&a.request(wr_id, to("10.0.0.2", b.number), 1)).unwrap();
    }
    for wr_id in 0..BURST {
        succeeded(&pair.wc_b(), wr_id, WcOpcode::Recv);
        succeeded(&pair.wc_a(), wr_id, WcOpcode::Send);
    }
    // No host has this address.
    let waiting: Vec<End> = (0x30..0x40).map(|number| end(&pair.a, number)).collect();
    pair.run_us(10);
    for wr_id in 0..BURST {
        let sender = &waiting[wr_id as usize % waiting.len()];
        sender.qp.post_send(&sender.request(wr_id, to("10.0.0.9", b.number), 1)).unwrap();
    }
    // The engine's pauses between its attempts are longer now than the wait that is checked below.
    pair.run_us(2000);
    b.recv(1, 0, GRH + 1);
    let began_us = pair.now_us;
    beside.qp.post_send(&beside.request(1, to("10.0.0.2", b.number), 1)).unwrap();
    succeeded(&pair.wc_b(), 1, WcOpcode::Recv);
    let waited_us = pair.now_us - began_us;
    let counters = |pair: &Pair| pair.a.engine.counters();
    assert_eq!((counters(&pair).tx_ud, counters(&pair).stack.tx_datagram_dropped), (BURST + 64 + 1, 0));
    assert!(waited_us < 100, "{waited_us} us");
    pair.run_us(4_000_000);
    assert_eq!((counters(&pair).tx_ud, counters(&pair).stack.tx_datagram_dropped), (2 * BURST + 1, BURST));
}

/// A message to a group also reaches the members on the sender's own host. The sender is one of these
/// members, unless its queue pair excludes its own messages.
#[test]
fn a_message_to_a_group_reaches_members_on_the_senders_host() {
    for own_multicast in [true, false] {
        let mut pair = Pair::new(&LinkConfig::default());
        let a = end_of(&pair.a, &QpInit { own_multicast, ..ud_init(&pair.a) }, 0x10);
        let (beside, b) = (end(&pair.a, 0x11), end(&pair.b, 0x20));
        let group: IpAddr = GROUP.parse().unwrap();
        pair.run_us(10);
        for qp in [&a.qp, &beside.qp] {
            pair.a.context.attach_group(qp, group).unwrap();
        }
        pair.b.context.attach_group(&b.qp, group).unwrap();
        pair.run_us(10);
        a.region.write_at(0, &[9; 30]).unwrap();
        for (wr_id, end) in (1..).zip([&a, &beside, &b]) {
            end.recv(wr_id, 0, 200);
        }
        a.qp.post_send(&a.request(11, to(GROUP, 0xFF_FFFF), 30)).unwrap();
        assert_eq!(pair.wc_b().wr_id, 3);
        let mut next = || pair.wc_a();
        assert_eq!(next().wr_id, 11);
        if own_multicast {
            let wc = next();
            assert_eq!((wc.wr_id, wc.source_qpn), (1, a.number));
            assert_eq!(a.received(GRH, 30), [9; 30]);
        }
        let wc = next();
        assert_eq!((wc.wr_id, wc.source_qpn), (2, a.number));
        assert_eq!(beside.received(GRH, 30), [9; 30]);
        pair.run_us(1000);
        assert!(pair.a.cq.is_empty(), "each member gets one message");
    }
}

/// With a shared receive queue, a message takes a request of the queue. A message that is too long for it
/// fails the request, and ends the queue pair alone.
#[test]
fn a_shared_receive_queue_serves_datagrams() {
    let mut pair = Pair::new(&LinkConfig::default());
    let a = end(&pair.a, 0x10);
    let srq: SharedReceiveQueue = pair.b.pd.create_srq(&SrqInit::default()).unwrap();
    let [b, c] =
        [0x20, 0x30].map(|number| end_of(&pair.b, &QpInit { srq: Some(&srq), ..ud_init(&pair.b) }, number));
    pair.run_us(10);
    for (wr_id, len) in [(1, 100), (2, 41), (3, 100)] {
        srq.post_recv(&RecvRequest::new(wr_id, b.region.sge(HALF, len))).unwrap();
    }
    for (wr_id, end) in [(1, &b), (2, &c)] {
        a.qp.post_send(&a.request(wr_id, to("10.0.0.2", end.number), 2)).unwrap();
    }
    succeeded(&pair.wc_b(), 1, WcOpcode::Recv);
    let wc = pair.wc_b();
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (2, WcStatus::LocalLengthError, c.qp.qp_num()));
    assert_eq!((b.qp.state(), c.qp.state()), (QpState::Rts, QpState::Error));
    a.qp.post_send(&a.request(3, to("10.0.0.2", c.number), 2)).unwrap();
    a.qp.post_send(&a.request(4, to("10.0.0.2", b.number), 2)).unwrap();
    succeeded(&pair.wc_b(), 3, WcOpcode::Recv);
    assert_eq!(pair.b.engine.counters().rx_ud_refused, 1);
    let events: Vec<_> =
        std::iter::from_fn(|| pair.b.context.async_events().poll().unwrap()).map(|it| it.kind).collect();
    assert_eq!(events, [AsyncEventKind::LastWqeReached]);
}

/// When a queue pair ends, its requests are flushed, its number is free, and its datagrams are refused. A
/// number that is in use is refused.
#[test]
fn the_end_of_a_queue_pair_flushes_its_requests() {
    let (mut pair, a, b) = ends();
    let taken = end(&pair.b, b.number);
    pair.run_us(10);
    assert_eq!(taken.qp.state(), QpState::Error);
    // This receive request is too short for a message, and stays taken for the next message.
    b.recv(0, 0, GRH);
    a.qp.post_send(&a.request(1, to("10.0.0.2", b.number), 1)).unwrap();
    pair.run_us(1000);
    assert_eq!(pair.b.engine.counters().rx_ud_not_ready, 1);
    b.recv(1, 0, 100);
    b.qp.hold_sends();
    b.qp.post_send(&b.request(2, to("10.0.0.1", a.number), 1)).unwrap();
    pair.run_us(10);
    assert!(pair.b.cq.is_empty());
    b.qp.modify(QpState::Error).unwrap();
    let flushed = [(); 3].map(|()| pair.wc_b()).map(|wc| (wc.wr_id, wc.status));
    assert_eq!(flushed, [0, 2, 1].map(|wr_id| (wr_id, WcStatus::WrFlushError)));
    assert_eq!(b.qp.state(), QpState::Error);
    b.recv(3, 0, 100);
    assert_eq!(pair.wc_b().status, WcStatus::WrFlushError);
    let again = end(&pair.b, b.number);
    again.recv(4, 0, 100);
    pair.run_us(10);
    a.qp.post_send(&a.request(5, to("10.0.0.2", again.number), 1)).unwrap();
    succeeded(&pair.wc_b(), 4, WcOpcode::Recv);
    drop((b, again));
    pair.run_us(10);
    a.qp.post_send(&a.request(6, to("10.0.0.2", 0x20), 1)).unwrap();
    pair.run_us(1000);
    assert_eq!(pair.b.engine.counters().stack.rx_datagrams, 2, "the port is closed");
}

/// A request whose memory is gone fails, and ends the queue pair. A receive request whose memory is gone
/// fails when a message arrives.
#[test]
fn memory_that_is_gone_ends_the_queue_pair() {
    let (mut pair, a, b) = ends();
    let gone = pair.a.pd.reg_mr(64, ALL).unwrap();
    let sge = gone.sge(0, 8);
    a.qp.hold_sends();
    a.qp.post_send(&SendRequest::new(1, to("10.0.0.2", b.number), sge)).unwrap();
    a.qp.post_send(&a.request(2, to("10.0.0.2", b.number), 8)).unwrap();
    drop(gone);
    a.qp.resume_sends();
    assert_eq!(
        [pair.wc_a(), pair.wc_a()].map(|wc| wc.status),
        [WcStatus::LocalProtectionError, WcStatus::WrFlushError]
    );
    assert_eq!(a.qp.state(), QpState::Error);

    let (mut pair, a, b) = ends();
    let gone = pair.b.pd.reg_mr(100, ALL).unwrap();
    b.qp.post_recv(&RecvRequest::new(1, gone.sge(0, 100))).unwrap();
    drop(gone);
    a.qp.post_send(&a.request(1, to("10.0.0.2", b.number), 8)).unwrap();
    assert_eq!(pair.wc_b().status, WcStatus::LocalProtectionError);
    assert_eq!(b.qp.state(), QpState::Error);
}

/// When an engine ends, its queue pairs of datagrams end, and their requests are flushed.
#[test]
fn the_end_of_an_engine_flushes_requests() {
    let (pair, _, b) = ends();
    b.recv(1, 0, 100);
    let Pair { b: Host { engine, cq, .. }, .. } = pair;
    drop(engine);
    assert_eq!(cq.poll_one().map(|wc| (wc.wr_id, wc.status)), Some((1, WcStatus::WrFlushError)));
    assert_eq!(b.qp.state(), QpState::Error);
}

/// A port in which frames may wait.
struct Holding {
    port: Box<dyn Port>,
    unsent: Arc<AtomicBool>,
}

impl PortLayer for Holding {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.port)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.port)
    }
}

impl Port for Holding {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.port.rx_burst(now_us, frames)
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.port.tx_burst(now_us, frames)
    }
}

impl Link for Holding {
    fn has_unsent(&self) -> bool {
        self.unsent.load(Ordering::Relaxed)
    }
}

impl Sleep for Holding {}
impl Statistics for Holding {}

/// An engine whose port holds frames has something to send.
#[test]
fn frames_that_wait_in_the_port_are_not_sent() {
    let (port, _other) = link::pair(&LinkConfig::default());
    let unsent: Arc<AtomicBool> = Arc::default();
    let port = Box::new(Holding { port, unsent: Arc::clone(&unsent) });
    let context = Context::new(ContextConfig::default()).unwrap();
    let config = EngineConfig::new(&*port, &["10.0.0.1/24"]).unwrap();
    let mut engine = Engine::new(&context, port, config).unwrap();
    engine.poll();
    assert!(!engine.has_unsent());
    unsent.store(true, Ordering::Relaxed);
    assert!(engine.has_unsent());
}

/// Number 1 is that of connection managers. The status shows the number on the wire, and the groups.
#[test]
fn numbers_on_the_wire_and_groups_are_shown() {
    let mut pair = Pair::new(&LinkConfig::default());
    let init = ud_init(&pair.a);
    for number in [0, 0xFF_FFFF, 0x100_0000] {
        let qp = pair.a.pd.create_qp(&init).unwrap();
        let options = DatagramOptions { number: Some(number), ..DatagramOptions::default() };
        assert!(
            matches!(pair.a.context.open_datagrams(&qp, &options), Err(VerbsError::Invalid(_))),
            "{number}"
        );
    }
    let manager = end(&pair.a, 1);
    let unopened = pair.a.pd.create_qp(&init).unwrap();
    pair.a.context.attach_group(&manager.qp, GROUP.parse().unwrap()).unwrap();
    pair.run_us(10);
    let context = pair.a.context.clone();
    let asks = std::thread::spawn(move || context.status(std::time::Duration::from_secs(60)));
    while !asks.is_finished() {
        pair.run_us(10);
    }
    let status = asks.join().unwrap();
    let numbers: Vec<_> = status
        .queue_pairs
        .iter()
        .filter(|qp| matches!(qp.qp_type, QpType::Ud { .. }))
        .map(|qp| qp.qp_num)
        .collect();
    assert!(numbers.contains(&1) && numbers.contains(&unopened.qp_num()), "{numbers:?}");
    assert_eq!(status.engines[0].groups, [GROUP.parse::<IpAddr>().unwrap()]);
}

/// A datagram to a host that does not answer waits in the stack.
#[test]
fn a_datagram_may_wait_for_its_neighbour() {
    let (mut pair, a, _) = ends();
    pair.run_us(1000);
    assert!(!pair.a.engine.has_unsent());
    a.qp.post_send(&a.request(1, to("10.0.0.77", 9), 8)).unwrap();
    succeeded(&pair.wc_a(), 1, WcOpcode::Send);
    assert!(pair.a.engine.has_unsent());
    pair.run_us(5_000_000);
    assert!(!pair.a.engine.has_unsent());
}
