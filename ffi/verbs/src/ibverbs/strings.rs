//! The texts of codes. Each function returns a text for every code, never NULL.

use std::ffi::{CStr, c_char};

use crate::ffi::sys;

fn text(texts: &'static [&'static CStr], index: u32, other: &'static CStr) -> *const c_char {
    texts.get(index as usize).copied().unwrap_or(other).as_ptr()
}

/// Implements `ibv_wc_status_str(3)`.
#[unsafe(export_name = "uw_ibv_wc_status_str")]
pub(crate) extern "C" fn ibv_wc_status_str(status: sys::ibv_wc_status) -> *const c_char {
    const TEXTS: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    text(TEXTS, status, c"unknown")
}

/// Implements `ibv_event_type_str(3)`.
#[unsafe(export_name = "uw_ibv_event_type_str")]
pub(crate) extern "C" fn ibv_event_type_str(event: sys::ibv_event_type) -> *const c_char {
    const TEXTS: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    text(TEXTS, event, c"unknown")
}

/// Implements `ibv_node_type_str(3)`.
#[unsafe(export_name = "uw_ibv_node_type_str")]
pub(crate) extern "C" fn ibv_node_type_str(kind: i32) -> *const c_char {
    const TEXTS: &[&CStr] = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    text(TEXTS, u32::try_from(kind).unwrap_or(0), c"unknown")
}

/// Implements `ibv_port_state_str(3)`.
#[unsafe(export_name = "uw_ibv_port_state_str")]
pub(crate) extern "C" fn ibv_port_state_str(state: sys::ibv_port_state) -> *const c_char {
    const TEXTS: &[&CStr] =
        &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    text(TEXTS, state, c"unknown")
}

/// Implements `rdma_event_str(3)`.
#[unsafe(export_name = "uw_rdma_event_str")]
pub(crate) extern "C" fn rdma_event_str(event: sys::rdma_cm_event_type) -> *const c_char {
    const TEXTS: &[&CStr] = &[
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    text(TEXTS, event, c"UNKNOWN EVENT")
}
