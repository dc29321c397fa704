//! DPDK's environment abstraction layer (EAL). EAL is started on demand, once per process, with the options
//! in [`EalConfig`].
//!
//! EAL is global state of the process: memory, the calling thread's affinity, drivers. A start of EAL cannot
//! be undone. [`Eal::start`] starts EAL, or checks that EAL already runs with the same options. The returned
//! value proves that EAL runs, and can be copied.

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

/// The options with which EAL runs. `None` until EAL has started.
static STARTED: Mutex<Option<Started>> = Mutex::new(None);

struct Started {
    config: EalConfig,
    is_ordinary: bool,
}

impl Eal {
    /// Starts EAL, or checks that EAL already runs with the same options. Starting usually takes 130 to 230
    /// ms. The calling thread becomes EAL's main thread.
    ///
    /// # Errors
    /// [`EalError`] if EAL does not run with these options. If the start of EAL fails, DPDK itself also
    /// writes a line to standard error. After [`EalError::NoHugepages`], [`EalError::PciAddress`],
    /// [`EalError::PciHugepages`] and [`EalError::BadArgument`] another attempt is possible.
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

    /// Whether devices access memory by virtual addresses.
    pub(crate) fn is_virtual(self) -> bool {
        // SAFETY: EAL runs (`self`), and the call reads a constant of its configuration.
        let mode = unsafe { sys::rte_eal_iova_mode() };
        mode == sys::RTE_IOVA_VA
    }

    /// The arguments for the driver of this PCI device in EAL's options, including the comma before the
    /// arguments.
    pub(crate) fn pci_arguments(self, address: PciAddress) -> String {
        let started = STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        started.as_ref().map_or_else(String::new, |started| started.config.pci_arguments(address))
    }

    /// Returns a value if EAL runs in this process, and `None` if not. In a forked child of a process with
    /// EAL, returns `None`.
    pub fn running() -> Option<Self> {
        let started = STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        (started.is_some() && !is_forked()).then_some(Self { _started: () })
    }

    /// The version of DPDK in the form `DPDK 22.11.11`.
    pub fn version() -> &'static str {
        // SAFETY: the function may be called at any time, and returns a constant C string.
        let version = unsafe { sys::rte_version() };
        // SAFETY: DPDK makes this C string once, and never frees it.
        unsafe { CStr::from_ptr(version) }.to_str().unwrap_or("DPDK")
    }
}

fn init(config: &EalConfig, arguments: &[String]) -> Result<(), EalError> {
    let owned: Vec<CString> = arguments
        .iter()
        .map(|text| CString::new(text.as_str()).map_err(|_| EalError::BadArgument { argument: text.clone() }))
        .collect::<Result<_, _>>()?;
    // EAL permutes the vector and stores pointers to the strings, so the vector and the strings are leaked.
    let strings: &'static [CString] = owned.leak();
    let vector: Vec<*mut c_char> =
        strings.iter().map(|text| text.as_ptr().cast_mut()).chain([std::ptr::null_mut()]).collect();
    log::capture(config.log_to_stderr);
    log::mark();
    let vector = vector.leak();
    // SAFETY: the vector has `argc` C strings and a null pointer. The vector and the strings are never freed.
    // `start`, the only caller, holds the lock on `STARTED`, and EAL is not started. After a failure EAL
    // itself refuses a second call.
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

/// The error number of this thread's last failed call of DPDK (`rte_errno`).
pub(crate) fn errno() -> i32 {
    // SAFETY: the function may be called at any time, and returns the address of a variable of this thread.
    let place = unsafe { sys::rte_errno_ptr() };
    // SAFETY: the variable belongs to this thread, and no other thread accesses it. The variable exists until
    // the thread ends.
    unsafe { *place }
}

pub(crate) fn errno_text(errno: i32) -> String {
    // SAFETY: the function accepts any number. The returned C string is valid until this thread calls the
    // function again.
    let text = unsafe { sys::rte_strerror(errno) };
    // SAFETY: `text` is a C string, which is copied before this thread calls the function again.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The CPUs that the calling thread may run on.
fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}
