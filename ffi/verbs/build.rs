//! Makes the bindings to rdma-core's headers, and gives the library its symbol versions.
//!
//! If something is missing, the error is one line that names the package to install.

use std::panic;
use std::path::{Path, PathBuf};

/// Types and constants of the headers. Their functions are not bound: this library has its own.
const TYPES: &[&str] = &["ibv_.*", "verbs_context", "rdma_.*", "_compat_ibv_port_attr"];
const CONSTANTS: &[&str] = &["IBV_.*", "RDMA_.*", "RAI_.*", "__VERBS_ABI_IS_EXTENDED"];

fn main() {
    for file in ["build.rs", "wrapper.h", "uwarp.map"] {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if let Err(message) = bind(&out) {
        println!("cargo::error={message}");
    }
    version_symbols();
}

/// Gives each exported function its name and version.
///
/// The compiler exports its functions without versions, by a script of its own, which goes before ours. So
/// our functions have names with a prefix there, and the linker makes the names of libibverbs and librdmacm.
fn version_symbols() {
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("uwarp.map");
    let text = std::fs::read_to_string(&map).expect("the script lies beside this file");
    let mut is_of_drivers = false;
    for line in text.lines() {
        is_of_drivers = line == "\t\t# Of drivers." || is_of_drivers && line != "};";
        let Some(name) = line.strip_prefix("\t\t").and_then(|line| line.strip_suffix(';')) else { continue };
        let ours = if is_of_drivers { "driver_call" } else { name };
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym={name}=uw_{ours}");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libuwarp.so");
}

fn bind(out: &Path) -> Result<(), String> {
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .prepend_enum_name(false)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .generate_comments(false)
        // Sizes and offsets of every struct are checked when this crate is compiled.
        .layout_tests(true)
        .derive_default(true);
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in CONSTANTS {
        builder = builder.allowlist_var(name);
    }
    // bindgen panics if libclang is missing, with an unhelpful message.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let generated = panic::catch_unwind(panic::AssertUnwindSafe(|| builder.generate()));
    panic::set_hook(hook);
    generated
        .map_err(|_| {
            "libclang is not installed: apt-get install libclang-dev (or set LIBCLANG_PATH)".to_owned()
        })?
        .map_err(|error| {
            format!("rdma-core's headers are missing: apt-get install libibverbs-dev librdmacm-dev ({error})")
        })?
        .write_to_file(out.join("bindings.rs"))
        .map_err(|error| format!("cannot write to OUT_DIR: {error}"))
}
