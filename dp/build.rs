//! Sets `cfg(dpdk)`: the feature is on, and DPDK's bindings are there (they are not where only documentation
//! is made).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(dpdk)");
    let wanted = std::env::var_os("CARGO_FEATURE_DPDK").is_some();
    let bindings = std::env::var_os("DEP_DPDK_NO_DPDK").is_none();
    if wanted && bindings {
        println!("cargo:rustc-cfg=dpdk");
    }
}
