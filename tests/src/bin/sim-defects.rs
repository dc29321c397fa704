//! Breaks the code in a copy of the tree, one defect at a time, and sees that the simulator finds each.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tests::conformance::copy::Copy;
use tests::conformance::root;
use tests::lab::{LabError, Result, Run};
use tests::lab_error;
use tests::sim::defect::{Defect, load};

/// How long a build, or the runs of one defect, may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Tries defects; ends with `defects: N, not found: M`.
#[derive(Parser)]
struct Options {
    /// Part of the names of those to try; all when it is not given.
    #[arg(default_value = "")]
    pattern: String,
    /// Runs for each that the run named with it does not find, the scenarios in turn.
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
        let said = attempt(&copy, &scratch, defect, options.runs);
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

/// What the simulator says of the run that has to find it; where that does not, of the first of many, and how many do.
fn attempt(copy: &Copy, scratch: &Path, defect: &Defect, runs: u64) -> Result<Option<String>> {
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
    let (scenario, seed) = defect.run().map_err(LabError)?;
    let named = simulate(scratch, &["--scenario", scenario.name, "--seed", &seed.to_string()])?;
    let first = format!("{} {seed} at ", scenario.name);
    if let Some(line) = named.lines().find(|line| line.starts_with(&first)) {
        return Ok(Some(line.to_owned()));
    }
    let many = simulate(scratch, &["--runs", &runs.to_string()])?;
    let mut failures = many.lines().filter(|line| line.starts_with("scenario "));
    let first = failures.next().map(str::to_owned);
    Ok(first.map(|first| {
        let count = 1 + failures.count();
        format!("not by {}, but by {count} of {runs} runs, {first}", defect.found)
    }))
}

/// What the simulator that was built says.
fn simulate(scratch: &Path, arguments: &[&str]) -> Result<String> {
    // Captures of what fails: of no use here.
    let captures = scratch.join("captures");
    std::fs::create_dir_all(&captures)?;
    let ran = Run::new("env")
        .arg(scratch.join("built/debug/simulate"))
        .args(arguments)
        .env("RUST_BACKTRACE", "0")
        .env("TMPDIR", &captures)
        .spawn()?
        .finish(PATIENCE)?;
    std::fs::remove_dir_all(&captures)?;
    Ok(ran.text)
}

/// Beside what cargo builds.
fn default_scratch() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| root().join("target")).join("sim-defects")
}
