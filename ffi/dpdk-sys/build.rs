//! Finds DPDK, links its drivers statically, and generates the bindings.
//!
//! If something is missing, the script prints one line that usually names the package to install.

#[path = "build/bind.rs"]
mod bind;
#[path = "build/link.rs"]
mod link;

use std::path::PathBuf;

/// Recorded bindings to Debian 12's DPDK. `tests/recorded.rs` compares the recorded bindings with the
/// bindings that this script generates.
const RECORDED: &str = "build/bindings-22.11.txt";

/// The oldest DPDK release that has the names of the bindings (`RTE_ETH_*`, `RTE_MBUF_F_*`).
const OLDEST: &str = "22.11";

fn main() {
    for file in ["build.rs", "build/bind.rs", "build/link.rs", "wrapper.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    for variable in ["DOCS_RS", "PKG_CONFIG", "PKG_CONFIG_PATH", "LIBCLANG_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if std::env::var_os("DOCS_RS").is_some() {
        // With `DOCS_RS`, the documentation is built without DPDK, and nothing is linked.
        println!("cargo:rerun-if-changed={RECORDED}");
        std::fs::copy(RECORDED, out.join("bindings.rs")).expect("OUT_DIR is writable");
        std::fs::write(out.join("drivers.rs"), "&[]").expect("OUT_DIR is writable");
        return;
    }
    if let Err(message) = build(&out) {
        println!("cargo::error={message}");
    }
}

fn build(out: &std::path::Path) -> Result<(), String> {
    let dpdk = link::find(OLDEST)?;
    bind::generate(&dpdk.cflags, out)?;
    let drivers = link::link(&dpdk)?;
    let list = format!("&{drivers:?}");
    std::fs::write(out.join("drivers.rs"), list).map_err(|e| format!("cannot write to OUT_DIR: {e}"))
}
