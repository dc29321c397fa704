//! The messages of RFC 7306 on the wire, byte for byte. The result of FetchAdd is compared with the bit loop
//! of the RFC, and the results of all atomics with the reference model.

use crate::common::ulpdu::from_hex;
use std::fmt::Write as _;

use crate::common::oracle::{hex, oracle};
use iwarp::ddp::{Header, Segmenter, UntaggedHeader};
use iwarp::memory::Stag;
use iwarp::rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Extensions, IMMEDIATE_LEN, ImmediateData, Opcode, Queue,
    Terminate, TerminateError,
};
use proptest::prelude::*;
use testkit::dice::Dice;

const NONE: Stag = Stag(0);

fn message(opcode: Opcode, msn: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header::from(opcode.untagged_header(NONE, msn, 0, true));
    [header.to_bytes().as_slice(), payload].concat()
}

const ADD_ONE: AtomicOp = AtomicOp::FetchAdd { add: 1, mask: 0 };

fn request(op: AtomicOp) -> AtomicRequest {
    AtomicRequest { id: 0x11, stag: Stag(0x1234_5678), to: 0x1008, op }
}

const FETCH_ADD: &str = "414a 00000000 00000001 00000001 00000000
    00000000 00000011 12345678 0000000000001008
    0000000000000002 0000000000000000 0000000000000000 ffffffffffffffff";
const CMP_SWAP: &str = "414a 00000000 00000001 00000002 00000000
    00000002 00000012 12345678 0000000000001008
    00000000000000bb 00000000000000ff 000000000000aa00 000000000000ff00";
const RESPONSE: &str = "414b 00000000 00000003 00000001 00000000 00000011 0000000000000001";

/// Every message of the byte-exact examples is built from its fields and parsed again.
// Proves EXT-007, EXT-008, EXT-010 to EXT-013, EXT-015 to EXT-020, EXT-022 to EXT-024, EXT-063, EXT-064,
// EXT-066, EXT-068, EXT-072, EXT-074, EXT-075, EXT-080, EXT-091, EXT-092, EXT-119, EXT-157 to EXT-159,
// EXT-167, EXT-169, EXT-209: the lengths and all bytes are compared. EXT-007 to EXT-024 are about control
// bytes, queues and lengths, EXT-063 to EXT-092 about the fields of requests and responses, and the other
// rows about whole segments.
#[test]
fn every_message_is_built_to_the_byte() {
    let add = request(AtomicOp::FetchAdd { add: 2, mask: 0 });
    let swap = AtomicRequest {
        id: 0x12,
        ..request(AtomicOp::CmpSwap { compare: 0xAA00, compare_mask: 0xFF00, swap: 0xBB, swap_mask: 0xFF })
    };
    let response = AtomicResponse { id: 0x11, original: 1 };
    let immediate = [1, 2, 3, 4, 5, 6, 7, 8];
    for (built, golden, len) in [
        (message(Opcode::AtomicRequest, 1, &add.to_bytes()), FETCH_ADD, 70),
        (message(Opcode::AtomicRequest, 2, &swap.to_bytes()), CMP_SWAP, 70),
        (message(Opcode::AtomicResponse, 1, &response.to_bytes()), RESPONSE, 30),
        (
            message(Opcode::Immediate, 1, &immediate),
            "4148 00000000 00000000 00000001 00000000 0102030405060708",
            26,
        ),
        (
            message(Opcode::ImmediateSolicited, 1, &immediate),
            "4149 00000000 00000000 00000001 00000000 0102030405060708",
            26,
        ),
    ] {
        assert_eq!((built.len(), hex(&built)), (len, hex(&from_hex(golden))));
        let header = Header::parse(&built).unwrap();
        let opcode = Opcode::check(&header, Extensions::all()).unwrap();
        assert_eq!(opcode.control_byte(), built[1]);
    }
    assert_eq!(AtomicRequest::parse(&from_hex(FETCH_ADD)[18..]), Ok(add));
    assert_eq!(AtomicRequest::parse(&from_hex(CMP_SWAP)[18..]), Ok(swap));
    assert_eq!(AtomicResponse::parse(&from_hex(RESPONSE)[18..]), Ok(response));
}

/// In a Swap that is sent, the unused fields have the values that draft-ietf-storm-rdmap-ext prescribes.
// Proves EXT-067, EXT-076, EXT-078, EXT-080.
#[test]
fn swap_fills_what_it_does_not_use() {
    let built = request(AtomicOp::Swap { swap: 9 }).to_bytes();
    let golden = "00000001 00000011 12345678 0000000000001008
        0000000000000009 ffffffffffffffff 0000000000000000 ffffffffffffffff";
    assert_eq!(hex(&built), hex(&from_hex(golden)));
}

/// The numbers of the registries of RFC 7306 section 10: opcodes, AOpCodes and queue numbers.
// Proves EXT-156, EXT-188, EXT-206 to EXT-208.
#[test]
fn numbers_are_those_of_the_registries() {
    let opcodes = [
        (Opcode::Immediate, 0x8, Queue::Send),
        (Opcode::ImmediateSolicited, 0x9, Queue::Send),
        (Opcode::AtomicRequest, 0xA, Queue::ReadRequest),
        (Opcode::AtomicResponse, 0xB, Queue::AtomicResponse),
    ];
    for (opcode, number, queue) in opcodes {
        assert_eq!((opcode.control_byte(), opcode.queue()), (0x40 | number, Some(queue)));
    }
    assert_eq!((AtomicOp::FETCH_ADD, AtomicOp::SWAP, AtomicOp::CMP_SWAP), (0, 1, 2));
    let swap = AtomicOp::Swap { swap: 0 };
    let compare = AtomicOp::CmpSwap { compare: 0, compare_mask: 0, swap: 0, swap_mask: 0 };
    assert_eq!([ADD_ONE.aopcode(), swap.aopcode(), compare.aopcode()], [0, 1, 2]);
    let numbers =
        [Queue::Send, Queue::ReadRequest, Queue::Terminate, Queue::AtomicResponse].map(Queue::number);
    assert_eq!(numbers, [0, 1, 2, 3]);
}

/// The extensions have one switch for FetchAdd and CmpSwap together, and a separate switch for Swap.
// Proves EXT-160, EXT-188.
#[test]
fn atomics_come_together() {
    let ops = [
        ADD_ONE,
        AtomicOp::CmpSwap { compare: 0, compare_mask: 0, swap: 0, swap_mask: 0 },
        AtomicOp::Swap { swap: 0 },
    ];
    let understood = |extensions| ops.map(|op| op.is_understood(extensions));
    assert_eq!(understood(Extensions::all()), [true, true, true]);
    assert_eq!(understood(Extensions::ATOMICS), [true, true, false]);
    assert_eq!(understood(Extensions::IMMEDIATE | Extensions::SWAP), [false, false, false]);
}

/// The Terminates of the examples, for an unknown STag and for a misaligned target. These Terminates never
/// contain the header of the Atomic Request.
// Proves EXT-148, EXT-154, EXT-203.
#[test]
fn terminates_of_atomics_are_built_to_the_byte() {
    let segment = from_hex(FETCH_ADD);
    for (error, golden) in [
        (TerminateError::ReadInvalidStag, "0100c000 0046 414a00000000000000010000000100000000"),
        (TerminateError::StreamCatastrophic, "0207c000 0046 414a00000000000000010000000100000000"),
    ] {
        let built = Terminate::of_segment(error, &segment, segment.len(), None);
        assert_eq!(hex(&built.to_bytes()), hex(&from_hex(golden)));
        assert_eq!(
            Terminate::parse(&from_hex(golden)).map(|read| Terminate { control: None, ..read }),
            Ok(built)
        );
    }
}

/// Reserved and unused fields are ignored. Of the AOpCode field, only the four low bits are used.
// Proves EXT-065, EXT-069, EXT-077, EXT-079, EXT-081.
#[test]
fn reserved_and_unused_fields_are_ignored() {
    let mut dice = Dice::split_mix(1);
    for op in [AtomicOp::FetchAdd { add: 2, mask: 0x80 }, AtomicOp::Swap { swap: 9 }] {
        let plain = request(op);
        let mut bytes = plain.to_bytes();
        for _ in 0..100 {
            let word = dice.number() as u32 & !0xF | u32::from(op.aopcode());
            bytes[..4].copy_from_slice(&word.to_be_bytes());
            bytes[36..].copy_from_slice(&dice.bytes(16));
            if matches!(op, AtomicOp::Swap { .. }) {
                bytes[28..36].copy_from_slice(&dice.bytes(8));
            }
            assert_eq!(AtomicRequest::parse(&bytes), Ok(plain));
        }
    }
    let mut bytes = request(ADD_ONE).to_bytes();
    for aopcode in 3..=15 {
        bytes[3] = aopcode;
        assert_eq!(AtomicRequest::parse(&bytes), Err(TerminateError::UnexpectedOpcode));
    }
}

/// An Atomic Request and an Atomic Response each accept only one length.
// Proves EXT-026, EXT-167.
#[test]
fn other_lengths_are_invalid() {
    let bytes = [0; 64];
    for len in 0..=bytes.len() {
        let request = AtomicRequest::parse(&bytes[..len]);
        assert_eq!(request.is_ok(), len == 52);
        let response = AtomicResponse::parse(&bytes[..len]);
        assert_eq!(response.is_ok(), len == 12);
        if len != 52 && len != 12 {
            assert_eq!(request.unwrap_err().codes(), (0, 2, 0xFF));
            assert_eq!(response.unwrap_err().codes(), (0, 2, 0xFF));
        }
    }
}

fn segment_of(mo: u32, last: bool) -> UntaggedHeader {
    Opcode::Immediate.untagged_header(NONE, 1, mo, last)
}

/// Immediate Data has eight bytes, according to the length that DDP reports. The bytes may arrive in any
/// number of segments, without a gap.
// Proves EXT-127, EXT-200.
#[test]
fn immediate_data_has_eight_bytes() {
    let data = [1, 2, 3, 4, 5, 6, 7, 8];
    for len in 0..64 {
        let whole = ImmediateData::default().check(&segment_of(0, true), len);
        let expected = if len == IMMEDIATE_LEN { Ok(()) } else { Err(TerminateError::OperationUnspecified) };
        assert_eq!(whole, expected, "{len} bytes");
    }
    for cut in 0..=IMMEDIATE_LEN {
        let mut immediate = ImmediateData::default();
        immediate.check(&segment_of(0, false), cut).unwrap();
        immediate.extend(&data[..cut]);
        let (mo, rest) = (cut as u32, IMMEDIATE_LEN - cut);
        for (header, len, error) in [
            (segment_of(mo, true), rest + 1, TerminateError::OperationUnspecified),
            (segment_of(mo, false), rest + 1, TerminateError::OperationUnspecified),
            (segment_of(u32::MAX, true), 1, TerminateError::OperationUnspecified),
        ] {
            assert_eq!(immediate.check(&header, len), Err(error), "cut at {cut}");
        }
        if cut < IMMEDIATE_LEN {
            let gap = immediate.check(&segment_of(mo + 1, true), rest - 1);
            assert_eq!(gap, Err(TerminateError::DdpInvalidMo), "cut at {cut}");
        }
        immediate.check(&segment_of(mo, true), rest).unwrap();
        immediate.extend(&data[cut..]);
        assert_eq!(immediate.take(), Some(data));
        assert_eq!(immediate.take(), None, "the next message starts anew");
    }
}

/// A MULPDU of 60 bytes cuts an Atomic Request into 42 and 10 bytes.
// Proves EXT-157.
#[test]
fn an_atomic_request_is_cut_like_any_message() {
    let mut segmenter = Segmenter::untagged(AtomicRequest::LEN as u32);
    let cut: Vec<_> = std::iter::from_fn(|| segmenter.next(60)).map(|cut| (cut.offset, cut.len)).collect();
    assert_eq!(cut, [(0, 42), (42, 10)]);
}

/// Computes FetchAdd with the loop of RFC 7306 section 5.1.1.
fn fetch_add_bit_by_bit(original: u64, add: u64, mask: u64) -> u64 {
    let (mut result, mut carry) = (0, 0);
    for bit in 0..64 {
        let sum = carry + (original >> bit & 1) + (add >> bit & 1);
        result |= (sum & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { sum >> 1 };
    }
    result
}

/// The table of additions, with different numbers and sizes of fields.
// Proves EXT-032, EXT-033, EXT-035, EXT-036, EXT-038 to EXT-040.
#[test]
fn additions_by_the_table() {
    for (original, add, mask, new) in [
        (0x0000_0000_0000_0005, 0x0000_0000_0000_0003, 0, 0x0000_0000_0000_0008),
        (1, 1, 0, 2),
        (0xffff_ffff_ffff_ffff, 0x0000_0000_0000_0001, 0, 0),
        (0x0000_0001_ffff_ffff, 0x0000_0001_0000_0001, 0, 0x0000_0003_0000_0000),
        (0x0000_0001_ffff_ffff, 0x0000_0001_0000_0001, 0x8000_0000_8000_0000, 0x0000_0002_0000_0000),
        (0xffff_0001_7fff_8000, 0x0001_0001_0001_8000, 0x8000_8000_8000_8000, 0x0000_0002_8000_0000),
        (0x1f, 0x11, 0x8, 0x20),
        (0x00ff_00ff_00ff_00ff, 0x0001_0001_0001_0001, 0x8080_8080_8080_8080, 0),
        (0xf0f0_f0f0_f0f0_f0f0, u64::MAX, u64::MAX, 0x0f0f_0f0f_0f0f_0f0f),
    ] {
        assert_eq!(AtomicOp::FetchAdd { add, mask }.apply(original), new, "{original:x} + {add:x}, {mask:x}");
    }
}

/// The table of compare-and-swap, including the unconditional swap that replaces Swap.
// Proves EXT-046, EXT-050 to EXT-053, EXT-056.
#[test]
fn swaps_by_the_table() {
    let original = 0x1122_3344_5566_7788;
    let (all, half) = (u64::MAX, 0xaaaa_aaaa_aaaa_aaaa);
    for (compare, compare_mask, swap, swap_mask, new) in [
        (0x7700, 0xff00, half, 0xffff_0000, 0x1122_3344_aaaa_7788),
        (0x6600, 0xff00, half, 0xffff_0000, original),
        (0xffff_ffff_ffff_77ff, 0xff00, half, 0xffff_0000, 0x1122_3344_aaaa_7788),
        (0x1234, 0, 9, all, 9),
        (original, all, 1, all, 1),
        (original, all, 0x1234, 0, original),
    ] {
        let op = AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask };
        assert_eq!(op.apply(original), new, "{op:x?}");
    }
    assert_eq!(AtomicOp::Swap { swap: 9 }.apply(7), 9);
}

proptest! {
    /// For any mask, the addition field by field has the result of the RFC's loop. The highest bit of a mask
    /// has no effect.
    // Proves EXT-034, EXT-037, EXT-039.
    #[test]
    fn addition_is_the_documents_loop(original: u64, add: u64, mask: u64, sparse: u64) {
        for mask in [mask, mask & sparse, !(mask & sparse)] {
            let new = AtomicOp::FetchAdd { add, mask }.apply(original);
            prop_assert_eq!(new, fetch_add_bit_by_bit(original, add, mask));
            prop_assert_eq!(new, AtomicOp::FetchAdd { add, mask: mask ^ 1 << 63 }.apply(original));
        }
        prop_assert_eq!(AtomicOp::FetchAdd { add, mask: 0 }.apply(original), original.wrapping_add(add));
        prop_assert_eq!(AtomicOp::FetchAdd { add, mask: u64::MAX }.apply(original), original ^ add);
        // Adding 0 is a safe probe: the word does not change.
        prop_assert_eq!(AtomicOp::FetchAdd { add: 0, mask }.apply(original), original);
    }

    // Proves EXT-055, EXT-057.
    #[test]
    fn bits_outside_the_masks_have_no_influence(
        original: u64, swap: u64, swap_mask: u64, compare: u64, compare_mask: u64, noise: u64, matching: bool,
    ) {
        let compare = if matching { original } else { compare };
        let op = |compare, swap| AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask }.apply(original);
        let new = op(compare, swap);
        let matches = compare & compare_mask == original & compare_mask;
        let expected = if matches { (original & !swap_mask) | (swap & swap_mask) } else { original };
        prop_assert_eq!(new, expected);
        prop_assert_eq!(new, op(compare ^ (noise & !compare_mask), swap ^ (noise & !swap_mask)));
    }

    /// An Atomic Request or Atomic Response that is built from its fields is parsed to the same fields.
    #[test]
    fn requests_survive_the_wire(id: u32, stag: u32, to: u64, a: u64, b: u64, c: u64, d: u64, which in 0..3) {
        let op = match which {
            0 => AtomicOp::FetchAdd { add: a, mask: b },
            1 => AtomicOp::Swap { swap: a },
            _ => AtomicOp::CmpSwap { compare: a, compare_mask: b, swap: c, swap_mask: d },
        };
        let request = AtomicRequest { id, stag: Stag(stag), to, op };
        prop_assert_eq!(AtomicRequest::parse(&request.to_bytes()), Ok(request));
        let response = AtomicResponse { id, original: a };
        prop_assert_eq!(AtomicResponse::parse(&response.to_bytes()), Ok(response));
    }
}

const MODEL: &str = r#"
import sys, ddp_ref as r
for line in sys.stdin:
    payload, word = line.split()
    sink, memory = r.Sink(), bytearray.fromhex(word)
    sink.register(0x12345678, 0x1008, memory)
    print(r.execute(bytes.fromhex(payload), sink).hex(), memory.hex())
"#;

/// Ten thousand operations, from the bytes of the request to those of the response and the memory, are
/// compared with the reference model.
// Proves EXT-042, EXT-055, EXT-093, EXT-094.
#[test]
fn operations_agree_with_the_model() {
    let mut dice = Dice::split_mix(2);
    let mut input = String::new();
    let mut expected = String::new();
    for _ in 0..10_000 {
        let mut word = || {
            let word = dice.number();
            if dice.one_in(3) { word & dice.number() & dice.number() } else { word }
        };
        let (original, a, b, c, d) = (word(), word(), word(), word(), word());
        let op = match dice.below(4) {
            0 => AtomicOp::Swap { swap: a },
            1 => AtomicOp::CmpSwap { compare: original ^ (a & !b), compare_mask: b, swap: c, swap_mask: d },
            2 => AtomicOp::CmpSwap { compare: a, compare_mask: b, swap: c, swap_mask: d },
            _ => AtomicOp::FetchAdd { add: a, mask: b },
        };
        let request = AtomicRequest { id: dice.number() as u32, ..request(op) };
        let payload = request.to_bytes();
        writeln!(input, "{} {}", hex(&payload), hex(&original.to_le_bytes())).unwrap();
        let parsed = AtomicRequest::parse(&payload).unwrap();
        let response = AtomicResponse { id: parsed.id, original };
        let memory = parsed.op.apply(original).to_le_bytes();
        writeln!(expected, "{} {}", hex(&response.to_bytes()), hex(&memory)).unwrap();
    }
    assert!(oracle(MODEL, &input) == expected, "the model says otherwise");
}
