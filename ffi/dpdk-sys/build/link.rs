//! The DPDK archives that are linked, and the system libraries that they need.
//!
//! Each archive is linked as a whole: DPDK's drivers register themselves in constructors, and no code refers
//! to the drivers. This module has its own lists, since `pkg-config --static --libs` lists everything with
//! which DPDK was built (crypto, pcap, systemd, ...).

use std::path::{Path, PathBuf};
use std::process::Command;

/// Libraries that ethdev and the drivers below need.
const LIBRARIES: &[&str] = &[
    "kvargs",
    "telemetry",
    "eal",
    "ring",
    "rcu",
    "mempool",
    "mbuf",
    "net",
    "meter",
    "ethdev",
    "pci",
    "hash",
    "cryptodev",
    "dmadev",
    "security",
    "timer",
    "gso",
    "vhost",
    "bus_pci",
    "bus_vdev",
    "mempool_ring",
];

/// Libraries that only some releases have. Drivers share these libraries, or newer releases have split them
/// off from other libraries.
const SOME_LIBRARIES: &[&str] = &["log", "argparse", "common_iavf", "common_ionic", "net_common_intel"];

/// The pkg-config names of the system libraries that `LIBRARIES` need.
const SYSTEM: &[&str] = &["numa", "libbsd"];

/// A driver, and the pkg-config names of the system libraries that only this driver needs. If the driver's
/// archive or one of these libraries is missing, the driver is not linked.
struct Driver(&'static str, &'static [&'static str]);

/// The drivers to link: first the drivers of virtual devices, and then the drivers of NICs. The list does not
/// have drivers that need a vendor's user-space libraries (mlx4, mlx5).
const DRIVERS: &[Driver] = &[
    Driver("net_af_packet", &[]),
    Driver("net_af_xdp", &["libxdp", "libbpf"]),
    Driver("net_memif", &[]),
    Driver("net_null", &[]),
    Driver("net_ring", &[]),
    Driver("net_tap", &[]),
    Driver("net_vhost", &[]),
    Driver("net_virtio", &[]),
    Driver("net_atlantic", &[]),
    Driver("net_bnxt", &[]),
    Driver("net_e1000", &[]),
    Driver("net_ena", &[]),
    Driver("net_enic", &[]),
    Driver("net_gve", &[]),
    Driver("net_i40e", &[]),
    Driver("net_iavf", &[]),
    Driver("net_ice", &[]),
    Driver("net_igc", &[]),
    Driver("net_ionic", &[]),
    Driver("net_ixgbe", &[]),
    Driver("net_vmxnet3", &[]),
];

/// The location of DPDK, and the flags for compiling with DPDK.
pub(crate) struct Dpdk {
    /// Flags for the C compiler and libclang.
    pub(crate) cflags: Vec<String>,
    archives: PathBuf,
}

/// Finds DPDK with pkg-config.
pub(crate) fn find(oldest: &str) -> Result<Dpdk, String> {
    let version = pkg_config(&["--modversion", "libdpdk"])?.ok_or_else(|| {
        "DPDK is not installed: apt-get install libdpdk-dev (or point PKG_CONFIG_PATH to libdpdk.pc)"
            .to_owned()
    })?;
    if pkg_config(&[&format!("--atleast-version={oldest}"), "libdpdk"])?.is_none() {
        return Err(format!("DPDK {version} is too old: {oldest} or later is needed (package libdpdk-dev)"));
    }
    let cflags = pkg_config(&["--cflags", "libdpdk"])?.ok_or(
        "pkg-config cannot say how to compile against libdpdk: apt-get install --reinstall libdpdk-dev",
    )?;
    let libdir = pkg_config(&["--variable=libdir", "libdpdk"])?.unwrap_or_default();
    let archives = PathBuf::from(libdir);
    if !archive(&archives, "eal").exists() {
        return Err(format!(
            "no librte_eal.a in {}: DPDK's static libraries are needed (package libdpdk-dev)",
            archives.display()
        ));
    }
    Ok(Dpdk { cflags: cflags.split_whitespace().map(str::to_owned).collect(), archives })
}

/// Prints the link instructions for cargo, and returns the names of the linked drivers.
pub(crate) fn link(dpdk: &Dpdk) -> Result<Vec<&'static str>, String> {
    println!("cargo:rustc-link-search=native={}", dpdk.archives.display());
    for name in LIBRARIES {
        if !archive(&dpdk.archives, name).exists() {
            return Err(format!("no librte_{name}.a in {}: reinstall libdpdk-dev", dpdk.archives.display()));
        }
        link_whole(name);
    }
    for name in SOME_LIBRARIES.iter().filter(|name| archive(&dpdk.archives, name).exists()) {
        link_whole(name);
    }
    for library in SYSTEM {
        link_system(library)?;
    }
    let mut linked = Vec::new();
    for Driver(name, needs) in DRIVERS {
        if !archive(&dpdk.archives, name).exists() || !needs.iter().all(|library| installed(library)) {
            continue;
        }
        for library in *needs {
            link_system(library)?;
        }
        link_whole(name);
        linked.push(*name);
    }
    for library in ["m", "dl", "pthread"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
    Ok(linked)
}

fn archive(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("librte_{name}.a"))
}

fn link_whole(name: &str) {
    println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=rte_{name}");
}

fn installed(library: &str) -> bool {
    matches!(pkg_config(&["--exists", library]), Ok(Some(_)))
}

fn link_system(library: &str) -> Result<(), String> {
    let package = match library {
        "numa" => "libnuma-dev".to_owned(),
        other => format!("{other}-dev"),
    };
    let flags = pkg_config(&["--libs", library])?
        .ok_or_else(|| format!("DPDK needs {library}, which is not installed: apt-get install {package}"))?;
    for flag in flags.split_whitespace() {
        if let Some(dir) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={dir}");
        } else if let Some(name) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib=dylib={name}");
        }
    }
    Ok(())
}

/// Returns the output of pkg-config, or `None` if pkg-config fails.
fn pkg_config(arguments: &[&str]) -> Result<Option<String>, String> {
    let program = std::env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("pkg-config cannot be run ({error}): apt-get install pkg-config"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(output.status.success().then_some(text))
}
