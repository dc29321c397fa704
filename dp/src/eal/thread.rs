//! Registers threads with EAL. A registered thread has caches in the mempools, so an allocation takes about
//! one third of the time that it takes in other threads.

use std::cell::Cell;

use dpdk_sys as sys;

use super::{Eal, is_forked};

/// `LCORE_ID_ANY`: the lcore id of a thread that EAL does not know.
const NO_LCORE: u32 = u32::MAX;

/// Registers the calling thread with EAL until the thread ends. A DPDK port calls this function before it
/// receives or sends. The call has no effect if the thread is already registered.
///
/// Returns whether the thread is registered now. The result is `false` if EAL's table is full (128 threads)
/// or EAL is not running. A thread without registration can also use ports and pools, but more slowly.
#[inline]
pub fn register_thread() -> bool {
    REGISTRATION.with(|registration| match registration.state.get() {
        RegistrationState::Registered | RegistrationState::Known => true,
        RegistrationState::Refused => false,
        RegistrationState::Unknown => registration.register(),
    })
}

thread_local! {
    static REGISTRATION: Registration = const { Registration { state: Cell::new(RegistrationState::Unknown) } };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RegistrationState {
    /// No registration was tried yet.
    Unknown,
    /// This module has registered the thread, and unregisters it when the thread ends.
    Registered,
    /// EAL itself has registered the thread.
    Known,
    /// EAL has refused the thread, for example because the table is full.
    Refused,
}

struct Registration {
    state: Cell<RegistrationState>,
}

impl Registration {
    #[cold]
    fn register(&self) -> bool {
        if Eal::running().is_none() {
            return false;
        }
        // SAFETY: EAL runs (`running`), and the call reads a variable of this thread.
        let lcore = unsafe { sys::rte_lcore_id() };
        let state = if lcore != NO_LCORE {
            RegistrationState::Known
        } else {
            // SAFETY: EAL runs (`running`), and this thread is not registered. `drop` unregisters the thread
            // when the thread ends.
            match unsafe { sys::rte_thread_register() } {
                0 => RegistrationState::Registered,
                _ => RegistrationState::Refused,
            }
        };
        self.state.set(state);
        state != RegistrationState::Refused
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.state.get() == RegistrationState::Registered && !is_forked() {
            // SAFETY: `register` has registered this thread, which ends now. EAL never stops.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}
