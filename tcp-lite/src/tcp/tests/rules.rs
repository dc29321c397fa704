//! Tests of the effects that segments may have on a connection: RST, SYN, old and wrong acknowledgements,
//! timestamps, and random segments (RFC 9293 section 3.10.7.4, RFC 5961, RFC 7323).

use proptest::prelude::*;

use super::wire::*;
use crate::facade::TcpSeqNumber;
use crate::tcp::State;
use crate::tcp::header::{Flags, TcpHeader};
use crate::{Duration, Instant};

/// Returns a segment from `a` without payload that `b` would accept.
fn next_of_a(pair: &Pair) -> Packet {
    let (_, _, last) =
        pair.log.iter().rev().find(|(_, side, _)| *side == Side::A).expect("a segment").clone();
    Packet { payload: vec![], ..last }
}

fn answer(pair: &mut Pair, packet: &Packet) -> Option<Packet> {
    let now = pair.now;
    let _ = pair.b.receive(now, packet);
    pair.b.transmit(now)
}

/// An attacker who knows addresses and ports sends a million forged segments: resets, SYNs, FINs, bytes and
/// acknowledgements. Their sequence numbers are spread over the whole number space, and none is the right
/// number. Some numbers are in the window by chance.
// Proves SEC-054: the connection is as it was, and answers at the rate of its challenges.
#[test]
fn a_million_blind_segments_change_nothing() {
    let mut pair = Pair::established(config(), config());
    let honest = next_of_a(&pair);
    let (start, mut answers, mut in_window) = (pair.now, 0, 0);
    for n in 0..1_000_000_u32 {
        let mut forged = honest.clone();
        // The multiplier is odd, so no guess occurs twice, and no guess is 0, which would be the right
        // number.
        let guess = (n + 1).wrapping_mul(0x9e37_79b9) as i32;
        in_window += u32::from((1..64 * 1024).contains(&guess));
        forged.header.seq = TcpSeqNumber(honest.header.seq.0.wrapping_add(guess));
        forged.header.ack = Some(TcpSeqNumber(guess.wrapping_mul(0x85eb_ca6b_u32 as i32)));
        let kinds = [Flags::RST, Flags::SYN, Flags::FIN, Flags::PSH, Flags::empty()];
        forged.header.flags = kinds[n as usize % kinds.len()];
        if forged.is(Flags::PSH) {
            forged.payload = vec![0xee; 8];
        }
        pair.now = start + Duration::from_micros(u64::from(n));
        answers += u32::from(answer(&mut pair, &forged).is_some());
    }
    assert!(in_window > 10, "{in_window} guesses were in the window");
    assert!((1..=2 * 64).contains(&answers), "{answers} answers in a second");
    assert_eq!((pair.a.state(), pair.b.state()), (State::Established, State::Established));
    pair.a.push(pair.now, &pattern(0, 900)).unwrap();
    assert!(pair.run_until(Duration::from_secs(1), |pair| pair.b.frontier == 900));
    assert_eq!((pair.b.read(), pair.b.seen.len()), (pattern(0, 900), 1), "nothing but its own bytes");
}

#[test]
fn icmp_errors_are_plausible_only_for_what_is_in_flight() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 100)).unwrap();
    let sent = pair.a.transmit(pair.now).unwrap().header.seq;
    let tcb = pair.a.tcb();
    assert!(tcb.covers_outstanding(sent) && tcb.covers_outstanding(sent + 99));
    assert!(
        !tcb.covers_outstanding(sent + 100) && !tcb.covers_outstanding(TcpSeqNumber(sent.0.wrapping_sub(1)))
    );
}

fn noise() -> impl Strategy<Value = (Vec<u8>, i32, i32, u8, usize, u64)> {
    let near = prop_oneof![-3000_i32..70_000, any::<i32>()];
    (prop::collection::vec(any::<u8>(), 0..40), near.clone(), near, any::<u8>(), 0_usize..1500, 0_u64..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Segments arrive with random options, near and far numbers, any flags and any length, in different
    /// states of the connection.
    #[test]
    fn no_segment_makes_a_live_connection_panic(
        segments in prop::collection::vec(noise(), 1..30), closes in 0_usize..3, active in any::<bool>()
    ) {
        let mut pair = Pair::new(config(), config());
        pair.a.connect(pair.now);
        if !active {
            pair.run_for(Duration::from_millis(10));
            pair.a.push(pair.now, &pattern(0, 900)).unwrap();
            if closes > 0 { pair.a.close(pair.now); }
            if closes > 1 { pair.b.close(pair.now); pair.run_for(Duration::from_millis(closes as u64)); }
        }
        for (options, seq, ack, flags, len, wait_ms) in segments {
            let mut bytes = vec![0; 20];
            let (rcv, snd) = (pair.b.params.iss.0, pair.a.params.iss.0);
            bytes[4..8].copy_from_slice(&rcv.wrapping_add(seq).to_be_bytes());
            bytes[8..12].copy_from_slice(&snd.wrapping_add(ack).to_be_bytes());
            bytes[12] = ((5 + options.len().div_ceil(4)) << 4) as u8;
            bytes[13] = flags;
            bytes[14..16].copy_from_slice(&(seq as u16).to_be_bytes());
            bytes.extend_from_slice(&options);
            bytes.resize(bytes.len().div_ceil(4) * 4, 0);
            let (header, _) = TcpHeader::parse(&bytes).unwrap();
            let _ = pair.a.receive(pair.now, &Packet::new(header, vec![7; len]));
            pair.transmit();
            pair.run_for(Duration::from_millis(wait_ms));
        }
        pair.a.with(Instant::from_secs(1_000_000), |tcb, ctx| { tcb.on_timer(ctx); tcb.abort(ctx); });
        prop_assert!(pair.a.holds_nothing());
    }
}
