//! Tests of [`Impaired`]: which frames are lost, when frames are sent, and that no other frame is lost.

use std::sync::{Arc, Mutex};

use super::{HELD_FRAMES, Impaired, Impairment, RETRY_US};
use crate::link::{self, LinkConfig, LinkPlan};
use crate::{
    BURST, Below, Burst, ExtBuf, Link, Mbuf, Mempool, Offloads, Port, PortBase, PortInfo, PortLayer, Sleep,
    Statistics, TxOffload,
};

const NOTHING: Impairment = Impairment { loss_ppm: 0, delay_us: 0, jitter_us: 0, seed: 7 };

/// What a [`Device`] has sent, with the times of the calls.
type Sent = Arc<Mutex<Vec<(u64, Mbuf)>>>;

/// A port that keeps what it sends. It accepts at most `room` frames until the test makes room.
struct Device {
    base: PortBase,
    sent: Sent,
    room: Arc<Mutex<usize>>,
}

impl PortLayer for Device {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Base(&self.base)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Base(&mut self.base)
    }
}

impl Port for Device {
    fn rx_burst(&mut self, _now_us: u64, _frames: &mut Burst) -> usize {
        0
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        let mut room = self.room.lock().unwrap();
        let taken = frames.len().min(*room);
        *room -= taken;
        self.sent.lock().unwrap().extend(frames.drain(..taken).map(|frame| (now_us, frame)));
        taken
    }
}

impl Link for Device {}
impl Sleep for Device {}
impl Statistics for Device {}

/// A port to test, on a device with these buffers.
struct Bench {
    port: Impaired,
    sent: Sent,
    room: Arc<Mutex<usize>>,
}

impl Bench {
    fn new(impairment: Impairment, mbufs: usize) -> Self {
        let (sent, room) = (Sent::default(), Arc::new(Mutex::new(usize::MAX)));
        let offloads = Offloads::TX_EXTERNAL | Offloads::TX_TSO;
        let base =
            PortBase::new(PortInfo::new("device", [2; 6], 1500, offloads), Mempool::heap("it", mbufs, 256));
        let device = Device { base, sent: Arc::clone(&sent), room: Arc::clone(&room) };
        Self { port: Impaired::new(Box::new(device), impairment), sent, room }
    }

    fn frame(&self, number: u32) -> Mbuf {
        let mut frame = self.port.mempool().alloc().unwrap();
        assert!(frame.append_slice(&number.to_be_bytes()) && frame.append_slice(&[0; 56]));
        frame
    }

    /// Sends frames with these numbers in one burst. Returns how many the port has accepted.
    fn send(&mut self, now_us: u64, numbers: std::ops::Range<u32>) -> usize {
        let mut burst: Burst = numbers.map(|number| self.frame(number)).collect();
        let (given, accepted) = (burst.len(), self.port.tx_burst(now_us, &mut burst));
        assert_eq!(burst.len(), given - accepted);
        accepted
    }

    fn poll(&mut self, now_us: u64) {
        assert_eq!(self.port.rx_burst(now_us, &mut Burst::new()), 0);
    }

    /// Removes the frames that the device has sent. Returns their times and numbers.
    fn arrived(&self) -> Vec<(u64, u32)> {
        let number = |frame: &Mbuf| u32::from_be_bytes(*frame.head().first_chunk().unwrap());
        self.sent.lock().unwrap().drain(..).map(|(now_us, frame)| (now_us, number(&frame))).collect()
    }

    fn numbers(&self) -> Vec<u32> {
        self.arrived().into_iter().map(|(_, number)| number).collect()
    }
}

/// The numbers of the frames that arrive if `count` frames are sent, in bursts of different sizes.
fn survivors(impairment: Impairment, count: u32) -> Vec<u32> {
    let mut bench = Bench::new(impairment, 4 * BURST);
    let (mut next, mut numbers) = (0, Vec::new());
    while next < count {
        let until = (next + 1 + next % 50).min(count);
        assert_eq!(bench.send(1000 * u64::from(next), next..until), (until - next) as usize);
        bench.poll(1000 * u64::from(next) + 999);
        numbers.extend(bench.numbers());
        next = until;
    }
    assert_eq!(bench.port.counters().tx_lost as usize + numbers.len(), count as usize);
    assert!(!bench.port.has_unsent());
    numbers
}

#[test]
fn a_seed_loses_the_same_frames_with_the_probability_asked_for() {
    let of = |loss_ppm, seed| survivors(Impairment { loss_ppm, seed, ..NOTHING }, 20_000);
    let tenth = of(100_000, 7);
    assert!((17_700..18_300).contains(&tenth.len()), "{}", tenth.len());
    assert!(tenth.is_sorted());
    assert_eq!(of(100_000, 7), tenth);
    assert_ne!(of(100_000, 8), tenth);
    assert_eq!((of(0, 7).len(), of(1_000_000, 7).len()), (20_000, 0));
    // The frames are lost one by one, and not in bursts.
    let pairs_lost = tenth.windows(2).filter(|pair| pair[1] - pair[0] > 2).count();
    assert!((130..280).contains(&pairs_lost), "{pairs_lost}");
}

#[test]
fn jitter_and_delay_do_not_change_which_frames_are_lost() {
    let loss_ppm = 50_000;
    let plain = survivors(Impairment { loss_ppm, ..NOTHING }, 2000);
    let mut late = survivors(Impairment { loss_ppm, delay_us: 100, jitter_us: 300, ..NOTHING }, 2000);
    assert!(!late.is_sorted(), "frames overtake each other");
    late.sort_unstable();
    assert_eq!(late, plain);
}

#[test]
fn losses_do_not_change_the_jitter_of_other_frames() {
    let times = |loss_ppm| {
        let mut bench = Bench::new(Impairment { loss_ppm, jitter_us: 100, ..NOTHING }, 256);
        assert_eq!(bench.send(0, 0..64), 64);
        (0..=100).for_each(|now_us| bench.poll(now_us));
        let mut arrived = bench.arrived();
        arrived.sort_unstable_by_key(|(_, number)| *number);
        arrived
    };
    let (mut all, some) = (times(0), times(300_000));
    assert!((30..60).contains(&some.len()) && all.len() == 64, "{}", some.len());
    all.retain(|(_, number)| some.iter().any(|(_, other)| other == number));
    assert_eq!(all, some);
}

#[test]
fn a_delay_holds_each_frame_exactly_so_long_and_keeps_the_order() {
    let mut bench = Bench::new(Impairment { delay_us: 500, ..NOTHING }, 512);
    assert_eq!((bench.send(10, 0..3), bench.send(10, 3..4), bench.send(300, 4..6)), (3, 1, 2));
    assert!(bench.port.has_unsent());
    assert_eq!(bench.port.next_due_us(), Some(510));
    bench.poll(509);
    assert_eq!(bench.arrived(), []);
    bench.poll(510);
    assert_eq!(bench.arrived(), [0, 1, 2, 3].map(|number| (510, number)));
    assert_eq!(bench.port.next_due_us(), Some(800));
    // Sending also passes on what is due, before what is not.
    assert_eq!(bench.send(805, 6..7), 1);
    assert_eq!(bench.arrived(), [4, 5].map(|number| (805, number)));
    // A clock that goes back changes no order.
    assert_eq!(bench.send(700, 7..8), 1);
    assert_eq!(bench.port.next_due_us(), Some(1305));
    bench.poll(1305);
    assert_eq!(bench.numbers(), [6, 7]);
    assert!(!bench.port.has_unsent());
    assert_eq!((bench.port.next_due_us(), bench.port.counters().tx_lost), (None, 0));
}

#[test]
fn jitter_adds_at_most_what_was_asked_for() {
    let mut bench = Bench::new(Impairment { delay_us: 100, jitter_us: 4, ..NOTHING }, 2048);
    assert!((0..10).all(|burst| bench.send(0, burst * 50..(burst + 1) * 50) == 50));
    bench.poll(99);
    assert_eq!(bench.arrived(), []);
    let counts = [100, 101, 102, 103, 104].map(|now_us| {
        assert_eq!(bench.port.next_due_us(), Some(now_us));
        bench.poll(now_us);
        bench.arrived().len()
    });
    assert!(counts.iter().all(|count| (60..140).contains(count)), "{counts:?}");
    assert_eq!(counts.iter().sum::<usize>(), 500);
}

#[test]
fn a_full_queue_leaves_frames_with_the_sender_and_loses_none() {
    let mut bench = Bench::new(Impairment { delay_us: 1000, ..NOTHING }, 4 * HELD_FRAMES);
    let (mut next, limit) = (0, HELD_FRAMES as u32);
    while next < limit {
        let until = (next + BURST as u32).min(limit);
        assert_eq!(bench.send(0, next..until), (until - next) as usize);
        next = until;
    }
    let mut burst: Burst = (limit..limit + 3).map(|number| bench.frame(number)).collect();
    assert_eq!(bench.port.tx_burst(999, &mut burst), 0);
    assert_eq!((burst.len(), bench.port.counters().tx_ring_full), (3, 3));
    assert_eq!(bench.port.tx_burst(1000, &mut burst), 3);
    bench.poll(2000);
    assert_eq!(bench.numbers(), (0..limit + 3).collect::<Vec<_>>());
}

#[test]
fn half_of_the_pool_stays_free() {
    let mut bench = Bench::new(Impairment { delay_us: 1000, ..NOTHING }, 32);
    let chain = |bench: &Bench, number| {
        let mut frame = bench.frame(number);
        frame.chain(bench.frame(0)).unwrap();
        frame
    };
    let mut burst: Burst = (0..9).map(|number| chain(&bench, number)).collect();
    assert_eq!((bench.port.tx_burst(0, &mut burst), burst.len()), (8, 1));
    burst.clear();
    assert_eq!(bench.port.mempool().available(), 16);
    bench.poll(1000);
    assert_eq!(bench.arrived().len(), 8);
    // A frame that is larger than the limit is sent alone.
    let mut long = bench.frame(9);
    (0..20).for_each(|_| long.chain(bench.frame(0)).unwrap());
    let mut burst: Burst = [long, bench.frame(10)].into_iter().collect();
    assert_eq!(bench.port.tx_burst(2000, &mut burst), 1);
    bench.poll(3000);
    assert_eq!(bench.port.tx_burst(3000, &mut burst), 1);
}

/// A device that accepts no frames causes no loss, and the port says when it tries again.
#[test]
fn a_device_that_is_full_gets_the_frames_later_in_order() {
    for delay_us in [0, 100] {
        let mut bench = Bench::new(Impairment { loss_ppm: 1, delay_us, ..NOTHING }, 1024);
        *bench.room.lock().unwrap() = 70;
        assert_eq!((bench.send(0, 0..60), bench.send(0, 60..120), bench.send(0, 120..180)), (60, 60, 60));
        bench.poll(100);
        assert_eq!(bench.numbers(), (0..70).collect::<Vec<_>>());
        assert!(bench.port.has_unsent());
        assert_eq!(bench.port.next_due_us(), Some(100 + RETRY_US));
        *bench.room.lock().unwrap() = 200;
        bench.poll(150);
        assert_eq!(bench.numbers(), (70..180).collect::<Vec<_>>());
        assert!(!bench.port.has_unsent() && bench.port.next_due_us().is_none());
    }
}

#[test]
fn the_earlier_of_both_ports_times_is_the_next() {
    let config =
        LinkConfig { b_to_a: LinkPlan { delay_us: 300, ..LinkPlan::default() }, ..LinkConfig::default() };
    let (a, mut b) = link::pair(&config);
    let mut port = Impaired::new(a, Impairment { delay_us: 200, ..NOTHING });
    let frame = |port: &dyn Port| {
        let mut frame = port.mempool().alloc().unwrap();
        assert!(frame.append_slice(&[0xff; 60]));
        [frame].into_iter().collect::<Burst>()
    };
    assert_eq!(b.tx_burst(0, &mut frame(&*b)), 1);
    assert_eq!((port.next_due_us(), port.has_unsent()), (Some(300), false));
    assert_eq!(port.tx_burst(50, &mut frame(&port)), 1);
    assert_eq!((port.next_due_us(), port.has_unsent()), (Some(250), true));
    let mut received = Burst::new();
    assert_eq!((port.rx_burst(250, &mut received), b.rx_burst(250, &mut received)), (0, 1));
    assert_eq!((port.next_due_us(), port.has_unsent()), (Some(300), false));
    assert_eq!((port.rx_burst(300, &mut received), port.next_due_us()), (1, None));
    let counters = port.counters();
    assert_eq!((counters.tx_frames, counters.rx_frames), (1, 1));
}

#[test]
fn a_held_frame_keeps_the_offloads_that_it_asks_for() {
    let mut bench = Bench::new(Impairment { delay_us: 10, ..NOTHING }, 64);
    let offload = TxOffload {
        tcp_checksum: true,
        ipv4_checksum: true,
        tso_segment_bytes: 1448,
        ..TxOffload::default()
    };
    let mut frame = bench.frame(1);
    frame.set_tx_offload(offload);
    assert_eq!(bench.port.tx_burst(0, &mut [frame].into_iter().collect()), 1);
    bench.poll(10);
    assert_eq!(bench.sent.lock().unwrap()[0].1.tx_offload(), offload);
}

/// Users may change their memory while a frame waits, so the frame has a copy.
#[test]
fn memory_of_users_is_copied() {
    let mut bench = Bench::new(Impairment { loss_ppm: 500_000, delay_us: 10, ..NOTHING }, 64);
    assert_eq!(bench.port.info().offloads, Offloads::TX_TSO);
    let of_user = |bench: &Bench, number| {
        let memory = ExtBuf::new(Arc::new([7; 100]));
        let mut frame = bench.frame(number);
        frame.set_tx_offload(TxOffload { tcp_checksum: true, ..TxOffload::default() });
        frame.chain(Mbuf::external(bench.port.mempool(), memory).unwrap()).unwrap();
        frame
    };
    let expected = survivors(Impairment { loss_ppm: 500_000, ..NOTHING }, 20);
    for number in 0..20 {
        let mut burst: Burst = [of_user(&bench, number)].into_iter().collect();
        // Without a free buffer the frame stays with the sender, and nothing is decided about it.
        let taken: Vec<Mbuf> = std::iter::from_fn(|| bench.port.mempool().alloc()).collect();
        assert_eq!((bench.port.tx_burst(0, &mut burst), burst.len()), (0, 1));
        drop(taken);
        assert_eq!(bench.port.tx_burst(0, &mut burst), 1);
    }
    bench.poll(10);
    for (_, frame) in bench.sent.lock().unwrap().iter() {
        let mut bytes = [0; 160];
        assert!(!frame.has_external() && frame.tx_offload().tcp_checksum);
        assert_eq!((frame.copy_to(0, &mut bytes), &bytes[60..]), (160, &[7; 100][..]));
    }
    assert_eq!(bench.numbers(), expected);
}

#[test]
fn frames_outlive_the_port_that_has_sent_them() {
    let mut bench = Bench::new(Impairment { delay_us: 1000, ..NOTHING }, 512);
    assert_eq!((bench.send(5, 0..64), bench.send(6, 64..100)), (64, 36));
    let Bench { port, sent, .. } = bench;
    drop(port);
    assert_eq!(sent.lock().unwrap().len(), 100);
    assert!(sent.lock().unwrap().iter().all(|(now_us, _)| *now_us == 6));
}

#[test]
fn a_port_without_an_impairment_holds_nothing() {
    let mut bench = Bench::new(NOTHING, 64);
    *bench.room.lock().unwrap() = 2;
    assert_eq!(bench.send(0, 0..3), 2);
    assert_eq!((bench.numbers(), bench.port.has_unsent()), (vec![0, 1], false));
}
