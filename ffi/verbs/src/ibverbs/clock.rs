//! The clock of the device, which completion timestamps and `ibv_query_rt_values_ex` report.
//!
//! The clock is the system's `CLOCK_MONOTONIC`, in nanoseconds (`hca_core_clock`).

use libc::c_int;
use rustix::time::{ClockId, clock_gettime};

use crate::ffi::abi::{self, EINVAL};
use crate::ffi::sys;

/// The time of the device's clock.
pub(crate) fn now_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

/// The time since 1970.
pub(crate) fn wall_ns() -> u64 {
    read_ns(ClockId::Realtime)
}

fn read_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Implements `ibv_query_rt_values_ex(3)`. As in the mlx5 driver, the whole value of the clock is in
/// `tv_nsec`, so that a program can compare this value with timestamps.
pub(crate) unsafe extern "C" fn query_rt_values(
    _context: *mut sys::ibv_context,
    values: *mut sys::ibv_values_ex,
) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a pointer to a readable and writable struct.
        let values = unsafe { &mut *values };
        if values.comp_mask & !sys::IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(EINVAL);
        }
        if values.comp_mask & sys::IBV_VALUES_MASK_RAW_CLOCK != 0 {
            values.raw_clock = sys::timespec { tv_sec: 0, tv_nsec: now_ns().cast_signed() };
        }
        Ok(())
    })
}
