//! The cause of a connection's end. If there is a cause, it is in each completion that fails, in the queue
//! pair, and, unless the end is graceful, in the event of the end.

use std::time::Duration;

use crate::common::served::Served;
use crate::common::{ALL, Connected, Pair, Testbed, remote_addr};
use dp::link::{LinkConfig, LinkControl};
use iwarp::memory::Access;
use iwarp::verbs::{
    AsyncEventKind, CmEventKind, CmId, CompletionQueue, ConnParam, ConnectionError, KeepalivePolicy,
    MemoryRegion, QpState, QueuePair, RecvRequest, RemoteAddr, SendOp, SendRequest, StreamError, WcStatus,
};
use tcp_lite::{CloseReason, Instant};

/// Two hosts on a point-to-point wire, on which the loss of the link ends connections.
struct Hosts {
    pair: Pair,
    c: Connected,
    control: LinkControl,
    /// A region of A, and a region of B that A may read.
    regions: (MemoryRegion, MemoryRegion),
}

impl Hosts {
    fn new() -> Self {
        let link = LinkConfig { point_to_point: true, ..LinkConfig::default() };
        let (bed, control) = Testbed::with_control(&link);
        let mut pair = bed.hosts();
        let probes = KeepalivePolicy::Probe {
            idle: Duration::from_secs(1),
            interval: Duration::from_secs(1),
            probes: 2,
        };
        let c = pair.connect(&ConnParam { keepalive: probes, ..ConnParam::default() });
        let regions = pair.regions(64);
        pair.run_us(100_000);
        Self { pair, c, control, regions }
    }

    /// Posts a receive and a Read at A. The peer has not answered the Read yet.
    fn post(&self) {
        let Self { c, regions: (local, remote), .. } = self;
        c.qp_a.post_recv(&RecvRequest::new(1, local.sge(0, 8))).unwrap();
        let read = SendOp::Read { remote: remote_addr(remote, 0) };
        c.qp_a.post_send(&SendRequest::new(2, read, local.sge(8, 8))).unwrap();
    }

    /// Checks that the connection ends for A, and that A sees `cause` in the two completions, in the queue
    /// pair, and in the completion of a later request.
    fn ends(&mut self, cause: Option<ConnectionError>) {
        let Self { pair, c, regions: (local, _), .. } = self;
        let both = pair.until(|pair| {
            let both = [pair.a.cq.poll_one(), pair.a.cq.poll_one()];
            both[0].is_some().then_some(both)
        });
        for wc in both.map(Option::unwrap) {
            assert_eq!((wc.status, wc.cause), (WcStatus::WrFlushError, cause), "{wc:?}");
        }
        pair.until(|pair| pair.a.channel.poll());
        assert_eq!((c.qp_a.cause(), c.qp_a.query().cause), (cause, cause));
        expect_late_flush(&c.qp_a, &pair.a.cq, local, cause);
    }
}

/// Checks that a request that is posted after the end of the connection fails with the same cause.
fn expect_late_flush(
    qp: &QueuePair,
    cq: &CompletionQueue,
    local: &MemoryRegion,
    cause: Option<ConnectionError>,
) {
    assert_eq!(qp.state(), QpState::Error);
    qp.post_recv(&RecvRequest::new(3, local.sge(0, 8))).unwrap();
    let wc = cq.poll_one().expect("flushed at once");
    assert_eq!((wc.wr_id, wc.status, wc.cause), (3, WcStatus::WrFlushError, cause));
}

#[test]
fn a_reset_by_the_peer() {
    let mut hosts = Hosts::new();
    hosts.post();
    hosts.c.id_b.abort();
    hosts.ends(Some(ConnectionError::Tcp(CloseReason::Reset)));
    assert_eq!(hosts.c.id_a.cause(), Some(ConnectionError::Tcp(CloseReason::Reset)));
    // The side that has reset the connection sees no cause.
    assert_eq!(hosts.c.qp_b.cause(), None);
    let event = hosts.pair.a.context.async_events().poll().unwrap().unwrap();
    assert_eq!(event.kind, AsyncEventKind::QpFatal);
    assert_eq!(event.cause, Some(ConnectionError::Tcp(CloseReason::Reset)));
}

/// The peer's engine is not polled any more. Unacknowledged requests, or keepalives without an answer, end
/// the connection.
#[test]
fn a_silent_peer() {
    for busy in [false, true] {
        let mut hosts = Hosts::new();
        let Hosts { pair, c, regions: (local, remote), .. } = &mut hosts;
        c.qp_a.post_recv(&RecvRequest::new(1, local.sge(0, 8))).unwrap();
        if busy {
            let read = SendOp::Read { remote: remote_addr(remote, 0) };
            c.qp_a.post_send(&SendRequest::new(2, read, local.sge(8, 8))).unwrap();
        }
        let limit_us = pair.now_us + 60_000_000;
        let mut flushed = Vec::new();
        while pair.a.channel.poll().is_none() {
            let now = Instant::from_micros(pair.now_us);
            let busy = pair.a.engine.poll_at(now);
            let next = pair.a.engine.next_deadline(now).map_or(0, |at| at.total_micros());
            pair.now_us = if busy { pair.now_us + 1 } else { next.max(pair.now_us + 1) };
            assert!(pair.now_us < limit_us, "the connection does not end");
            flushed.extend(pair.a.cq.poll_one());
        }
        flushed.extend(std::iter::from_fn(|| pair.a.cq.poll_one()));
        assert_eq!(flushed.len(), 1 + usize::from(busy));
        let cause = Some(ConnectionError::Tcp(CloseReason::TimedOut));
        for wc in flushed {
            assert_eq!((wc.status, wc.cause), (WcStatus::WrFlushError, cause));
        }
        assert_eq!(c.qp_a.cause(), cause);
        expect_late_flush(&c.qp_a, &pair.a.cq, local, cause);
    }
}

#[test]
fn a_lost_link() {
    let mut hosts = Hosts::new();
    hosts.control.set_up(false);
    hosts.post();
    hosts.ends(Some(ConnectionError::Tcp(CloseReason::LinkDown)));
}

#[test]
fn a_device_that_is_taken_away() {
    let mut hosts = Hosts::new();
    hosts.control.take_away_a();
    hosts.post();
    hosts.ends(Some(ConnectionError::Tcp(CloseReason::PortGone)));
}

/// B finds an error in a message of A. B's Terminate is the cause for both sides; A reports a Terminate of
/// the peer.
#[test]
fn a_terminate() {
    let mut hosts = Hosts::new();
    hosts.c.qp_b.post_recv(&RecvRequest::new(7, hosts.regions.1.sge(0, 8))).unwrap();
    let Hosts { c, regions: (local, _), .. } = &hosts;
    c.qp_a.post_recv(&RecvRequest::new(1, local.sge(0, 8))).unwrap();
    let wrong = SendOp::Read { remote: RemoteAddr { addr: 0, rkey: 1 } };
    c.qp_a.post_send(&SendRequest::new(2, wrong, local.sge(0, 8))).unwrap();
    c.qp_a.post_send(&SendRequest::new(3, wrong, local.sge(0, 8))).unwrap();
    let found = StreamError { layer: 0, etype: 1, code: 0, from_peer: false };
    let told = StreamError { from_peer: true, ..found };
    for (wr_id, status) in
        [(2, WcStatus::RemoteAccessError), (3, WcStatus::WrFlushError), (1, WcStatus::WrFlushError)]
    {
        let wc = hosts.pair.wc_a();
        assert_eq!((wc.wr_id, wc.status, wc.cause), (wr_id, status, Some(told.into())));
        assert_eq!(wc.cause.and_then(|cause| cause.stream()), Some(told));
    }
    let wc = hosts.pair.wc_b();
    assert_eq!((wc.wr_id, wc.status, wc.cause), (7, WcStatus::WrFlushError, Some(found.into())));
    assert_eq!((hosts.c.qp_a.cause(), hosts.c.qp_b.cause()), (Some(told.into()), Some(found.into())));
}

/// A completion queue that has lost a completion ends the queue pairs that use it.
#[test]
fn a_completion_queue_that_overflows() {
    let mut hosts = Hosts::new();
    let small = hosts.pair.a.context.create_cq(1, None).unwrap();
    let mut init = iwarp::verbs::QpInit::new(&hosts.pair.a.cq);
    init.recv_cq = &small;
    let qp_a = hosts.pair.a.pd.create_qp(&init).unwrap();
    let qp_b = hosts.pair.b.qp();
    let _listener = hosts.pair.listen();
    let param = ConnParam::default();
    let c = hosts.pair.connect_qps(qp_a, qp_b, &param, &param);
    let (local, remote) = &hosts.regions;
    for wr_id in 0..3 {
        c.qp_a.post_recv(&RecvRequest::new(wr_id, local.sge(0, 8))).unwrap();
        c.qp_b.post_send(&SendRequest::new(wr_id, SendOp::Send, remote.sge(0, 8))).unwrap();
    }
    let read = SendOp::Read { remote: remote_addr(remote, 0) };
    let catastrophic = StreamError { layer: 0, etype: 0, code: 0, from_peer: false };
    hosts.pair.until(|_| c.qp_a.cause());
    assert_eq!(c.qp_a.cause(), Some(catastrophic.into()));
    c.qp_a.post_send(&SendRequest::new(9, read, local.sge(0, 8))).unwrap();
    let wc = hosts.pair.wc_a();
    assert_eq!((wc.wr_id, wc.status, wc.cause), (9, WcStatus::WrFlushError, Some(catastrophic.into())));
}

/// The peer closes gracefully, in the middle of an FPDU, or while a Read waits for its answer.
#[test]
fn a_close_by_the_peer() {
    for (partial, reads) in [(false, false), (true, false), (false, true)] {
        let mut served = Served::new();
        served.qp.post_recv(&RecvRequest::new(1, served.region.sge(0, 8))).unwrap();
        if reads {
            served.qp.post_send(&served.read(2)).unwrap();
        }
        served.pair.until(10_000, |_| false);
        if partial {
            served.pair.send(&[0, 40, 0x41]);
            served.pair.until(10_000, |_| false);
        }
        served.pair.close();
        for _ in 0..1 + usize::from(reads) {
            let wc = served.wc();
            assert_eq!((wc.status, wc.cause), (WcStatus::WrFlushError, Some(ConnectionError::PeerClosed)));
        }
        let CmEventKind::Disconnected { error, .. } = served.event().kind else { panic!("no end") };
        let is_graceful = !partial && !reads;
        assert_eq!(error, (!is_graceful).then_some(ConnectionError::PeerClosed));
        assert_eq!(served.qp.cause(), Some(ConnectionError::PeerClosed));
        // 1 is MPA's code for a connection that ends in the middle of an FPDU.
        assert_eq!(served.qp.error().map(|error| error.code), (!is_graceful).then_some(1));
    }
}

/// The side whose user ends the connection has no cause, and the peer has a cause.
#[test]
fn an_end_by_our_own_user() {
    type End = fn(&QueuePair, &CmId);
    let ends: [(End, Option<ConnectionError>); 4] = [
        (|_, id| id.disconnect(), Some(ConnectionError::PeerClosed)),
        (|qp, _| qp.modify(QpState::Closing).unwrap(), Some(ConnectionError::PeerClosed)),
        (|_, id| id.abort(), Some(ConnectionError::Tcp(CloseReason::Reset))),
        (|qp, _| qp.modify(QpState::Error).unwrap(), Some(ConnectionError::Tcp(CloseReason::Reset))),
    ];
    for (end, told) in ends {
        let mut hosts = Hosts::new();
        let Hosts { pair, c, regions: (local, remote), .. } = &mut hosts;
        c.qp_a.post_recv(&RecvRequest::new(1, local.sge(0, 8))).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(2, remote.sge(0, 8))).unwrap();
        end(&c.qp_a, &c.id_a);
        let (ours, theirs) = (pair.wc_a(), pair.wc_b());
        assert_eq!((ours.wr_id, ours.status, ours.cause), (1, WcStatus::WrFlushError, None));
        assert_eq!((theirs.wr_id, theirs.status, theirs.cause), (2, WcStatus::WrFlushError, told));
        pair.event_a();
        assert_eq!((c.qp_a.cause(), c.qp_b.cause()), (None, told));
        expect_late_flush(&c.qp_a, &pair.a.cq, local, None);
    }
}

/// The flushed completions of a queue pair that its user drops have no cause. At the peer, the cause is the
/// reset.
#[test]
fn a_dropped_queue_pair() {
    let mut hosts = Hosts::new();
    let Hosts { pair, c, regions: (local, remote), .. } = &mut hosts;
    c.qp_a.post_recv(&RecvRequest::new(1, local.sge(0, 8))).unwrap();
    c.qp_b.post_recv(&RecvRequest::new(2, remote.sge(0, 8))).unwrap();
    let unconnected = pair.a.qp();
    drop(std::mem::replace(&mut c.qp_a, unconnected));
    assert_eq!(pair.wc_a().cause, None);
    assert_eq!(pair.wc_b().cause, Some(ConnectionError::Tcp(CloseReason::Reset)));
}

/// An engine stops while it has a connection. Such an end does not count as an end by the user.
#[test]
fn an_engine_that_stops() {
    let mut hosts = Hosts::new();
    let Hosts { pair, c, regions: (local, _), .. } = &mut hosts;
    c.qp_a.post_recv(&RecvRequest::new(1, local.sge(0, 8))).unwrap();
    let engine = std::mem::replace(&mut pair.a.engine, Testbed::new().hosts().a.engine);
    drop(engine);
    let wc = pair.a.cq.poll_one().expect("flushed");
    let cause = Some(ConnectionError::Tcp(CloseReason::Aborted));
    assert_eq!((wc.status, wc.cause, c.qp_a.cause()), (WcStatus::WrFlushError, cause, cause));
}

/// If the engine stops before it has started to connect or to accept, the queue pair fails, and the cause is
/// an abort, as for an engine that stops later.
#[test]
fn an_engine_that_stops_before_it_begins() {
    let cause = Some(ConnectionError::Tcp(CloseReason::Aborted));
    for accepts in [false, true] {
        let (mut pair, _listener) = Pair::listening();
        let (dialing, id) = pair.dial(&ConnParam::default());
        let (host, qp) = match accepts {
            false => (&mut pair.a, dialing),
            true => {
                let request = pair.event_b();
                let qp = pair.b.qp();
                request.id.accept(&qp, &ConnParam::default()).unwrap();
                (&mut pair.b, qp)
            }
        };
        let region = host.pd.reg_mr(64, ALL).unwrap();
        qp.post_recv(&RecvRequest::new(1, region.sge(0, 8))).unwrap();
        drop(std::mem::replace(&mut host.engine, Testbed::new().hosts().a.engine));
        assert_eq!((qp.state(), qp.cause()), (QpState::Error, cause), "{accepts}");
        let wc = host.cq.poll_one().expect("flushed");
        assert_eq!((wc.status, wc.cause), (WcStatus::WrFlushError, cause), "{accepts}");
        if !accepts {
            assert_eq!(id.cause(), cause);
        }
    }
}

/// If a connection cannot be established, the cause of its flushed requests is the reason of the failure.
#[test]
fn a_connection_that_is_refused_or_rejected() {
    let (mut pair, listener) = Pair::listening();
    let region = pair.a.pd.reg_mr(64, ALL).unwrap();
    for refused in [false, true] {
        if refused {
            listener.disconnect();
            pair.run_us(1_000);
        }
        let (qp, _id) = pair.dial(&ConnParam::default());
        qp.post_recv(&RecvRequest::new(1, region.sge(0, 8))).unwrap();
        if !refused {
            pair.event_b().id.reject(&[]).unwrap();
        }
        let cause = match refused {
            true => ConnectionError::Tcp(CloseReason::Refused),
            false => ConnectionError::Rejected,
        };
        let wc = pair.wc_a();
        assert_eq!((wc.status, wc.cause), (WcStatus::WrFlushError, Some(cause)));
        assert_eq!(qp.cause(), Some(cause));
        pair.event_a();
    }
}

/// A request that fails because of its own error has this error in its status. The cause of this request, and
/// of later requests, is the stream's error.
#[test]
fn a_request_that_is_the_cause() {
    let mut served = Served::new();
    let gone = served.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    served.qp.post_send(&SendRequest::new(1, SendOp::Send, gone.sge(0, 8))).unwrap();
    served.qp.post_send(&served.read(2)).unwrap();
    drop(gone);
    let catastrophic = StreamError { layer: 0, etype: 0, code: 0, from_peer: false };
    let (first, second) = (served.wc(), served.wc());
    assert_eq!((first.status, first.cause), (WcStatus::LocalProtectionError, Some(catastrophic.into())));
    assert_eq!((second.status, second.cause), (WcStatus::WrFlushError, Some(catastrophic.into())));
}
