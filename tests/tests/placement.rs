//! Checks that with markers, nearly all payload beyond a hole is in memory before the hole is filled, and
//! that far less memory is held than without markers. Without markers, such payload is not placed early.

use tests::placement::{Fill, FillSetting, Loss, Outcome, Setting, Traffic, measure};

const BASE: Setting = Setting {
    loss: Loss::Random(10_000),
    rate_mbit: 10_000,
    rtt_us: 100,
    mtu: 1500,
    connections: 3,
    traffic: Traffic::WriteSend,
    message: 64 << 10,
    messages: 30,
    load: None,
    markers: true,
};

/// Returns the results of three runs of a setting.
fn outcome(setting: Setting) -> Outcome {
    let mut outcome = Outcome::default();
    for seed in 0..3 {
        outcome.merge(&measure(&setting, seed).unwrap());
    }
    assert!(outcome.lost > 50, "{outcome:?}");
    assert!(outcome.behind > outcome.payload / 20, "holes, and payload behind them: {outcome:?}");
    outcome
}

/// Returns the results of a setting with markers and without markers.
fn both(setting: Setting) -> [Outcome; 2] {
    [true, false].map(|markers| outcome(Setting { markers, ..setting }))
}

fn is_placed_early(setting: Setting) {
    let [with, without] = both(setting);
    assert!(with.share() > 0.99, "{}: {:.4} of {} bytes", setting.traffic.name(), with.share(), with.behind);
    assert_eq!(without.early, 0, "{}", setting.traffic.name());
    let (held, would_be) = (with.pinned.mean(), without.pinned.mean());
    assert!(
        held < 0.03 * would_be,
        "{}: {held:.0} bytes pinned, {would_be:.0} without",
        setting.traffic.name()
    );
    assert!(with.waiting.max() < without.waiting.max() / 20, "{:?}, {:?}", with.waiting, without.waiting);
}

#[test]
fn writes_behind_a_hole_are_in_memory_before_it_is_filled_and_hold_no_buffers() {
    is_placed_early(BASE);
    is_placed_early(Setting { traffic: Traffic::Write, ..BASE });
}

#[test]
fn so_are_writes_with_immediate_data_and_those_behind_bursts_of_losses() {
    is_placed_early(Setting { traffic: Traffic::WriteImmediate, loss: Loss::Burst(10_000), ..BASE });
}

#[test]
fn so_are_writes_in_jumbo_frames() {
    is_placed_early(Setting { mtu: 9000, message: 256 << 10, ..BASE });
}

/// The buffers of Sends are known in advance, since the receives of a queue pair's own queue are used in
/// order.
#[test]
fn so_are_sends_of_many_messages() {
    is_placed_early(Setting { traffic: Traffic::Send, ..BASE });
}

#[test]
fn a_run_is_its_seed() {
    let figures = |seed| {
        let Outcome { time_us, behind, early, completion_us, .. } = measure(&BASE, seed).unwrap();
        (time_us, behind, early, completion_us.at(0.99))
    };
    assert_eq!(figures(5), figures(5));
    assert_ne!(figures(5), figures(6));
}

#[test]
fn a_hole_that_is_filled_lets_through_all_that_lies_behind_it() {
    for markers in [false, true] {
        let mut fill = Fill::new(&FillSetting { mtu: 1500, behind: 256 << 10, markers }).unwrap();
        assert_eq!(fill.measure(3).unwrap().len(), 3);
    }
}
