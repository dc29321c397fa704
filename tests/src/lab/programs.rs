//! Where the programs under test are: beside the test that asks, built first when they are not up to date.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use super::process::Run;
use super::{LabError, Result};
use crate::lab_error;

/// Compiling everything from nothing on two cores, with a margin.
const BUILD_TIMEOUT: Duration = Duration::from_secs(1200);

/// `iwperf`, of the package `benches`.
///
/// # Errors
/// When it does not build.
pub fn iwperf() -> Result<PathBuf> {
    static BUILT: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| program("benches", "iwperf").map_err(|error| error.0)).clone().map_err(LabError)
}

/// `iwprobe`, of the package of this name.
///
/// # Errors
/// When it does not build.
pub fn iwprobe() -> Result<PathBuf> {
    program("iwprobe", "iwprobe")
}

/// A program of this package.
///
/// # Errors
/// When it does not build.
pub fn own(name: &'static str) -> Result<PathBuf> {
    program("tests", name)
}

/// The path of a program of the workspace, in the profile of the caller.
fn program(package: &str, name: &str) -> Result<PathBuf> {
    // .../<profile>/deps/<test>-<hash>
    let test = std::env::current_exe()?;
    let folder = test.ancestors().find(|dir| dir.join("deps").is_dir());
    let folder = folder.ok_or_else(|| lab_error!("{} is in no cargo target folder", test.display()))?;
    let path = folder.join(name);
    let profile = match folder.file_name().and_then(|profile| profile.to_str()) {
        Some("release") => "release",
        _ => "dev",
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Run::new(PathBuf::from(cargo))
        .args(["build", "--quiet", "--profile", profile, "--package", package, "--bin", name])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")])
        .check(BUILD_TIMEOUT)?;
    if path.exists() {
        return Ok(path);
    }
    Err(lab_error!("{} was built but is not there", path.display()))
}
