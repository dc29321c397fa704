//! A device's own statistics.

use std::fmt;
use std::sync::Arc;

/// One count of a device's own statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStat {
    /// The driver's name for the count: `rx_crc_errors`.
    pub name: String,
    /// The value of the count.
    pub value: u64,
}

/// Reads all counts of a device's driver, for example of checksum errors, CRC errors and missed frames.
/// Cloning is cheap, and any thread may use a clone. A `DeviceStats` does not keep the device open.
#[derive(Clone)]
pub struct DeviceStats(Arc<dyn Fn() -> Vec<DeviceStat> + Send + Sync>);

impl DeviceStats {
    /// Makes a `DeviceStats` from `read`. `read` returns the counts, always in the same order. If the device
    /// is closed or gone, `read` returns no counts.
    pub fn new(read: impl Fn() -> Vec<DeviceStat> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Reads the present counts. The list is empty if the device is closed or gone. A driver may query its
    /// NIC, which takes microseconds to milliseconds.
    pub fn read(&self) -> Vec<DeviceStat> {
        (self.0)()
    }
}

impl fmt::Debug for DeviceStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.read()).finish()
    }
}
