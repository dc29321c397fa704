//! RDMAP's bytes on the wire: the golden messages of every opcode, and Terminates, built and parsed.

use crate::common::ulpdu::from_hex;
use iwarp::ddp::{DdpError, Header};
use iwarp::memory::{Fault, Stag};
use iwarp::rdmap::error::Inclusion;
use iwarp::rdmap::opcode::invalidate_stag;
use iwarp::rdmap::{BitOrder, Extensions, Opcode, Queue, ReadRequest, Terminate, TerminateError};
use proptest::prelude::*;
use testkit::dice::Dice;

fn message(header: impl Into<Header>, payload: &[u8]) -> Vec<u8> {
    let header = header.into();
    [header.to_bytes().as_slice(), payload].concat()
}

const WRITE: &str = "c14011223344000000000000100041424344";
const READ: &str =
    "41410000000000000001000000010000000000000101000000000000100000000800000002020000000000002000";

const REQUEST: ReadRequest = ReadRequest {
    sink_stag: Stag(0x101),
    sink_to: 0x1000,
    size: 0x800,
    source_stag: Stag(0x202),
    source_to: 0x2000,
};

/// Every message of the byte-exact examples is built from its fields.
// Proves RDMAP-087, RDMAP-089 to RDMAP-094, RDMAP-098, RDMAP-100 to RDMAP-107, RDMAP-117 to RDMAP-119.
#[test]
fn every_message_is_built_to_the_byte() {
    let zero = Stag(0);
    let named = Stag(0x1122_3344);
    let empty_read = ReadRequest { size: 0, source_stag: zero, source_to: 0, ..REQUEST };
    for (built, golden) in [
        (message(Opcode::Write.tagged_header(named, 0x1000, true), b"ABCD"), WRITE),
        (message(Opcode::Write.tagged_header(zero, 0, true), b""), "c140000000000000000000000000"),
        (message(Opcode::ReadRequest.untagged_header(zero, 1, 0, true), &REQUEST.to_bytes()), READ),
        (
            message(Opcode::ReadRequest.untagged_header(zero, 2, 0, true), &empty_read.to_bytes()),
            "41410000000000000001000000020000000000000101000000000000100000000000000000000000000000000000",
        ),
        (
            message(Opcode::ReadResponse.tagged_header(Stag(0x101), 0x1000, true), b"DATA"),
            "c14200000101000000000000100044415441",
        ),
        (
            // A Send without Invalidate ignores the STag.
            message(Opcode::Send.untagged_header(named, 1, 0, true), b"hello"),
            "41430000000000000000000000010000000068656c6c6f",
        ),
        (
            message(Opcode::SendInvalidate.untagged_header(named, 2, 0, true), b"hello"),
            "41441122334400000000000000020000000068656c6c6f",
        ),
        (
            message(Opcode::SendSolicited.untagged_header(named, 3, 0, true), b"hello"),
            "41450000000000000000000000030000000068656c6c6f",
        ),
        (
            message(Opcode::SendSolicitedInvalidate.untagged_header(named, 4, 0, true), b"hello"),
            "41461122334400000000000000040000000068656c6c6f",
        ),
    ] {
        assert_eq!(built, from_hex(golden));
        let header = Header::parse(&built).unwrap();
        let opcode = Opcode::check(&header, Extensions::empty()).unwrap();
        assert_eq!(opcode.control_byte(), built[1]);
        if let (Header::Untagged(header), true) = (header, opcode.invalidates()) {
            assert_eq!(invalidate_stag(&header), named);
        }
    }
}

/// The five Terminates of the examples are built and parsed.
// Proves RDMAP-132 to RDMAP-136, RDMAP-138 to RDMAP-140, RDMAP-175, RDMAP-177 to RDMAP-189, RDMAP-191 to
// RDMAP-195: the test compares every byte of an error of each layer: the numbers (RDMAP-132 to RDMAP-136),
// the bits M, D and R (RDMAP-138 to RDMAP-140), and the fields behind these bits, with the rest of a Read
// that has begun.
#[test]
fn every_terminate_is_built_to_the_byte() {
    let (write, read) = (from_hex(WRITE), from_hex(READ));
    let terminate =
        |error, segment: &[u8], request| Terminate::of_segment(error, segment, segment.len(), request);
    for (built, golden) in [
        (Terminate::bare(TerminateError::LocalCatastrophic), "00000000"),
        // The Terminate of an LLP error does not contain the segment's header, even if the caller passes one.
        (terminate(TerminateError::MpaCrc, &write, None), "20020000"),
        (terminate(TerminateError::DdpBounds, &write, None), "1101c0000012c140112233440000000000001000"),
        (
            terminate(TerminateError::ReadBounds, &read, Some(REQUEST)),
            "0101e000002e41410000000000000001000000010000000000000101000000000000100000000800000002020000000000002000",
        ),
        (
            terminate(TerminateError::ReadInvalidStag, &read, Some(REQUEST.advanced(0x400))),
            "0100e000002e41410000000000000001000000010000000000000101000000000000140000000400000002020000000000002400",
        ),
    ] {
        assert_eq!(built.to_bytes().to_vec(), from_hex(golden));
        assert_eq!(Terminate::parse(&from_hex(golden)).map(without_control), Ok(built.clone()));
        // The parser ignores the reserved bits and the bytes behind the last part.
        let mut long = from_hex(golden);
        long[3] = 0xFF;
        long.resize(80, 0xA5);
        assert_eq!(Terminate::parse(&long).map(without_control), Ok(built));
    }
    assert_eq!(ReadRequest::parse(&from_hex(READ)[18..]), Ok(REQUEST));
}

/// For each error, the Terminate contains the header parts that its cause requires.
// Proves RDMAP-138 to RDMAP-140, RDMAP-191 to RDMAP-195.
#[test]
fn inclusion_follows_figure_10() {
    for &error in TerminateError::ALL {
        let (layer, etype, _) = error.codes();
        let plain = match (layer, etype) {
            (0, 0) | (1, 0) | (2, _) => Inclusion::Nothing,
            _ => Inclusion::DdpHeader,
        };
        assert_eq!(error.inclusion(false), plain, "{error}");
        let with_request = if (layer, etype) == (0, 1) { Inclusion::ReadRequestHeader } else { plain };
        assert_eq!(error.inclusion(true), with_request, "{error}");
    }
}

/// Every number in the table of Terminate codes maps to one error and back. The error's text contains the
/// numbers.
// Proves RDMAP-135, RDMAP-141 to RDMAP-173: only these numbers are sent, and each number has its meaning in
// the RFC.
#[test]
fn codes_map_both_ways() {
    let table: &[(u8, u8, u8, &str)] = &[
        (0, 1, 0x00, "protection error: invalid STag"),
        (0, 1, 0x01, "protection error: base or bounds"),
        (0, 1, 0x02, "protection error: access rights"),
        (0, 1, 0x03, "protection error: STag not associated"),
        (0, 1, 0x04, "protection error: tagged offset wraps"),
        (0, 1, 0x09, "protection error: STag cannot be invalidated"),
        (0, 1, 0xFF, "protection error: unspecified"),
        (0, 2, 0x05, "operation error: invalid RDMAP version"),
        (0, 2, 0x06, "operation error: unexpected opcode"),
        (0, 2, 0x07, "operation error: catastrophic, localized to this stream"),
        (0, 2, 0x08, "operation error: catastrophic, global"),
        (0, 2, 0x09, "operation error: STag cannot be invalidated"),
        (0, 2, 0xFF, "operation error: unspecified"),
        (1, 0, 0x00, "DDP local catastrophic"),
        (1, 1, 0x00, "DDP tagged buffer error: invalid STag"),
        (1, 1, 0x01, "DDP tagged buffer error: base or bounds"),
        (1, 1, 0x02, "DDP tagged buffer error: STag not associated"),
        (1, 1, 0x03, "DDP tagged buffer error: tagged offset wraps"),
        (1, 1, 0x04, "DDP tagged buffer error: invalid DDP version"),
        (1, 2, 0x01, "DDP untagged buffer error: invalid queue number"),
        (1, 2, 0x02, "DDP untagged buffer error: invalid MSN, no buffer"),
        (1, 2, 0x03, "DDP untagged buffer error: invalid MSN, out of range"),
        (1, 2, 0x04, "DDP untagged buffer error: invalid message offset"),
        (1, 2, 0x05, "DDP untagged buffer error: message too long"),
        (1, 2, 0x06, "DDP untagged buffer error: invalid DDP version"),
        (2, 0, 0x01, "MPA error: TCP connection closed, terminated or lost"),
        (2, 0, 0x02, "MPA error: CRC"),
        (2, 0, 0x03, "MPA error: marker and ULPDU length disagree"),
        (2, 0, 0x04, "MPA error: invalid request or reply frame"),
        (2, 0, 0x05, "MPA error: local catastrophic"),
        (2, 0, 0x06, "MPA error: insufficient IRD"),
        (2, 0, 0x07, "MPA error: no matching RTR"),
    ];
    let mut known = 1; // Local catastrophic, with any code.
    for layer in 0..16 {
        for etype in 0..16 {
            for code in 0..=255 {
                let error = TerminateError::from_codes(layer, etype, code);
                let listed = table.iter().find(|(l, e, c, _)| (*l, *e, *c) == (layer, etype, code));
                if (layer, etype) == (0, 0) {
                    assert_eq!(error, Some(TerminateError::LocalCatastrophic));
                    continue;
                }
                assert_eq!(error.is_some(), listed.is_some(), "{layer}/{etype}/{code:02x}");
                let (Some(error), Some((.., meaning))) = (error, listed) else { continue };
                assert!(error.text().contains(meaning), "{error}");
                known += 1;
                assert_eq!(error.codes(), (layer, etype, code));
                let numbers = format!("(layer {layer}, type {etype}, code {code:#04x})");
                assert!(error.to_string().ends_with(&numbers), "{error}");
            }
        }
    }
    assert_eq!(known, TerminateError::ALL.len());
}

/// DDP's errors keep their type and code, with layer 1. A fault has the codes of the layer that found it.
// Proves RDMAP-137, RDMAP-155 to RDMAP-167, DDP-195.
#[test]
fn lower_errors_keep_their_numbers() {
    for error in DdpError::ALL {
        assert_eq!(TerminateError::from(error).codes(), (1, error.etype(), error.code()));
    }
    for (fault, ddp, rdmap) in [
        (Fault::InvalidStag, (1, 0), (0, 1, 0)),
        (Fault::Bounds, (1, 1), (0, 1, 1)),
        (Fault::AccessRights, (1, 0), (0, 1, 2)),
        (Fault::NotAssociated, (1, 2), (0, 1, 3)),
        (Fault::Wrap, (1, 3), (0, 1, 4)),
    ] {
        assert_eq!(DdpError::from(fault).pair(), ddp);
        assert_eq!(TerminateError::of_read_fault(fault).codes(), rdmap);
    }
    assert_eq!(TerminateError::of_invalidate_fault(Fault::InvalidStag).codes(), (0, 1, 0));
    assert_eq!(TerminateError::of_invalidate_fault(Fault::NotInvalidatable).codes(), (0, 1, 9));
}

/// Returns the parsed Terminate without its raw bytes.
fn without_control(terminate: Terminate) -> Terminate {
    Terminate { control: None, ..terminate }
}

/// The parser recognises siw's bit order in Terminates of our captures, unless the same bytes are valid in
/// the RFC's bit order.
#[test]
fn siws_bit_order_is_recognised_where_it_can_be() {
    let with_header = |control: &str| from_hex(&format!("{control}0008c1401122334400000000000010000000"));
    let bad_stag = Terminate::parse(&with_header("11000300")).unwrap();
    assert_eq!(bad_stag.bit_order, BitOrder::Siw);
    assert_eq!(bad_stag.error(), Some(TerminateError::DdpInvalidStag));
    assert_eq!((bad_stag.segment_len, bad_stag.ddp_header.unwrap().len()), (Some(8), 14));

    // This Terminate has no M, D and R. Layer 0 has no type 2 with code 2, so 02 02 means 2/0/02.
    let crc = Terminate::parse(&from_hex("02020000")).unwrap();
    assert_eq!((crc.error(), crc.bit_order), (Some(TerminateError::MpaCrc), BitOrder::Siw));

    // 20 05 is 2/0/05 by the RFC and 0/2/05 by siw. The bit order of 20 05 cannot be recognised, so the
    // parser follows the RFC.
    let ambiguous = Terminate::parse(&from_hex("20050000")).unwrap();
    assert_eq!(ambiguous.bit_order, BitOrder::Standard);

    // M, D and R are where siw puts them: layer 0, type 1, code 0, with a Read Request.
    let read =
        [from_hex("10000700000041410000000000000001000008000000 0000"), REQUEST.to_bytes().to_vec()].concat();
    let read = Terminate::parse(&read).unwrap();
    assert_eq!((read.error(), read.bit_order), (Some(TerminateError::ReadInvalidStag), BitOrder::Siw));
    assert_eq!(read.read_request, Some(REQUEST));
}

/// Parses unusual Terminates, for example a Terminate of 52 zeros, Terminates with undefined numbers, and
/// Terminates that are cut short at any byte.
// Proves RDMAP-174, RDMAP-176, RDMAP-179, RDMAP-182, RDMAP-184.
#[test]
fn odd_terminates_are_parsed_by_their_bits() {
    let zeros = Terminate::parse(&[0; 52]).unwrap();
    assert_eq!(without_control(zeros), Terminate::bare(TerminateError::LocalCatastrophic));
    let unknown = Terminate::parse(&from_hex("f7ab0000")).unwrap();
    assert_eq!((unknown.layer, unknown.etype, unknown.code, unknown.error()), (0xF, 7, 0xAB, None));
    assert!(unknown.to_string().contains("layer 15, type 7, code 0xab"));
    // D is set without M: the length field exists, but has no meaning.
    let d_only = Terminate::parse(&from_hex("11004000ffffc140112233440000000000001000")).unwrap();
    assert_eq!(d_only.segment_len, None);
    assert_eq!(d_only.ddp_header.unwrap()[..], from_hex("c140112233440000000000001000"));

    let whole = from_hex(
        "0101e000002e41410000000000000001000000010000000000000101000000000000100000000800000002020000000000002000",
    );
    for bytes in 0..whole.len() {
        assert!(Terminate::parse(&whole[..bytes]).is_err(), "{bytes}");
    }
}

/// Checks RV, opcode, buffer model and queue, for all 256 control bytes, on the queues 0 to 5 and in tagged
/// messages.
// Proves RDMAP-093, RDMAP-095, RDMAP-096, RDMAP-099, RDMAP-108.
#[test]
fn every_control_byte_in_every_place() {
    for control in 0..=255_u8 {
        let tagged = message(Opcode::Write.tagged_header(Stag(1), 2, true), b"");
        let mut cases = vec![(None, tagged)];
        for qn in 0..6_u8 {
            let mut bytes = message(Opcode::Send.untagged_header(Stag(0), 1, 0, true), b"");
            bytes[9] = qn;
            bytes[2..6].copy_from_slice(&[0xDE, 0xAD, 0xBE, 0xEF]);
            cases.push((Some(u32::from(qn)), bytes));
        }
        for (qn, mut bytes) in cases {
            bytes[1] = control;
            for extensions in
                [Extensions::empty(), Extensions::IMMEDIATE, Extensions::ATOMICS, Extensions::all()]
            {
                let result = Opcode::check(&Header::parse(&bytes).unwrap(), extensions);
                let place = match control & 0x0F {
                    0 | 2 => Some(None),
                    1 => Some(Some(1)),
                    3..=6 => Some(Some(0)),
                    7 => Some(Some(2)),
                    8 | 9 if extensions.contains(Extensions::IMMEDIATE) => Some(Some(0)),
                    10 if extensions.contains(Extensions::ATOMICS) => Some(Some(1)),
                    11 if extensions.contains(Extensions::ATOMICS) => Some(Some(3)),
                    _ => None,
                };
                let expected = match control >> 6 {
                    1 if place == Some(qn) => Ok(control & 0x0F),
                    1 => Err(TerminateError::UnexpectedOpcode),
                    _ => Err(TerminateError::RdmapVersion),
                };
                assert_eq!(result.map(|o| o as u8), expected, "{control:02x} on {qn:?}");
            }
        }
    }
    let open = |qn, extensions| Queue::open(qn, extensions).map(Queue::number);
    for qn in 0..3 {
        assert_eq!(open(qn, Extensions::empty()), Ok(qn));
    }
    assert_eq!(open(3, Extensions::empty()), Err(DdpError::InvalidQn));
    assert_eq!(open(3, Extensions::ATOMICS), Ok(3));
    assert_eq!(open(u32::MAX, Extensions::all()), Err(DdpError::InvalidQn));
}

/// Read Requests of every wrong length are refused.
#[test]
fn read_requests_have_28_bytes() {
    for bytes in 0..60 {
        let result = ReadRequest::parse(&vec![0; bytes]);
        match bytes {
            0..28 => assert_eq!(result, Err(TerminateError::OperationUnspecified)),
            28 => assert!(result.is_ok()),
            _ => assert_eq!(result, Err(TerminateError::DdpTooLong)),
        }
    }
}

proptest! {
    // Proves RDMAP-125: the size may be any 32-bit number.
    #[test]
    fn read_requests_survive_the_wire(sink_stag: u32, sink_to: u64, size: u32, source_stag: u32, source_to: u64,
                                      sent: u32) {
        let request = ReadRequest { sink_stag: Stag(sink_stag), sink_to, size, source_stag: Stag(source_stag), source_to };
        prop_assert_eq!(ReadRequest::parse(&request.to_bytes()), Ok(request));
        let rest = request.advanced(sent);
        prop_assert_eq!(rest.size, size.saturating_sub(sent));
        prop_assert_eq!(rest.source_to.wrapping_sub(source_to), u64::from(sent));
    }

    /// Random bytes cause no panic. A Terminate that is parsed, emitted and parsed again stays the same.
    #[test]
    fn any_bytes_are_a_terminate_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(mut terminate) = Terminate::parse(&bytes) {
            let _ = terminate.to_string();
            // A bare control word that siw would interpret differently keeps its numbers, but not its bit
            // order.
            prop_assume!(terminate.segment_len.is_some() || terminate.error().is_some());
            (terminate.bit_order, terminate.control) = (BitOrder::Standard, None);
            prop_assume!(terminate.read_request.is_none() || terminate.ddp_header.is_some());
            let again = Terminate::parse(&terminate.to_bytes()).unwrap();
            prop_assert_eq!(Terminate { control: None, ..again }, terminate);
        }
        let _ = ReadRequest::parse(&bytes);
    }
}

/// Ten thousand random payloads of a Terminate and of a Read Request cause no panic.
#[test]
fn random_bytes_never_panic() {
    let mut dice = Dice::linear(0x5040);
    let mut next = || dice.number() as u8;
    for _ in 0..10_000 {
        let bytes: Vec<u8> = (0..next() % 64).map(|_| next()).collect();
        if let Ok(terminate) = Terminate::parse(&bytes) {
            assert!(terminate.to_bytes().len() <= Terminate::MAX_LEN);
        }
        let _ = ReadRequest::parse(&bytes);
        if let Ok(header) = Header::parse(&bytes) {
            let _ = Opcode::check(&header, Extensions::all());
        }
    }
}
