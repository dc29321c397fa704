//! Messages that either end has to refuse, and the Terminate for each: layer, type and code as the
//! application gets them.
//!
//! The tables have the peer's codes, even where the RFCs leave a choice or Linux's siw uses other codes.

use iwarp::memory::Access;
use iwarp::verbs::{AtomicOp, RemoteAddr, SendFlags, SendOp, SendRequest, StreamError};
use tests::lab::Result;
use tests::scenes::{Lab, Stage};
use tests::{ensure, lab_error};

use crate::Scene;

/// Layer, type, code.
type Codes = (u8, u8, u8);

/// An STag of siw's form (key 0) that does not exist.
const UNKNOWN: u32 = 0x1234_5600;
const FETCH_ADD: AtomicOp = AtomicOp::FetchAdd { add: 1, mask: 0 };

pub(crate) fn scenes() -> Vec<Scene> {
    let theirs = THEIRS
        .iter()
        .map(|case| Scene::ending(format!("terminate_theirs_{}", case.name), |lab| refused_there(lab, case)));
    let ours = OURS
        .iter()
        .map(|case| Scene::ending(format!("terminate_ours_{}", case.name), |lab| refused_here(lab, case)));
    theirs.chain(ours).collect()
}

/// One of our requests that the target's stack refuses.
struct RefusedRequest {
    name: &'static str,
    scene: &'static str,
    op: fn(&Stage) -> Result<SendOp>,
    bytes: usize,
    codes: Codes,
}

fn at(stage: &Stage, offset: u64) -> Result<RemoteAddr> {
    let region = stage.region(0)?.remote;
    Ok(RemoteAddr { addr: region.addr.wrapping_add(offset), ..region })
}

fn nowhere() -> RemoteAddr {
    RemoteAddr { addr: 0x1000, rkey: UNKNOWN }
}

fn write(remote: RemoteAddr) -> Result<SendOp> {
    Ok(SendOp::Write { remote })
}

fn read(remote: RemoteAddr) -> Result<SendOp> {
    Ok(SendOp::Read { remote })
}

fn invalidate(rkey: u32) -> Result<SendOp> {
    Ok(SendOp::SendInvalidate { rkey })
}

const THEIRS: &[RefusedRequest] = &[
    RefusedRequest {
        name: "write_unknown",
        scene: "",
        op: |_| write(nowhere()),
        bytes: 64,
        codes: (1, 1, 0x00),
    },
    RefusedRequest {
        name: "write_revoked",
        scene: "mr=4096:w:z",
        op: |s| write(at(s, 0)?),
        bytes: 64,
        codes: (1, 1, 0x00),
    },
    RefusedRequest {
        name: "write_behind_the_end",
        scene: "mr=4096:w",
        op: |s| write(at(s, 4095)?),
        bytes: 2,
        codes: (1, 1, 0x01),
    },
    RefusedRequest {
        name: "write_before_the_front",
        scene: "mr=4096:w",
        op: |s| write(at(s, u64::MAX)?),
        bytes: 2,
        codes: (1, 1, 0x01),
    },
    RefusedRequest {
        name: "write_other_domain",
        scene: "mr=4096:w:x",
        op: |s| write(at(s, 0)?),
        bytes: 64,
        codes: (1, 1, 0x02),
    },
    // RFC 5041 has no code for a missing right; siw and our stack use the same one.
    RefusedRequest {
        name: "write_no_right",
        scene: "mr=4096:r",
        op: |s| write(at(s, 0)?),
        bytes: 64,
        codes: (1, 1, 0x00),
    },
    RefusedRequest {
        name: "read_unknown",
        scene: "",
        op: |_| read(nowhere()),
        bytes: 64,
        codes: (0, 1, 0x00),
    },
    RefusedRequest {
        name: "read_revoked",
        scene: "mr=4096:r:z",
        op: |s| read(at(s, 0)?),
        bytes: 64,
        codes: (0, 1, 0x00),
    },
    RefusedRequest {
        name: "read_behind_the_end",
        scene: "mr=4096:r",
        op: |s| read(at(s, 4095)?),
        bytes: 2,
        codes: (0, 1, 0x01),
    },
    RefusedRequest {
        name: "read_other_domain",
        scene: "mr=4096:r:x",
        op: |s| read(at(s, 0)?),
        bytes: 64,
        codes: (0, 1, 0x03),
    },
    RefusedRequest {
        name: "send_no_buffer",
        scene: "",
        op: |_| Ok(SendOp::Send),
        bytes: 64,
        codes: (1, 2, 0x02),
    },
    // RFC 5041 section 8.2 has code 5 for it; siw sends 2 (see tests/siw-peer/README.md).
    RefusedRequest {
        name: "send_too_long",
        scene: "recv=1x16",
        op: |_| Ok(SendOp::Send),
        bytes: 64,
        codes: (1, 2, 0x02),
    },
    // Opcodes that siw does not know. Its 0/2/06 has the same bytes as 2/0/06, so they cannot be
    // distinguished.
    RefusedRequest {
        name: "immediate",
        scene: "recv=1x64",
        op: |_| Ok(SendOp::Immediate { data: *b"8 bytes!" }),
        bytes: 0,
        codes: (2, 0, 0x06),
    },
    RefusedRequest {
        name: "fetch_add",
        scene: "mr=4096:rw",
        op: |s| Ok(SendOp::Atomic { remote: at(s, 0)?, op: FETCH_ADD }),
        bytes: 8,
        codes: (2, 0, 0x06),
    },
    // siw sends this one only when its application disconnects, because it takes the completion of the
    // receive for the end.
    RefusedRequest {
        name: "invalidate_unknown",
        scene: "recv=1x64 close",
        op: |_| invalidate(UNKNOWN),
        bytes: 64,
        codes: (0, 2, 0x09),
    },
    RefusedRequest {
        name: "invalidate_other_domain",
        scene: "mr=4096:w:x recv=1x64 close",
        op: |s| invalidate(s.region(0)?.remote.rkey),
        bytes: 64,
        codes: (0, 1, 0x09),
    },
];

fn refused_there(lab: &mut Lab, case: &RefusedRequest) -> Result<String> {
    let source = lab.region(4096, Access::LOCAL_WRITE)?;
    let mut session = lab.scene(case.scene)?;
    let op = (case.op)(&session.stage)?;
    let request = match case.bytes {
        0 => SendRequest::empty(1, op),
        bytes => SendRequest::new(1, op, source.sge(0, bytes)),
    };
    session.qp.post_send(&request)?;
    let error = lab.error(&mut session)?;
    let report = lab.report(session)?;
    is(error, case.codes, true)?;
    ensure!(report.changes.is_empty(), "bytes were placed: {report:?}");
    Ok(codes(error))
}

/// An operation of the target that we refuse. Our region has 4096 bytes and these rights.
struct RefusedOperation {
    name: &'static str,
    access: Access,
    op: &'static str,
    known: bool,
    codes: Codes,
}

const WRITABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

const OURS: &[RefusedOperation] = &[
    RefusedOperation {
        name: "write_unknown",
        access: WRITABLE,
        op: "w64",
        known: false,
        codes: (1, 1, 0x00),
    },
    RefusedOperation {
        name: "write_behind_the_end",
        access: WRITABLE,
        op: "w64@4095",
        known: true,
        codes: (1, 1, 0x01),
    },
    RefusedOperation {
        name: "write_before_the_front",
        access: WRITABLE,
        op: "w64@18446744073709551615",
        known: true,
        codes: (1, 1, 0x01),
    },
    RefusedOperation {
        name: "write_no_right",
        access: Access::REMOTE_READ,
        op: "w64",
        known: true,
        codes: (1, 1, 0x00),
    },
    RefusedOperation {
        name: "read_unknown",
        access: Access::REMOTE_READ,
        op: "r64",
        known: false,
        codes: (0, 1, 0x00),
    },
    RefusedOperation {
        name: "read_behind_the_end",
        access: Access::REMOTE_READ,
        op: "r64@4095",
        known: true,
        codes: (0, 1, 0x01),
    },
    RefusedOperation { name: "read_no_right", access: WRITABLE, op: "r64", known: true, codes: (0, 1, 0x02) },
    RefusedOperation {
        name: "send_no_buffer",
        access: WRITABLE,
        op: "s64",
        known: true,
        codes: (1, 2, 0x02),
    },
    RefusedOperation {
        name: "invalidate_no_buffer",
        access: WRITABLE,
        op: "i64",
        known: true,
        codes: (1, 2, 0x02),
    },
];

fn refused_here(lab: &mut Lab, case: &RefusedOperation) -> Result<String> {
    let region = lab.region(4096, case.access)?;
    let rkey = if case.known { region.rkey() } else { UNKNOWN };
    let words = format!("recv=1x16 peer={rkey:x}:{:x} then={}", region.addr(), case.op);
    let mut session = lab.scene(&words)?;
    session.qp.post_send(&SendRequest::empty(1, SendOp::Send).flags(SendFlags::empty()))?;
    let error = lab.error(&mut session)?;
    is(error, case.codes, false)?;
    let mut bytes = vec![0; 4096];
    region.read_at(0, &mut bytes)?;
    ensure!(bytes.iter().all(|&byte| byte == 0), "bytes were placed");
    let report = lab.report(session)?;
    ensure!(report.unposted == 0, "{report:?}");
    Ok(codes(error))
}

/// Checks the error that the application gets.
pub(crate) fn is(error: StreamError, codes: Codes, from_peer: bool) -> Result<()> {
    let (layer, etype, code) = codes;
    if error == (StreamError { layer, etype, code, from_peer }) {
        return Ok(());
    }
    Err(lab_error!("{error}; not {layer}/{etype}/{code:#04x}, {}", if from_peer { "theirs" } else { "ours" }))
}

/// The end that terminated, and the codes, for a scene's line.
pub(crate) fn codes(error: StreamError) -> String {
    let who = if error.from_peer { "they" } else { "we" };
    format!("{who} {}/{}/{}", error.layer, error.etype, error.code)
}
