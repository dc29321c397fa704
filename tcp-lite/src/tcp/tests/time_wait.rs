//! TIME-WAIT: how long it lasts, and who ends it.

use super::wire::*;
use crate::facade::TcpSeqNumber;
use crate::tcp::header::Flags;
use crate::tcp::{State, Verdict};
use crate::{CloseReason, Duration, TcpConfig};

/// A pair of which A closed first, and B's FIN, which A has acknowledged.
fn closed(a: TcpConfig) -> (Pair, Packet) {
    let mut pair = Pair::established(a, config());
    pair.a.close(pair.now);
    pair.run_for(Duration::from_millis(20));
    pair.b.close(pair.now);
    pair.run_for(Duration::from_millis(20));
    let fin = pair.log.iter().rev().find(|(_, side, packet)| *side == Side::B && packet.is(Flags::FIN));
    let fin = fin.expect("B's FIN").2.clone();
    (pair, fin)
}

#[test]
fn whoever_sends_its_fin_again_finds_somebody() {
    for lost in 0..7 {
        let short = TcpConfig { time_wait: Duration::from_millis(20), ..config() };
        let mut pair = Pair::established(short, config());
        pair.a.close(pair.now);
        pair.run_for(Duration::from_millis(20));
        let mut acks = 0;
        pair.plan = Box::new(move |side, _| {
            acks += usize::from(side == Side::A);
            if side == Side::A && acks <= lost { vec![] } else { vec![DELAY] }
        });
        pair.b.close(pair.now);
        pair.run_for(Duration::from_secs(60));
        assert_eq!(pair.b.seen.last(), Some(&Seen::Closed(CloseReason::Graceful)), "{lost} ACKs lost");
        assert!(pair.a.tcb().is_dead(), "it ends");
    }
}

#[test]
fn only_the_peers_own_fin_restarts_the_wait() {
    let (mut pair, fin) = closed(config());
    let until = pair.a.tcb().deadline();
    let mut forged = fin.clone();
    forged.header.seq = TcpSeqNumber(fin.header.seq.0.wrapping_sub(1));
    pair.now += Duration::from_secs(1);
    assert_eq!(pair.a.receive(pair.now, &forged), Verdict::Done);
    assert_eq!(pair.a.tcb().deadline(), until);
    assert_eq!(pair.a.receive(pair.now, &fin), Verdict::Done);
    assert_eq!(pair.a.tcb().deadline(), Some(pair.now + pair.a.config.time_wait));
    assert!(pair.a.transmit(pair.now).is_some_and(|packet| packet.header.ack.is_some()));
}

#[test]
fn a_syn_reopens_by_its_timestamp_before_its_sequence_number() {
    let (mut pair, fin) = closed(config());
    let last = pair.a.tcb().ts_recent;
    for (later_by, further_by, reopens) in [
        (-1, 100_000, false),
        (-1, -100_000, false),
        (1, -100_000, true),
        (1, 100_000, true),
        (0, 100_000, true),
        (0, -100_000, false),
    ] {
        let mut syn = fin.clone();
        syn.header.flags = Flags::SYN;
        syn.header.ack = None;
        syn.header.options.timestamps = Some((last.wrapping_add_signed(later_by), 0));
        syn.header.seq = TcpSeqNumber(fin.header.seq.0.wrapping_add(further_by));
        let verdict = if reopens { Verdict::Reopen } else { Verdict::Done };
        assert_eq!(pair.a.receive(pair.now, &syn), verdict, "{later_by} ms, {further_by} octets");
        assert_eq!(pair.a.state(), State::TimeWait);
    }
}

#[test]
fn the_next_connection_begins_above_all_that_was_used() {
    let (pair, _) = closed(config());
    let iss = pair.a.birth.iss.0;
    let least = iss.wrapping_add(2 + 65_537);
    for (drawn, expected) in
        [(0, least), (65_000, least), (-5, least), (65_539, least), (70_000, iss.wrapping_add(70_000))]
    {
        let next = pair.a.tcb().next_iss(TcpSeqNumber(iss.wrapping_add(drawn)));
        assert_eq!(next.0, expected, "{drawn}");
    }
}
