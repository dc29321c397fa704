//! Tests of black holes and of the search for larger segments (RFC 8899, RFC 4821), on a wire that drops
//! large packets.

use std::cell::Cell;
use std::rc::Rc;

use super::wire::*;
use crate::tcp::SearchSlab;
use crate::tcp::congestion::{CongestionControl, Timeout};
use crate::tcp::send::Phase;
use crate::{CloseReason, Duration, Instant, PathMtuConfig, PathMtuProbing, TcpConfig};

/// The payload of a segment of BASE_PLPMTU, and of a segment of MIN_PLPMTU.
const BASE: usize = BASE_MSS as usize - 12;
const LEAST: usize = MIN_MSS as usize - 12;

/// Makes the wire drop packets from `a` whose payload is larger than the value of the returned cell.
fn narrow(pair: &mut Pair) -> Rc<Cell<usize>> {
    let most = Rc::new(Cell::new(usize::MAX));
    let limit = Rc::clone(&most);
    pair.plan =
        Box::new(
            move |side, packet| {
                if side == Side::A && packet.payload.len() > limit.get() { vec![] } else { vec![DELAY] }
            },
        );
    most
}

/// Returns an established pair on a wire that [`narrow`] has changed, and the cell of this wire.
fn pair(config: TcpConfig) -> (Pair, Rc<Cell<usize>>) {
    let mut pair = Pair::established(config, config);
    let most = narrow(&mut pair);
    pair.log.clear();
    (pair, most)
}

fn emss(pair: &Pair) -> usize {
    pair.a.tcb().info(&pair.a.config, ADDRESS, ADDRESS).emss
}

const ADDRESS: std::net::SocketAddr =
    std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

/// Pushes a segment of EMSS bytes every 100 ms for `span`.
fn pump(pair: &mut Pair, sent: &mut usize, span: Duration) {
    let until = pair.now + span;
    while pair.now < until {
        let bytes = emss(pair);
        pair.a.push(pair.now, &pattern(*sent, bytes)).expect("room");
        *sent += bytes;
        pair.run_for(Duration::from_millis(100));
    }
}

/// Returns the time and the size of each probe that `a` sent. Checks that each probe carries the bytes that
/// were sent at its position before.
fn probes(pair: &Pair) -> Vec<(Instant, usize)> {
    let probe = |(at, offset, bytes): &(Instant, u32, Vec<u8>)| {
        assert_eq!(*bytes, pattern(*offset as usize, bytes.len()));
        (*at, bytes.len())
    };
    pair.a.probes.iter().map(probe).collect()
}

fn sizes(pair: &Pair) -> Vec<usize> {
    probes(pair).into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn a_black_hole_is_found_by_the_third_timeout_and_what_passes_by_halving() {
    let (mut pair, most) = pair(config());
    most.set(688);
    let start = pair.now;
    let mut sent = 10 * EMSS;
    pair.push(10);
    assert!(pair.run_until(Duration::from_secs(1), |pair| pair.a.counters.path_mtu_black_holes == 1));
    // The timer of a tail loss probe has expired, and after that the retransmission timer three times, with a
    // doubled timeout each time.
    assert_eq!((pair.a.counters.rto_expired, emss(&pair)), (3, BASE));
    let found = pair.now;
    assert!(found - start < Duration::from_millis(500), "{}", found - start);
    assert!(pair.run_until(Duration::from_secs(1), |pair| pair.b.frontier == sent as u64));
    assert_eq!(pair.a.counters.tx_cut_by_emss, 10);

    pump(&mut pair, &mut sent, Duration::from_secs(20));
    assert_eq!(pair.b.read(), pattern(0, sent));
    // Each size that the path does not carry is tried three times.
    let lost = |bytes| [bytes; 3];
    let expected = [lost(1000).as_slice(), &lost(800), &lost(700), &[650, 675, 687], &lost(693)].concat();
    assert_eq!((sizes(&pair), emss(&pair)), (expected, 687));
    let probes = probes(&pair);
    assert!(probes[0].0 >= found + Duration::from_secs(1), "the first search waits");
    for three in [0, 3, 6, 12] {
        assert_eq!(probes[three + 1].0 - probes[three].0, Duration::from_secs(1), "PROBE_TIMER");
        assert_eq!(probes[three + 2].0 - probes[three + 1].0, Duration::from_secs(1));
    }
    let counters = pair.a.counters;
    assert_eq!((counters.path_mtu_probes, counters.path_mtu_probes_answered), (15, 3));
    assert_eq!((counters.path_mtu_probes_lost, counters.path_mtu_black_holes), (12, 1));
    assert_eq!(
        (counters.rto_expired, counters.tx_cut_by_emss),
        (3, 10),
        "probes lost nothing, and cut nothing"
    );
}

#[test]
fn a_path_that_is_wide_again_is_found_after_ten_minutes() {
    let (mut pair, most) = pair(config());
    most.set(BASE);
    let mut sent = 0;
    pump(&mut pair, &mut sent, Duration::from_secs(30));
    assert_eq!(emss(&pair), BASE);
    let last = probes(&pair).last().expect("a search").0 + Duration::from_secs(1);
    most.set(usize::MAX);
    pair.run_for(Duration::from_secs(585));
    pair.a.probes.clear();
    pump(&mut pair, &mut sent, Duration::from_secs(15));
    // One probe of the largest possible size is sent. The probe has the first bytes that are acknowledged
    // after the PMTU_RAISE_TIMER.
    let probes = probes(&pair);
    assert_eq!(probes.len(), 1, "{probes:?}");
    let due = last + Duration::from_secs(600);
    assert!(probes[0].0 >= due && probes[0].0 <= due + Duration::from_millis(300), "{due} {probes:?}");
    assert_eq!(emss(&pair), EMSS);
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.b.read(), pattern(0, sent));
    assert!(pair.a.holds_nothing());
    assert_eq!(pair.a.tcb().deadline(), None, "there is nothing more to find");
    // Congestion control uses the new segment size: a timeout sets the window to one segment of this size.
    most.set(0);
    let before = pair.a.counters.rto_expired;
    pair.a.push(pair.now, &pattern(sent, EMSS)).unwrap();
    assert!(pair.run_until(Duration::from_secs(1), |pair| pair.a.counters.rto_expired > before));
    assert_eq!(pair.a.tcb().sending().congestion().cwnd(), EMSS as u32);
}

#[test]
fn where_not_even_the_base_passes_the_least_is_used() {
    let (mut pair, most) = pair(config());
    most.set(LEAST);
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    assert!(pair.run_until(Duration::from_secs(9), |pair| pair.b.frontier == EMSS as u64));
    assert_eq!((emss(&pair), pair.a.counters.path_mtu_black_holes), (LEAST, 2));
}

#[test]
fn no_tail_loss_probe_is_larger_than_the_path_was_reported_to_carry_meanwhile() {
    let (mut pair, _) = pair(config());
    pair.push(3);
    pair.transmit();
    let seq = pair.log.last().expect("a segment").2.header.seq;
    let due = pair.a.tcb().deadline().expect("a timer");
    pair.a.with(due, |tcb, ctx| tcb.on_timer(ctx));
    pair.a.with(due, |tcb, ctx| tcb.on_packet_too_big(ctx, seq, BASE_MSS));
    let sent: Vec<_> =
        std::iter::from_fn(|| pair.a.transmit(due)).map(|packet| packet.payload.len()).collect();
    assert_eq!((emss(&pair), pair.a.counters.tail_loss_probes), (BASE, 0));
    assert!(!sent.is_empty() && sent.iter().all(|bytes| *bytes <= BASE), "{sent:?}");
}

/// A connection ends for this reason only with IPv4 (`send/path_mtu.rs`), because every link with IPv6
/// carries 1280 bytes.
#[test]
fn a_path_that_does_not_carry_the_least_ends_the_connection() {
    let (mut pair, most) = pair(config());
    most.set(LEAST - 1);
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    pair.run_for(Duration::from_secs(11));
    assert_eq!((emss(&pair), pair.b.frontier), (LEAST, 0));
    assert_eq!(pair.a.seen.last(), Some(&Seen::Closed(CloseReason::TimedOut)));
}

#[test]
fn a_path_that_carries_nothing_is_no_black_hole() {
    let (mut pair, _) = pair(config());
    pair.plan = Box::new(|_, _| vec![]);
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    pair.run_for(Duration::from_secs(4));
    assert_eq!(pair.a.counters.rto_expired, 6);
    pair.plan = Box::new(|_, _| vec![DELAY]);
    pair.run_for(Duration::from_secs(5));
    assert_eq!((pair.b.frontier, emss(&pair)), (EMSS as u64, EMSS));
    assert_eq!((pair.a.counters.path_mtu_black_holes, pair.a.counters.tx_cut_by_emss), (0, 0));
}

#[test]
fn small_segments_that_time_out_are_no_black_hole() {
    let (mut pair, most) = pair(config());
    most.set(0);
    pair.a.push(pair.now, &pattern(0, LEAST)).unwrap();
    pair.run_for(Duration::from_secs(5));
    most.set(usize::MAX);
    pair.run_for(Duration::from_secs(5));
    assert_eq!((pair.b.frontier, emss(&pair)), (LEAST as u64, EMSS));
    assert_eq!(pair.a.counters.path_mtu_black_holes, 0);
}

#[test]
fn without_probing_a_black_hole_ends_the_connection() {
    let path_mtu = PathMtuConfig { probing: PathMtuProbing::Never, ..PathMtuConfig::default() };
    let (mut pair, most) = pair(TcpConfig { path_mtu, ..config() });
    most.set(688);
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    pair.run_for(Duration::from_secs(11));
    assert_eq!(pair.a.seen.last(), Some(&Seen::Closed(CloseReason::TimedOut)));
}

#[test]
fn without_sack_a_black_hole_is_left_but_nothing_more_looked_for() {
    let (mut pair, most) = pair(TcpConfig { sack: false, ..config() });
    most.set(688);
    let mut sent = 0;
    pump(&mut pair, &mut sent, Duration::from_secs(10));
    pair.run_for(Duration::from_secs(1));
    assert_eq!((pair.b.frontier, emss(&pair)), (sent as u64, BASE));
    assert_eq!((pair.a.counters.path_mtu_black_holes, pair.a.counters.path_mtu_probes), (1, 0));
    assert_eq!(pair.a.tcb().deadline(), None);
}

#[test]
fn a_probe_that_arrives_in_pieces_was_not_carried() {
    let (mut pair, most) = pair(config());
    most.set(688);
    let mut sent = 0;
    pump(&mut pair, &mut sent, Duration::from_secs(1));
    assert_eq!(emss(&pair), BASE);
    let repairs = |pair: &Pair| pair.a.counters.tx_retransmits - pair.a.counters.tail_loss_probes;
    let before = repairs(&pair);
    most.set(usize::MAX);
    pair.cut = Box::new(|bytes| (bytes > 688).then_some(500));
    pump(&mut pair, &mut sent, Duration::from_secs(20));
    pair.run_for(Duration::from_secs(1));
    assert_eq!((pair.b.frontier, emss(&pair)), (sent as u64, 687));
    assert_eq!(repairs(&pair), before, "what came twice is a probe's, and no sign of anything");
    assert_eq!(pair.a.counters.reordering_seen, 0);
}

#[test]
fn a_router_that_reports_a_probe_names_the_next_size() {
    let (mut pair, most) = pair(config());
    most.set(688);
    let mut sent = 0;
    pump(&mut pair, &mut sent, Duration::from_secs(1));
    let find = |pair: &mut Pair, sent: &mut usize, count: usize| {
        while probes(pair).len() < count {
            pump(pair, sent, Duration::from_millis(100));
        }
    };
    find(&mut pair, &mut sent, 1);
    let (_, _, probe) = pair.log.iter().rfind(|(.., packet)| packet.payload.len() == EMSS).expect("a probe");
    let seq = probe.header.seq;
    let heard = |pair: &mut Pair, seq, mss| {
        pair.a.with(pair.now, |tcb, ctx| tcb.on_packet_too_big(ctx, seq, mss));
    };
    heard(&mut pair, seq, 12 + BASE as u16 - 1);
    heard(&mut pair, seq - 1, 700);
    assert_eq!(pair.a.counters.path_mtu_probes_lost, 0, "less than is carried, or another probe: nonsense");
    heard(&mut pair, seq, 700);
    assert_eq!(pair.a.counters.path_mtu_probes_lost, 1);
    find(&mut pair, &mut sent, 2);
    pump(&mut pair, &mut sent, Duration::from_millis(100));
    assert_eq!((sizes(&pair), emss(&pair)), (vec![EMSS, 688], 688));
}

#[test]
fn a_report_is_believed_for_ten_minutes() {
    let (mut pair, most) = pair(config());
    most.set(700);
    let mut sent = EMSS;
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    pair.transmit();
    let told = pair.now;
    let seq = pair.log.last().expect("a segment").2.header.seq;
    pair.a.with(pair.now, |tcb, ctx| tcb.on_packet_too_big(ctx, seq, 712));
    assert_eq!(emss(&pair), 700);
    pair.a.with(pair.now, |tcb, ctx| tcb.on_packet_too_big(ctx, seq, 900));
    assert_eq!(emss(&pair), 700, "a report never raises it");
    most.set(usize::MAX);
    pair.run_for(Duration::from_secs(599));
    pump(&mut pair, &mut sent, Duration::from_secs(2));
    let probes = probes(&pair);
    assert_eq!(probes.len(), 1);
    assert!(probes[0].0 >= told + Duration::from_secs(600));
    assert_eq!(emss(&pair), EMSS);
}

/// Between two searches, forged reports make us retransmit the segments in flight at most four times, not
/// once for each byte of a segment.
#[test]
fn reports_that_narrow_a_path_by_and_by_end_at_the_least() {
    let (mut pair, most) = pair(config());
    most.set(LEAST);
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    pair.transmit();
    let seq = pair.log.last().expect("a segment").2.header.seq;
    let told = |pair: &mut Pair, mss: usize| {
        pair.a.with(pair.now, |tcb, ctx| tcb.on_packet_too_big(ctx, seq, 12 + mss as u16));
        emss(pair)
    };
    let heard = [900, 890, 890, 880, 870, 860].map(|mss| told(&mut pair, mss));
    assert_eq!(heard, [900, 890, 890, 880, LEAST, LEAST]);
    // Ten minutes later, the search finds that the path carries the largest size again. After that, reports
    // may lower the EMSS again.
    most.set(usize::MAX);
    pair.run_for(Duration::from_secs(600));
    let mut sent = EMSS;
    pump(&mut pair, &mut sent, Duration::from_secs(2));
    assert_eq!(emss(&pair), EMSS);
    pair.a.push(pair.now, &pattern(sent, EMSS)).unwrap();
    pair.transmit();
    let seq = pair.log.last().expect("a segment").2.header.seq;
    pair.a.with(pair.now, |tcb, ctx| tcb.on_packet_too_big(ctx, seq, 12 + 900));
    assert_eq!(emss(&pair), 900);
}

#[test]
fn a_connection_may_begin_with_the_base() {
    let path_mtu = PathMtuConfig { probing: PathMtuProbing::Always, ..PathMtuConfig::default() };
    let (mut pair, most) = pair(TcpConfig { path_mtu, ..config() });
    assert_eq!(emss(&pair), BASE);
    most.set(EMSS);
    let mut sent = 0;
    pump(&mut pair, &mut sent, Duration::from_millis(500));
    assert_eq!((emss(&pair), sizes(&pair)), (EMSS, vec![EMSS]));
    assert_eq!(pair.a.counters.path_mtu_black_holes, 0);
}

#[test]
fn who_finds_no_place_to_search_tries_later() {
    let path_mtu = PathMtuConfig { probing: PathMtuProbing::Always, ..PathMtuConfig::default() };
    let mut pair = Pair::new(TcpConfig { path_mtu, ..config() }, config());
    pair.a.searches = SearchSlab::new(0);
    pair.a.connect(pair.now);
    let mut sent = 0;
    pair.run_for(Duration::from_millis(10));
    pump(&mut pair, &mut sent, Duration::from_millis(2500));
    assert_eq!((pair.a.counters.path_mtu_searches_put_off, emss(&pair)), (3, BASE));
    pair.a.searches = SearchSlab::new(1);
    pump(&mut pair, &mut sent, Duration::from_secs(1));
    assert_eq!(emss(&pair), EMSS);
}

#[test]
fn a_probe_of_bytes_that_are_long_gone_is_not_sent_again() {
    let (mut pair, most) = pair(config());
    most.set(688);
    let mut sent = 0;
    while probes(&pair).is_empty() {
        pump(&mut pair, &mut sent, Duration::from_millis(100));
    }
    // The connection acts as if it had sent `gone` more bytes and the peer had acknowledged them. Over a fast
    // link, sending 2 GiB takes less than a second.
    let gone = 1 << 31;
    pair.a.tcb.as_mut().expect("a connection").sending_mut().skip(gone);
    pair.run_for(Duration::from_secs(5));
    assert_eq!((pair.a.counters.path_mtu_probes, pair.a.counters.path_mtu_probes_lost), (1, 1));
}

/// Returns a pair with segments in flight. `a` has gathered a probe, but has not sent it.
fn ready() -> Pair {
    let path_mtu = PathMtuConfig { probing: PathMtuProbing::Always, ..PathMtuConfig::default() };
    let (mut pair, _) = pair(TcpConfig { path_mtu, ..config() });
    for nr in 0..8 {
        pair.a.push(pair.now, &pattern(nr * BASE, BASE)).expect("room");
    }
    assert!(pair.run_until(Duration::from_millis(50), |pair| pair.a.tcb().sending().has_path_probe()));
    assert!(pair.a.tcb().sending().positions().outstanding() > 0);
    pair
}

/// Lets `a` send its next packet, if it has one. Returns whether this packet is a probe.
fn is_probing(pair: &mut Pair) -> bool {
    let probes = pair.a.counters.path_mtu_probes;
    assert_eq!(pair.a.tcb().wants_transmit(), pair.a.transmit(pair.now).is_some());
    pair.a.counters.path_mtu_probes > probes
}

#[test]
fn a_probe_waits_for_the_end_of_recovery_and_for_room_in_the_window() {
    assert!(is_probing(&mut ready()));
    for phase in [Phase::Fast, Phase::Loss] {
        let mut pair = ready();
        pair.a.tcb.as_mut().expect("a connection").sending_mut().set_phase(phase);
        assert!(!is_probing(&mut pair), "{phase:?}");
    }
    let mut pair = ready();
    pair.a.with(pair.now, |tcb, ctx| {
        tcb.sending_mut().congestion_mut().on_timeout(ctx.now, EMSS as u32, Timeout::Congestion)
    });
    assert!(pair.a.tcb().sending().bytes_in_pipe() > pair.a.tcb().sending().window());
    assert!(!is_probing(&mut pair));
    pair.run_for(Duration::from_millis(50));
    assert_eq!(emss(&pair), EMSS, "there is room now");
}

#[test]
fn an_answer_to_a_probe_is_waited_for_as_long_as_any_acknowledgement() {
    let mut pair = ready();
    for _ in 0..6 {
        pair.a.tcb.as_mut().expect("a connection").sending_mut().back_off();
    }
    let rto = pair.a.tcb().sending().info().rto;
    assert!(rto > pair.a.config.path_mtu.probe_timer);
    assert!(is_probing(&mut pair));
    assert_eq!(pair.a.tcb().sending().search_due(), Some(pair.now + rto));
}

#[test]
fn a_link_that_is_back_is_no_third_timeout() {
    let (mut pair, most) = pair(config());
    most.set(688);
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    assert!(pair.run_until(Duration::from_secs(1), |pair| pair.a.counters.rto_expired == 2));
    // During this time, small packets arrive.
    pair.run_for(Duration::from_millis(10));
    pair.a.with(pair.now, |tcb, ctx| tcb.on_link_up(ctx));
    assert_eq!((pair.a.counters.path_mtu_black_holes, emss(&pair)), (0, EMSS));
    assert!(pair.run_until(Duration::from_secs(5), |pair| pair.a.counters.path_mtu_black_holes == 1));
    assert_eq!(pair.a.counters.rto_expired, 3 + 3, "the count begins anew");
}
