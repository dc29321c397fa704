//! With the default windows, one connection fills the paths for which these windows are large enough. With
//! half of the window that a path needs, a connection fills half of the path. With random losses, the
//! throughput is at least about that of the formula of RFC 9438.

use tcp_lite::TcpConfig;
use tests::reach::{Path, Reached};

/// A path with a queue of one bandwidth-delay product. The tests set its rate and delay.
const BASE: Path = Path { rate_mbit: 0, rtt_us: 0, queue: 100, mtu: 1500, markers: false, loss_ppm: 0 };

fn reach(path: Path, tcp: TcpConfig) -> Reached {
    let reached = path.reach(tcp, 30).unwrap();
    assert_eq!(reached.timeouts, 0, "{path:?}: {reached:?}");
    reached
}

fn fills(rate_mbit: u64, rtt_us: u64) {
    for mtu in [1500, 9000] {
        for markers in [false, true] {
            let path = Path { rate_mbit, rtt_us, mtu, markers, ..BASE };
            let reached = reach(path, TcpConfig::default());
            assert!(reached.wire > 0.95 && reached.payload > 0.85, "{path:?}: {reached:?}");
            assert!(reached.wire < 1.01, "{path:?}: {reached:?}");
        }
    }
}

#[test]
fn two_hundred_megabits_over_ten_milliseconds() {
    fills(200, 10_000);
}

#[test]
fn two_hundred_megabits_over_fifty_milliseconds() {
    fills(200, 50_000);
}

#[test]
fn a_gigabit_over_ten_milliseconds() {
    fills(1000, 10_000);
}

#[test]
fn ten_gigabits_over_a_millisecond() {
    fills(10_000, 1000);
}

/// The documentation of `TcpConfig::recv_window_bytes` says that the default windows fill a path of 10 Gb/s
/// with 2 ms.
#[test]
fn the_default_windows_cover_ten_gigabits_over_two_milliseconds_and_not_over_six() {
    let path = |rtt_us| Path { rate_mbit: 10_000, rtt_us, ..BASE };
    let reached = reach(path(2000), TcpConfig::default());
    assert!(reached.wire > 0.95, "{reached:?}");
    let reached = reach(path(6000), TcpConfig::default());
    assert!((0.4..0.6).contains(&reached.wire), "4 MiB each 6 ms: {reached:?}");
}

#[test]
fn half_of_what_a_round_trip_carries_fills_half_of_the_wire() {
    let path = Path { rate_mbit: 1000, rtt_us: 10_000, ..BASE };
    let half = (path.bytes() / 2) as u32;
    for (send, receive) in [(half, 4 << 20), (4 << 20, half)] {
        let tcp = TcpConfig { send_buffer_bytes: send, recv_window_bytes: receive, ..TcpConfig::default() };
        let reached = reach(path, tcp);
        assert!((0.45..0.55).contains(&reached.wire), "{send} to send, {receive} to receive: {reached:?}");
        assert_eq!(reached.overflowed, 0);
    }
}

/// Random losses, on the wire of `bad_wire.rs`. CUBIC has to be at least as fast as AIMD with CUBIC's
/// reduction (RFC 9438 section 4.3). AIMD's window in segments is the square root of `1.5 / p`, where `p` is
/// the loss rate. Over several hundred losses, the formula holds within 5 %. If one segment of twenty is
/// lost, some retransmissions are also lost, and the window has only five segments. An eighth of the goodput
/// is then allowed for timeouts, and another eighth for chance.
#[test]
fn losses_by_chance_cost_what_the_documents_say_they_cost() {
    for (loss_ppm, least) in [(1_000, 0.95), (10_000, 0.95), (50_000, 0.75)] {
        let path = Path { rate_mbit: 200, rtt_us: 10_000, loss_ppm, ..BASE };
        let reached = path.reach(TcpConfig::default(), 1500).unwrap();
        let segments = (1.5 / (f64::from(loss_ppm) / 1e6)).sqrt();
        let of_formula = reached.wire * path.bytes() as f64 / (segments * 1514.0);
        println!("{loss_ppm} ppm: {of_formula:.3} of the formula, {reached:?}");
        assert!(of_formula >= least, "{loss_ppm} ppm: {of_formula:.3} of the formula, {reached:?}");
    }
}
