//! Writes, Reads and Sends in both directions, with sizes from 0 bytes to several FPDUs, even if the frames
//! are jumbo frames.

use iwarp::memory::Access;
use iwarp::verbs::{RecvRequest, SendOp, SendRequest, WcOpcode};
use tests::contract::{SOURCE, contrary, pattern};
use tests::lab::Result;
use tests::scenes::{Change, Completion, Lab};
use tests::{ensure, lab_error};

use crate::Scene;

/// Message sizes: no bytes; one byte; one FPDU or a few, according to the MTU; and many FPDUs.
const SIZES: [usize; 4] = [0, 1, 4096, 61_000];

pub(crate) fn scenes() -> Vec<Scene> {
    vec![
        Scene::new("write_ours", write_ours),
        Scene::new("read_ours", read_ours),
        Scene::new("read_ours_without_right", read_ours_without_right),
        Scene::new("send_ours", send_ours),
        Scene::new("write_theirs", write_theirs),
        Scene::new("read_theirs", read_theirs),
        Scene::new("send_theirs", send_theirs),
        Scene::new("both_ways_at_once", both_ways_at_once),
    ]
}

/// We send one Write into each of four regions, then a Send that reports that the Writes are done.
fn write_ours(lab: &mut Lab) -> Result<()> {
    const OFFSET: usize = 100;
    let session = lab.scene("mr=65536:rw mr=65536:w mr=65536:w mr=65536:w recv=1x16")?;
    let mut expected = Vec::new();
    for (k, &size) in SIZES.iter().enumerate() {
        let bytes = contrary(k, size);
        let ours = lab.filled(&bytes, Access::empty())?;
        let mut remote = session.stage.region(k)?.remote;
        remote.addr += OFFSET as u64;
        let request = SendRequest::new(k as u64, SendOp::Write { remote }, ours.sge(0, size));
        session.qp.post_send(&request)?;
        ensure!(lab.success(&session)?.opcode == WcOpcode::Write, "no Write");
        if size > 0 {
            expected.push(Change::of(k, OFFSET, &bytes));
        }
    }
    session.qp.post_send(&SendRequest::empty(9, SendOp::Send))?;
    lab.success(&session)?;
    let report = lab.report(session)?;
    ensure!(report.changes == expected, "{report:?}, not {expected:?}");
    ensure!(report.completions == [Completion::of('R', &[])], "{report:?}");
    Ok(())
}

/// We post four Reads at once. Each Read reads a region with a pattern of its own.
fn read_ours(lab: &mut Lab) -> Result<()> {
    let session = lab.scene("mr=65536:r mr=65536:r mr=65536:r mr=65536:rw")?;
    let mut sinks = Vec::new();
    for (k, &size) in SIZES.iter().enumerate() {
        let sink = lab.region(size.max(1), Access::LOCAL_WRITE)?;
        let remote = session.stage.region(k)?.remote;
        let request = SendRequest::new(k as u64, SendOp::Read { remote }, sink.sge(0, size));
        session.qp.post_send(&request)?;
        sinks.push(sink);
    }
    for (k, (&size, sink)) in SIZES.iter().zip(&sinks).enumerate() {
        let done = lab.success(&session)?;
        ensure!(
            (done.wr_id, done.opcode, done.byte_len as usize) == (k as u64, WcOpcode::Read, size),
            "{done:?} instead of Read {k} of {size} bytes"
        );
        same(&read(sink, size)?, &pattern(k, size))?;
    }
    let report = lab.report(session)?;
    ensure!(report.changes.is_empty(), "{report:?}");
    Ok(())
}

/// We read from a region without the right to be read. siw does not check the right of a Read's source (see
/// tests/siw-peer/README.md), so the bytes arrive.
fn read_ours_without_right(lab: &mut Lab) -> Result<()> {
    let session = lab.scene("mr=4096:w")?;
    let sink = lab.region(64, Access::LOCAL_WRITE)?;
    let remote = session.stage.region(0)?.remote;
    session.qp.post_send(&SendRequest::new(1, SendOp::Read { remote }, sink.sge(0, 64)))?;
    lab.success(&session)?;
    same(&read(&sink, 64)?, &pattern(0, 64))?;
    lab.report(session)?;
    Ok(())
}

fn send_ours(lab: &mut Lab) -> Result<()> {
    let session = lab.scene("recv=4x65536")?;
    let mut expected = Vec::new();
    for (k, &size) in SIZES.iter().enumerate() {
        let bytes = contrary(k, size);
        let ours = lab.filled(&bytes, Access::empty())?;
        session.qp.post_send(&SendRequest::new(k as u64, SendOp::Send, ours.sge(0, size)))?;
        ensure!(lab.success(&session)?.opcode == WcOpcode::Send, "no Send");
        expected.push(Completion::of('R', &bytes));
    }
    let report = lab.report(session)?;
    ensure!(report.completions == expected, "{report:?}, not {expected:?}");
    Ok(())
}

/// The target sends Writes whose targets begin 256 bytes apart. The last Write has several FPDUs. A Send
/// after the Writes shows that the Writes have arrived.
fn write_theirs(lab: &mut Lab) -> Result<()> {
    let ours = lab.filled(&pattern(0, 65_536), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let sink = lab.region(16, Access::LOCAL_WRITE)?;
    let (rkey, addr) = (ours.rkey(), ours.addr());
    let session = lab.scene(&format!("recv=1x16 peer={rkey:x}:{addr:x} do=w0,w1@256,w61000@512 then=s4"))?;
    session.qp.post_recv(&RecvRequest::new(7, sink.sge(0, 16)))?;
    // The target's first receive allows it to send.
    session.qp.post_send(&SendRequest::empty(8, SendOp::Send))?;
    loop {
        let done = lab.success(&session)?;
        if done.opcode == WcOpcode::Recv {
            ensure!(done.byte_len == 4, "{done:?}");
            break;
        }
    }
    let mut expected = pattern(0, 65_536);
    expected[256] = pattern(SOURCE, 1)[0];
    expected[512..512 + 61_000].copy_from_slice(&pattern(SOURCE, 61_000));
    same(&read(&ours, 65_536)?, &expected)?;
    let report = lab.report(session)?;
    let kinds: String = report.completions.iter().map(|done| done.kind).collect();
    ensure!(kinds.chars().filter(|&kind| kind == 'w').count() == 3, "{report:?}");
    Ok(())
}

fn read_theirs(lab: &mut Lab) -> Result<()> {
    let bytes = contrary(3, 65_536);
    let ours = lab.filled(&bytes, Access::REMOTE_READ)?;
    let (rkey, addr) = (ours.rkey(), ours.addr());
    let session =
        lab.scene(&format!("recv=1x16 peer={rkey:x}:{addr:x} do=r0,r1@5,r4096,r61000@100 then=s0+"))?;
    let sink = lab.region(16, Access::LOCAL_WRITE)?;
    session.qp.post_recv(&RecvRequest::new(7, sink.sge(0, 16)))?;
    session.qp.post_send(&SendRequest::empty(8, SendOp::Send))?;
    // The target's Send is fenced, so it arrives when the Reads are done.
    while lab.success(&session)?.opcode != WcOpcode::Recv {}
    let report = lab.report(session)?;
    let read: Vec<_> = report.completions.iter().copied().filter(|done| done.kind == 'r').collect();
    let expected = [&bytes[..0], &bytes[5..6], &bytes[..4096], &bytes[100..61_100]]
        .map(|bytes| Completion::of('r', bytes));
    ensure!(read == expected, "{report:?}, not {expected:?}");
    Ok(())
}

fn send_theirs(lab: &mut Lab) -> Result<()> {
    let session = lab.scene("recv=1x16 then=s0,s1,s4096,s61000")?;
    let sinks = SIZES.map(|_| lab.region(65_536, Access::LOCAL_WRITE));
    let sinks = sinks.into_iter().collect::<Result<Vec<_>>>()?;
    for (k, sink) in sinks.iter().enumerate() {
        session.qp.post_recv(&RecvRequest::new(k as u64, sink.sge(0, 65_536)))?;
    }
    session.qp.post_send(&SendRequest::empty(8, SendOp::Send))?;
    lab.success(&session)?;
    for (k, (&size, sink)) in SIZES.iter().zip(&sinks).enumerate() {
        let done = lab.success(&session)?;
        ensure!(
            (done.wr_id, done.opcode, done.byte_len as usize) == (k as u64, WcOpcode::Recv, size)
                && !done.solicited
                && done.invalidated.is_none(),
            "{done:?} instead of Send {k} of {size} bytes"
        );
        same(&read(sink, size)?, &pattern(SOURCE, size))?;
    }
    let report = lab.report(session)?;
    ensure!(report.completions.iter().all(|done| done.status == 0), "{report:?}");
    Ok(())
}

/// Both sides write and read at the same time, so the Read Responses of each side may be interleaved with its
/// Writes.
fn both_ways_at_once(lab: &mut Lab) -> Result<()> {
    let bytes = contrary(1, 32_768);
    let ours = lab.filled(&bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let (rkey, addr) = (ours.rkey(), ours.addr());
    let scene = format!(
        "mr=65536:rw recv=2x16 peer={rkey:x}:{addr:x} then=r8000,w8000@16384,r8000@8000,w8000@24384,s0+"
    );
    let session = lab.scene(&scene)?;
    let done_sink = lab.region(16, Access::LOCAL_WRITE)?;
    let sink = lab.region(30_000, Access::LOCAL_WRITE)?;
    let source = lab.filled(&contrary(0, 65_536)[32_768..62_768], Access::empty())?;
    session.qp.post_recv(&RecvRequest::new(1, done_sink.sge(0, 16)))?;
    let theirs = session.stage.region(0)?.remote;
    let mut far = theirs;
    far.addr += 32_768;
    session.qp.post_send(&SendRequest::empty(2, SendOp::Send))?;
    session.qp.post_send(&SendRequest::new(3, SendOp::Read { remote: theirs }, sink.sge(0, 30_000)))?;
    session.qp.post_send(&SendRequest::new(4, SendOp::Write { remote: far }, source.sge(0, 30_000)))?;
    session.qp.post_send(&SendRequest::empty(5, SendOp::Send))?;
    let mut seen: Vec<u64> = Vec::new();
    for _ in 0..5 {
        seen.push(lab.success(&session)?.wr_id);
    }
    seen.sort_unstable();
    ensure!(seen == [1, 2, 3, 4, 5], "{seen:?}");
    same(&read(&sink, 30_000)?, &pattern(0, 30_000))?;
    same(&read(&ours, 16_384)?, &bytes[..16_384])?;
    for at in [16_384, 24_384] {
        let mut part = vec![0; 8_000];
        ours.read_at(at, &mut part)?;
        same(&part, &pattern(SOURCE, 8_000))?;
    }
    let report = lab.report(session)?;
    ensure!(report.changes == [Change::of(0, 32_768, &contrary(0, 65_536)[32_768..62_768])], "{report:?}");
    for bytes in [&bytes[..8_000], &bytes[8_000..16_000]] {
        ensure!(report.completions.contains(&Completion::of('r', bytes)), "{report:?}");
    }
    Ok(())
}

fn read(region: &iwarp::verbs::MemoryRegion, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    region.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Compares bytes; the error names the first wrong byte.
fn same(got: &[u8], expected: &[u8]) -> Result<()> {
    ensure!(got.len() == expected.len(), "{} bytes instead of {}", got.len(), expected.len());
    match got.iter().zip(expected).position(|(got, expected)| got != expected) {
        None => Ok(()),
        Some(at) => {
            Err(lab_error!("byte {at} of {} is {:#04x}, not {:#04x}", got.len(), got[at], expected[at]))
        }
    }
}
