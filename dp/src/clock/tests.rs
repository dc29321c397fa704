//! Tests of the clock.

use super::*;

#[test]
fn time_never_goes_back() {
    let clock = Clock::new();
    let mut last = 0;
    for _ in 0..200_000 {
        let now = clock.now_us();
        assert!(now >= last, "{now} after {last}");
        last = now;
    }
}

#[test]
fn time_passes_as_the_system_says_within_five_percent() {
    let clock = Clock::new();
    // A measurement is wrong if the thread is interrupted between the readings of the two clocks, so the best
    // of a few measurements is used.
    let deviation = (0..5)
        .map(|_| {
            let (ours, theirs) = (clock.now_us(), Instant::now());
            std::thread::sleep(Duration::from_millis(40));
            let (ours, theirs) = ((clock.now_us() - ours) as f64, theirs.elapsed().as_micros() as f64);
            (ours / theirs - 1.0).abs()
        })
        .fold(f64::INFINITY, f64::min);
    assert!(deviation < 0.05, "off by {deviation}");
}

#[test]
fn a_clock_starts_near_zero_and_clones_share_its_zero() {
    let _calibrated = Clock::new();
    let clock = Clock::new();
    assert!(clock.now_us() < 1_000_000);
    std::thread::sleep(Duration::from_millis(5));
    let clone = clock.clone();
    assert!(clone.now_us() >= 5_000);
    assert!(clock.hz() > 1_000_000);
}

/// The counters of two processors may differ by some cycles, so a reading may be lower than the clock's first
/// reading. Such a reading is converted to 0.
#[test]
fn a_reading_from_before_the_clock_was_made_is_its_beginning() {
    let clock = Clock::new();
    for before in [1, 1000, clock.start_cycles] {
        assert_eq!(clock.us_at(clock.start_cycles - before), 0, "{before}");
    }
    let second = clock.us_at(clock.start_cycles + clock.hz);
    assert!((999_999..=1_000_000).contains(&second), "{second}");
}

/// If the system's clock is set back, the nanoseconds fall instead of keeping their value. So [`Restarts`]
/// detects a restart.
#[test]
fn nanoseconds_fall_with_the_systems_clock() {
    let (origin, apart) = (Instant::now(), Duration::from_secs(5));
    assert_eq!(nanoseconds_between(origin, origin + apart), 5_000_000_000);
    assert_eq!(nanoseconds_between(origin, origin), 0);
    assert_eq!(nanoseconds_between(origin + apart, origin), 0_u64.wrapping_sub(5_000_000_000));
}
