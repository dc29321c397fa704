//! Solicited events: Sends with Solicited Event to a completion queue that is armed only for solicited
//! events.

use std::time::Duration;

use iwarp::memory::Access;
use iwarp::verbs::{RecvRequest, SendFlags, SendOp, SendRequest, WcOpcode};
use tests::contract::{SOURCE, pattern};
use tests::ensure;
use tests::lab::Result;
use tests::scenes::{Completion, Lab};

use crate::Scene;

pub(crate) fn scenes() -> Vec<Scene> {
    vec![Scene::new("solicited_ours", solicited_ours), Scene::new("solicited_theirs", solicited_theirs)]
}

/// Our Sends arrive, with and without Solicited Event. The other stack's report says how often our Sends woke
/// the other application. The scene does not check this number.
fn solicited_ours(lab: &mut Lab) -> Result<()> {
    let session = lab.scene("recv=3x4096 solicited")?;
    let bytes = pattern(9, 3000);
    let ours = lab.filled(&bytes, Access::empty())?;
    let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
    session.qp.post_send(&SendRequest::new(1, SendOp::Send, ours.sge(0, 3000)).flags(solicited))?;
    session.qp.post_send(&SendRequest::empty(2, SendOp::Send).flags(solicited))?;
    session.qp.post_send(&SendRequest::new(3, SendOp::Send, ours.sge(0, 1)))?;
    for wr_id in 1..=3 {
        let done = lab.success(&session)?;
        ensure!((done.wr_id, done.opcode) == (wr_id, WcOpcode::Send), "{done:?}");
    }
    let report = lab.report(session)?;
    let expected = [&bytes[..], &[], &bytes[..1]].map(|bytes| Completion::of('R', bytes));
    ensure!(report.completions == expected, "{report:?}, not {expected:?}");
    Ok(())
}

/// A plain Send does not wake a completion queue that waits for solicited events. A Send with Solicited Event
/// does, even without data.
fn solicited_theirs(lab: &mut Lab) -> Result<()> {
    let (qp, cq, channel) = lab.queue_pair()?;
    let sink = lab.region(4 * 128, Access::LOCAL_WRITE)?;
    let receives = [0, 1, 2, 3].map(|k| RecvRequest::new(k as u64, sink.sge(k * 128, 128)));
    cq.req_notify(true)?;
    let session = lab.session((qp, cq, channel), &receives, "recv=3x16 do=s100 then=e100,e0,s5")?;
    let first = lab.success(&session)?;
    ensure!(first.opcode == WcOpcode::Recv && first.byte_len == 100 && !first.solicited, "{first:?}");
    ensure!(session.channel.wait(Some(Duration::ZERO))? == 0, "a plain Send caused a solicited event");
    session.qp.post_send(&SendRequest::empty(8, SendOp::Send).flags(SendFlags::empty()))?;
    for (bytes, solicited) in [(100, true), (0, true), (5, false)] {
        let done = lab.success(&session)?;
        ensure!(
            (done.opcode, done.byte_len, done.solicited) == (WcOpcode::Recv, bytes, solicited),
            "{done:?} instead of {bytes} bytes, solicited {solicited}"
        );
    }
    ensure!(
        session.channel.wait(Some(Duration::ZERO))? == 1,
        "the queue was armed once, but there is not exactly one event"
    );
    let mut bytes = vec![0; 100];
    sink.read_at(128, &mut bytes)?;
    ensure!(bytes == pattern(SOURCE, 100), "the solicited Send has other bytes");
    lab.report(session)?;
    Ok(())
}
