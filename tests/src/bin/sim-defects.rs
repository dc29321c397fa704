//! Breaks the code in a copy of the tree, one defect at a time, and sees that the simulator finds each.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tests::conformance::copy::Copy;
use tests::conformance::root;
use tests::lab::{LabError, Result, Run};
use tests::lab_error;
use tests::sim::defect::load;

/// How long a build, or the runs of one defect, may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Tries defects; ends with `defects: N, not found: M`.
#[derive(Parser)]
struct Options {
    /// Part of the names of those to try; all when it is not given.
    #[arg(default_value = "")]
    pattern: String,
    /// Runs for each, the scenarios in turn.
    #[arg(long, default_value_t = 2000)]
    runs: u64,
    /// Where the copy and what is built from it are kept.
    #[arg(long)]
    scratch: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim-defects: {error}");
            ExitCode::from(2)
        }
    }
}

/// How many were not found.
fn run(options: &Options) -> Result<usize> {
    let scratch = options.scratch.clone().unwrap_or_else(default_scratch);
    let defects = load(root()).map_err(LabError)?;
    let chosen: Vec<_> = defects.iter().filter(|defect| defect.name.contains(&options.pattern)).collect();
    let copy = Copy::of(root(), scratch.join("tree"))?;
    let mut missed = 0;
    for defect in &chosen {
        let whole = std::fs::read_to_string(root().join(&defect.file))?;
        let broken = defect.apply(&whole).map_err(LabError)?;
        copy.put(&defect.file, broken.as_bytes())?;
        let said = attempt(&copy, &scratch, options.runs);
        copy.put(&defect.file, whole.as_bytes())?;
        match said.map_err(|error| lab_error!("{}: {error}", defect.name))? {
            Some(found) => println!("{}: {found}", defect.name),
            None => {
                missed += 1;
                println!("{}: NOT FOUND in {} runs", defect.name, options.runs);
            }
        }
    }
    println!("defects: {}, not found: {missed}", chosen.len());
    Ok(missed)
}

/// What the simulator says of the first run that fails, and how many do.
fn attempt(copy: &Copy, scratch: &std::path::Path, runs: u64) -> Result<Option<String>> {
    let built = scratch.join("built");
    let said = Run::new("cargo")
        .args([
            "build",
            "--quiet",
            "-p",
            "tests",
            "--no-default-features",
            "--bin",
            "simulate",
            "--manifest-path",
        ])
        .arg(copy.path().join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", &built)
        .spawn()?
        .finish(PATIENCE)?;
    if !said.status.success() {
        return Err(lab_error!("does not build: {}", said.text));
    }
    // Captures of what fails: of no use here.
    let captures = scratch.join("captures");
    std::fs::create_dir_all(&captures)?;
    let ran = Run::new("env")
        .arg(built.join("debug/simulate"))
        .arg("--runs")
        .arg(runs.to_string())
        .env("RUST_BACKTRACE", "0")
        .env("TMPDIR", &captures)
        .spawn()?
        .finish(PATIENCE)?;
    let mut failures = ran.text.lines().filter(|line| line.starts_with("scenario "));
    let first = failures.next().map(str::to_owned);
    std::fs::remove_dir_all(&captures)?;
    Ok(first.map(|first| format!("{} of {runs} runs, {first}", 1 + failures.count())))
}

/// Beside what cargo builds.
fn default_scratch() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| root().join("target")).join("sim-defects")
}
