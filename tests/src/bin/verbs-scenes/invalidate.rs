//! Send with Invalidate in both directions, with and without Solicited Event; and local invalidation.

use iwarp::memory::Access;
use iwarp::verbs::{
    MemoryRegion, MrOptions, RecvRequest, SendFlags, SendOp, SendRequest, WcOpcode, WcStatus,
};
use tests::contract::{SOURCE, contrary, pattern};
use tests::ensure;
use tests::lab::Result;
use tests::scenes::{Completion, Lab, Session};

use crate::Scene;
use crate::terminate::{codes, is};

pub(crate) fn scenes() -> Vec<Scene> {
    vec![
        Scene::ending("invalidate_ours", |lab| invalidate_ours(lab, SendFlags::SIGNALED, 0)),
        Scene::ending("invalidate_ours_solicited", |lab| {
            invalidate_ours(lab, SendFlags::SIGNALED | SendFlags::SOLICITED, 2000)
        }),
        Scene::new("invalidate_theirs", |lab| invalidate_theirs(lab, "i64", 64)),
        Scene::new("invalidate_theirs_empty", |lab| invalidate_theirs(lab, "i0", 0)),
        Scene::new("invalidate_theirs_solicited", |lab| invalidate_theirs(lab, "j5000", 5000)),
        Scene::new("invalidate_theirs_solicited_empty", |lab| invalidate_theirs(lab, "j0", 0)),
        Scene::ending("invalidate_local", invalidate_local),
    ]
}

/// We send a Write, a Send that invalidates the Write's STag, and a second Write to this STag. The target
/// must not place the second Write.
fn invalidate_ours(lab: &mut Lab, flags: SendFlags, bytes: usize) -> Result<String> {
    let mut session = lab.scene("mr=4096:w recv=2x4096")?;
    let remote = session.stage.region(0)?.remote;
    let source = lab.filled(&contrary(0, 4096), Access::empty())?;
    let write = |offset: u64, length| {
        let remote = iwarp::verbs::RemoteAddr { addr: remote.addr + offset, ..remote };
        SendRequest::new(offset, SendOp::Write { remote }, source.sge(offset as usize, length))
    };
    let send = SendRequest::new(7, SendOp::SendInvalidate { rkey: remote.rkey }, source.sge(0, bytes));
    session.qp.post_send(&write(0, 64))?;
    session.qp.post_send(&send.flags(flags))?;
    for opcode in [WcOpcode::Write, WcOpcode::Send] {
        let done = lab.success(&session)?;
        ensure!(done.opcode == opcode, "{done:?}");
    }
    session.qp.post_send(&write(1024, 64))?;
    let error = lab.error(&mut session)?;
    is(error, (1, 1, 0x00), true)?;
    let report = lab.report(session)?;
    let kept = tests::scenes::Change::of(0, 0, &contrary(0, 64));
    ensure!(report.changes == [kept], "{report:?}");
    let received = report.completions.first().map(|done| (done.status, done.length, done.crc));
    let expected = Completion::of('R', &contrary(0, bytes));
    ensure!(received == Some((0, expected.length, expected.crc)), "{report:?}");
    Ok(codes(error))
}

/// Opens a session with a region that is bound to the session's queue pair. RFC 5042 forbids the peer to
/// invalidate any other region.
fn bound(lab: &mut Lab, scene: impl FnOnce(&MemoryRegion) -> String) -> Result<(Session, MemoryRegion)> {
    let queues = lab.queue_pair()?;
    let options =
        MrOptions { qp: Some(&queues.0), ..MrOptions::new(Access::LOCAL_WRITE | Access::REMOTE_WRITE) };
    let region = lab.pd.reg_mr_with(4096, &options)?;
    let words = scene(&region);
    Ok((lab.session(queues, &[], &words)?, region))
}

/// Posts a receive request, and sends a message after which the target may send.
fn let_it_send(session: &Session, sink: &MemoryRegion) -> Result<()> {
    session.qp.post_recv(&RecvRequest::new(1, sink.sge(0, sink.len())))?;
    session.qp.post_send(&SendRequest::empty(2, SendOp::Send).flags(SendFlags::empty()))?;
    Ok(())
}

fn invalidate_theirs(lab: &mut Lab, op: &str, bytes: usize) -> Result<()> {
    let (session, region) =
        bound(lab, |region| format!("recv=1x16 peer={:x}:{:x} then=w64,{op}", region.rkey(), region.addr()))?;
    let sink = lab.region(8192, Access::LOCAL_WRITE)?;
    ensure!(region.is_valid(), "the region is invalid before the Send arrived");
    let_it_send(&session, &sink)?;
    let done = lab.success(&session)?;
    ensure!(
        (done.opcode, done.byte_len as usize, done.invalidated, done.solicited)
            == (WcOpcode::Recv, bytes, Some(region.rkey()), op.starts_with('j')),
        "{done:?}"
    );
    ensure!(!region.is_valid(), "still valid");
    let mut got = vec![0; bytes];
    sink.read_at(0, &mut got)?;
    ensure!(got == pattern(SOURCE, bytes), "other bytes");
    let mut written = vec![0; 64];
    region.read_at(0, &mut written)?;
    ensure!(written == pattern(SOURCE, 64), "the Write before it did not arrive");
    let report = lab.report(session)?;
    ensure!(report.unposted == 0, "{report:?}");
    Ok(())
}

/// We invalidate the region. A later Write of the peer to this region ends the stream.
fn invalidate_local(lab: &mut Lab) -> Result<String> {
    let (mut session, region) =
        bound(lab, |region| format!("recv=2x16 peer={:x}:{:x} then=w64", region.rkey(), region.addr()))?;
    session.qp.post_send(&SendRequest::empty(1, SendOp::LocalInvalidate { rkey: region.rkey() }))?;
    let done = lab.success(&session)?;
    ensure!(done.opcode == WcOpcode::LocalInvalidate && !region.is_valid(), "{done:?}");
    session.qp.post_send(&SendRequest::empty(2, SendOp::Send))?;
    let done = lab.completion(&session)?;
    ensure!(done.wr_id == 2 && done.status == WcStatus::Success, "{done:?}");
    let error = lab.error(&mut session)?;
    is(error, (1, 1, 0x00), false)?;
    let mut bytes = vec![0; 64];
    region.read_at(0, &mut bytes)?;
    ensure!(bytes == [0; 64], "bytes were written to an invalid region");
    lab.report(session)?;
    Ok(codes(error))
}
