//! The ordering table of RFC 7306 section 7, row by row. Each row is tested over a wire without faults, over
//! wires that lose and reorder frames at random, and over wires that lose one frame. Each wire is used with
//! and without markers: only with markers are FPDUs placed out of order.
//!
//! A posts two operations, and the test checks the row's guarantees after every poll.

use crate::common::ext::{ADD_ONE, ALL, atomic, set_word, word};
use crate::common::{Connected, Pair, pattern, read_bytes, remote_addr};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::memory::Access;
use iwarp::verbs::{
    AtomicOp, ConnParam, MemoryRegion, RecvRequest, SendOp, SendRequest, WcOpcode, WcStatus, WorkCompletion,
};

/// Length of the payload in bytes, which is several segments.
const LEN: usize = 10_000;
const IMMEDIATE: [u8; 8] = [8, 7, 6, 5, 4, 3, 2, 1];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Send,
    Immediate,
    Write,
    Read,
    Atomic,
}

/// A connection, and the memory on which the operations work.
struct Stage {
    pair: Pair,
    c: Connected,
    /// A's payload, then 8 bytes for the atomic's answer, then the data of Read Responses.
    local: MemoryRegion,
    /// B's word at offset 0, and the target of Writes from offset 8 on.
    target: MemoryRegion,
    /// B's receive buffers.
    buffers: MemoryRegion,
    data: Vec<u8>,
    done_a: Vec<WorkCompletion>,
    done_b: Vec<WorkCompletion>,
}

impl Stage {
    fn new(link: &LinkConfig, markers: bool) -> Self {
        let mut pair = Pair::new(link);
        let c = pair.connect(&ConnParam { markers, ..ConnParam::default() });
        let local = pair.a.pd.reg_mr(2 * LEN + 8, Access::LOCAL_WRITE).unwrap();
        let target = pair.b.pd.reg_mr(8 + LEN, ALL).unwrap();
        let buffers = pair.b.pd.reg_mr(4 * LEN, Access::LOCAL_WRITE).unwrap();
        let data = pattern(9, LEN);
        local.write_at(0, &data).unwrap();
        for n in 0..4 {
            c.qp_b.post_recv(&RecvRequest::new(n, buffers.sge(n as usize * LEN, LEN))).unwrap();
        }
        Self { pair, c, local, target, buffers, data, done_a: Vec::new(), done_b: Vec::new() }
    }

    fn post(&self, wr_id: u64, op: Op) {
        let (local, behind) = (&self.local, remote_addr(&self.target, 8));
        let request = match op {
            Op::Send => SendRequest::new(wr_id, SendOp::Send, local.sge(0, LEN)),
            Op::Immediate => SendRequest::empty(wr_id, SendOp::Immediate { data: IMMEDIATE }),
            Op::Write => SendRequest::new(wr_id, SendOp::Write { remote: behind }, local.sge(0, LEN)),
            Op::Read => SendRequest::new(wr_id, SendOp::Read { remote: behind }, local.sge(LEN + 8, LEN)),
            Op::Atomic => atomic(wr_id, ADD_ONE, remote_addr(&self.target, 0), local, LEN),
        };
        self.c.qp_a.post_send(&request).unwrap();
    }

    /// Polls once. Reads B's completions after A's, so that the completions that preceded an answer to A are
    /// known.
    fn poll(&mut self) {
        self.pair.poll();
        self.done_a.extend(std::iter::from_fn(|| self.pair.a.cq.poll_one()));
        self.done_b.extend(std::iter::from_fn(|| self.pair.b.cq.poll_one()));
        assert!(self.done_a.iter().chain(&self.done_b).all(|wc| wc.status == WcStatus::Success));
    }

    fn bytes(region: &MemoryRegion, at: usize) -> Vec<u8> {
        read_bytes(region, at, LEN)
    }
}

/// Returns a wire without faults, two wires with random losses, and nine wires on which one frame of A is
/// lost: frame 4 on the first of these, frame 5 on the second, and so on. The first frame has number 0.
fn wires() -> Vec<LinkConfig> {
    let lossy = LinkPlan {
        drop_ppm: 50_000,
        reorder_ppm: 50_000,
        reorder_us: 300,
        delay_us: 20,
        ..LinkPlan::default()
    };
    let mut wires = vec![LinkConfig::default()];
    for seed in 0..2 {
        wires.push(LinkConfig {
            seed,
            a_to_b: lossy.clone(),
            b_to_a: lossy.clone(),
            ..LinkConfig::default()
        });
    }
    for lost in 4..13 {
        let plan = LinkPlan { drop_exactly: vec![lost], ..LinkPlan::default() };
        wires.push(LinkConfig { a_to_b: plan, ..LinkConfig::default() });
    }
    wires
}

/// Runs two operations over every wire. Calls `guaranteed` after every poll and at the end.
fn each_wire(first: Op, second: Op, guaranteed: impl Fn(&Stage)) {
    for markers in [false, true] {
        for link in wires() {
            let mut stage = Stage::new(&link, markers);
            stage.post(1, first);
            stage.post(2, second);
            let received =
                [first, second].into_iter().filter(|op| matches!(op, Op::Send | Op::Immediate)).count();
            let end = stage.pair.now_us + 60_000_000;
            while stage.done_a.len() < 2 || stage.done_b.len() < received {
                assert!(stage.pair.now_us < end, "{first:?} then {second:?} did not end");
                stage.poll();
                guaranteed(&stage);
            }
            assert_eq!([stage.done_a[0].wr_id, stage.done_a[1].wr_id], [1, 2]);
            if [first, second].contains(&Op::Write) {
                // The completion of a Write says nothing about the peer.
                let (target, data) = (&stage.target, &stage.data);
                stage.pair.until(|_| (&Stage::bytes(target, 8) == data).then_some(()));
            }
            guaranteed(&stage);
        }
    }
}

/// Checks that B's completions so far are a prefix of `opcodes`, and have the right data.
fn completed_in_order(stage: &Stage, opcodes: &[WcOpcode]) {
    let done: Vec<_> = stage.done_b.iter().map(|wc| wc.opcode).collect();
    assert!(opcodes.starts_with(&done), "{done:?}");
    for wc in &stage.done_b {
        match wc.opcode {
            WcOpcode::RecvImmediate => assert_eq!(wc.immediate, Some(IMMEDIATE)),
            _ => assert!(Stage::bytes(&stage.buffers, wc.wr_id as usize * LEN) == stage.data),
        }
    }
}

/// Whether A has received the answer to its second operation.
fn second_is_answered(stage: &Stage) -> bool {
    stage.done_a.iter().any(|wc| wc.wr_id == 2)
}

/// Rows T1 and T5: the messages complete at the peer in order.
// Proves EXT-128 to EXT-130, EXT-134.
#[test]
fn immediate_data_and_sends_complete_in_order() {
    let (send, immediate) = (WcOpcode::Recv, WcOpcode::RecvImmediate);
    for (first, second, opcodes) in [
        (Op::Immediate, Op::Send, [immediate, send]),
        (Op::Send, Op::Immediate, [send, immediate]),
        (Op::Immediate, Op::Immediate, [immediate, immediate]),
    ] {
        each_wire(first, second, |stage| completed_in_order(stage, &opcodes));
    }
}

/// Rows T3, T4 and T13: the response to a Read or atomic shows that the peer has completed the Send or
/// Immediate Data before the Read or atomic.
// Proves EXT-129, EXT-132, EXT-133, EXT-142.
#[test]
fn an_answer_says_that_what_was_before_is_complete() {
    for first in [Op::Immediate, Op::Send] {
        for second in [Op::Read, Op::Atomic] {
            let opcode = if first == Op::Send { WcOpcode::Recv } else { WcOpcode::RecvImmediate };
            each_wire(first, second, |stage| {
                completed_in_order(stage, &[opcode]);
                assert!(!second_is_answered(stage) || stage.done_b.len() == 1, "{first:?} then {second:?}");
            });
        }
    }
}

/// Row T6: when Immediate Data completes at the peer, the Writes before the Immediate Data are placed.
// Proves EXT-002, EXT-114, EXT-129, EXT-135.
#[test]
fn immediate_data_completes_behind_the_write() {
    each_wire(Op::Write, Op::Immediate, |stage| {
        completed_in_order(stage, &[WcOpcode::RecvImmediate]);
        assert!(stage.done_b.is_empty() || Stage::bytes(&stage.target, 8) == stage.data);
    });
}

/// Row T14: the response to an atomic shows that the Writes before the atomic are placed.
// Proves EXT-109, EXT-129, EXT-143.
#[test]
fn an_atomics_answer_says_that_the_write_is_there() {
    each_wire(Op::Write, Op::Atomic, |stage| {
        assert!(!second_is_answered(stage) || Stage::bytes(&stage.target, 8) == stage.data);
    });
}

/// Rows T2, T7 to T12 and T15: the peer guarantees no order, but A's completions are in post order.
// Proves EXT-105, EXT-110, EXT-129, EXT-131, EXT-136 to EXT-141, EXT-144.
#[test]
fn where_nothing_is_promised_all_ends_well() {
    for (first, second) in [
        (Op::Immediate, Op::Write),
        (Op::Read, Op::Immediate),
        (Op::Atomic, Op::Immediate),
        (Op::Atomic, Op::Send),
        (Op::Atomic, Op::Write),
        (Op::Atomic, Op::Read),
        (Op::Atomic, Op::Atomic),
        (Op::Read, Op::Atomic),
    ] {
        each_wire(first, second, |stage| {
            let atomics = [first, second].iter().filter(|op| **op == Op::Atomic).count() as u64;
            let answered = stage.done_a.iter().filter(|wc| wc.opcode == WcOpcode::FetchAdd).count() as u64;
            let value = word(&stage.target, 0);
            assert!(answered <= value && value <= atomics, "{value} with {answered} of {atomics} answered");
            completed_in_order(
                stage,
                &[if second == Op::Send { WcOpcode::Recv } else { WcOpcode::RecvImmediate }],
            );
        });
    }
}

/// Each run loses another frame of A. An atomic is not executed until all bytes before it are placed, even if
/// the bytes of the atomic's word were placed early. The atomic adds to the value that the Write has placed.
// Proves EXT-107, EXT-109, EXT-143, EXT-196.
#[test]
fn an_atomic_waits_for_all_before_it() {
    for markers in [false, true] {
        let mut early = 0;
        for lost in 3..20 {
            let plan = LinkPlan { drop_exactly: vec![lost], ..LinkPlan::default() };
            let mut stage = Stage::new(&LinkConfig { a_to_b: plan, ..LinkConfig::default() }, markers);
            // A posts the long Write, then the value 5 for the word, then an atomic that adds 1.
            stage.post(1, Op::Write);
            let five = stage.pair.a.pd.reg_mr(8, Access::empty()).unwrap();
            set_word(&five, 0, 5);
            let write = SendOp::Write { remote: remote_addr(&stage.target, 0) };
            stage.c.qp_a.post_send(&SendRequest::new(2, write, five.sge(0, 8))).unwrap();
            stage.post(3, Op::Atomic);
            while stage.done_a.len() < 3 {
                stage.poll();
                let whole = Stage::bytes(&stage.target, 8) == stage.data;
                let value = word(&stage.target, 0);
                assert!(value == 0 || value == 5 || (value == 6 && whole), "frame {lost}: {value}, {whole}");
                early += u32::from(value == 5 && !whole);
            }
            assert_eq!((word(&stage.target, 0), word(&stage.local, LEN)), (6, 5), "frame {lost}");
        }
        assert_eq!(early > 0, markers, "the word was written ahead of a hole in {early} polls");
    }
}

/// With segments of about 60 bytes, Atomic Requests and Writes are cut, and are complete again at the peer.
// Proves EXT-157, EXT-200.
#[test]
fn tiny_segments_cut_every_message() {
    for markers in [false, true] {
        let link = LinkConfig { mtu: 110, ..LinkConfig::default() };
        let mut stage = Stage::new(&link, markers);
        let before = stage.pair.a.engine.counters().tx_fpdus;
        stage.post(1, Op::Atomic);
        while stage.done_a.is_empty() {
            stage.poll();
        }
        let cut = stage.pair.a.engine.counters().tx_fpdus - before;
        assert!(cut >= 2, "{cut} segments");
        let compare =
            AtomicOp::CmpSwap { compare: 1, compare_mask: u64::MAX, swap: u64::MAX, swap_mask: 0xFF00 };
        let swap = atomic(2, compare, remote_addr(&stage.target, 0), &stage.local, LEN);
        stage.c.qp_a.post_send(&swap).unwrap();
        let op = SendOp::WriteImmediate { remote: remote_addr(&stage.target, 8), data: IMMEDIATE };
        stage.c.qp_a.post_send(&SendRequest::new(3, op, stage.local.sge(0, LEN))).unwrap();
        while stage.done_a.len() < 3 || stage.done_b.is_empty() {
            stage.poll();
        }
        assert_eq!((word(&stage.target, 0), word(&stage.local, LEN)), (0xFF01, 1));
        completed_in_order(&stage, &[WcOpcode::RecvImmediate]);
        assert!(Stage::bytes(&stage.target, 8) == stage.data);
    }
}
