//! Atomics (RFC 7306 section 5). These cases do not apply to an endpoint without atomics, which answers an
//! atomic with Terminate 0/2/06 or another code of `ANY_OPERATION`.

use super::codes::{
    ANY_OPERATION, OPERATION_STREAM, OPERATION_VERSION, PROTECTION_ACCESS, PROTECTION_BOUNDS,
    PROTECTION_STAG, PROTECTION_UNSPECIFIED, PROTECTION_WRAP, UNTAGGED_TOO_LONG,
};
use crate::case::{Case, CaseError, Check, any, deviates, not_applicable, require};
use crate::probe::Probe;
use crate::scene::{Region, pattern};
use crate::session::{Incoming, Session};
use crate::wire::atomic::{AtomicRequest, CMP_SWAP, FETCH_ADD, decode_response};
use crate::wire::{Code, Segment, describe, opcode};

const SCENE: &str = "mr=64:rwa recv=1x16";

/// Opens a connection, and finds out by a FetchAdd of 0 whether the endpoint supports atomics. This FetchAdd
/// does not change memory (RFC 7306 section 1.1).
fn stage(p: &Probe) -> Result<(Session, Region), CaseError> {
    let mut session = p.stage(SCENE)?;
    let region = session.region(0)?;
    let trial = AtomicRequest::fetch_add(0, region.stag, region.to, 0, 0);
    send(&mut session, &trial);
    match session.receive() {
        Incoming::Segment(segment) if segment.opcode() == opcode::ATOMIC_RESPONSE => Ok((session, region)),
        Incoming::Segment(segment)
            if segment.as_terminate().is_some_and(|told| told.is_any_of(ANY_OPERATION)) =>
        {
            not_applicable("the endpoint has no atomics")
        }
        other => deviates(format!("FetchAdd is answered by {other}")),
    }
}

fn segment_of(session: &mut Session, request: &AtomicRequest) -> Segment {
    let msn = session.next_msn(1);
    Segment::untagged(opcode::ATOMIC_REQUEST, 1, msn, &request.encode())
}

fn send(session: &mut Session, request: &AtomicRequest) {
    let segment = segment_of(session, request);
    session.send(&segment);
}

fn response(session: &mut Session, id: u32) -> Result<u64, CaseError> {
    let segment = session.expect(opcode::ATOMIC_RESPONSE)?;
    let Some((told, value)) = decode_response(segment.payload()) else {
        return deviates(format!("an Atomic Response of {} bytes", segment.payload().len()));
    };
    require(!segment.is_tagged() && segment.qn() == 3 && told == id, || {
        format!("{}, identifier {told:x}, expected {id:x}", describe::segment(&segment))
    })?;
    Ok(value)
}

/// Returns the bytes of a value in memory, in the byte order of the machine on which the target runs.
fn in_memory(value: u64, little_endian: bool) -> [u8; 8] {
    if little_endian { value.to_le_bytes() } else { value.to_be_bytes() }
}

/// Finds out whether the target's machine is little-endian.
fn byte_order(session: &mut Session, region: Region) -> Result<bool, CaseError> {
    send(session, &AtomicRequest::fetch_add(1, region.stag, region.to, 0, 0));
    let value = response(session, 1)?;
    let bytes = pattern(0, 8);
    match (bytes == value.to_le_bytes(), bytes == value.to_be_bytes()) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => deviates(format!("{value:016x} is the original value in no byte order")),
    }
}

/// Writes `original` to memory. Checks that `request` changes this value to `result`, and that the response
/// contains `original`.
fn operates(
    session: &mut Session,
    region: Region,
    little: bool,
    request: &AtomicRequest,
    original: u64,
    result: u64,
) -> Check {
    session.send(&Segment::write(region.stag, region.to, &in_memory(original, little)));
    send(session, request);
    let told = response(session, request.id)?;
    require(told == original, || format!("original value {told:016x}, expected {original:016x}"))?;
    let memory = session.read(region.stag, region.to, 8)?;
    require(memory == in_memory(result, little), || {
        format!("{original:016x} became {memory:02x?}, expected {result:016x}")
    })
}

fn refused(p: &Probe, codes: &[Code], make: impl FnOnce(Region) -> AtomicRequest) -> Check {
    let (mut session, region) = stage(p)?;
    send(&mut session, &make(region));
    session.expect_terminate(codes)?;
    p.report(session)?.expect_untouched()
}

fn bytes_refused(p: &Probe, codes: &[Code], make: impl FnOnce(Segment) -> Segment) -> Check {
    let (mut session, region) = stage(p)?;
    let request = AtomicRequest::fetch_add(9, region.stag, region.to, 1, 0);
    let segment = segment_of(&mut session, &request);
    session.send(&make(segment));
    session.expect_terminate(codes)?;
    p.report(session)?.expect_untouched()
}

const FETCH_ADDS: [(u64, u64, u64, u64); 8] = [
    (5, 3, 0, 8),
    (0xffff_ffff_ffff_ffff, 1, 0, 0),
    (0x0000_0001_ffff_ffff, 0x0000_0001_0000_0001, 0, 0x0000_0003_0000_0000),
    (0x0000_0001_ffff_ffff, 0x0000_0001_0000_0001, 0x8000_0000_8000_0000, 0x0000_0002_0000_0000),
    (0xffff_0001_7fff_8000, 0x0001_0001_0001_8000, 0x8000_8000_8000_8000, 0x0000_0002_8000_0000),
    (0x1f, 0x11, 8, 0x20),
    (0x00ff_00ff_00ff_00ff, 0x0001_0001_0001_0001, 0x8080_8080_8080_8080, 0),
    (0xf0f0_f0f0_f0f0_f0f0, u64::MAX, u64::MAX, 0x0f0f_0f0f_0f0f_0f0f),
];

const ORIGINAL: u64 = 0x1122_3344_5566_7788;

/// CmpSwaps on `ORIGINAL`: compare value, its mask, swap value, its mask, result.
const CMP_SWAPS: [(u64, u64, u64, u64, u64); 6] = [
    (0x7700, 0xff00, 0xaaaa_aaaa_aaaa_aaaa, 0xffff_0000, 0x1122_3344_aaaa_7788),
    (0x6600, 0xff00, 0xaaaa_aaaa_aaaa_aaaa, 0xffff_0000, ORIGINAL),
    (0xffff_ffff_ffff_77ff, 0xff00, 0xaaaa_aaaa_aaaa_aaaa, 0xffff_0000, 0x1122_3344_aaaa_7788),
    (0x1234, 0, 9, u64::MAX, 9),
    (ORIGINAL, u64::MAX, 1, u64::MAX, 1),
    (ORIGINAL, u64::MAX, 0x5555, 0, ORIGINAL),
];

pub(super) const CASES: &[Case] = &[
    any("fetch-add", "EXT-090 EXT-091 EXT-094 EXT-171 EXT-187")
        .about("FetchAdd returns the old value and adds, with and without field boundaries")
        .run(|p| {
            let (mut session, region) = stage(p)?;
            let little = byte_order(&mut session, region)?;
            for (original, add, mask, result) in FETCH_ADDS {
                let request = AtomicRequest::fetch_add(0xcafe_babe, region.stag, region.to, add, mask);
                operates(&mut session, region, little, &request, original, result)?;
            }
            Ok(())
        }),
    any("cmp-swap", "EXT-055 EXT-056 EXT-057 EXT-171 EXT-187")
        .about("CmpSwap returns what was there and swaps where it matches, both under masks")
        .run(|p| {
            let (mut session, region) = stage(p)?;
            let little = byte_order(&mut session, region)?;
            for (compare, compare_mask, data, mask, result) in CMP_SWAPS {
                let (stag, to) = (region.stag, region.to);
                let request =
                    AtomicRequest { operation: CMP_SWAP, id: 7, stag, to, data, mask, compare, compare_mask };
                operates(&mut session, region, little, &request, ORIGINAL, result)?;
            }
            Ok(())
        }),
    any("fetch-add-compare-ignored", "EXT-079 EXT-081").about("FetchAdd ignores the compare fields").run(
        |p| {
            let (mut session, region) = stage(p)?;
            let little = byte_order(&mut session, region)?;
            let plain = AtomicRequest::fetch_add(3, region.stag, region.to, 3, 0);
            let request = AtomicRequest { compare: 0x1234, compare_mask: 0xffff_ffff, ..plain };
            operates(&mut session, region, little, &request, 5, 8)
        },
    ),
    any("atomic-response-on-queue-3", "EXT-093 EXT-096 EXT-097 EXT-175")
        .about("responses are untagged messages of queue 3, MSN from 1, with the request's identifier")
        .run(|p| {
            let (mut session, region) = stage(p)?;
            for (n, id) in [0xcafe_babe, 0, u32::MAX].into_iter().enumerate() {
                send(&mut session, &AtomicRequest::fetch_add(id, region.stag, region.to, 0, 0));
                let segment = session.expect(opcode::ATOMIC_RESPONSE)?;
                // The FetchAdd of `stage` has used MSN 1.
                let place = (segment.is_last(), segment.qn(), segment.msn(), segment.mo());
                require(!segment.is_tagged() && place == (true, 3, n as u32 + 2, 0), || {
                    format!("got {}", describe::segment(&segment))
                })?;
                let told = decode_response(segment.payload()).map(|(id, _)| id);
                require(told == Some(id), || format!("identifier {told:x?}, expected {id:x}"))?;
            }
            Ok(())
        }),
    any("atomic-reserved-fields", "EXT-065 EXT-169")
        .about("reserved bits of all three headers and the Invalidate STag are not looked at")
        .run(|p| {
            let (mut session, region) = stage(p)?;
            let plain = AtomicRequest::fetch_add(5, region.stag, region.to, 1, 0);
            let request = AtomicRequest { operation: 0xffff_fff0 | FETCH_ADD, ..plain };
            let segment =
                segment_of(&mut session, &request).control(0x7d).rdmap(0x7a).invalidating(0x1234_5678);
            session.send(&segment);
            let told = response(&mut session, 5)?;
            let sum = told.wrapping_add(1);
            let memory = session.read(region.stag, region.to, 8)?;
            require(memory == sum.to_le_bytes() || memory == sum.to_be_bytes(), || {
                format!("FetchAdd of 1 told {told:016x} and left {memory:02x?}")
            })
        }),
    any("atomics-in-order", "EXT-089 EXT-102 EXT-112 EXT-113")
        .about("0 to 1, 1 to 2, 2 to 3, all sent at once: each finds the one before it done")
        .run(|p| {
            let (mut session, region) = stage(p)?;
            session.send(&Segment::write(region.stag, region.to, &[0; 8]));
            let chain: Vec<Segment> = (0..3)
                .map(|n| {
                    let request =
                        AtomicRequest::cmp_swap(n, region.stag, region.to, u64::from(n), u64::from(n) + 1);
                    segment_of(&mut session, &request)
                })
                .collect();
            session.send_together(&chain);
            for n in 0..3 {
                let found = response(&mut session, n)?;
                require(found == u64::from(n), || format!("atomic {n} found {found}"))?;
            }
            Ok(())
        }),
    any("atomics-and-reads-in-order", "EXT-140 EXT-144 EXT-109")
        .about("Write, Read, FetchAdd, Read at once: one sequence of MSNs, answered in this order")
        .run(|p| {
            let (mut session, region) = stage(p)?;
            let before = session.read_request(region.stag, region.to, 8);
            let add = AtomicRequest::fetch_add(1, region.stag, region.to, 1, 0);
            let add = segment_of(&mut session, &add);
            let after = session.read_request(region.stag, region.to, 8);
            session.send_together(&[Segment::write(region.stag, region.to, &[0; 8]), before, add, after]);
            session.expect_read(region.to, 8)?;
            let found = response(&mut session, 1)?;
            require(found == 0, || format!("FetchAdd behind a Write of zeros found {found}"))?;
            let after = session.expect_read(region.to, 8)?;
            let sum: u32 = after.iter().map(|byte| u32::from(*byte)).sum();
            require(sum == 1, || format!("behind FetchAdd {after:02x?} was read"))
        }),
    any("fetch-add-misaligned", "EXT-178 EXT-179 EXT-180 EXT-202 EXT-203")
        .about("FetchAdd on an address that is no multiple of eight: Terminate 0/2/07, nothing changes")
        .run(|p| {
            (1..8).try_for_each(|off| {
                refused(p, &[OPERATION_STREAM], |r| AtomicRequest::fetch_add(1, r.stag, r.to + off, 1, 0))
            })
        }),
    any("cmp-swap-misaligned", "EXT-182 EXT-183 EXT-184 EXT-185 EXT-202")
        .about("CmpSwap on an address that is no multiple of eight: Terminate 0/2/07, nothing changes")
        .run(|p| {
            (1..8).try_for_each(|off| {
                refused(p, &[OPERATION_STREAM], |r| {
                    let any = AtomicRequest::cmp_swap(1, r.stag, r.to + off, 0, 1);
                    AtomicRequest { compare_mask: 0, ..any }
                })
            })
        }),
    any("atomic-unknown-operation", "EXT-190")
        .about("operation code 5, which nobody has assigned: an error, nothing changes")
        .run(|p| {
            refused(p, ANY_OPERATION, |r| AtomicRequest {
                operation: 5,
                ..AtomicRequest::fetch_add(1, r.stag, r.to, 1, 0)
            })
        }),
    any("atomic-unknown-stag", "EXT-152")
        .about("an atomic on an STag that nobody registered: Terminate 0/1/00")
        .run(|p| refused(p, &[PROTECTION_STAG], |r| AtomicRequest::fetch_add(1, r.stag ^ 1, r.to, 1, 0))),
    any("atomic-past-end", "EXT-152")
        .about("an atomic behind the region: Terminate 0/1/01")
        .run(|p| refused(p, &[PROTECTION_BOUNDS], |r| AtomicRequest::fetch_add(1, r.stag, r.end(), 1, 0))),
    any("atomic-offset-wraps", "EXT-152")
        .about("an atomic on the last eight bytes of all: Terminate 0/1/04 (or 0/1/01)")
        .run(|p| {
            refused(p, &[PROTECTION_WRAP, PROTECTION_BOUNDS], |r| {
                AtomicRequest::fetch_add(1, r.stag, u64::MAX - 7, 1, 0)
            })
        }),
    any("atomic-without-the-right", "EXT-153")
        .about("an atomic on a region for reading: Terminate 0/1/02 (or 0/1/ff), nothing changes")
        .run(|p| {
            stage(p)?.0.close();
            let mut session = p.stage("mr=64:r")?;
            let region = session.region(0)?;
            send(&mut session, &AtomicRequest::fetch_add(1, region.stag, region.to, 1, 0));
            session.expect_terminate(&[PROTECTION_ACCESS, PROTECTION_UNSPECIFIED])?;
            p.report(session)?.expect_untouched()
        }),
    any("atomic-request-short", "").about("an Atomic Request of 51 bytes: an error, nothing changes").run(
        |p| {
            bytes_refused(p, ANY_OPERATION, |segment| {
                let length = segment.bytes.len();
                Segment { bytes: segment.bytes[..length - 1].to_vec() }
            })
        },
    ),
    any("atomic-request-long", "").about("an Atomic Request of 53 bytes: an error, nothing changes").run(
        |p| {
            let codes = [ANY_OPERATION, &[UNTAGGED_TOO_LONG]].concat();
            bytes_refused(p, &codes, |segment| Segment { bytes: [segment.bytes, vec![0]].concat() })
        },
    ),
    any("atomic-of-a-wrong-version", "EXT-151")
        .about("RDMAP version 3: Terminate 0/2/05, nothing changes")
        .run(|p| bytes_refused(p, &[OPERATION_VERSION], |segment| segment.rdmap(0xca))),
    any("atomic-response-unasked", "").about("an Atomic Response that nobody asked for: an error").run(|p| {
        let (mut session, _) = stage(p)?;
        session.send(&Segment::untagged(opcode::ATOMIC_RESPONSE, 3, 1, &[0; 12]));
        super::untagged::ended(&mut session)
    }),
    any("atomic-not-told-to-the-target", "EXT-084 EXT-085")
        .about("an atomic takes no receive and completes nothing at the target")
        .run(|p| {
            let (mut session, region) = stage(p)?;
            send(&mut session, &AtomicRequest::fetch_add(2, region.stag, region.to, 1, 0));
            response(&mut session, 2)?;
            p.report(session)?.expect_received(&[])
        }),
    any("does-fetch-add", "EXT-024 EXT-063 EXT-065 EXT-078 EXT-080 EXT-082 EXT-087 EXT-169")
        .about(
            "FetchAdd of the target: 52 bytes on queue 1, unused fields as the text has them; our \
             response completes it",
        )
        .run(|p| {
            does(p, "f", |id| {
                let plain = AtomicRequest::fetch_add(id, STAG, TO, 1, 0);
                // For a single field of 64 bits, the mask may contain the boundary bit or not: both forms are
                // correct.
                vec![plain, AtomicRequest { mask: 1 << 63, ..plain }]
            })
        }),
    any("does-cmp-swap", "EXT-024 EXT-063 EXT-065 EXT-082 EXT-087 EXT-169")
        .about("CmpSwap of the target: 52 bytes on queue 1; our response completes it")
        .run(|p| does(p, "c", |id| vec![AtomicRequest::cmp_swap(id, STAG, TO, 0, 1)])),
];

const STAG: u32 = 0x1122_3344;
const TO: u64 = 0x1000;

/// Checks an atomic that the target posts. `wanted` returns the allowed Requests for a Request Identifier,
/// and the target's Request has to be one of them. The probe answers, and the target completes the atomic.
fn does(p: &Probe, operation: &str, wanted: impl FnOnce(u32) -> Vec<AtomicRequest>) -> Check {
    stage(p)?.0.close();
    let mut session = p.stage(&format!("recv=1x16 then={operation} peer={STAG:x}:{TO:x}"))?;
    session.send_message(b"go");
    let segment = session.expect(opcode::ATOMIC_REQUEST)?;
    let payload = segment.payload();
    let place = (segment.is_tagged(), segment.is_last(), segment.qn(), segment.mo(), segment.stag());
    require(place == (false, true, 1, 0, 0) && payload.len() == 52, || {
        format!("got {}", describe::segment(&segment))
    })?;
    let id = payload[4..8].iter().fold(0, |id, byte| id << 8 | u32::from(*byte));
    require(wanted(id).iter().any(|request| request.encode() == payload), || {
        format!("fields {}", describe::hex(payload))
    })?;
    let mut answer = payload[4..8].to_vec();
    answer.extend([0, 0, 0, 0, 0, 0, 0, 5]);
    session.send(&Segment::untagged(opcode::ATOMIC_RESPONSE, 3, 1, &answer));
    session.ping()?;
    let report = p.report(session)?;
    let done = report.completions.iter().any(|c| c.kind == operation && c.status == 0);
    require(done, || format!("the target's atomic completed as {:x?}", report.completions))
}
