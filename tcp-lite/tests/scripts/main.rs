//! Scripts in the style of packetdrill: each `*.pkt` in this folder is a test (README.md explains their
//! language).
//!
//! `cargo test -p tcp-lite --no-default-features --test scripts [PATTERN]`

mod machine;
mod peer;
mod runner;
mod runner_tests;
mod script;
mod segment;
mod settings;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut trials: Vec<Trial> = runner_tests::all();
    for path in scripts(&folder) {
        let name = path.strip_prefix(&folder).unwrap_or(&path).display().to_string();
        let title = name.trim_end_matches(".pkt").to_owned();
        trials.push(Trial::test(title, move || {
            let text = std::fs::read_to_string(&path)?;
            runner::run(&name, &text).map_err(Failed::from)
        }));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns the paths of all scripts, sorted.
fn scripts(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder of the scripts");
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("an entry of the folder").path()) {
        if path.is_dir() {
            found.extend(scripts(&path));
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            found.push(path);
        }
    }
    found.sort();
    found
}
