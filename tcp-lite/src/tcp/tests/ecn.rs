//! Tests of ECN, with which routers mark packets instead of dropping them (RFC 3168, RFC 8257).

use super::stream::lose;
use super::wire::*;
use crate::ip::Ecn;
use crate::tcp::header::Flags;
use crate::{CongestionAlgorithm, Duration, EcnMode, TcpConfig};

fn asking() -> TcpConfig {
    TcpConfig { ecn: EcnMode::Request, ..config() }
}

const SETUP: Flags = Flags::ECE.union(Flags::CWR);

/// Makes a router mark the data segments from `Side::A` with these numbers, if they may be marked.
fn mark(pair: &mut Pair, numbers: std::ops::Range<usize>) {
    let mut sent = 0;
    pair.mark = Box::new(move |side, packet| {
        let data = side == Side::A && !packet.payload.is_empty();
        sent += usize::from(data);
        data && numbers.contains(&(sent - 1)) && packet.ecn == Ecn::Ect0
    });
}

fn data_of_a(pair: &Pair) -> Vec<&Packet> {
    let of_a = pair.log.iter().filter(|(_, side, packet)| *side == Side::A && !packet.payload.is_empty());
    of_a.map(|(_, _, packet)| packet).collect()
}

#[test]
fn it_is_agreed_on_only_where_one_asks_and_the_other_accepts() {
    for (ours, theirs, agreed) in [
        (EcnMode::Request, EcnMode::Accept, true),
        (EcnMode::Request, EcnMode::Off, false),
        (EcnMode::Accept, EcnMode::Request, false),
        (EcnMode::Off, EcnMode::Request, false),
    ] {
        let with = |ecn| TcpConfig { ecn, ..config() };
        let mut pair = Pair::established(with(ours), with(theirs));
        pair.push(1);
        pair.run_for(Duration::from_millis(100));
        let (syn, syn_ack) = (&pair.log[0].2.header, &pair.log[1].2.header);
        assert_eq!(syn.flags & SETUP, if ours == EcnMode::Request { SETUP } else { Flags::empty() });
        assert_eq!(syn_ack.flags & SETUP, if agreed { Flags::ECE } else { Flags::empty() });
        let codepoint = if agreed { Ecn::Ect0 } else { Ecn::NotEct };
        assert_eq!(data_of_a(&pair)[0].ecn, codepoint, "{ours:?} {theirs:?}");
    }
}

#[test]
fn a_syn_without_an_answer_goes_again_without_asking() {
    let mut pair = Pair::new(asking(), config());
    pair.plan = Box::new(|_, packet| match packet.header.flags.contains(SETUP) {
        true => vec![],
        false => vec![DELAY],
    });
    pair.a.connect(pair.now);
    pair.run_for(Duration::from_secs(3));
    pair.push(1);
    pair.run_for(Duration::from_millis(100));
    assert_eq!(pair.b.frontier, EMSS as u64);
    assert_eq!(data_of_a(&pair)[0].ecn, Ecn::NotEct);
}

#[test]
fn who_asked_once_and_no_longer_has_not_agreed() {
    let mut pair = Pair::new(asking(), config());
    // The SYN-ACK that agrees to ECN is lost.
    pair.plan = Box::new(|side, packet| match side == Side::B && packet.header.flags.contains(Flags::ECE) {
        true => vec![],
        false => vec![DELAY],
    });
    pair.a.connect(pair.now);
    pair.run_for(Duration::from_secs(3));
    pair.push(1);
    pair.b.push(pair.now, &pattern(0, EMSS)).unwrap();
    pair.run_for(Duration::from_millis(100));
    assert_eq!((pair.a.frontier, pair.b.frontier), (EMSS as u64, EMSS as u64));
    assert!(pair.log.iter().all(|(_, _, packet)| packet.ecn == Ecn::NotEct));
}

#[test]
fn a_mark_is_echoed_until_the_sender_says_that_it_slowed_down_once() {
    let mut pair = Pair::established(asking(), config());
    mark(&mut pair, 2..4);
    let before = pair.a.tcb().info(&config(), ([0; 4], 0).into(), ([0; 4], 0).into()).cwnd;
    pair.push(30);
    pair.run_for(Duration::from_millis(200));
    assert_eq!(pair.b.frontier, 30 * EMSS as u64);
    let counters = pair.a.counters;
    assert_eq!((counters.ecn_reductions, counters.tx_retransmits), (1, 0));
    assert_eq!(pair.b.counters.rx_congestion_experienced, 2);
    let announced: Vec<bool> =
        data_of_a(&pair).iter().map(|packet| packet.header.flags.contains(Flags::CWR)).collect();
    assert_eq!(announced.iter().filter(|said| **said).count(), 1);
    let echoes = |packet: &Packet| packet.header.flags.contains(Flags::ECE);
    let of_b = pair.log.iter().filter(|(_, side, _)| *side == Side::B).skip(1);
    let echoing: Vec<bool> = of_b.map(|(_, _, packet)| echoes(packet)).collect();
    assert!(echoing.iter().any(|on| *on) && !echoing.last().unwrap(), "{echoing:?}");
    let after = pair.a.tcb().info(&config(), ([0; 4], 0).into(), ([0; 4], 0).into()).cwnd;
    assert!(after < before * 2, "{before} to {after}");
}

#[test]
fn what_is_sent_again_and_what_takes_no_window_is_not_marked() {
    let mut pair = Pair::established(asking(), config());
    pair.plan = lose(&[2]);
    pair.push(8);
    pair.run_for(Duration::from_millis(200));
    let mut seen = Vec::new();
    for packet in data_of_a(&pair) {
        let again = seen.contains(&packet.header.seq);
        assert_eq!(packet.ecn, if again { Ecn::NotEct } else { Ecn::Ect0 });
        seen.push(packet.header.seq);
    }
    assert_eq!(seen.len(), 9);
    let bare = pair.log.iter().filter(|(_, _, packet)| packet.payload.is_empty());
    assert!(bare.clone().count() > 3);
    for (_, _, packet) in bare {
        assert_eq!(packet.ecn, Ecn::NotEct);
    }
}

#[test]
fn dctcp_echoes_each_change_at_once_and_slows_down_by_the_share() {
    let dctcp = TcpConfig { congestion: CongestionAlgorithm::Dctcp, ..asking() };
    let mut pair = Pair::established(dctcp, dctcp);
    mark(&mut pair, 4..5);
    pair.push(10);
    pair.run_for(Duration::from_millis(200));
    let of_b = pair.log.iter().filter(|(_, side, _)| *side == Side::B).skip(1);
    let echoing: Vec<bool> = of_b.map(|(_, _, packet)| packet.header.flags.contains(Flags::ECE)).collect();
    // B acknowledges every second segment. B also acknowledges at once each segment whose mark differs from
    // the mark of the segment before it. So B acknowledges segments 2 and 4, the marked segment, the segment
    // after the marked segment, and so on.
    assert_eq!(echoing, [false, false, true, false, false, false]);
}

/// Returns the acknowledgements that `Side::B` sends while data segments arrive one after another. For each
/// acknowledgement, the list has the number of acknowledged segments, and whether the acknowledgement echoes
/// marks. `marks` is true for a marked segment. If `each` is true, B transmits after each segment, otherwise
/// only when all segments have arrived.
fn answers(marks: &[bool], each: bool) -> Vec<(usize, bool)> {
    answers_behind(0, marks, each)
}

/// Returns what [`answers`] returns, but the first `lost` segments are lost.
fn answers_behind(lost: usize, marks: &[bool], each: bool) -> Vec<(usize, bool)> {
    let dctcp = TcpConfig { congestion: CongestionAlgorithm::Dctcp, ..asking() };
    let mut pair = Pair::established(dctcp, dctcp);
    pair.push(lost + marks.len());
    for _ in 0..lost {
        let _ = pair.a.transmit(pair.now).unwrap();
    }
    let first = pair.a.params.iss + 1;
    let mut said = Vec::new();
    let mut edge = 0;
    let mut hear = |host: &mut Host, now| {
        while let Some(packet) = host.transmit(now) {
            let ack = packet.header.ack.unwrap().0.wrapping_sub(first.0) as usize;
            let right = ack + (usize::from(packet.header.window) << 1);
            assert!(right >= edge, "the right edge goes back");
            edge = right;
            said.push((ack / EMSS, packet.is(Flags::ECE)));
        }
    };
    for &marked in marks {
        let mut packet = pair.a.transmit(pair.now).unwrap();
        packet.ecn = if marked { Ecn::Ce } else { Ecn::Ect0 };
        let _ = pair.b.receive(pair.now, &packet);
        if each {
            hear(&mut pair.b, pair.now);
        }
    }
    hear(&mut pair.b, pair.now);
    said
}

#[test]
fn dctcp_acknowledges_what_waited_with_its_own_mark_before_it_tells_of_another() {
    let (no, ce) = (false, true);
    assert_eq!(answers(&[no, no, no, ce], true), [(2, no), (3, no), (4, ce)]);
    assert_eq!(answers(&[ce, ce, ce, no], true), [(1, ce), (3, ce), (4, no)]);
    assert_eq!(answers(&[no, ce, no, no], true), [(1, no), (2, ce), (3, no)], "the last one waits");
    assert_eq!(answers(&[no, no, no, ce], false), [(3, no), (4, ce)]);
    assert_eq!(answers(&[no, ce, no], false), [(2, ce), (3, no)], "a mark is not lost among several changes");
}

#[test]
fn dctcp_tells_of_a_mark_ahead_of_a_hole_before_it_tells_of_another() {
    let (no, ce) = (false, true);
    assert_eq!(answers_behind(1, &[ce, no], true), [(0, ce), (0, no)]);
    assert_eq!(answers_behind(1, &[ce, no], false), [(0, ce), (0, no)]);
    assert_eq!(answers_behind(1, &[no, ce, ce], false), [(0, no), (0, ce)]);
}
