//! Finds the programs under test next to the running test. Programs that are not up to date are built first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::process::Run;
use super::{LabError, Result};
use crate::lab_error;

/// Maximum duration of a complete build on two cores, with a margin.
const BUILD_TIMEOUT: Duration = Duration::from_secs(1200);

/// Returns the path of `iwperf`, a program of the package `benches`.
///
/// # Errors
/// If `iwperf` does not build.
pub fn iwperf() -> Result<PathBuf> {
    // The selection gives the crates the features that they have as dependencies of this package, so that
    // cargo need not build them again.
    program("iwperf", &["--bin", "iwperf"], &["--package", "benches", "--package", "tests"])
}

/// Returns the path of `iwprobe`, a program of the package of this name.
///
/// # Errors
/// If `iwprobe` does not build.
pub fn iwprobe() -> Result<PathBuf> {
    program("iwprobe", &["--bin", "iwprobe"], &["--package", "iwprobe", "--package", "tests"])
}

/// Returns the path of `uwarp`, which runs unmodified programs with the library in its folder. The program
/// and the library are copies, since concurrent tests build both with other features.
///
/// # Errors
/// If `uwarp` does not build.
pub fn uwarp() -> Result<PathBuf> {
    static KEPT: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    let keep = || {
        // Cargo puts the library into the folder only if the library is named.
        let built = program("uwarp", &["--bin", "uwarp", "--lib"], &["--package", "uwarp"])?;
        let folder = target_folder()?.join("kept");
        std::fs::create_dir_all(&folder)?;
        for name in ["libuwarp.so", "uwarp"] {
            // Another process may use the previous copy.
            let draft = folder.join(format!("{name}.{}", std::process::id()));
            std::fs::copy(built.with_file_name(name), &draft)?;
            std::fs::rename(draft, folder.join(name))?;
        }
        Ok(folder.join("uwarp"))
    };
    KEPT.get_or_init(|| keep().map_err(|error: LabError| error.0)).clone().map_err(LabError)
}

/// Returns the path of a program of this package.
///
/// # Errors
/// If the program does not build.
pub fn own(name: &'static str) -> Result<PathBuf> {
    program(name, &["--bin", name], &["--package", "tests"])
}

/// Returns the path of iwprobe's target over libibverbs, which runs in siw's machine. The sources of the
/// target are in `tests/iwprobe/c`.
///
/// # Errors
/// If the target does not build.
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

/// Returns the reason why the target over libibverbs cannot be built (a missing header); `None` if it can be
/// built.
pub fn verbs_target_missing() -> Option<String> {
    let missing = |header: &&str| !Path::new("/usr/include").join(header).exists();
    let header = ["infiniband/verbs.h", "rdma/rdma_cma.h"].into_iter().find(missing)?;
    Some(format!("{header} is not installed (Debian's libibverbs-dev, librdmacm-dev)"))
}

/// Returns the folder of the programs in the caller's build profile.
fn target_folder() -> Result<PathBuf> {
    // The path of the test is `.../<profile>/deps/<test>-<hash>`.
    let test = std::env::current_exe()?;
    let folder = test.ancestors().find(|dir| dir.join("deps").is_dir());
    folder.map(Path::to_owned).ok_or_else(|| lab_error!("{} is in no cargo target folder", test.display()))
}

/// Returns the path of a program of the workspace, in the caller's build profile. Builds each program once in
/// each process.
///
/// `scripts/test` builds all crates with one selection of packages and features, and passes the selection in
/// `UWARP_BUILD`. With another selection, cargo would build the crates again. If the variable is not set,
/// `alone` selects the packages.
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
