//! Connections that are ending. For example, segments that arrive and calls of the user begin nothing new at
//! this time, and do not move a deadline.

use std::time::Duration;

use crate::common::raw::{fpdu, ib_request, request};
use crate::common::responder::Responder;
use crate::common::served::{Served, Setup};
use crate::common::ulpdu::{tagged, untagged};
use crate::common::{ALL, Pair, Testbed, agreeing, pattern};
use dp::link::LinkConfig;
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, ConnectionPhase, MemoryRegion, QpState, RecvRequest, RemoteAddr,
    SendFlags, SendOp, SendRequest, StreamOptions, WcStatus,
};
use tcp_lite::CloseReason;

/// Returns a Write of the peer to the first bytes of the region.
fn write(served: &Served) -> Vec<u8> {
    tagged([0xc1, 0x40], served.region.rkey(), served.to(0), &[7; 8])
}

/// Returns a stream that has failed. The Terminate waits for space in the peer's window, because the peer
/// reads nothing. The returned region contains the data of earlier Writes.
pub(super) fn failed() -> (Served, MemoryRegion) {
    failed_on(Testbed::new())
}

fn failed_on(bed: Testbed<'_>) -> (Served, MemoryRegion) {
    let mut served = Setup::on(bed.peer()).ready();
    served.pair.stopped_reading = true;
    let region = served.reg_mr(1 << 20, ALL);
    let remote = RemoteAddr { addr: 0, rkey: 1 };
    for wr_id in 0..12 {
        served.post(&SendRequest::new(wr_id, SendOp::Write { remote }, region.sge(0, 1 << 20)));
    }
    served.run(1_000_000);
    served.qp.modify(QpState::Terminate).unwrap();
    served.run(10_000);
    assert_eq!((served.qp.state(), served.pair.engine.counters().tx_terminates), (QpState::Terminate, 0));
    served.completions();
    (served, region)
}

/// Returns the phase of the engine's only connection.
fn phase(served: &mut Served) -> ConnectionPhase {
    let context = served.context().clone();
    let asked = std::thread::spawn(move || context.status(Duration::from_secs(60)));
    while !asked.is_finished() {
        served.pair.engine.poll_at(tcp_lite::Instant::from_micros(served.pair.now_us));
    }
    let status = asked.join().unwrap();
    assert_eq!(status.engines[0].connections.len(), 1);
    status.engines[0].connections[0].phase
}

/// After the error that ended a stream, segments and a close by the user change nothing: the segments are
/// dropped, and the state of the queue pair and the deadline of the Terminate stay as they are.
#[test]
fn nothing_revives_a_stream_that_has_failed() {
    type Act = fn(&mut Served);
    let acts: [(Act, &str); 4] = [
        (|_| {}, "nothing"),
        (|served| served.pair.close(), "FIN"),
        (|served| served.id.disconnect(), "a close by the user"),
        (|served| served.send(&write(served)), "a Write of the peer"),
    ];
    for (act, what) in acts {
        let (mut served, _region) = failed();
        let start_us = served.pair.now_us;
        assert_eq!(phase(&mut served), ConnectionPhase::Ending, "{what}");
        act(&mut served);
        served.run(1_000_000);
        assert_eq!(served.qp.state(), QpState::Terminate, "{what}");
        assert_eq!(phase(&mut served), ConnectionPhase::Ending, "{what}");
        assert_eq!(served.bytes(0, 8), [0; 8], "{what}: placed");
        assert!(served.channel.poll().is_none(), "{what}: it waits for space");
        let event = served.event();
        assert!(
            matches!(event.kind, CmEventKind::Disconnected { error: Some(ConnectionError::Stream(_)), .. }),
            "{what}: {event:?}"
        );
        // The limit is `EngineConfig::close_timeout`.
        let took_us = served.pair.now_us - start_us;
        assert!((4_900_000..5_100_000).contains(&took_us), "{what}: {took_us} us");
        served.run(10_000);
        assert_eq!(served.pair.closed, Some(CloseReason::Reset), "{what}");
    }
}

/// A user may close more than once. After the FIN of the first close, no reset is sent.
#[test]
fn a_second_close_is_none() {
    let mut served = Served::new();
    for _ in 0..3 {
        served.id.disconnect();
        served.run(100_000);
        assert!(served.pair.peer_closed && served.pair.closed.is_none());
    }
    served.pair.close();
    let event = served.event();
    assert!(matches!(event.kind, CmEventKind::Disconnected { error: None, .. }), "{event:?}");
}

/// A user may abort a graceful close through the identifier or through the queue pair. The peer receives a
/// reset.
#[test]
fn a_close_can_be_aborted() {
    let aborts: [fn(&Served); 2] =
        [|served| served.id.abort(), |served| served.qp.modify(QpState::Error).unwrap()];
    for abort in aborts {
        let mut served = Served::new();
        served.id.disconnect();
        served.run(100_000);
        assert!(served.pair.peer_closed && served.pair.closed.is_none());
        abort(&served);
        served.run(100_000);
        assert_eq!(served.pair.closed, Some(CloseReason::Reset));
        let aborted = ConnectionError::Tcp(CloseReason::Aborted);
        told!(served.event(), Disconnected { error: Some(error), .. } if error == aborted);
    }
}

/// In streaming mode, a second close gives the peer no more time to read the bytes.
#[test]
fn a_second_close_in_streaming_mode_moves_no_deadline() {
    let options = StreamOptions { recv_bytes: 1000, send_bytes: 16 << 20 };
    let mut d = Responder::with(|listen| listen.streaming = Some(options));
    d.pair.stopped_reading = true;
    d.open(&[]);
    let id = d.event().id;
    assert_eq!(id.send_stream(&pattern(1, 16 << 20)).unwrap(), 16 << 20);
    d.pair.until(2_000_000, |_| false);
    let start_us = d.pair.now_us;
    for _ in 0..4 {
        id.disconnect();
        d.pair.until(1_000_000, |_| false);
    }
    let event = loop {
        let event = d.event();
        if !matches!(event.kind, CmEventKind::StreamWritable | CmEventKind::StreamReadable) {
            break event;
        }
    };
    assert!(
        matches!(event.kind, CmEventKind::Disconnected { error: Some(ConnectionError::CloseTimeout), .. }),
        "{event:?}"
    );
    let took_us = d.pair.now_us - start_us;
    assert!((4_900_000..5_500_000).contains(&took_us), "{took_us} us");
}

/// A close waits for the Read Response to a Read for a limited time, whatever else the peer sends in this
/// time.
#[test]
fn other_messages_of_the_peer_do_not_hold_up_a_close() {
    let mut served = Served::new();
    served.post(&served.read(1));
    served.run(10_000);
    served.id.disconnect();
    let start_us = served.pair.now_us;
    let event = loop {
        assert!(served.pair.now_us - start_us < 6_000_000, "it goes on for ever");
        served.send(&write(&served));
        served.run(100_000);
        if let Some(event) = served.channel.poll() {
            break event;
        }
    };
    assert!(
        matches!(event.kind, CmEventKind::Disconnected { error: Some(ConnectionError::CloseTimeout), .. }),
        "{event:?}"
    );
    assert_eq!(served.bytes(0, 8), [7; 8], "they are received");
}

/// After the Read is answered, only TCP limits the time for the waiting requests. If the peer reads nothing,
/// but still acknowledges probes, the requests may take longer than the timeout of a close.
#[test]
fn what_waited_for_an_answer_has_the_time_of_tcp() {
    let mut served = Served::new();
    let region = served.reg_mr(1 << 20, ALL);
    let remote = RemoteAddr { addr: 0, rkey: 1 };
    served.post(&served.read(0));
    for wr_id in 1..13 {
        let write = SendRequest::new(wr_id, SendOp::Write { remote }, region.sge(0, 1 << 20));
        served.post(&write.flags(SendFlags::SIGNALED | SendFlags::FENCE));
    }
    let asked = served.receive();
    served.pair.stopped_reading = true;
    served.id.disconnect();
    served.run(1_000_000);
    let sink = (
        u32::from_be_bytes(asked[18..22].try_into().unwrap()),
        u64::from_be_bytes(asked[22..30].try_into().unwrap()),
    );
    served.send(&tagged([0xc1, 0x42], sink.0, sink.1, &[9; 8]));
    served.run(20_000_000);
    assert!(!served.pair.is_over() && served.channel.poll().is_none());
    assert_eq!((served.completions()[0], served.bytes(0, 8)), ((0, WcStatus::Success), vec![9; 8]));
}

/// Returns a connection from a bare peer, whose Request offers InfiniBand's semantics. Our side agrees, and
/// lets a message wait for four seconds.
fn agreed() -> Served {
    let accept = ConnParam { rnr_timeout: Some(Duration::from_secs(4)), ..agreeing() };
    Setup { request: ib_request(), accept, ..Setup::default() }.ready()
}

/// A message of the peer waits for a receive, and then the user closes. From then on, only the deadline of
/// the close applies: it is not added to the deadline of the message.
#[test]
fn a_close_does_not_begin_behind_the_deadline_of_a_message() {
    let mut served = agreed();
    served.send(&untagged([0x41, 0x43], 0, [0, 1, 0], b"message"));
    served.run(100_000);
    served.post(&served.read(1));
    served.run(10_000);
    served.id.disconnect();
    let start_us = served.pair.now_us;
    let event = served.event();
    assert!(
        matches!(event.kind, CmEventKind::Disconnected { error: Some(ConnectionError::CloseTimeout), .. }),
        "{event:?}"
    );
    let took_us = served.pair.now_us - start_us;
    assert!((4_900_000..5_100_000).contains(&took_us), "{took_us} us");
}

/// The time of a waiting message starts when the message arrives. Bytes that arrive behind the message do not
/// extend the time.
#[test]
fn what_comes_behind_a_message_gives_it_no_more_time() {
    let mut served = agreed();
    for msn in 1..60 {
        served.send(&untagged([0x41, 0x43], 0, [0, msn, 0], b"message"));
        served.run(100_000);
        if served.qp.error().is_some() {
            assert!((39..43).contains(&msn), "{msn} messages");
            return;
        }
    }
    panic!("it waits for ever");
}

/// If the user aborts a queue pair with `outlives_peer`, the queue pair ends, however far its connection
/// attempt has progressed.
#[test]
fn an_abort_of_the_user_leaves_no_orphan() {
    let param = ConnParam { outlives_peer: true, ..agreeing() };
    for polls in [0, 1, 2, 3, 5, 8, 12] {
        let (mut pair, _listener) = Pair::listening();
        let region = pair.a.pd.reg_mr(64, ALL).unwrap();
        let (qp, id) = pair.dial(&param);
        qp.post_recv(&RecvRequest::new(1, region.sge(0, 8))).unwrap();
        (0..polls).for_each(|_| pair.poll());
        id.abort();
        pair.until(|pair| pair.a.channel.poll());
        assert_eq!(qp.state(), QpState::Error, "after {polls} polls");
        assert_eq!(pair.wc_a().status, WcStatus::WrFlushError);
    }
}

/// After a reject and its event at the connecting side, neither user receives a further event.
#[test]
fn a_reject_is_the_last_that_its_user_hears() {
    let (mut pair, _listener) = Pair::listening();
    let (_qp, _id) = pair.dial(&ConnParam::default());
    pair.event_b().id.reject(b"no").unwrap();
    let event = pair.event_a();
    assert!(matches!(event.kind, CmEventKind::Rejected { .. }), "{event:?}");
    pair.run_us(20_000_000);
    assert!(pair.a.channel.poll().is_none() && pair.b.channel.poll().is_none());
}

/// Bytes that a peer sends after our FIN are dropped, and the close stays graceful. With InfiniBand's
/// semantics, such bytes reset the connection, because the peer's requests would otherwise succeed. Such
/// bytes do not reset the connection after a Terminate, because the Terminate may still be under way.
#[test]
fn bytes_behind_our_fin_reset_only_where_they_would_be_taken_for_done() {
    for (agrees, fails) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut served = if agrees { agreed() } else { Served::new() };
        match fails {
            true => served.qp.modify(QpState::Terminate).unwrap(),
            false => served.id.disconnect(),
        }
        served.run(100_000);
        assert!(served.pair.peer_closed, "{agrees} {fails}");
        served.send(&write(&served));
        served.run(100_000);
        let is_reset = served.pair.closed.is_some();
        assert_eq!(is_reset, agrees && !fails, "{agrees} {fails}");
        assert_eq!(served.bytes(0, 8), [0; 8]);
    }
}

/// A responder may not send before the first FPDU of its peer, so a close at this time has nothing to drain
/// and resets the connection.
#[test]
fn a_close_before_the_first_fpdu_is_a_reset() {
    let mut served = Setup::default().accepted();
    served.id.disconnect();
    assert!(served.pair.until(100_000, |pair| pair.closed.is_some()), "no reset");
    assert_eq!((served.pair.closed, served.qp.state()), (Some(CloseReason::Reset), QpState::Error));
}

/// A connection that its peer has closed gracefully does not count as failed. A connection that its peer has
/// reset counts as failed.
#[test]
fn only_connections_with_an_error_count_as_failed() {
    for (abort, failed) in [(false, 0), (true, 1)] {
        let (mut pair, c) = Pair::connected();
        if abort {
            c.id_a.abort()
        } else {
            c.id_a.disconnect()
        }
        pair.event_b();
        pair.run_us(1_000_000);
        assert_eq!(pair.b.engine.counters().connections_failed, failed);
    }
}

/// The RTR and the Terminate behind it arrive in one segment: the connection is first established, and then
/// ends.
#[test]
fn a_terminate_behind_the_rtr_ends_an_established_connection() {
    let request = crate::common::raw::peer_to_peer_request([0x80, 0x80]);
    let mut served = Setup { request, ..Setup::default() }.accepted();
    assert!(served.channel.poll().is_none(), "the RTR has not come");
    let terminate = untagged([0x41, 0x47], 0, [2, 1, 0], &[0, 0, 0, 0]);
    served.send_all(&[crate::common::raw::EMPTY_WRITE.to_vec(), terminate]);
    served.established();
    let event = served.event();
    let CmEventKind::Disconnected { error: Some(error), .. } = event.kind else { panic!("{event:?}") };
    assert!(error.stream().is_some_and(|error| error.from_peer), "{error:?}");
}

/// A part of an FPDU does not count as received. A peer that only sends such parts is idle.
#[test]
fn pieces_of_an_fpdu_do_not_keep_a_connection() {
    let accept = ConnParam { idle_timeout: Some(Duration::from_secs(10)), ..ConnParam::default() };
    let mut served = Setup { accept, ..Setup::default() }.ready();
    let ulpdu = write(&served);
    let bytes = fpdu(&mut served.framer, &ulpdu);
    let mut event = None;
    for byte in bytes {
        served.pair.send(&[byte]);
        event = served.pair.next_event(&served.channel, 2_000_000);
        if event.is_some() {
            break;
        }
    }
    let event = event.expect("a whole FPDU has come");
    assert!(
        matches!(event.kind, CmEventKind::Disconnected { error: Some(ConnectionError::IdleTimeout), .. }),
        "{event:?}"
    );
}

/// Two connections on which MPA has not begun hold bytes beyond a hole. When memory runs out, one of them
/// discards its bytes, as any connection may. Both connections continue when the bytes have arrived again.
#[test]
fn bytes_are_given_up_before_mpa_begins() {
    let (bed, control) = Testbed::with_control(&LinkConfig::default());
    let pair = bed.configure(|config| config.stack.limits.out_of_order_bytes = 8000).peer();
    let mut door = Responder::over(pair, |_| {});
    let conns = [(); 2].map(|()| {
        door.pair.connect_beside();
        door.pair.until(2_000, |_| false);
        door.pair.conn
    });
    // The engine's acknowledgements are lost, so the peer does not retransmit the bytes at once.
    door.pair.deaf = true;
    for (number, conn) in conns.into_iter().enumerate() {
        door.pair.conn = conn;
        control.set_up(false);
        assert_eq!(door.pair.offer(&request(true)[..8]), 8);
        door.pair.poll();
        control.set_up(true);
        assert_eq!(door.pair.offer(&[0; 4200]), 4200);
        (0..4).for_each(|_| door.pair.poll());
        let stack = door.pair.engine.counters().stack;
        assert!(stack.out_of_order.held_bytes > 1000, "{stack:?}");
        assert_eq!(stack.rx_out_of_order_evicted_bytes > 0, number > 0, "{stack:?}");
    }
    door.pair.deaf = false;
    assert!(door.pair.until(10_000_000, |pair| pair.engine.counters().stack.out_of_order.held_bytes == 0));
}

/// Bytes beyond a hole that arrive after the end are not held, whether the stream has failed or our FIN was
/// sent.
#[test]
fn nothing_is_held_after_the_end() {
    for fails in [true, false] {
        let (bed, control) = Testbed::with_control(&LinkConfig::default());
        let (mut served, _region) = match fails {
            true => failed_on(bed),
            false => {
                let mut served = Setup::on(bed.peer()).ready();
                served.id.disconnect();
                served.run(10_000);
                let region = served.reg_mr(64, ALL);
                (served, region)
            }
        };
        control.set_up(false);
        assert_eq!(served.pair.offer(&[0; 8]), 8);
        served.pair.poll();
        control.set_up(true);
        served.pair.deaf = true;
        let before = served.pair.engine.counters();
        assert_eq!(served.pair.offer(&[0; 1000]), 1000);
        (0..4).for_each(|_| served.pair.poll());
        let after = served.pair.engine.counters();
        assert!(after.port.rx_bytes - before.port.rx_bytes > 1000);
        assert_eq!(after.stack.out_of_order.held_bytes, 0, "fails: {fails}");
        assert_eq!(after.stack.rx_out_of_order_dropped_bytes, 0, "TCP has taken them");
    }
}

/// A close has to tell the peer which messages were accepted, but cannot, because the peer reads nothing. The
/// close still has a deadline, and the engine does not try to send in every poll.
#[test]
fn a_close_that_cannot_tell_a_limit_ends() {
    let mut served = agreed();
    let region = served.reg_mr(1 << 20, ALL);
    served.post_recv(64, 8);
    served.pair.stopped_reading = true;
    for wr_id in 1..13 {
        let write = SendOp::Write { remote: RemoteAddr { addr: 0, rkey: 1 } };
        served.post(&SendRequest::new(wr_id, write, region.sge(0, 1 << 20)));
    }
    served.run(1_000_000);
    served.send(&untagged([0x41, 0x43], 0, [0, 1, 0], b"message"));
    served.run(10_000);
    assert_eq!(served.completions().last(), Some(&(64, WcStatus::Success)));
    served.id.disconnect();
    let start_us = served.pair.now_us;
    let polls = served.pair.rest(10_000);
    assert!(polls < 100, "the engine does not rest: {polls} polls");
    let event = served.event();
    assert!(
        matches!(event.kind, CmEventKind::Disconnected { error: Some(ConnectionError::CloseTimeout), .. }),
        "{event:?}"
    );
    let took_us = served.pair.now_us - start_us;
    assert!((4_900_000..11_000_000).contains(&took_us), "{took_us} us");
}
