//! The types of rdma-core's headers, which bindgen reads on the build machine.
//!
//! bindgen asserts the size and offsets of each type against the header of the build machine. The assertions
//! below check the offsets of release 44, on which programs that were compiled elsewhere rely. Later releases
//! have the same offsets.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, missing_docs, unreachable_pub)]
#![allow(
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block
)]
#![allow(unnecessary_transmutes, unused_qualifications, dead_code)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

macro_rules! assert_layout {
    ($($type:ty: $size:literal { $($field:ident $offset:literal),* })*) => {
        $(
            const _: () = assert!(size_of::<$type>() == $size);
            $(const _: () = assert!(std::mem::offset_of!($type, $field) == $offset);)*
        )*
    };
}

#[cfg(target_arch = "x86_64")]
assert_layout! {
    ibv_device: 664 { node_type 16, transport_type 20, name 24, dev_name 88, dev_path 152, ibdev_path 408 }
    ibv_context: 328 { device 0, ops 8, cmd_fd 264, async_fd 268, num_comp_vectors 272, abi_compat 320 }
    verbs_context: 648 { context 320, sz 312 }
    ibv_pd: 16 {}
    ibv_mr: 48 { addr 16, length 24, lkey 36, rkey 40 }
    ibv_mw: 32 {}
    ibv_srq: 128 {}
    ibv_comp_channel: 16 { fd 8, refcnt 12 }
    ibv_cq: 128 { channel 8, cq_context 16, cqe 28, comp_events_completed 120 }
    ibv_cq_ex: 288 { comp_mask 128, status 132, wr_id 136, start_poll 144, read_opcode 168 }
    ibv_qp: 160 { qp_context 8, pd 16, send_cq 24, recv_cq 32, srq 40, qp_num 52, state 56, qp_type 60 }
    ibv_qp_ex: 352 { comp_mask 160, wr_id 168, wr_flags 176, wr_start 320, wr_abort 336 }
    ibv_wc: 48 {}
    ibv_send_wr: 128 { opcode 28, send_flags 32 }
    ibv_recv_wr: 32 {}
    ibv_sge: 16 {}
    ibv_device_attr: 232 {}
    ibv_port_attr: 52 { link_layer 46 }
    ibv_qp_attr: 144 {}
    ibv_qp_init_attr: 64 {}
    ibv_qp_init_attr_ex: 136 {}
    ibv_cq_init_attr_ex: 56 {}
    rdma_cm_id: 416 { verbs 0, channel 8, context 16, qp 24, route 32, ps 344, port_num 348, event 352, pd 400, qp_type 408 }
    rdma_cm_event: 80 { id 0, listen_id 8, event 16, status 20, param 24 }
    rdma_conn_param: 24 {}
    rdma_addrinfo: 96 {}
    rdma_event_channel: 4 { fd 0 }
}
