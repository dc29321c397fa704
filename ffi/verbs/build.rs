//! Generates the bindings to rdma-core's headers, gives the symbols of the library their versions, and builds
//! the stub libraries with which programs are linked.
//!
//! If a package is missing, the error is one line that names the missing package.

use std::panic;
use std::path::{Path, PathBuf};

/// The types and constants of the headers for which bindings are generated. There are no bindings of
/// functions, since this library defines the functions itself.
const TYPES: &[&str] = &["ibv_.*", "verbs_context", "rdma_.*", "_compat_ibv_port_attr"];
const CONSTANTS: &[&str] = &["IBV_.*", "RDMA_.*", "RAI_.*", "__VERBS_ABI_IS_EXTENDED"];

/// Private functions of libibverbs that drivers call in releases after 44.
const LATER_DRIVER_CALLS: &[&str] = &[
    "ibv_cmd_alloc_dmah",
    "ibv_cmd_create_comp_cntr",
    "ibv_cmd_create_cq_ex2",
    "ibv_cmd_destroy_comp_cntr",
    "ibv_cmd_export_dmabuf_fd",
    "ibv_cmd_free_dmah",
    "ibv_cmd_inc_comp_cntr",
    "ibv_cmd_inc_err_comp_cntr",
    "ibv_cmd_qp_attach_comp_cntr",
    "ibv_cmd_query_comp_cntr_caps",
    "ibv_cmd_query_port_speed",
    "ibv_cmd_read_comp_cntr",
    "ibv_cmd_read_err_comp_cntr",
    "ibv_cmd_reg_mr_ex",
    "ibv_cmd_set_comp_cntr",
    "ibv_cmd_set_err_comp_cntr",
    "ibv_dmabuf_heap_alloc",
    "ibv_dmabuf_heap_cc_shared_init",
    "ibv_dmabuf_heap_destroy",
    "ibv_dmabuf_heap_free",
    "ibv_wr_opcode_str",
];

/// The calls of libc that the library exports in its own form (`src/files/calls.rs`, `src/waits`).
const CALLS_OF_LIBC: &[&str] = &[
    "open",
    "open64",
    "__open",
    "__open64",
    "__open_2",
    "__open64_2",
    "openat",
    "openat64",
    "__openat_2",
    "__openat64_2",
    "fopen",
    "fopen64",
    "opendir",
    "scandir",
    "scandir64",
    "scandirat",
    "scandirat64",
    "stat",
    "stat64",
    "lstat",
    "lstat64",
    "__xstat",
    "__xstat64",
    "__lxstat",
    "__lxstat64",
    "fstatat",
    "fstatat64",
    "__fxstatat",
    "__fxstatat64",
    "statx",
    "access",
    "eaccess",
    "euidaccess",
    "faccessat",
    "readlink",
    "readlinkat",
    "__readlink_chk",
    "__readlinkat_chk",
    "realpath",
    "__realpath_chk",
    "canonicalize_file_name",
    "chdir",
    "getxattr",
    "lgetxattr",
    "listxattr",
    "llistxattr",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "poll",
    "__poll_chk",
    "ppoll",
    "__ppoll_chk",
    "select",
    "pselect",
];

fn main() {
    for file in ["build.rs", "wrapper.h", "uwarp.map"] {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    println!("cargo:rerun-if-env-changed=CC");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if let Err(message) = bind(&out).and_then(|()| version_symbols(&out)) {
        println!("cargo::error={message}");
    }
}

/// Exports each function under its name and version.
///
/// The compiler exports functions without versions by its own linker script, which takes precedence over
/// ours. So our functions have names with a prefix in Rust, and the linker defines the names of libibverbs
/// and librdmacm as aliases.
fn version_symbols(out: &Path) -> Result<(), String> {
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("uwarp.map");
    let text = std::fs::read_to_string(&map).expect("the script lies beside this file");
    let symbols = symbols(&text);
    for Symbol { name, ours, .. } in &symbols {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym={name}=uw_{ours}");
    }
    export_calls_of_libc(out)?;
    let later = out.join("later.ld");
    write(&later, &later_versions(&text, &symbols))?;
    println!("cargo:rustc-cdylib-link-arg={}", later.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libuwarp.so");
    for (library, nodes) in [("libibverbs", "IBVERBS_"), ("librdmacm", "RDMACM_")] {
        stand_in(out, library, &text, symbols.iter().filter(|symbol| symbol.node.starts_with(nodes)))?;
    }
    Ok(())
}

/// Exports our form of libc's calls without a version. For a reference with any version, the dynamic linker
/// accepts a symbol that has none.
fn export_calls_of_libc(out: &Path) -> Result<(), String> {
    for name in CALLS_OF_LIBC {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym={name}=uw_{name}");
    }
    let script = out.join("calls.map");
    write(&script, &format!("{{\n\tglobal:\n\t\t{};\n}};\n", CALLS_OF_LIBC.join(";\n\t\t")))?;
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    Ok(())
}

/// A function or variable of the map.
struct Symbol<'a> {
    name: &'a str,
    /// The version node of the symbol.
    node: &'a str,
    /// The name of our function or variable for this symbol, without the prefix.
    ours: &'a str,
}

fn symbols(map: &str) -> Vec<Symbol<'_>> {
    let mut symbols = Vec::new();
    let (mut node, mut is_of_drivers) = ("", false);
    for line in map.lines() {
        if let Some(begun) = line.strip_suffix(" {") {
            (node, is_of_drivers) = (begun, false);
        }
        is_of_drivers |= line == "\t\t# Of drivers.";
        if let Some(name) = line.strip_prefix("\t\t").and_then(|line| line.strip_suffix(';')) {
            symbols.push(Symbol { name, node, ours: if is_of_drivers { "driver_call" } else { name } });
        }
    }
    symbols
}

/// Makes a linker script that also defines libibverbs's private names under the versions of later releases,
/// since each release has its own version node. Drivers of all releases call the same functions.
fn later_versions(map: &str, symbols: &[Symbol<'_>]) -> String {
    const PRIVATE: &str = "IBVERBS_PRIVATE_";
    const REGISTER: &str = "verbs_register_driver_";
    let first = format!("{PRIVATE}34");
    let mut script = String::new();
    for node in map.lines().filter_map(|line| line.strip_suffix(" {")) {
        let Some(number) = node.strip_prefix(PRIVATE).filter(|_| node != first) else { continue };
        for Symbol { name, ours, .. } in symbols.iter().filter(|symbol| symbol.node == first) {
            if !name.starts_with(REGISTER) {
                script += &format!("\"{name}@{node}\" = uw_{ours};\n");
            }
        }
        for name in
            LATER_DRIVER_CALLS.iter().map(|name| (*name).to_owned()).chain([format!("{REGISTER}{number}")])
        {
            script += &format!("\"{name}@{node}\" = uw_driver_call;\n");
        }
    }
    script
}

/// Builds a stub library with which programs are linked. The stub has the name and the symbol versions of
/// rdma-core's library, so a program that is linked with it runs with either library. The stub's functions do
/// nothing. The dynamic linker uses the functions of libuwarp.so in their place (`DT_FILTER`), even for a
/// program that opens the stub with `dlopen`.
fn stand_in<'a>(
    out: &Path,
    library: &str,
    map: &str,
    symbols: impl Iterator<Item = &'a Symbol<'a>>,
) -> Result<(), String> {
    let prefix = if library == "libibverbs" { "IBVERBS_" } else { "RDMACM_" };
    let mut source = String::from(".text\n");
    for Symbol { name, .. } in symbols {
        source += &format!(".globl {name}\n.type {name}, %function\n{name}:\n");
    }
    source += ".long 0\n.section .note.GNU-stack, \"\", %progbits\n";
    let (mut script, mut is_in_node) = (String::new(), false);
    for line in map.lines() {
        is_in_node |= line.starts_with(prefix);
        if is_in_node {
            script += &format!("{line}\n");
        }
        is_in_node &= line != "};";
    }
    let file = |extension: &str| out.join(format!("{library}.{extension}"));
    write(&file("s"), &source)?;
    write(&file("map"), &script)?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = std::process::Command::new(&compiler)
        .args(["-shared", "-nostdlib", "-o"])
        .args([file("so"), file("s")])
        .arg(format!("-Wl,-soname,{library}.so.1"))
        .arg("-Wl,--filter=libuwarp.so")
        .arg(format!("-Wl,--version-script={}", file("map").display()))
        .output()
        .map_err(|error| format!("{} is not installed: apt-get install gcc ({error})", compiler.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{library}.so: {}", String::from_utf8_lossy(&output.stderr).replace('\n', " "))),
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn bind(out: &Path) -> Result<(), String> {
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .prepend_enum_name(false)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .generate_comments(false)
        // The compiler checks the size and the offsets of each struct.
        .layout_tests(true)
        .derive_default(true);
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in CONSTANTS {
        builder = builder.allowlist_var(name);
    }
    // If libclang is missing, bindgen panics with an unhelpful message.
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
