//! Tests of opening connections, for example active, passive and simultaneous opens, the options that the
//! SYNs agree on, retries and refusals.

use super::wire::*;
use crate::facade::TcpSeqNumber;
use crate::tcp::header::{Flags, Options, TcpHeader};
use crate::tcp::{State, TimestampClock, syn_ack};
use crate::{CloseReason, Duration, EcnMode, Instant, TcpConfig};

// Proves MPA-279.
#[test]
fn active_and_passive_open_agree_on_options() {
    let pair = Pair::established(config(), config());
    assert_eq!((&pair.a.seen[..], &pair.b.seen[..]), (&[Seen::Established][..], &[Seen::Established][..]));
    let syn = &pair.log[0].2.header;
    assert_eq!((syn.flags, syn.ack, syn.window), (Flags::SYN, None, 65535));
    assert_eq!((syn.options.mss, syn.options.window_scale), (Some(MSS), Some(1)));
    let syn_ack = &pair.log[1].2.header;
    assert!(syn_ack.options.sack_permitted && syn_ack.options.timestamps.is_some());
    let address = "127.0.0.1:1".parse().unwrap();
    assert_eq!(pair.a.tcb().info(&pair.a.config, address, address).emss, EMSS);
    assert_eq!(pair.log.len(), 3, "three segments open a connection");
}

#[test]
fn options_that_one_side_does_not_offer_are_not_used() {
    let plain = TcpConfig { timestamps: false, sack: false, ..config() };
    let pair = Pair::established(config(), plain);
    let syn_ack = &pair.log[1].2.header.options;
    assert!(!syn_ack.sack_permitted && syn_ack.timestamps.is_none());
    let address = "127.0.0.1:1".parse().unwrap();
    assert_eq!(pair.a.tcb().info(&pair.a.config, address, address).emss, usize::from(MSS));
}

// Proves MPA-117.
#[test]
fn a_syn_without_options_means_the_default_mss_and_no_scaling() {
    let mut pair = Pair::new(config(), config());
    pair.a.connect(pair.now);
    let mut syn = pair.a.transmit(pair.now).unwrap();
    syn.header.options = Default::default();
    pair.b.accept(pair.now, &syn.header);
    let syn_ack = pair.b.transmit(pair.now).unwrap();
    assert_eq!(syn_ack.header.options.window_scale, None);
    let address = "127.0.0.1:1".parse().unwrap();
    assert_eq!(pair.b.tcb().info(&pair.b.config, address, address).emss, 536);
}

#[test]
fn simultaneous_open_agrees_on_no_marks() {
    let asking = TcpConfig { ecn: EcnMode::Request, ..config() };
    for other in [asking, config()] {
        let mut pair = Pair::new(asking, other);
        pair.a.connect(pair.now);
        pair.b.connect(pair.now);
        pair.run_for(Duration::from_millis(50));
        assert_eq!((pair.a.state(), pair.b.state()), (State::Established, State::Established));
        assert_eq!(
            (pair.a.tcb().sending().agreed().ecn, pair.b.tcb().sending().agreed().ecn),
            (false, false),
            "{:?}",
            other.ecn
        );
    }
}

#[test]
#[should_panic(expected = "the halves know different agreements")]
fn halves_that_know_different_agreements_are_found() {
    let asking = TcpConfig { ecn: EcnMode::Request, ..config() };
    let mut pair = Pair::established(asking, asking);
    assert!(pair.a.tcb().sending().agreed().ecn);
    pair.a.with(pair.now, |tcb, _| tcb.sending_mut().decline_ecn());
}

#[test]
fn a_silent_peer_ends_in_timed_out_by_the_user_timeout() {
    let mut pair = Pair::new(config(), config());
    pair.plan = Box::new(|_, _| vec![]);
    pair.a.connect(pair.now);
    pair.run_for(Duration::from_millis(10_001));
    assert_eq!(pair.a.seen, [Seen::Closed(CloseReason::TimedOut)]);
    assert!(pair.a.tcb().is_droppable() && pair.a.tcb().deadline().is_none());
}

#[test]
fn a_lost_syn_ack_or_ack_is_repaired() {
    for lost in [1, 2] {
        let mut pair = Pair::new(config(), config());
        let mut sent = 0;
        pair.plan = Box::new(move |_, _| {
            sent += 1;
            if sent == lost + 1 { vec![] } else { vec![DELAY] }
        });
        pair.a.connect(pair.now);
        pair.run_for(Duration::from_secs(3));
        assert_eq!((pair.a.state(), pair.b.state()), (State::Established, State::Established), "lost {lost}");
        let counted =
            [&pair.a, &pair.b].map(|host| (host.tcb().sending().retransmits(), host.counters.tx_retransmits));
        assert!(counted.iter().all(|(own, all)| own == all), "{counted:?}");
        assert!(counted.iter().any(|(own, _)| *own > 0), "{counted:?}");
    }
}

#[test]
fn answers_lost_in_the_handshake_make_no_long_round_trip() {
    // The first three SYN-ACKs, or the first three acknowledgements of a SYN-ACK, are lost.
    for (lost, from) in [(Side::B, Side::A), (Side::A, Side::B)] {
        let patient = TcpConfig { user_timeout: Duration::from_secs(100), ..config() };
        let mut pair = Pair::new(patient, patient);
        let mut left = 3;
        pair.plan = Box::new(move |side, packet| {
            let loses = side == lost && packet.header.ack.is_some() && left > 0;
            left -= i32::from(loses);
            if loses { vec![] } else { vec![DELAY] }
        });
        pair.a.connect(pair.now);
        pair.run_for(Duration::from_secs(20));
        assert_eq!((pair.a.state(), pair.b.state()), (State::Established, State::Established));
        let host = pair.host(from).tcb();
        let (srtt_us, rto) = (host.sending().srtt_us(), host.sending().info().rto);
        assert!(srtt_us <= 2000 && rto <= Duration::from_secs(3), "{from:?}: {srtt_us} us, {rto}");
    }
}

#[test]
fn a_half_open_connection_that_is_reset_was_never_announced() {
    let mut pair = Pair::new(config(), config());
    pair.a.connect(pair.now);
    let syn = pair.a.transmit(pair.now).unwrap();
    pair.b.accept(pair.now, &syn.header);
    pair.b.transmit(pair.now).unwrap();
    let mut reset = Packet::new(syn.header.clone(), vec![]);
    reset.header.flags = Flags::RST;
    reset.header.seq = syn.header.seq + 1;
    let _ = pair.b.receive(pair.now, &reset);
    assert!(pair.b.tcb().is_droppable() && pair.b.tcb().is_closed_for_user() && pair.b.seen.is_empty());
}

#[test]
fn data_with_the_last_acknowledgement_is_taken() {
    let mut pair = Pair::new(config(), config());
    let mut sent = 0;
    // The bare ACK of the handshake is lost. The first segment of data carries the same acknowledgement.
    pair.plan = Box::new(move |_, _| {
        sent += 1;
        if sent == 3 { vec![] } else { vec![DELAY] }
    });
    pair.a.connect(pair.now);
    pair.run_for(Duration::from_millis(5));
    assert_eq!(pair.b.state(), State::SynReceived);
    pair.a.push(pair.now, &pattern(0, 500)).unwrap();
    pair.run_for(Duration::from_millis(5));
    assert_eq!((pair.b.state(), pair.b.read()), (State::Established, pattern(0, 500)));
}

#[test]
fn a_syn_ack_without_a_control_block_is_that_of_one() {
    let offers = [EcnMode::Off, EcnMode::Accept, EcnMode::Request];
    for bits in 0..64 {
        let has = |bit: u32| bits & 1 << bit != 0;
        let mut host = Host::new(config(), 7);
        host.config = TcpConfig {
            timestamps: has(0),
            sack: has(1),
            ecn: offers[bits as usize % 3],
            recv_window_bytes: if has(2) { 1 << 20 } else { 5000 },
            ..config()
        };
        let mut syn = TcpHeader {
            src_port: host.params.remote_port,
            dst_port: host.params.local_port,
            seq: TcpSeqNumber(-1),
            ack: None,
            flags: Flags::SYN,
            window: 1000,
            options: Options { mss: Some(900), sack_permitted: has(3), ..Options::default() },
        };
        syn.options.timestamps = has(4).then_some((77, 0));
        syn.options.window_scale = has(5).then_some(3);
        syn.flags.set(Flags::ECE | Flags::CWR, !has(4) || has(2));
        let now = Instant::from_millis(5000);
        let params = host.params;
        let clock = || TimestampClock::new(params.timestamp_offset).value(now);
        let without = syn_ack(&host.config, &syn, (params.iss, params.mss), clock);
        host.accept(now, &syn);
        assert_eq!(host.transmit(now).unwrap().header, without, "{bits:06b}");
    }
}

#[test]
fn both_ends_know_both_initial_sequence_numbers() {
    let numbers = |pair: &Pair| [&pair.a, &pair.b].map(|end| end.tcb().initial_sequence_numbers());
    let mut pair = Pair::established(config(), config());
    let (a, b) = (pair.a.params.iss.0 as u32, pair.b.params.iss.0 as u32);
    assert_eq!(numbers(&pair), [(a, b), (b, a)]);
    pair.a.push(pair.now, &pattern(0, 1000)).unwrap();
    pair.run_for(Duration::from_millis(50));
    assert_eq!(numbers(&pair), [(a, b), (b, a)], "they do not move");
}
