//! Messages that the target or we have to refuse, and the Terminate for each message: layer, type and code as
//! the application gets them.
//!
//! The table `THEIRS` contains the codes that Linux's siw sends, even where the RFCs leave a choice or siw
//! deviates from them. The table `OURS` contains the codes that our stack sends.

use iwarp::memory::Access;
use iwarp::verbs::{AtomicOp, RemoteAddr, SendFlags, SendOp, SendRequest, StreamError};
use tests::lab::Result;
use tests::scenes::{Lab, Stage};
use tests::{ensure, lab_error};

use crate::Scene;

/// Layer, type and code of a Terminate.
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

const fn request(
    name: &'static str,
    scene: &'static str,
    bytes: usize,
    codes: Codes,
    op: fn(&Stage) -> Result<SendOp>,
) -> RefusedRequest {
    RefusedRequest { name, scene, op, bytes, codes }
}

const THEIRS: &[RefusedRequest] = &[
    request("write_unknown", "", 64, (1, 1, 0x00), |_| write(nowhere())),
    request("write_revoked", "mr=4096:w:z", 64, (1, 1, 0x00), |s| write(at(s, 0)?)),
    request("write_behind_the_end", "mr=4096:w", 2, (1, 1, 0x01), |s| write(at(s, 4095)?)),
    request("write_before_the_front", "mr=4096:w", 2, (1, 1, 0x01), |s| write(at(s, u64::MAX)?)),
    request("write_other_domain", "mr=4096:w:x", 64, (1, 1, 0x02), |s| write(at(s, 0)?)),
    // RFC 5041 has no code for a missing right; siw and our stack use the same code.
    request("write_no_right", "mr=4096:r", 64, (1, 1, 0x00), |s| write(at(s, 0)?)),
    request("read_unknown", "", 64, (0, 1, 0x00), |_| read(nowhere())),
    request("read_revoked", "mr=4096:r:z", 64, (0, 1, 0x00), |s| read(at(s, 0)?)),
    request("read_behind_the_end", "mr=4096:r", 2, (0, 1, 0x01), |s| read(at(s, 4095)?)),
    request("read_other_domain", "mr=4096:r:x", 64, (0, 1, 0x03), |s| read(at(s, 0)?)),
    request("send_no_buffer", "", 64, (1, 2, 0x02), |_| Ok(SendOp::Send)),
    // RFC 5041 section 7.2 has code 5 for this error; siw sends code 2 (see tests/siw-peer/README.md).
    request("send_too_long", "recv=1x16", 64, (1, 2, 0x02), |_| Ok(SendOp::Send)),
    // siw does not know these opcodes. siw's 0/2/06 has the same bytes as 2/0/06, so our stack cannot
    // distinguish these two codes.
    request("immediate", "recv=1x64", 0, (2, 0, 0x06), |_| Ok(SendOp::Immediate { data: *b"8 bytes!" })),
    request("fetch_add", "mr=4096:rw", 8, (2, 0, 0x06), |s| {
        Ok(SendOp::Atomic { remote: at(s, 0)?, op: FETCH_ADD })
    }),
    // siw first reports the error only by the completion of the receive. siw sends this Terminate when its
    // application disconnects.
    request("invalidate_unknown", "recv=1x64 close", 64, (0, 2, 0x09), |_| invalidate(UNKNOWN)),
    request("invalidate_other_domain", "mr=4096:w:x recv=1x64 close", 64, (0, 1, 0x09), |s| {
        invalidate(s.region(0)?.remote.rkey)
    }),
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

/// An operation of the target that we refuse. If `known`, the operation accesses our region of 4096 bytes,
/// which has the rights `access`. Otherwise the operation uses an STag that does not exist.
struct RefusedOperation {
    name: &'static str,
    access: Access,
    op: &'static str,
    known: bool,
    codes: Codes,
}

const fn operation(
    name: &'static str,
    access: Access,
    op: &'static str,
    known: bool,
    codes: Codes,
) -> RefusedOperation {
    RefusedOperation { name, access, op, known, codes }
}

const WRITABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

const OURS: &[RefusedOperation] = &[
    operation("write_unknown", WRITABLE, "w64", false, (1, 1, 0x00)),
    operation("write_behind_the_end", WRITABLE, "w64@4095", true, (1, 1, 0x01)),
    operation("write_before_the_front", WRITABLE, "w64@18446744073709551615", true, (1, 1, 0x01)),
    operation("write_no_right", Access::REMOTE_READ, "w64", true, (1, 1, 0x00)),
    operation("read_unknown", Access::REMOTE_READ, "r64", false, (0, 1, 0x00)),
    operation("read_behind_the_end", Access::REMOTE_READ, "r64@4095", true, (0, 1, 0x01)),
    operation("read_no_right", WRITABLE, "r64", true, (0, 1, 0x02)),
    operation("send_no_buffer", WRITABLE, "s64", true, (1, 2, 0x02)),
    operation("invalidate_no_buffer", WRITABLE, "i64", true, (1, 2, 0x02)),
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

/// Checks that `error` has these codes. Also checks that the peer reported the error if `from_peer` is true,
/// or that our side reported the error otherwise.
pub(crate) fn is(error: StreamError, codes: Codes, from_peer: bool) -> Result<()> {
    let (layer, etype, code) = codes;
    if error == (StreamError { layer, etype, code, from_peer }) {
        return Ok(());
    }
    Err(lab_error!("{error}; not {layer}/{etype}/{code:#04x}, {}", if from_peer { "theirs" } else { "ours" }))
}

/// Returns the side that terminated and the codes, for the line of a scene.
pub(crate) fn codes(error: StreamError) -> String {
    let who = if error.from_peer { "they" } else { "we" };
    format!("{who} {}/{}/{}", error.layer, error.etype, error.code)
}
