//! The ends of streams, above all by errors. Both applications receive layer, type and code of an error,
//! requests are flushed, and nothing outside a registered region changes.

use crate::common::{ALL, Pair, expect_terminate, read_bytes, remote_addr};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, ConnectionError, MrOptions, QpState, RecvRequest, RemoteAddr, SendOp, SendRequest, Sge,
    VerbsError, WcOpcode, WcStatus,
};

/// Writes that the target must refuse (RFC 5041 section 7.2).
#[test]
fn a_refused_write_terminates_the_stream() {
    let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let readable = Access::LOCAL_WRITE | Access::REMOTE_READ;
    // The columns: name, access rights, distance from the region's STag, distance from the region's first
    // byte, and error code.
    for (name, access, from_stag, from_base, code) in [
        ("unknown STag", writable, 1, 0, 0),
        ("no right", readable, 0, 0, 0),
        ("below base", writable, 0, -1, 1),
        ("behind end", writable, 0, 57, 1),
    ] {
        let (mut pair, c) = Pair::connected();
        let local = pair.a.pd.reg_mr(4096, ALL).unwrap();
        let remote = pair.b.pd.reg_mr(64, access).unwrap();
        let remote_addr = RemoteAddr {
            addr: remote.addr().wrapping_add_signed(from_base),
            rkey: remote.rkey().wrapping_add(from_stag),
        };
        local.write_at(0, &[0xaa; 64]).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(77, remote.sge(0, 8))).unwrap();
        let write = SendRequest::new(1, SendOp::Write { remote: remote_addr }, local.sge(0, 8));
        c.qp_a.post_send(&write).unwrap();
        expect_terminate(&mut pair, &c, 1, 1, code);
        let wc = pair.wc_b();
        assert_eq!((wc.wr_id, wc.status), (77, WcStatus::WrFlushError), "{name}");
        let got = read_bytes(&remote, 0, 64);
        assert_eq!(got, [0; 64], "{name}: nothing is placed");
    }
}

/// An STag of another protection domain, or an STag that is bound to another queue pair, ends the stream.
// Proves DDP-025, DDP-068, DDP-180, DDP-211 to DDP-213, DDP-220, DDP-226, DDP-227.
#[test]
fn a_foreign_stag_terminates_the_stream() {
    for bound in [false, true] {
        let (mut pair, c) = Pair::connected();
        let local = pair.a.pd.reg_mr(64, ALL).unwrap();
        let other_pd = pair.b.context.alloc_pd().unwrap();
        let other_qp = pair.b.qp();
        let region = if bound {
            let options = MrOptions { qp: Some(&other_qp), ..MrOptions::new(ALL) };
            pair.b.pd.reg_mr_with(64, &options).unwrap()
        } else {
            other_pd.reg_mr(64, ALL).unwrap()
        };
        let remote = remote_addr(&region, 0);
        c.qp_a.post_send(&SendRequest::new(1, SendOp::Write { remote }, local.sge(0, 8))).unwrap();
        expect_terminate(&mut pair, &c, 1, 1, 2);
    }
}

/// A Read that the source refuses fails with a remote access error, and the next Read is flushed.
#[test]
fn a_refused_read_fails_its_request() {
    let (mut pair, c) = Pair::connected();
    let local = pair.a.pd.reg_mr(4096, ALL).unwrap();
    let region = pair.b.pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let remote = remote_addr(&region, 0);
    for wr_id in [1, 2] {
        c.qp_a.post_send(&SendRequest::new(wr_id, SendOp::Read { remote }, local.sge(0, 8))).unwrap();
    }
    let wc = pair.wc_a();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::RemoteAccessError, WcOpcode::Read));
    let wc = pair.wc_a();
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::WrFlushError));
}

/// A Send without a receive buffer, or a Send that is longer than its buffer, ends the stream.
#[test]
fn a_send_needs_its_buffer() {
    let (mut pair, c) = Pair::connected();
    let local = pair.a.pd.reg_mr(4096, ALL).unwrap();
    c.qp_a.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 8))).unwrap();
    expect_terminate(&mut pair, &c, 1, 2, 2);

    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(4096);
    c.qp_b.post_recv(&RecvRequest::new(5, remote.sge(0, 16))).unwrap();
    c.qp_a.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 17))).unwrap();
    expect_terminate(&mut pair, &c, 1, 2, 5);
    let wc = pair.wc_b();
    assert_eq!((wc.wr_id, wc.status), (5, WcStatus::LocalLengthError));
}

/// A peer's Send with Invalidate invalidates an STag of the same stream. If the Send names an STag that
/// belongs to no single stream, it ends the stream.
#[test]
fn a_peer_invalidates_what_it_may() {
    let (mut pair, c) = Pair::connected();
    let (local, inbox) = pair.regions(64);
    let lent = pair.b.pd.reg_mr_with(64, &MrOptions { qp: Some(&c.qp_b), ..MrOptions::new(ALL) }).unwrap();
    c.qp_b.post_recv(&RecvRequest::new(1, inbox.sge(0, 64))).unwrap();
    let op = SendOp::SendInvalidate { rkey: lent.rkey() };
    c.qp_a.post_send(&SendRequest::new(1, op, local.sge(0, 8))).unwrap();
    let wc = pair.wc_b();
    assert_eq!((wc.status, wc.invalidated), (WcStatus::Success, Some(lent.rkey())));
    assert!(!lent.is_valid());

    c.qp_b.post_recv(&RecvRequest::new(2, inbox.sge(0, 64))).unwrap();
    let op = SendOp::SendInvalidate { rkey: inbox.rkey() };
    assert_eq!(pair.wc_a().status, WcStatus::Success);
    c.qp_a.post_send(&SendRequest::new(2, op, local.sge(0, 8))).unwrap();
    expect_terminate(&mut pair, &c, 0, 1, 9);
    assert!(inbox.is_valid());
}

/// Mistakes of the caller make the call fail, and nothing is posted.
// Proves MPA-012, SEC-015: a request can use memory only within the rights of the memory, and only in the
// domain of the memory.
#[test]
fn bad_requests_are_refused_when_posted() {
    let (mut pair, c) = Pair::connected();
    let local = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
    let bad_key = Sge { lkey: local.lkey() ^ 1, ..local.sge(0, 8) };
    let remote = RemoteAddr::default();
    let refused = |request: SendRequest| c.qp_a.post_send(&request).unwrap_err();
    assert!(matches!(refused(SendRequest::new(1, SendOp::Send, bad_key)), VerbsError::LocalProtection(_)));
    let beyond = local.sge(60, 8);
    assert!(matches!(refused(SendRequest::new(1, SendOp::Send, beyond)), VerbsError::LocalProtection(_)));
    let read = SendRequest::new(1, SendOp::Read { remote }, local.sge(0, 8));
    assert!(matches!(refused(read), VerbsError::LocalProtection(_)), "the sink is not writable");
    let receive = RecvRequest::new(1, local.sge(0, 8));
    assert!(matches!(c.qp_a.post_recv(&receive).unwrap_err(), VerbsError::LocalProtection(_)));
    let other = pair.a.context.alloc_pd().unwrap().reg_mr(64, ALL).unwrap();
    let foreign = SendRequest::new(1, SendOp::Send, other.sge(0, 8));
    assert!(matches!(refused(foreign), VerbsError::LocalProtection(_)));
    let receive = RecvRequest::new(1, other.sge(0, 8));
    assert!(matches!(c.qp_a.post_recv(&receive).unwrap_err(), VerbsError::LocalProtection(_)));
    let idle = pair.a.qp();
    let send = SendRequest::new(1, SendOp::Send, local.sge(0, 8));
    assert!(matches!(idle.post_send(&send).unwrap_err(), VerbsError::InvalidState(QpState::Idle)));
    let sent = pair.a.engine.counters().tx_fpdus;
    pair.run_us(10_000);
    assert!(pair.a.cq.poll_one().is_none());
    assert_eq!(pair.a.engine.counters().tx_fpdus, sent);
}

/// A graceful close sends posted requests, flushes the receives of both sides, and is not an error.
// Proves DDP-026, DDP-040 to DDP-042, DDP-148, RDMAP-034, RDMAP-307, RDMAP-308.
#[test]
fn a_graceful_close_drains_and_flushes() {
    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(100_000);
    local.write_at(99_999, &[7]).unwrap();
    c.qp_a.post_recv(&RecvRequest::new(9, local.sge(0, 8))).unwrap();
    c.qp_b.post_recv(&RecvRequest::new(8, remote.sge(0, 8))).unwrap();
    let to = remote_addr(&remote, 0);
    c.qp_a.post_send(&SendRequest::new(1, SendOp::Write { remote: to }, local.sge(0, 100_000))).unwrap();
    c.id_a.disconnect();
    let (a, b) = (pair.event_a(), pair.event_b());
    for event in [&a, &b] {
        assert!(matches!(event.kind, CmEventKind::Disconnected { error: None, .. }), "{event:?}");
    }
    assert_eq!(remote.load_u8(99_999).unwrap(), 7);
    let wcs = [pair.wc_a(), pair.wc_a()];
    assert_eq!(wcs.map(|wc| (wc.wr_id, wc.status)), [(1, WcStatus::Success), (9, WcStatus::WrFlushError)]);
    assert_eq!(pair.wc_b().status, WcStatus::WrFlushError);
    // After the end, a post is refused on the side that closed. On the other side, a post is flushed at once.
    let late = SendRequest::new(2, SendOp::Send, local.sge(0, 8));
    assert!(matches!(c.qp_a.post_send(&late), Err(VerbsError::InvalidState(QpState::Error))));
    assert!(pair.a.cq.poll_one().is_none());
    let late = SendRequest::new(2, SendOp::Send, remote.sge(0, 8));
    c.qp_b.post_send(&late).unwrap();
    assert_eq!(pair.b.cq.poll_one().map(|wc| (wc.wr_id, wc.status)), Some((2, WcStatus::WrFlushError)));
}

/// An abort resets the connection, and the peer sees the reset.
// Proves DDP-155, MPA-229.
#[test]
fn an_abort_resets() {
    let (mut pair, c) = Pair::connected();
    c.id_a.abort();
    let b = pair.event_b();
    let reset = ConnectionError::Tcp(tcp_lite::CloseReason::Reset);
    assert!(matches!(b.kind, CmEventKind::Disconnected { error: Some(e), .. } if e == reset), "{b:?}");
    told!(pair.event_a(), Disconnected { error: Some(_), .. });
}

#[test]
fn dropping_the_queue_pair_ends_the_connection() {
    let (mut pair, c) = Pair::connected();
    drop(c.qp_a);
    told!(pair.event_b(), Disconnected { error: Some(_), .. });
}
