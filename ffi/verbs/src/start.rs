//! The start of the engine, by the first call that needs it.

use crate::ffi::abi::{self, Outcome};
use crate::ffi::sys;
use crate::ibverbs::calls::open;
use crate::process::{self, Process};
use crate::rdmacm::dispatch;

/// The state of the process, started if it is not.
pub(crate) fn process() -> Outcome<&'static Process> {
    process::get(dispatch::on_event)
}

/// See `ibv_open_device(3)`.
///
/// # Safety
/// `device` is one of the list.
#[unsafe(export_name = "uw_ibv_open_device")]
pub(crate) unsafe extern "C" fn ibv_open_device(_device: *mut sys::ibv_device) -> *mut sys::ibv_context {
    abi::pointer(|| open(process()?))
}
