//! Tests of flow control, for example zero windows, windows smaller than a segment, window updates, delayed
//! acknowledgements and the send buffer, and of keepalives.

use dp::Mempool;

use super::stream::each;
use super::wire::*;
use crate::tcp::header::Flags;
use crate::tcp::{BulkPool, SegmentSlab, State};
use crate::{CloseReason, Duration, Event, Keepalive, SendError, TcpConfig};

/// Returns an acknowledgement of `acked` bytes by `b`, without payload and with the window field `window`.
fn ack(pair: &Pair, acked: usize, window: u16) -> Packet {
    let (_, _, syn_ack) = pair.log.iter().find(|(_, side, _)| *side == Side::B).expect("a SYN-ACK").clone();
    let mut header = syn_ack.header;
    header.flags = Flags::empty();
    header.seq += 1;
    header.ack = Some(pair.a.params.iss + 1 + acked);
    header.window = window;
    header.options = Default::default();
    Packet::new(header, Vec::new())
}

/// Returns a pair of which only `a` runs, because the test plays the peer. Windows are not scaled.
fn alone() -> Pair {
    let config = TcpConfig { recv_window_bytes: 32 * 1024, ..config() };
    let mut pair = Pair::established(config, config);
    pair.plan = Box::new(|_, _| vec![]);
    pair
}

#[test]
fn a_closed_window_is_probed_without_payload_and_with_growing_pauses() {
    let mut pair = alone();
    let closed = ack(&pair, 0, 0);
    let _ = pair.a.receive(pair.now, &closed);
    pair.a.push(pair.now, &pattern(0, 500)).unwrap();
    let start = pair.now;
    pair.log.clear();
    pair.run_for(Duration::from_secs(2));
    let at: Vec<_> = pair.log.iter().map(|(at, ..)| at.total_millis() - start.total_millis()).collect();
    assert_eq!(at, [52, 156, 364, 780, 1612]);
    for (_, _, probe) in &pair.log {
        assert_eq!(
            (probe.header.seq, probe.payload.len()),
            (pair.a.params.iss, 0),
            "SND.UNA - 1, nothing else"
        );
    }
    let open = Packet::new(crate::tcp::header::TcpHeader { window: 500, ..closed.header }, vec![]);
    let _ = pair.a.receive(pair.now, &open);
    assert_eq!(pair.a.transmit(pair.now).unwrap().payload, pattern(0, 500));
    assert_eq!(pair.a.counters.tx_cut_by_persist, 0);
}

#[test]
fn a_closed_window_that_answers_is_waited_for_and_one_that_does_not_times_out() {
    let mut pair = alone();
    let closed = ack(&pair, 0, 0);
    let _ = pair.a.receive(pair.now, &closed);
    pair.a.push(pair.now, &pattern(0, 500)).unwrap();
    for _ in 0..30 {
        pair.run_for(Duration::from_secs(1));
        let _ = pair.a.receive(pair.now, &closed);
    }
    assert_eq!(pair.a.state(), State::Established);
    pair.run_for(Duration::from_secs(11));
    assert_eq!(pair.a.seen.last(), Some(&Seen::Closed(CloseReason::TimedOut)));
}

#[test]
fn a_window_below_a_segment_cuts_it_only_after_the_persist_timer() {
    let mut pair = alone();
    let small = ack(&pair, 0, 300);
    let _ = pair.a.receive(pair.now, &small);
    pair.a.push(pair.now, &pattern(0, 800)).unwrap();
    assert!(pair.a.transmit(pair.now).is_none());
    let at = pair.a.tcb().deadline().unwrap();
    assert_eq!(at, pair.now + Duration::from_millis(52));
    pair.a.with(at, |tcb, ctx| tcb.on_timer(ctx));
    assert_eq!(pair.a.transmit(at).unwrap().payload, pattern(0, 300));
    assert!(pair.a.transmit(at).is_none());
    assert_eq!(pair.a.counters.tx_cut_by_persist, 1);
    // The rest of the segment is a separate segment, which fits the window now.
    let more = ack(&pair, 300, 500);
    let _ = pair.a.receive(at, &more);
    assert_eq!(pair.a.transmit(at).unwrap().payload, pattern(300, 500));
    assert_eq!(pair.a.counters.tx_cut_by_persist, 1);
}

/// After a cut, segments are not aligned with FPDUs until a pause in transmission. After the pause, segments
/// are sent with the boundaries with which the test pushed them.
// Proves MPA-122: a segment that is pushed begins with an FPDU.
#[test]
fn alignment_comes_back_after_a_pause() {
    let mut pair = alone();
    let small = ack(&pair, 0, 300);
    let _ = pair.a.receive(pair.now, &small);
    pair.a.push(pair.now, &pattern(0, 800)).unwrap();
    let at = pair.a.tcb().deadline().unwrap();
    pair.a.with(at, |tcb, ctx| tcb.on_timer(ctx));
    assert_eq!(pair.a.transmit(at).unwrap().payload, pattern(0, 300), "an FPDU is cut");
    let wide = ack(&pair, 300, 4000);
    let _ = pair.a.receive(at, &wide);
    assert_eq!(pair.a.transmit(at).unwrap().payload, pattern(300, 500));
    let all = ack(&pair, 800, 4000);
    let _ = pair.a.receive(at, &all);
    let later = at + Duration::from_secs(1);
    for (from, len) in [(800, 700), (1500, 24), (1524, 1000)] {
        pair.a.push(later, &pattern(from, len)).unwrap();
        let sent = pair.a.transmit(later).unwrap();
        assert_eq!(sent.header.seq, pair.a.params.iss + 1 + from);
        assert_eq!(sent.payload, pattern(from, len));
    }
    assert_eq!(pair.a.counters.tx_cut_by_persist, 1);
}

/// Nagle's algorithm does not exist, so there is no option to turn it off.
// Proves MPA-272: a small segment leaves while others before it are not acknowledged.
#[test]
fn a_small_segment_waits_for_no_acknowledgement() {
    let mut pair = alone();
    for n in 0..5 {
        pair.a.push(pair.now, &pattern(n * 20, 20)).unwrap();
        assert_eq!(pair.a.transmit(pair.now).expect("it waits").payload, pattern(n * 20, 20));
    }
}

#[test]
fn a_peer_with_a_tiny_window_gets_everything_in_the_end() {
    let tiny = TcpConfig { recv_window_bytes: 700, ..config() };
    let mut pair = Pair::established(config(), tiny);
    pair.push(6);
    assert!(pair.run_until(Duration::from_secs(9), |pair| pair.b.frontier == 6000));
    assert_eq!(pair.b.read(), pattern(0, 6000));
    assert!(pair.a.counters.tx_cut_by_persist > 0);
}

// Proves DDP-258.
#[test]
fn held_bytes_close_the_window_and_release_opens_it() {
    let small = TcpConfig { recv_window_bytes: 4000, ..config() };
    let mut pair = Pair::established(config(), small);
    pair.b.releases = false;
    pair.plan = each(|nr| vec![if nr == 0 { Duration::from_millis(5) } else { DELAY }]);
    pair.push(8);
    pair.run_for(Duration::from_millis(300));
    // The first 4000 bytes arrived. 3000 of them arrived out of order and are still held.
    let shrunk = pair.log.iter().rev().find(|(_, side, _)| *side == Side::B).unwrap().2.header.window;
    assert!(shrunk <= 1000, "{shrunk}");
    let now = pair.now;
    pair.b.with(now, |tcb, ctx| tcb.release(ctx, 3000));
    let update = pair.b.transmit(now).expect("a window update");
    assert!(update.header.window >= 3000);
    pair.fly(Side::B, update);
    assert!(pair.run_until(Duration::from_secs(9), |pair| pair.b.frontier == 8000));
}

// Proves DDP-260.
#[test]
fn the_right_edge_never_moves_back() {
    let mut pair = Pair::established(config(), TcpConfig { recv_window_bytes: 5000, ..config() });
    pair.b.releases = false;
    let mut n = 0_u64;
    pair.plan = Box::new(move |_, _| {
        n += 1;
        vec![DELAY + Duration::from_micros(n * 7919 % 900)]
    });
    pair.push_of(40, 300);
    pair.run_for(Duration::from_secs(3));
    let mut edge = i64::MIN;
    let first = pair.a.params.iss.0;
    for (_, side, packet) in &pair.log {
        if let Some(ack) = packet.header.ack.filter(|_| *side == Side::B && !packet.is(Flags::SYN)) {
            let right = i64::from(ack.0.wrapping_sub(first)) + i64::from(packet.header.window);
            assert!(right >= edge, "{right} after {edge}");
            edge = right;
        }
    }
}

#[test]
fn a_coalesced_segment_is_acknowledged_at_once() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &[0]).unwrap();
    let mut packet = pair.a.transmit(pair.now).unwrap();
    packet.payload = pattern(0, 2040);
    let _ = pair.b.receive(pair.now, &packet);
    assert!(pair.b.transmit(pair.now).is_some());
    assert_eq!(pair.b.frontier, 2040);
}

#[test]
fn bytes_beyond_the_window_are_not_taken() {
    let mut pair = Pair::established(config(), TcpConfig { recv_window_bytes: 1500, ..config() });
    pair.a.push(pair.now, &[0]).unwrap();
    let mut packet = pair.a.transmit(pair.now).unwrap();
    packet.payload = pattern(0, 2000);
    let _ = pair.b.receive(pair.now, &packet);
    assert_eq!(pair.b.frontier, 1500);
    packet.header.seq += 1_000_000;
    let _ = pair.b.receive(pair.now, &packet);
    assert_eq!(pair.b.stream.len(), 1500);
}

#[test]
fn a_full_send_buffer_says_when_it_takes_more() {
    let mut pair = Pair::established(TcpConfig { send_buffer_bytes: 4000, ..config() }, config());
    pair.push(4);
    assert_eq!(pair.a.push(pair.now, &[1]), Err(SendError::BufferFull));
    assert!(!pair.a.seen.contains(&Seen::Writable));
    pair.run_for(Duration::from_millis(50));
    assert_eq!(pair.a.seen.iter().filter(|seen| **seen == Seen::Writable).count(), 1);
    assert_eq!(pair.a.push(pair.now, &[1]), Ok(()));
}

/// After the user has closed the connection, nothing more can be sent, so no `Writable` is raised.
#[test]
fn a_closed_send_buffer_does_not_say_that_it_takes_more() {
    let mut pair = Pair::established(TcpConfig { send_buffer_bytes: 4000, ..config() }, config());
    while pair.a.push(pair.now, &pattern(0, 1000)).is_ok() {}
    pair.a.close(pair.now);
    pair.run_for(Duration::from_millis(50));
    assert_eq!((pair.b.frontier, pair.a.state()), (4000, State::FinWait2));
    assert!(!pair.a.seen.contains(&Seen::Writable));
}

#[test]
fn writable_is_raised_once_until_the_user_takes_it() {
    let mut pair = Pair::established(TcpConfig { send_buffer_bytes: 4000, ..config() }, config());
    pair.a.takes_writable = false;
    let fill = |pair: &mut Pair| {
        let mut taken = 0;
        while pair.a.push(pair.now, &pattern(0, 1000)).is_ok() {
            taken += 1;
        }
        pair.run_for(Duration::from_millis(50));
        (taken, pair.a.seen.iter().filter(|seen| **seen == Seen::Writable).count())
    };
    assert_eq!([fill(&mut pair), fill(&mut pair)], [(4, 1); 2]);
    pair.a.take_event(|conn| Event::Writable { conn });
    assert_eq!(fill(&mut pair), (4, 2));
}

#[test]
fn acknowledgements_are_reported_where_it_is_asked_for() {
    let mut pair = Pair::established(config(), config());
    let acknowledged = |pair: &mut Pair| {
        pair.a.push(pair.now, &pattern(0, 1000)).unwrap();
        pair.run_for(Duration::from_millis(50));
        pair.a.seen.iter().filter(|seen| **seen == Seen::Acknowledged).count()
    };
    assert_eq!(acknowledged(&mut pair), 0);
    pair.a.with(pair.now, |tcb, _| tcb.report_acknowledgements(true));
    // One event waits for the user, and covers all later acknowledgements.
    assert_eq!([acknowledged(&mut pair), acknowledged(&mut pair)], [1, 1]);
    pair.a.take_event(|conn| Event::Acknowledged { conn });
    assert_eq!(acknowledged(&mut pair), 2);
    assert_eq!(pair.a.tcb().send_offsets(), (4000, 4000));
}

/// The acknowledgement of a single segment waits for the timer of delayed acknowledgements, unless the user
/// requests it at once.
#[test]
fn bytes_are_acknowledged_at_once_if_the_user_asks() {
    let mut pair = Pair::established(config(), config());
    pair.b.with(pair.now, |tcb, _| tcb.acknowledge_early());
    assert!(!pair.b.tcb().wants_transmit(), "nothing has arrived");
    pair.a.push(pair.now, &pattern(0, 100)).unwrap();
    pair.run_for(Duration::from_millis(1));
    assert_eq!((pair.b.frontier, pair.a.tcb().send_offsets()), (100, (100, 0)));
    pair.b.with(pair.now, |tcb, _| tcb.acknowledge_early());
    pair.run_for(Duration::from_millis(1));
    assert_eq!(pair.a.tcb().send_offsets(), (100, 100));
    assert_eq!(pair.b.tcb().deadline(), None);
}

#[test]
fn an_idle_connection_is_small_and_holds_nothing_shared() {
    assert!(size_of::<crate::tcp::Tcb>() <= 872, "{}", size_of::<crate::tcp::Tcb>());
    let mut pair = Pair::established(config(), config());
    pair.push(20);
    pair.run_for(Duration::from_millis(100));
    assert!(pair.a.holds_nothing() && pair.b.holds_nothing());
    assert_eq!(pair.a.tcb().deadline(), None);
    assert!(!pair.a.tcb().wants_transmit());
}

#[test]
fn segment_records_are_limited() {
    let mut pair = Pair::established(config(), config());
    // A connection gets no further record if it holds at least half as many records as are still free. So the
    // connection gets 2 of 5 records.
    pair.a.segments = SegmentSlab::new(5, 5);
    assert_eq!(pair.a.push(pair.now, &[1]), Ok(()));
    assert_eq!(pair.a.push(pair.now, &[1]), Ok(()));
    assert_eq!(pair.a.push(pair.now, &[1]), Err(SendError::BufferFull));
    pair.run_for(Duration::from_millis(50));
    assert!(pair.a.seen.contains(&Seen::Writable));
}

#[test]
fn keepalive_finds_a_dead_peer_and_leaves_a_living_one() {
    let idle = TcpConfig {
        keepalive_idle: Some(Duration::from_secs(2)),
        keepalive_interval: Duration::from_secs(1),
        keepalive_probes: 3,
        ..config()
    };
    let mut pair = Pair::established(idle, config());
    pair.run_for(Duration::from_secs(30));
    assert_eq!(pair.a.state(), State::Established);
    pair.plan = Box::new(|_, _| vec![]);
    pair.run_for(Duration::from_secs(6));
    assert_eq!(pair.a.seen.last(), Some(&Seen::Closed(CloseReason::TimedOut)));
}

#[test]
fn held_bytes_close_the_window_and_released_ones_open_it() {
    let mut pair = Pair::established(config(), TcpConfig { recv_window_bytes: 4000, ..config() });
    let mut held = 0;
    for i in 0..10 {
        let _ = pair.a.push(pair.now, &pattern(i * 1000, 1000));
        pair.run_for(Duration::from_millis(20));
        let fresh = pair.b.frontier as usize - held;
        pair.b.with(pair.now, |tcb, ctx| tcb.hold(ctx, fresh));
        held += fresh;
    }
    // While the user releases nothing, no more bytes than the window are sent.
    pair.run_for(Duration::from_millis(500));
    let before = pair.b.frontier;
    assert!((3000..=5000).contains(&before), "{before}");
    pair.b.with(pair.now, |tcb, ctx| tcb.release(ctx, held));
    pair.run_for(Duration::from_millis(500));
    assert!(pair.b.frontier > before + 2000, "{}", pair.b.frontier);
}

#[test]
fn a_connection_has_a_keepalive_of_its_own() {
    let mut pair = Pair::established(config(), config());
    let keepalive = Keepalive { idle: Duration::from_secs(3), interval: Duration::from_secs(1), probes: 2 };
    pair.a.with(pair.now, |tcb, ctx| tcb.set_keepalive(ctx, Some(keepalive)));
    pair.run_for(Duration::from_secs(30));
    assert_eq!(pair.a.state(), State::Established);
    pair.plan = Box::new(|_, _| vec![]);
    pair.run_for(Duration::from_secs(8));
    assert_eq!(pair.a.seen.last(), Some(&Seen::Closed(CloseReason::TimedOut)));
    let mut pair =
        Pair::established(TcpConfig { keepalive_idle: Some(Duration::from_secs(1)), ..config() }, config());
    pair.a.with(pair.now, |tcb, ctx| tcb.set_keepalive(ctx, None));
    pair.plan = Box::new(|_, _| vec![]);
    pair.run_for(Duration::from_secs(60));
    assert_eq!(pair.a.state(), State::Established);
}

#[test]
fn behind_the_peers_fin_no_window_is_announced_anew() {
    for closes in [false, true] {
        let mut pair = Pair::established(config(), TcpConfig { recv_window_bytes: 4000, ..config() });
        for i in 0..3 {
            pair.a.push(pair.now, &pattern(i * 1000, 1000)).unwrap();
            pair.run_for(Duration::from_millis(60));
            pair.b.with(pair.now, |tcb, ctx| tcb.hold(ctx, 1000));
        }
        pair.a.push(pair.now, &pattern(3000, 500)).unwrap();
        pair.run_for(Duration::from_millis(60));
        if closes {
            pair.a.with(pair.now, |tcb, ctx| tcb.close(ctx));
        }
        pair.run_for(Duration::from_millis(100));
        pair.b.with(pair.now, |tcb, ctx| tcb.release(ctx, 3000));
        let update = pair.b.transmit(pair.now);
        assert_eq!(update.is_none(), closes, "{update:?}");
    }
}

#[test]
fn a_fin_beyond_the_window_is_not_taken() {
    let mut pair = Pair::established(config(), TcpConfig { recv_window_bytes: 1500, ..config() });
    pair.a.push(pair.now, &[0]).unwrap();
    let mut packet = pair.a.transmit(pair.now).unwrap();
    packet.payload = pattern(0, 2000);
    packet.header.flags |= Flags::FIN;
    let _ = pair.b.receive(pair.now, &packet);
    assert_eq!(pair.b.frontier, 1500);
    while pair.b.transmit(pair.now).is_some() {}
    packet.payload = pattern(1500, 500);
    packet.header.seq += 1500;
    packet.header.flags.remove(Flags::FIN);
    let _ = pair.b.receive(pair.now, &packet);
    assert_eq!((pair.b.frontier, pair.b.state()), (2000, State::Established));
}

/// A connection gets about a third of 16 small buffers. Segments in large buffers do not count for this
/// limit.
#[test]
fn segments_in_large_buffers_leave_a_connection_its_share_of_the_small_ones() {
    let mut pair = alone();
    pair.a.segments = SegmentSlab::new(512, 16);
    let bulk = BulkPool { pool: Mempool::heap("bulk", 1, 32_000), long_message: None };
    pair.a.bulk_pool = Some(bulk);
    let now = pair.now;
    let push = |pair: &mut Pair| pair.a.push(now, &pattern(0, EMSS));
    let pushed = std::iter::from_fn(|| push(&mut pair).ok()).count();
    // The segments are in two small buffers with two segments each, then in a large buffer with 32 segments,
    // and then in more small buffers. The limit is reached when the connection has at least half as many
    // small buffers as are still free.
    assert_eq!((pushed, pair.a.segments.small_pages()), (4 + 32 + 8, 6));
    pair.transmit();
    pair.a.seen.clear();
    let _ = pair.a.receive(now, &ack(&pair, EMSS, 30_000));
    assert_eq!(pair.a.seen, [], "half a buffer is free: no segment would be taken");
    let _ = pair.a.receive(now, &ack(&pair, 2 * EMSS, 30_000));
    assert_eq!(pair.a.seen, [Seen::Writable]);
    assert_eq!(push(&mut pair), Ok(()));
}
