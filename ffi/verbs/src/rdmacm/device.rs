//! The context that identifiers share.

use std::sync::OnceLock;

use crate::ffi::abi::Outcome;
use crate::ffi::sys;
use crate::ibverbs::calls::open;
use crate::ibverbs::pd::Pd;
use crate::process::Process;

/// The context and the domain of identifiers. They are opened once, and never closed.
pub(super) fn device(process: &'static Process) -> Outcome<(*mut sys::ibv_context, *mut sys::ibv_pd)> {
    static DEVICE: OnceLock<(usize, usize)> = OnceLock::new();
    if let Some(&(context, pd)) = DEVICE.get() {
        return Ok((context as *mut _, pd as *mut _));
    }
    let context = open(process)?;
    let domain = process.default_pd.clone();
    // SAFETY: the context was just opened.
    let pd = unsafe { Pd::make(context, domain) };
    // Of two threads that come first, one leaves a pair that nobody uses.
    let (context, pd) = *DEVICE.get_or_init(|| (context as usize, pd as usize));
    Ok((context as *mut _, pd as *mut _))
}
