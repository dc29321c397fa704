//! A clock for code outside the sans-I/O core. The clock reads the TSC, which is calibrated once per process.
//!
//! Protocol code does not call the clock: its functions receive the time as an argument. If there is no cycle
//! counter of constant rate (on other processors, or on an x86-64 whose TSC may stop), the clock uses the
//! system's monotonic clock.

mod restart;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use restart::Restarts;

/// Time for which the counter is compared with the system's clock. After this time, the rate has an error of
/// only a few parts per million.
const CALIBRATION: Duration = Duration::from_millis(10);

/// A monotonic clock. (See [`cycles`](Self::cycles) for restarts of the processor's counter.) The time starts
/// near zero when the clock is made. Clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock {
    start_cycles: u64,
    hz: u64,
    /// Microseconds per cycle, in units of 2^-64.
    us_per_cycle: u64,
}

impl Clock {
    /// Makes a clock. If the processor has a steady TSC, the first call in a process takes about 10 ms, to
    /// calibrate the TSC against the system's monotonic clock.
    pub fn new() -> Self {
        let hz = calibrated_hz();
        let us_per_cycle = ((1_000_000_u128 << 64) / u128::from(hz)) as u64;
        Self { start_cycles: Self::cycles(), hz, us_per_cycle }
    }

    /// Microseconds since the clock was made.
    #[inline]
    pub fn now_us(&self) -> u64 {
        self.us_at(Self::cycles())
    }

    /// Converts a reading of [`cycles`](Self::cycles) to microseconds since the clock was made. A caller that
    /// needs both cycles and microseconds reads the counter only once with this function: a reading takes as
    /// long as about a hundred instructions.
    #[inline]
    pub fn us_at(&self, cycles: u64) -> u64 {
        // The counters of two cores may differ by a few cycles, so `cycles` may be less than `start_cycles`.
        // In this case the result is 0 microseconds.
        let cycles = cycles.saturating_sub(self.start_cycles);
        ((u128::from(cycles) * u128::from(self.us_per_cycle)) >> 64) as u64
    }

    /// Returns the cycle counter, or nanoseconds on machines without a steady cycle counter. The processor's
    /// counter may restart after the machine was suspended, or after the process or its virtual machine was
    /// restored on another machine. After a restart, the values that this function returns continue from the
    /// last recorded value, which is at most 2^26 cycles before the latest reading.
    #[inline]
    pub fn cycles() -> u64 {
        static RESTARTS: Restarts = Restarts::new();
        RESTARTS.read(counter::read, counter::is_steady, nanoseconds)
    }

    /// Cycles per second of [`Clock::cycles`].
    #[inline]
    pub fn hz(&self) -> u64 {
        self.hz
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the nanoseconds since the first call in this process. This function is used on machines without a
/// steady cycle counter.
fn nanoseconds() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    nanoseconds_between(*ORIGIN.get_or_init(Instant::now), Instant::now())
}

/// Returns the nanoseconds from `origin` to `now`. If `now` is before `origin`, the result wraps below zero.
/// The clock of a restored process may have been set back.
fn nanoseconds_between(origin: Instant, now: Instant) -> u64 {
    let behind = origin.saturating_duration_since(now).as_nanos() as u64;
    (now.saturating_duration_since(origin).as_nanos() as u64).wrapping_sub(behind)
}

fn calibrated_hz() -> u64 {
    static HZ: OnceLock<u64> = OnceLock::new();
    *HZ.get_or_init(|| {
        if !counter::is_steady() {
            return 1_000_000_000;
        }
        let (cycles_before, before) = simultaneous();
        std::thread::sleep(CALIBRATION);
        let (cycles_after, after) = simultaneous();
        let cycles = u128::from(cycles_after.saturating_sub(cycles_before));
        let nanoseconds = (after - before).as_nanos().max(1);
        // A rate of at most 1 MHz would overflow `us_per_cycle`. Every TSC is faster than this limit.
        ((cycles * 1_000_000_000 / nanoseconds) as u64).max(1_000_001)
    })
}

/// Returns readings of the counter and of the clock at nearly the same time. The thread may be interrupted
/// between two readings, so the closest of 16 pairs is returned.
fn simultaneous() -> (u64, Instant) {
    (0..16)
        .map(|_| {
            let before = Clock::cycles();
            let now = Instant::now();
            let width = Clock::cycles().saturating_sub(before);
            (width, before + width / 2, now)
        })
        .min_by_key(|&(width, ..)| width)
        .map(|(_, cycles, now)| (cycles, now))
        .expect("16 pairs were taken")
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod counter {
    use core::arch::x86_64::{__cpuid, _rdtsc};
    use std::sync::OnceLock;

    /// Whether the TSC runs at a constant rate and never stops. The TSC is steady if CPUID says so (AMD64
    /// manual volume 3, 8000_0007h EDX bit 8), or if the kernel uses the TSC as its clock source. (Under a
    /// hypervisor the kernel may know more than CPUID.)
    #[inline]
    pub(super) fn is_steady() -> bool {
        static STEADY: OnceLock<bool> = OnceLock::new();
        *STEADY.get_or_init(|| {
            let cpuid = |leaf| {
                // SAFETY: every x86-64 has CPUID. (`__cpuid` is a safe function only since Rust 1.94, and
                // this crate supports Rust 1.91.)
                #[allow(unused_unsafe)]
                unsafe {
                    __cpuid(leaf)
                }
            };
            let invariant = cpuid(0x8000_0000).eax >= 0x8000_0007 && cpuid(0x8000_0007).edx & 1 << 8 != 0;
            let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            invariant || std::fs::read_to_string(source).is_ok_and(|name| name.trim() == "tsc")
        })
    }

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 has RDTSC, and the instruction accesses no memory.
        unsafe { _rdtsc() }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod counter {
    pub(super) fn is_steady() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }
}
