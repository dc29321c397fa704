//! DPDK's environment abstraction layer: started on demand, once per process, from typed options.
//!
//! EAL is process-wide state that cannot be undone: memory, the calling thread's affinity, drivers.
//! [`Eal::start`] starts it, or checks that it runs with the same options. The returned value proves
//! that it runs, and can be copied freely.

mod config;
mod error;
mod fork;
pub(crate) mod log;
pub(crate) mod pci;
mod thread;

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::Mutex;

use dpdk_sys as sys;

pub use config::{Cores, EalConfig, Files, Iova, Memory};
pub use error::EalError;
pub(crate) use fork::is_forked;
use pci::PciAddress;
pub use thread::register_thread;

/// Proof that EAL is running in this process.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    _started: (),
}

/// EAL's options, once it runs.
static STARTED: Mutex<Option<Started>> = Mutex::new(None);

/// See [`STARTED`].
struct Started {
    config: EalConfig,
    /// Packet buffers are in ordinary pages.
    is_ordinary: bool,
}

impl Eal {
    /// Starts EAL, which takes 130 to 230 ms, or checks that EAL runs with the same options. The
    /// calling thread becomes EAL's main thread.
    ///
    /// # Errors
    /// [`EalError`]; DPDK itself writes one more line to standard error when it fails. After
    /// [`EalError::NoHugepages`], [`EalError::PciAddress`], [`EalError::PciHugepages`] and
    /// [`EalError::BadArgument`] another attempt is possible.
    pub fn start(config: &EalConfig) -> Result<Self, EalError> {
        if is_forked() {
            return Err(EalError::Forked);
        }
        let mut started = STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*started {
            Some(running) if running.config == *config => return Ok(Self { _started: () }),
            Some(_) => return Err(EalError::AlreadyStarted),
            None => {}
        }
        let sysfs = Path::new(pci::SYSFS);
        let huge_free_mib = config::huge_free_mib(sysfs);
        config.check(sysfs, huge_free_mib)?;
        init(config, &config.arguments(huge_free_mib, &allowed_cpus()))?;
        fork::watch_for_forks();
        let is_ordinary = config.memory.ordinary_mib(huge_free_mib).is_some();
        crate::trace::eal_started(config);
        *started = Some(Started { config: config.clone(), is_ordinary });
        Ok(Self { _started: () })
    }

    /// Whether packet buffers are in ordinary pages.
    pub(crate) fn is_ordinary(self) -> bool {
        let started = STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        started.as_ref().is_some_and(|started| started.is_ordinary)
    }

    /// Whether devices get virtual addresses.
    pub(crate) fn is_virtual(self) -> bool {
        // SAFETY: EAL runs (`self`), and the call reads a constant of its configuration.
        let mode = unsafe { sys::rte_eal_iova_mode() };
        mode == sys::RTE_IOVA_VA
    }

    /// The arguments that EAL's options have for the driver of this PCI device, with their comma.
    pub(crate) fn pci_arguments(self, address: PciAddress) -> String {
        let started = STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        started.as_ref().map_or_else(String::new, |started| started.config.pci_arguments(address))
    }

    /// EAL, if it runs in this process. EAL of a parent does not count in a forked child.
    pub fn running() -> Option<Self> {
        let started = STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        (started.is_some() && !is_forked()).then_some(Self { _started: () })
    }

    /// The version of DPDK, in its own words: `DPDK 22.11.11`.
    pub fn version() -> &'static str {
        // SAFETY: may be called at any time, and returns a constant C string.
        let version = unsafe { sys::rte_version() };
        // SAFETY: DPDK makes the string once, with a zero at its end, and keeps it.
        unsafe { CStr::from_ptr(version) }.to_str().unwrap_or("DPDK")
    }
}

fn init(config: &EalConfig, arguments: &[String]) -> Result<(), EalError> {
    let owned: Vec<CString> = arguments
        .iter()
        .map(|text| CString::new(text.as_str()).map_err(|_| EalError::BadArgument { argument: text.clone() }))
        .collect::<Result<_, _>>()?;
    // EAL permutes the vector and keeps pointers to the strings, so both are leaked.
    let strings: &'static [CString] = owned.leak();
    let vector: Vec<*mut c_char> =
        strings.iter().map(|text| text.as_ptr().cast_mut()).chain([std::ptr::null_mut()]).collect();
    log::capture(config.log_to_stderr);
    log::mark();
    let vector = vector.leak();
    // SAFETY: the vector has `argc` C strings and a null pointer, and neither it nor they are ever freed.
    // `start`, the only caller, holds the lock on `STARTED` and found EAL not started. After a failure EAL
    // refuses a second call by itself.
    let done = unsafe { sys::rte_eal_init(strings.len() as i32, vector.as_mut_ptr()) };
    if done >= 0 {
        return Ok(());
    }
    let errno = errno();
    let log = log::trouble();
    let refused = rustix::io::Errno::from_raw_os_error(errno.max(1));
    if [rustix::io::Errno::ACCESS, rustix::io::Errno::PERM].contains(&refused)
        || log.contains("ermission denied")
    {
        return Err(EalError::Permission { log });
    }
    Err(EalError::Init { cause: errno_text(errno), log, arguments: arguments[1..].join(" ") })
}

/// The error number of the last call of DPDK by this thread that failed (`rte_errno`).
pub(crate) fn errno() -> i32 {
    // SAFETY: may be called at any time, and returns the address of a variable of this thread.
    let place = unsafe { sys::rte_errno_ptr() };
    // SAFETY: the variable lives as long as its thread, this one, which alone accesses it.
    unsafe { *place }
}

/// The text of a DPDK error number.
pub(crate) fn errno_text(errno: i32) -> String {
    // SAFETY: takes any number, and returns a C string that stays until this thread calls it again.
    let text = unsafe { sys::rte_strerror(errno) };
    // SAFETY: the C string of the call before, which is copied before this thread can make another.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The CPUs that the calling thread may run on.
fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}
