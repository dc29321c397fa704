//! Generates the bindings with bindgen, and the C shim for inline functions of DPDK's headers.
//!
//! Bindings are generated only for the listed names, since bindgen fails on the whole headers.

use std::panic;
use std::path::Path;

const FUNCTIONS: &[&str] = &[
    // EAL and threads
    "rte_eal_init",
    "rte_eal_hotplug_remove",
    "rte_eal_iova_mode",
    "rte_dev_probe",
    "rte_dev_event_callback_register",
    "rte_dev_event_monitor_start",
    "rte_dev_hotplug_handle_enable",
    "rte_errno_ptr",
    "rte_strerror",
    "rte_version",
    "rte_thread_register",
    "rte_thread_unregister",
    "rte_lcore_id",
    "rte_openlog_stream",
    "rte_log_cur_msg_loglevel",
    "fopencookie",
    "setvbuf",
    "pthread_atfork",
    // Pools and buffers
    "rte_mempool_create_empty",
    "rte_mempool_set_ops_byname",
    "rte_mempool_populate_default",
    "rte_mempool_populate_anon",
    "rte_mempool_obj_iter",
    "rte_mempool_free",
    "rte_mempool_avail_count",
    "rte_mempool_lookup",
    "rte_mbuf_best_mempool_ops",
    "rte_pktmbuf_pool_init",
    "rte_pktmbuf_init",
    "rte_pktmbuf_alloc",
    "rte_pktmbuf_free",
    "rte_pktmbuf_free_seg",
    "rte_pktmbuf_clone",
    "rte_pktmbuf_attach_extbuf",
    "uwarp_pool_private",
    "uwarp_pool_common_count",
    // Devices
    "rte_eth_dev_info_get",
    "rte_eth_dev_configure",
    "rte_eth_dev_adjust_nb_rx_tx_desc",
    "rte_eth_rx_queue_setup",
    "rte_eth_tx_queue_setup",
    "rte_eth_dev_start",
    "rte_eth_dev_stop",
    "rte_eth_dev_callback_register",
    "rte_eth_dev_callback_unregister",
    "rte_eth_dev_close",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_dev_socket_id",
    "rte_eth_macaddr_get",
    "rte_eth_promiscuous_enable",
    "rte_eth_allmulticast_enable",
    "rte_eth_dev_set_mc_addr_list",
    "rte_eth_link_get_nowait",
    "rte_eth_dev_rss_hash_conf_get",
    "rte_eth_dev_rss_reta_update",
    "rte_eth_stats_get",
    "rte_eth_xstats_get",
    "rte_eth_xstats_get_names",
    "rte_eth_rx_burst",
    "rte_eth_tx_burst",
    "rte_eth_tx_prepare",
    "rte_eth_dev_callback_register",
    "rte_eth_dev_callback_unregister",
    "rte_eth_dev_rx_intr_ctl_q_get_fd",
    "rte_eth_dev_rx_intr_enable",
    "rte_eth_dev_rx_intr_disable",
    // vhost-user
    "rte_eth_vhost_get_vid_from_port_id",
    "rte_vhost_get_negotiated_features",
];

const TYPES: &[&str] = &[
    "rte_eth_conf",
    "rte_eth_dev_info",
    "rte_eth_link",
    "rte_eth_stats",
    "rte_ether_addr",
    "rte_eth_rss_conf",
    "rte_eth_rss_reta_entry64",
    "rte_eth_rx_mq_mode",
    "rte_eth_event_type",
    "rte_mempool_obj_cb_t",
    "rte_pktmbuf_pool_private",
    "rte_mbuf_ext_shared_info",
    "cookie_io_functions_t",
];

const CONSTANTS: &[&str] = &[
    "K_.*",
    "RTE_ETH_NAME_MAX_LEN",
    "RTE_MEMPOOL_CACHE_MAX_SIZE",
    "RTE_LOG_DEBUG",
    "RTE_MAX_LCORE",
    "RTE_ETH_MQ_RX_RSS",
    "RTE_ETH_RETA_GROUP_SIZE",
    "RTE_ETH_LINK_UP",
    "RTE_ETH_EVENT_.*",
];

/// Writes `bindings.rs` to `out` and compiles the shim.
pub(crate) fn generate(cflags: &[String], out: &Path) -> Result<(), String> {
    let shim = out.join("shim");
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(cflags)
        .wrap_static_fns(true)
        .wrap_static_fns_path(&shim)
        // The layouts of these structs differ between releases. The bindings need no layouts: `mbuf.rs`
        // accesses mbufs by offsets, and pools are passed only by pointer.
        .opaque_type("rte_mbuf")
        .opaque_type("rte_mempool")
        .opaque_type("rte_device")
        .opaque_type("_IO_FILE")
        .prepend_enum_name(false)
        .merge_extern_blocks(true)
        .generate_comments(false)
        .layout_tests(false)
        .use_core();
    for name in FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in CONSTANTS {
        builder = builder.allowlist_var(name);
    }
    // If libclang is missing, bindgen panics with an unhelpful message. So the message is suppressed, and
    // this function returns a better one.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let generated = panic::catch_unwind(panic::AssertUnwindSafe(|| builder.generate()));
    panic::set_hook(hook);
    let bindings = generated
        .map_err(|_| {
            "libclang is not installed: apt-get install libclang-dev (or set LIBCLANG_PATH)".to_owned()
        })?
        .map_err(|error| format!("bindgen cannot read DPDK's headers: {error}"))?;
    bindings
        .write_to_file(out.join("bindings.rs"))
        .map_err(|error| format!("cannot write to OUT_DIR: {error}"))?;

    let mut compiler = cc::Build::new();
    compiler.file(shim.with_extension("c")).include(env!("CARGO_MANIFEST_DIR")).opt_level(2).warnings(false);
    for flag in cflags {
        compiler.flag(flag);
    }
    compiler.try_compile("dpdk_shim").map_err(|error| {
        format!("a C compiler is needed for DPDK's inline functions (apt-get install gcc): {error}")
    })
}
