//! Finds the programs under test beside the running test, and builds them first if they are not up to date.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::process::Run;
use super::{LabError, Result};
use crate::lab_error;

/// Time limit of a complete build on two cores, with a margin.
const BUILD_TIMEOUT: Duration = Duration::from_secs(1200);

/// `iwperf`, of the package `benches`.
///
/// # Errors
/// If it does not build.
pub fn iwperf() -> Result<PathBuf> {
    // With the features that the crates have as dependencies of this package: they are built already.
    program("iwperf", &["--bin", "iwperf"], &["--package", "benches", "--package", "tests"])
}

/// `iwprobe`, of the package of this name.
///
/// # Errors
/// If it does not build.
pub fn iwprobe() -> Result<PathBuf> {
    program("iwprobe", &["--bin", "iwprobe"], &["--package", "iwprobe", "--package", "tests"])
}

/// `uwarp`, which runs unmodified programs with the library in its folder. Returns copies of both, since
/// concurrent tests build them with other features.
///
/// # Errors
/// If it does not build.
pub fn uwarp() -> Result<PathBuf> {
    static KEPT: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    let keep = || {
        // Cargo leaves the library there only if it is asked for.
        let built = program("uwarp", &["--bin", "uwarp", "--lib"], &["--package", "uwarp"])?;
        let folder = target_folder()?.join("kept");
        std::fs::create_dir_all(&folder)?;
        for name in ["libuwarp.so", "uwarp"] {
            // Another process may use the last copy.
            let draft = folder.join(format!("{name}.{}", std::process::id()));
            std::fs::copy(built.with_file_name(name), &draft)?;
            std::fs::rename(draft, folder.join(name))?;
        }
        Ok(folder.join("uwarp"))
    };
    KEPT.get_or_init(|| keep().map_err(|error: LabError| error.0)).clone().map_err(LabError)
}

/// A program of this package.
///
/// # Errors
/// If it does not build.
pub fn own(name: &'static str) -> Result<PathBuf> {
    program(name, &["--bin", name], &["--package", "tests"])
}

/// iwprobe's target over libibverbs, which runs in siw's machine: built from `tests/iwprobe/c`.
///
/// # Errors
/// If it does not build.
pub fn verbs_target() -> Result<PathBuf> {
    static BUILT: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let folder = target_folder()?;
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/iwprobe/c");
        let out = format!("OUT={}", folder.display());
        Run::new("make").args(["--silent", "-C", sources, &out]).check(BUILD_TIMEOUT)?;
        Ok(folder.join("verbs-target"))
    };
    BUILT.get_or_init(|| build().map_err(|error: LabError| error.0)).clone().map_err(LabError)
}

/// Why it cannot be built: missing headers.
pub fn verbs_target_missing() -> Option<String> {
    let missing = |header: &&str| !Path::new("/usr/include").join(header).exists();
    let header = ["infiniband/verbs.h", "rdma/rdma_cma.h"].into_iter().find(missing)?;
    Some(format!("{header} is not installed (Debian's libibverbs-dev, librdmacm-dev)"))
}

/// The folder of the programs in the caller's build profile.
fn target_folder() -> Result<PathBuf> {
    // .../<profile>/deps/<test>-<hash>
    let test = std::env::current_exe()?;
    let folder = test.ancestors().find(|dir| dir.join("deps").is_dir());
    folder.map(Path::to_owned).ok_or_else(|| lab_error!("{} is in no cargo target folder", test.display()))
}

/// The path of a program of the workspace, in the caller's build profile. Builds it once for each process.
///
/// `scripts/test` builds all crates with one selection of packages and features, in `UWARP_BUILD`: with any
/// other, cargo would build them again. Without it, `alone` selects the packages.
fn program(name: &'static str, targets: &[&str], alone: &[&str]) -> Result<PathBuf> {
    static BUILT: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(name) {
        return Ok(path.clone());
    }
    let all = std::env::var("UWARP_BUILD").unwrap_or_default();
    let selection = if all.is_empty() { alone.to_vec() } else { all.split(' ').collect() };
    let path = build(name, targets, &selection)?;
    built.insert(name, path.clone());
    Ok(path)
}

fn build(name: &str, targets: &[&str], selection: &[&str]) -> Result<PathBuf> {
    let folder = target_folder()?;
    let path = folder.join(name);
    let profile = match folder.file_name().and_then(|profile| profile.to_str()) {
        Some("release") => "release",
        _ => "dev",
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Run::new(PathBuf::from(cargo))
        .args(["build", "--quiet", "--profile", profile])
        .args(selection)
        .args(targets)
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")])
        .check(BUILD_TIMEOUT)?;
    if path.exists() {
        return Ok(path);
    }
    Err(lab_error!("{} was built but is missing", path.display()))
}
