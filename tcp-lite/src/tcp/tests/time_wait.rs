//! Tests of TIME-WAIT: how long it lasts, and what ends it.

use super::wire::*;
use crate::facade::TcpSeqNumber;
use crate::tcp::header::Flags;
use crate::tcp::{State, Verdict};
use crate::{CloseReason, Duration, TcpConfig};

/// Returns a pair after A has closed first, and the packet with B's FIN, which A has acknowledged.
fn closed(a: TcpConfig) -> (Pair, Packet) {
    closed_between(a, config())
}

fn closed_between(a: TcpConfig, b: TcpConfig) -> (Pair, Packet) {
    let mut pair = Pair::established(a, b);
    pair.a.close(pair.now);
    pair.run_for(Duration::from_millis(20));
    pair.b.close(pair.now);
    pair.run_for(Duration::from_millis(20));
    let fin = pair.log.iter().rev().find(|(_, side, packet)| *side == Side::B && packet.is(Flags::FIN));
    let fin = fin.expect("B's FIN").2.clone();
    (pair, fin)
}

#[test]
fn a_retransmitted_fin_is_answered_in_time_wait() {
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
        assert!(pair.a.tcb().is_droppable(), "it ends");
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

/// Whether a SYN reopens the connection. The sequence number of the SYN is `further_by` beyond B's FIN. The
/// timestamp of the SYN, if any, is `later_by` after the last timestamp of the old connection.
fn reopens(pair: &mut Pair, fin: &Packet, further_by: i32, later_by: Option<i32>) -> bool {
    let last = pair.a.tcb().receiving().ts_recent();
    let mut syn = fin.clone();
    syn.header.flags = Flags::SYN;
    syn.header.ack = None;
    syn.header.options.timestamps = later_by.map(|later_by| (last.wrapping_add_signed(later_by), 0));
    syn.header.seq = TcpSeqNumber(fin.header.seq.0.wrapping_add(further_by));
    let verdict = pair.a.receive(pair.now, &syn);
    assert_eq!(pair.a.state(), State::TimeWait);
    assert!(matches!(verdict, Verdict::Done | Verdict::Reopen), "{verdict:?}");
    verdict == Verdict::Reopen
}

/// The rules of RFC 6191 section 2, in the RFC's order. The last sequence number that the old connection used
/// is the number of its FIN.
#[test]
fn a_syn_reopens_by_its_timestamp_and_else_by_its_sequence_number() {
    let with = |timestamps| TcpConfig { timestamps, ..config() };
    for (old, new, cases) in [
        // Both connections have timestamps.
        (
            true,
            true,
            &[
                (Some(1), -100_000, true),
                (Some(1), 0, true),
                (Some(1), 100_000, true),
                (Some(0), 1, true),
                (Some(0), 100_000, true),
                (Some(0), 0, false),
                (Some(0), -100_000, false),
                (Some(-1), 100_000, false),
                (Some(-1), -100_000, false),
                // The clock of the timestamps has wrapped.
                (Some(i32::MAX), -1, true),
                (Some(i32::MIN), 1, false),
            ][..],
        ),
        // The old connection had timestamps, and the peer no longer offers them.
        (true, true, &[(None, 1, true), (None, 100_000, true), (None, 0, false), (None, -1, false)]),
        // The old connection had no timestamps, and the new connection will have timestamps.
        (false, true, &[(Some(1), 100_000, true), (Some(0), 0, true), (Some(-1), -100_000, true)]),
        // Neither connection has timestamps.
        (false, true, &[(None, 1, true), (None, 100_000, true), (None, 0, false), (None, -100_000, false)]),
        // The peer offers timestamps, but the new connection would not use them.
        (false, false, &[(Some(1), 1, true), (Some(1), 0, false), (Some(1), -100_000, false)]),
    ] {
        for &(later_by, further_by, expected) in cases {
            // If only the new connection will have timestamps, the peer did not offer timestamps for the old
            // connection.
            let (mut pair, fin) = closed_between(with(new), with(old && new));
            assert_eq!(pair.a.tcb().sending().agreed().timestamps, old && new);
            let reopened = reopens(&mut pair, &fin, further_by, later_by);
            assert_eq!(reopened, expected, "{old} {new}: {later_by:?} ms, {further_by} numbers");
            // A challenge ACK answers any other SYN (RFC 9293 section 3.10.7.4).
            let answer = pair.a.transmit(pair.now);
            assert_eq!(answer.is_some(), !expected);
        }
    }
}

#[test]
fn the_next_connection_begins_above_all_that_was_used() {
    let (pair, _) = closed(config());
    let iss = pair.a.params.iss.0;
    let least = iss.wrapping_add(2 + 65_537);
    for (drawn, expected) in
        [(0, least), (65_000, least), (-5, least), (65_539, least), (70_000, iss.wrapping_add(70_000))]
    {
        let next = pair.a.tcb().next_iss(TcpSeqNumber(iss.wrapping_add(drawn)));
        assert_eq!(next.0, expected, "{drawn}");
    }
}
