//! Calls that have no counterpart here, such as those for objects that processes share, and for InfiniBand's
//! rates. Most of these calls fail at once with `EOPNOTSUPP`. Others have
//! no effect, for example the calls for `fork` and the calls that undo an import. The calls for rates convert
//! numbers.

use std::sync::atomic::AtomicBool;

use libc::{c_int, c_void};

use crate::ffi::abi::{self, EOPNOTSUPP};
use crate::ffi::sys;

/// This function has the symbols of all functions that libibverbs exports for drivers. A program may be
/// linked with drivers. The drivers find no device, so they do not call this function.
#[unsafe(export_name = "uw_driver_call")]
pub(crate) extern "C" fn driver_call() -> c_int {
    abi::status(|| Err(EOPNOTSUPP))
}

/// A variable of libibverbs that drivers set.
#[unsafe(export_name = "uw_verbs_allow_disassociate_destroy")]
pub(crate) static VERBS_ALLOW_DISASSOCIATE_DESTROY: AtomicBool = AtomicBool::new(false);

macro_rules! unsupported {
    (status: $($(#[$doc:meta])* $name:ident($($type:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The function has no conditions, since it uses no argument.
            #[unsafe(export_name = concat!("uw_", stringify!($name)))]
            pub(crate) unsafe extern "C" fn $name($(_: $type),*) -> c_int {
                abi::status(|| Err(EOPNOTSUPP))
            }
        )*
    };
    (pointer: $($(#[$doc:meta])* $name:ident($($type:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The function has no conditions, since it uses no argument.
            #[unsafe(export_name = concat!("uw_", stringify!($name)))]
            pub(crate) unsafe extern "C" fn $name($(_: $type),*) -> *mut c_void {
                abi::pointer(|| Err(EOPNOTSUPP))
            }
        )*
    };
    (nothing: $($(#[$doc:meta])* $name:ident($($type:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The function has no conditions, since it uses no argument.
            #[unsafe(export_name = concat!("uw_", stringify!($name)))]
            pub(crate) unsafe extern "C" fn $name($(_: $type),*) {}
        )*
    };
}

type Object = *mut c_void;

unsupported! { status:
    /// Implements `ibv_resolve_eth_l2_from_gid(3)`: fails, since the stack resolves link addresses itself.
    ibv_resolve_eth_l2_from_gid(Object, Object, Object, Object);
}

unsupported! { pointer:
    /// Implements `ibv_import_pd(3)`: fails, since objects of another process cannot be shared.
    ibv_import_pd(Object, u32);
    /// Implements `ibv_import_dm(3)`: fails, since objects of another process cannot be shared.
    ibv_import_dm(Object, u32);
}

unsupported! { nothing:
    /// Implements `ibv_unimport_pd(3)`: does nothing, since nothing was imported.
    ibv_unimport_pd(Object);
    /// Implements `ibv_unimport_mr(3)`: does nothing, since nothing was imported.
    ibv_unimport_mr(Object);
    /// Implements `ibv_unimport_dm(3)`: does nothing, since nothing was imported.
    ibv_unimport_dm(Object);
    /// Exported because rdma-core's librdmacm uses this symbol.
    ibv_copy_ah_attr_from_kern(Object, Object);
    /// Exported because rdma-core's librdmacm uses this symbol.
    ibv_copy_path_rec_from_kern(Object, Object);
    /// Exported because rdma-core's librdmacm uses this symbol.
    ibv_copy_path_rec_to_kern(Object, Object);
    /// Exported because rdma-core's librdmacm uses this symbol.
    ibv_copy_qp_attr_from_kern(Object, Object);
}

/// Implements `ibv_fork_init(3)`. No memory is pinned, so there is nothing to do.
#[unsafe(export_name = "uw_ibv_fork_init")]
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Implements `ibv_is_fork_initialized(3)`: programs need not call `ibv_fork_init`.
#[unsafe(export_name = "uw_ibv_is_fork_initialized")]
pub(crate) extern "C" fn ibv_is_fork_initialized() -> sys::ibv_fork_status {
    sys::IBV_FORK_UNNEEDED
}

/// Succeeds without effect, like [`ibv_fork_init`].
///
/// # Safety
/// The function has no conditions, since it uses no argument.
#[unsafe(export_name = "uw_ibv_dontfork_range")]
pub(crate) unsafe extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Succeeds without effect, like [`ibv_fork_init`].
///
/// # Safety
/// The function has no conditions, since it uses no argument.
#[unsafe(export_name = "uw_ibv_dofork_range")]
pub(crate) unsafe extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// The rates of InfiniBand: the code, the multiple of 2.5 Gb/s, and the rate in Mb/s.
const RATES: [(u32, c_int, c_int); 17] = [
    (sys::IBV_RATE_2_5_GBPS, 1, 2500),
    (sys::IBV_RATE_5_GBPS, 2, 5000),
    (sys::IBV_RATE_10_GBPS, 4, 10000),
    (sys::IBV_RATE_20_GBPS, 8, 20000),
    (sys::IBV_RATE_30_GBPS, 12, 30000),
    (sys::IBV_RATE_40_GBPS, 16, 40000),
    (sys::IBV_RATE_60_GBPS, 24, 60000),
    (sys::IBV_RATE_80_GBPS, 32, 80000),
    (sys::IBV_RATE_120_GBPS, 48, 120_000),
    (sys::IBV_RATE_14_GBPS, 6, 14062),
    (sys::IBV_RATE_56_GBPS, 22, 56250),
    (sys::IBV_RATE_112_GBPS, 45, 112_500),
    (sys::IBV_RATE_168_GBPS, 67, 168_750),
    (sys::IBV_RATE_25_GBPS, 10, 25781),
    (sys::IBV_RATE_100_GBPS, 40, 103_125),
    (sys::IBV_RATE_200_GBPS, 80, 206_250),
    (sys::IBV_RATE_300_GBPS, 120, 309_375),
];

/// Implements `ibv_rate_to_mult(3)`.
#[unsafe(export_name = "uw_ibv_rate_to_mult")]
pub(crate) extern "C" fn ibv_rate_to_mult(rate: sys::ibv_rate) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(_, mult, _)| *mult)
}

/// Implements `mult_to_ibv_rate(3)`.
#[unsafe(export_name = "uw_mult_to_ibv_rate")]
pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> sys::ibv_rate {
    RATES.iter().find(|(_, other, _)| *other == mult).map_or(sys::IBV_RATE_MAX, |(code, ..)| *code)
}

/// Implements `ibv_rate_to_mbps(3)`.
#[unsafe(export_name = "uw_ibv_rate_to_mbps")]
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: sys::ibv_rate) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(.., mbps)| *mbps)
}

/// Implements `mbps_to_ibv_rate(3)`.
#[unsafe(export_name = "uw_mbps_to_ibv_rate")]
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> sys::ibv_rate {
    RATES.iter().find(|(.., other)| *other == mbps).map_or(sys::IBV_RATE_MAX, |(code, ..)| *code)
}
