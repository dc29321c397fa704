//! Sends beyond a hole, with markers: their bytes are placed early in the receive buffers that they would get
//! without the hole, and the Sends complete in order.

use crate::common::{Connected, Pair, Testbed, pattern, read_bytes};
use std::sync::{Arc, Mutex};

use crate::common::hooked::Hooks;
use dp::{Burst, Port};
use iwarp::memory::Access;
use iwarp::verbs::{
    ConnParam, MemoryRegion, QpInit, RecvRequest, SendOp, SendRequest, SrqInit, WcStatus, WorkCompletion,
};

/// Length of a Send in bytes, which is four segments.
const LEN: usize = 5000;
const SENDS: usize = 6;

/// Which segment is lost each time it is sent. The first segment with a long payload that is sent in the
/// state `Next` becomes `Found`.
#[derive(Debug, Default)]
enum Withheld {
    #[default]
    Nothing,
    Next,
    /// The segment with this sequence number is lost.
    Found([u8; 4]),
}

/// Loses one segment of those that a port sends.
struct Hole {
    withheld: Arc<Mutex<Withheld>>,
}

impl Hooks for Hole {
    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let mut withheld = self.withheld.lock().unwrap();
        let before = frames.len();
        frames.retain(|frame| {
            // The Ethernet, IPv4 (without options) and TCP headers, up to the sequence number.
            let mut head = [0; 42];
            frame.copy_to(0, &mut head);
            let seq: [u8; 4] = head[38..42].try_into().unwrap();
            match *withheld {
                Withheld::Next if frame.len() > 1000 => {
                    *withheld = Withheld::Found(seq);
                    false
                }
                Withheld::Found(missing) => seq != missing,
                _ => true,
            }
        });
        let lost = before - frames.len();
        port.tx_burst(now_us, frames) + lost
    }
}

/// Two hosts. The second host has buffers for some Sends. The test can withhold the first segment of the
/// first Send.
struct Stage {
    pair: Pair,
    c: Connected,
    withheld: Arc<Mutex<Withheld>>,
    buffers: MemoryRegion,
    source: MemoryRegion,
    content: Vec<u8>,
}

impl Stage {
    /// Returns a stage whose second host has `buffers` buffers, in a shared receive queue if `shared`.
    fn new(buffers: usize, shared: bool) -> Self {
        let withheld = Arc::<Mutex<Withheld>>::default();
        let mut pair = Testbed::new().hook_a(Hole { withheld: Arc::clone(&withheld) }).hosts();
        let srq =
            shared.then(|| pair.b.pd.create_srq(&SrqInit { max_wr: 64, ..Default::default() }).unwrap());
        let qp_a = pair.a.qp();
        let init = QpInit { srq: srq.as_ref(), ..QpInit::new(&pair.b.cq) };
        let qp_b = pair.b.pd.create_qp(&init).unwrap();
        let listener = pair.listen();
        let param = ConnParam::default();
        let c = pair.connect_qps(qp_a, qp_b, &param, &ConnParam { markers: true, ..param.clone() });
        listener.disconnect();
        let region = pair.b.pd.reg_mr(SENDS * LEN, Access::LOCAL_WRITE).unwrap();
        for number in 0..buffers {
            let request = RecvRequest::new(number as u64, region.sge(number * LEN, LEN));
            match &srq {
                Some(srq) => srq.post_recv(&request).unwrap(),
                None => c.qp_b.post_recv(&request).unwrap(),
            }
        }
        let source = pair.a.pd.reg_mr(SENDS * LEN, Access::empty()).unwrap();
        let content = pattern(5, SENDS * LEN);
        source.write_at(0, &content).unwrap();
        Self { pair, c, withheld, buffers: region, source, content }
    }

    /// Sends all messages. All segments arrive except the lost one.
    fn send_with_a_hole(&mut self) {
        *self.withheld.lock().unwrap() = Withheld::Next;
        for number in 0..SENDS {
            let send = SendRequest::new(number as u64, SendOp::Send, self.source.sge(number * LEN, LEN));
            self.c.qp_a.post_send(&send).unwrap();
        }
        self.pair.run_us(20_000);
        assert!(matches!(*self.withheld.lock().unwrap(), Withheld::Found(_)));
        assert!(self.pair.b.cq.poll_one().is_none(), "nothing is delivered behind the hole");
    }

    /// Returns for each message the number of bytes at its end that are placed.
    fn placed(&self) -> [usize; SENDS] {
        let found = read_bytes(&self.buffers, 0, SENDS * LEN);
        std::array::from_fn(|number| {
            let of = number * LEN..(number + 1) * LEN;
            let pairs = found[of.clone()].iter().zip(&self.content[of]);
            pairs.rev().take_while(|(found, sent)| found == sent).count()
        })
    }

    fn completions(&mut self, count: usize) -> Vec<(u64, WcStatus, usize)> {
        let brief = |wc: WorkCompletion| (wc.wr_id, wc.status, wc.byte_len as usize);
        (0..count).map(|_| brief(self.pair.wc_b())).collect()
    }
}

fn delivered(numbers: std::ops::Range<u64>) -> Vec<(u64, WcStatus, usize)> {
    numbers.map(|number| (number, WcStatus::Success, LEN)).collect()
}

#[test]
fn sends_behind_a_hole_are_placed_where_their_turn_will_put_them() {
    let mut stage = Stage::new(SENDS, false);
    stage.send_with_a_hole();
    let [first, rest @ ..] = stage.placed();
    assert!((1000..LEN).contains(&first), "{first} bytes of the first one");
    assert_eq!(rest, [LEN; SENDS - 1], "of the others");
    *stage.withheld.lock().unwrap() = Withheld::Nothing;
    assert_eq!(stage.completions(SENDS), delivered(0..SENDS as u64));
    assert_eq!(stage.placed(), [LEN; SENDS]);
}

#[test]
fn a_send_without_a_buffer_waits_until_there_is_one() {
    let mut stage = Stage::new(2, false);
    stage.send_with_a_hole();
    assert_eq!(stage.placed()[1..], [LEN, 0, 0, 0, 0]);
    // TCP counts the packet buffers that hold bytes of these Sends.
    let pinned = |stage: &Stage| stage.pair.b.engine.counters().stack.out_of_order.pinned_bytes;
    assert!(pinned(&stage) > 0);
    for number in 2..SENDS {
        let request = RecvRequest::new(number as u64, stage.buffers.sge(number * LEN, LEN));
        stage.c.qp_b.post_recv(&request).unwrap();
    }
    *stage.withheld.lock().unwrap() = Withheld::Nothing;
    assert_eq!(stage.completions(SENDS), delivered(0..SENDS as u64));
    assert_eq!(stage.placed(), [LEN; SENDS]);
    assert_eq!(pinned(&stage), 0);
}

/// With a shared receive queue, a buffer may be needed for the next message of another connection first.
/// Therefore only the message under way gets a buffer.
#[test]
fn of_a_shared_queue_only_the_message_under_way_has_a_buffer() {
    let mut stage = Stage::new(SENDS, true);
    stage.send_with_a_hole();
    assert_eq!(stage.placed()[1..], [0; SENDS - 1]);
    *stage.withheld.lock().unwrap() = Withheld::Nothing;
    assert_eq!(stage.completions(SENDS), delivered(0..SENDS as u64));
}

#[test]
fn requests_bound_ahead_are_flushed_in_their_order() {
    let mut stage = Stage::new(SENDS, false);
    stage.send_with_a_hole();
    stage.c.id_b.abort();
    let flushed: Vec<_> =
        stage.completions(SENDS).iter().map(|(number, status, _)| (*number, *status)).collect();
    let expected: Vec<_> = (0..SENDS as u64).map(|number| (number, WcStatus::WrFlushError)).collect();
    assert_eq!(flushed, expected);
}
