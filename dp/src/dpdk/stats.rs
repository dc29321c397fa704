//! The statistics of a device: the few counts that ethdev defines for every device, and all counts of the
//! device's driver.

use std::ffi::CStr;
use std::mem;
use std::sync::{Arc, PoisonError, Weak};

use dpdk_sys as sys;

use super::device::Device;
use crate::eal::is_forked;
use crate::port::{DeviceStat, DeviceStats};

/// Some of the counts that ethdev keeps for a whole device (`rte_eth_stats`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Basic {
    /// Number of frames that arrived while no descriptor was free.
    pub(super) missed: u64,
    pub(super) errors: u64,
    /// Number of times that no buffer was free.
    pub(super) no_mbuf: u64,
}

impl Device {
    /// The counts of the whole device. `None` if the device cannot be read.
    pub(super) fn basic_stats(&self) -> Option<Basic> {
        if is_forked() || self.is_gone() {
            return None;
        }
        // Some drivers read clear-on-read registers, and add the values to their counts without a lock.
        let _one_at_a_time = self.stats_lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: all-zero bytes are valid for this C struct of numbers.
        let mut stats: sys::rte_eth_stats = unsafe { mem::zeroed() };
        // SAFETY: `self` keeps the port open, and `stats` is a writable local variable.
        let done = unsafe { sys::rte_eth_stats_get(self.port_id, &mut stats) };
        (done == 0).then_some(Basic {
            missed: stats.imissed,
            errors: stats.ierrors,
            no_mbuf: stats.rx_nombuf,
        })
    }

    /// All counts of the driver. The list is empty if the device cannot be read.
    fn all_stats(&self) -> Vec<DeviceStat> {
        if is_forked() || self.is_gone() {
            return Vec::new();
        }
        let _one_at_a_time = self.stats_lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `self` keeps the port open. Without an array the call only returns the number of counts.
        let count = unsafe { sys::rte_eth_xstats_get_names(self.port_id, std::ptr::null_mut(), 0) };
        let Ok(count) = u32::try_from(count) else { return Vec::new() };
        // SAFETY: all-zero bytes are valid for this C struct of characters, and mean an empty string.
        let no_name: sys::rte_eth_xstat_name = unsafe { mem::zeroed() };
        let mut names = vec![no_name; count as usize];
        let mut values = vec![sys::rte_eth_xstat { id: 0, value: 0 }; count as usize];
        // SAFETY: `self` keeps the port open, and the array has `count` elements to write to.
        let named = unsafe { sys::rte_eth_xstats_get_names(self.port_id, names.as_mut_ptr(), count) };
        // SAFETY: `self` keeps the port open, and the array has `count` elements to write to.
        let read = unsafe { sys::rte_eth_xstats_get(self.port_id, values.as_mut_ptr(), count) };
        // A result that is larger than the array means that the number of counts has changed. The number
        // changes only if the device is reconfigured.
        let valid = |number: i32| usize::try_from(number).ok().filter(|&number| number <= count as usize);
        let (Some(named), Some(read)) = (valid(named), valid(read)) else { return Vec::new() };
        values[..read]
            .iter()
            .filter_map(|value| Some((names[..named].get(value.id as usize)?, value.value)))
            .map(|(name, value)| DeviceStat { name: text(&name.name), value })
            .collect()
    }
}

/// Returns the statistics of a device. When the device is closed, the statistics become an empty list.
pub(super) fn of(device: &Arc<Device>) -> DeviceStats {
    let device: Weak<Device> = Arc::downgrade(device);
    DeviceStats::new(move || device.upgrade().map_or_else(Vec::new, |device| device.all_stats()))
}

/// The text of a C string in an array.
fn text(array: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = array.iter().map(|&c| c as u8).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}
