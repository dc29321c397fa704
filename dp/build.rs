//! Sets `cfg(dpdk)` if the feature is on and DPDK's bindings exist (they do not when only documentation
//! is built).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(dpdk)");
    let wanted = std::env::var_os("CARGO_FEATURE_DPDK").is_some();
    let bindings = std::env::var_os("DEP_DPDK_NO_DPDK").is_none();
    if wanted && bindings {
        println!("cargo:rustc-cfg=dpdk");
    }
}
