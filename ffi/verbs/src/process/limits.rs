//! The device's limits as queries return them: sizes and counts.

use dp::LinkState;
use iwarp::verbs::{ContextLimits, MAX_INLINE, MAX_SGE};
use libc::c_int;

use crate::ffi::c_str::copy_str;
use crate::ffi::sys;
use crate::net::Net;
use crate::process::identity;

/// Maximum number of requests of one queue.
pub(crate) const MAX_QP_WR: usize = 16_384;
/// Maximum number of entries of one completion queue.
pub(crate) const MAX_CQE: usize = (1 << 20) - 1;
/// Maximum number of requests of one shared receive queue.
pub(crate) const MAX_SRQ_WR: usize = 1 << 16;
/// Maximum number of outstanding Reads and atomics in each direction. The number fits in the fields of
/// `rdma_conn_param` and of perftest's exchange.
pub(crate) const MAX_RD_ATOM: u8 = 128;
/// Maximum number of elements of a request.
pub(crate) const SGE: usize = MAX_SGE;
/// The rate of the device's clock in kHz: the clock counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;
/// Maximum number of bytes of an inline request of a queue pair whose program asks for no more.
pub(crate) const INLINE: usize = MAX_INLINE;
/// Maximum number of bytes of an inline request for which a program can ask. Linux's rxe has the same
/// maximum.
pub(crate) const LONG_INLINE: usize = 512;

/// The number of completion vectors: one per online processor, and at least 2. A vector is only a number that
/// programs spread their completion queues over, since one thread delivers the events of all queues.
pub(crate) fn comp_vectors() -> u32 {
    // SAFETY: the call has no conditions.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(online.clamp(MIN_COMP_VECTORS, c_int::MAX.into())).unwrap_or(2)
}

/// Minimum number of completion vectors: programs for hardware devices hard-code vector 1.
const MIN_COMP_VECTORS: libc::c_long = 2;

/// Maximum number of address handles of a process.
pub(crate) const MAX_AH: usize = 1 << 20;

/// The limits on the objects of programs.
fn of_programs() -> ContextLimits {
    ContextLimits { max_mr: 1 << 20, max_qp_wr: MAX_QP_WR, max_cm_events: 16_384, ..ContextLimits::default() }
}

/// The limits of the engine's context that implements the device. The library has a queue pair of its own,
/// with its completion queue and two regions ([`gsi`](super::gsi)).
pub(crate) fn context() -> ContextLimits {
    let ContextLimits { max_qp, max_cq, max_mr, .. } = of_programs();
    ContextLimits { max_qp: max_qp + 1, max_cq: max_cq + 1, max_mr: max_mr + 2, ..of_programs() }
}

pub(crate) fn device() -> sys::ibv_device_attr {
    let limits = of_programs();
    let count = |limit: usize| c_int::try_from(limit).unwrap_or(c_int::MAX);
    let mut attr = sys::ibv_device_attr {
        node_guid: identity::guid().to_be(),
        sys_image_guid: identity::guid().to_be(),
        max_mr_size: u64::MAX,
        // All page sizes from 4 KiB on are supported, since addresses are not translated.
        page_size_cap: 0xffff_f000,
        // As usual, the vendor ID is the first three bytes of the GUID. Some programs treat a device with
        // vendor ID 0 as broken.
        vendor_id: (identity::guid() >> 40) as u32,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: count(limits.max_qp),
        max_qp_wr: count(MAX_QP_WR),
        device_cap_flags: sys::IBV_DEVICE_MEM_WINDOW
            | sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | sys::IBV_DEVICE_MEM_MGT_EXTENSIONS,
        max_sge: count(SGE),
        max_sge_rd: count(SGE),
        max_cq: count(limits.max_cq),
        max_cqe: count(MAX_CQE),
        max_mr: count(limits.max_mr),
        max_pd: count(limits.max_pd),
        max_qp_rd_atom: MAX_RD_ATOM.into(),
        max_res_rd_atom: count(limits.max_read_slots),
        max_qp_init_rd_atom: MAX_RD_ATOM.into(),
        atomic_cap: sys::IBV_ATOMIC_HCA,
        max_mw: count(limits.max_mw),
        max_srq: count(limits.max_srq),
        max_srq_wr: count(MAX_SRQ_WR),
        max_srq_sge: count(SGE),
        max_ah: count(MAX_AH),
        max_mcast_grp: count(tcp_lite::MAX_GROUPS),
        max_mcast_qp_attach: count(limits.max_qp),
        max_total_mcast_qp_attach: count(limits.max_qp),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        ..Default::default()
    };
    copy_str(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr
}

/// The operations of a UD queue pair. All of them may use memory for on-demand paging.
const UD_ODP: u32 = sys::IBV_ODP_SUPPORT_SEND | sys::IBV_ODP_SUPPORT_RECV | sys::IBV_ODP_SUPPORT_SRQ_RECV;

pub(crate) fn device_ex() -> sys::ibv_device_attr_ex {
    sys::ibv_device_attr_ex {
        orig_attr: device(),
        odp_caps: sys::ibv_odp_caps {
            general_caps: (sys::IBV_ODP_SUPPORT | sys::IBV_ODP_SUPPORT_IMPLICIT).into(),
            per_transport_caps: sys::ibv_odp_caps__bindgen_ty_1 {
                rc_odp_caps: UD_ODP
                    | sys::IBV_ODP_SUPPORT_WRITE
                    | sys::IBV_ODP_SUPPORT_READ
                    | sys::IBV_ODP_SUPPORT_ATOMIC,
                uc_odp_caps: UD_ODP | sys::IBV_ODP_SUPPORT_WRITE,
                ud_odp_caps: UD_ODP,
            },
        },
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: CLOCK_KHZ,
        device_cap_flags_ex: device().device_cap_flags.into(),
        phys_port_cnt_ex: 1,
        ..Default::default()
    }
}

pub(crate) fn port(net: &Net) -> sys::ibv_port_attr {
    let is_up = net.link() == LinkState::Up;
    sys::ibv_port_attr {
        state: if is_up { sys::IBV_PORT_ACTIVE } else { sys::IBV_PORT_DOWN },
        max_mtu: sys::IBV_MTU_4096,
        active_mtu: net.path_mtu().number().into(),
        gid_tbl_len: net.gid_count() as c_int,
        port_cap_flags: sys::IBV_PORT_CM_SUP,
        max_msg_sz: i32::MAX as u32,
        pkey_tbl_len: 1,
        lid: net.lid(),
        max_vl_num: 1,
        active_width: 2,
        active_speed: 32,
        // 5 is LinkUp and 3 is Disabled, as in InfiniBand's PortInfo.
        phys_state: if is_up { 5 } else { 3 },
        link_layer: sys::IBV_LINK_LAYER_ETHERNET as u8,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vendor_is_the_one_of_the_guid_and_not_zero() {
        let attr = device();
        let [a, b, c, ..] = attr.node_guid.to_ne_bytes();
        assert_eq!(attr.vendor_id, u32::from_be_bytes([0, a, b, c]));
        assert_ne!(attr.vendor_id, 0);
    }
}
