//! Breaks the code in a copy of the tree, one defect at a time, and sees that the simulator finds each.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tests::conformance::copy::Copy;
use tests::conformance::root;
use tests::edit::slice;
use tests::lab::{LabError, Result, Run};
use tests::lab_error;
use tests::sim::defect::{self, Defect, load};

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
    /// Only those that have not been found as they are.
    #[arg(long)]
    new: bool,
    /// Only so many, chosen by `--seed`, each by the run named with it; records nothing.
    #[arg(long, value_name = "COUNT", requires = "seed", conflicts_with = "new")]
    slice: Option<usize>,
    /// What a slice is chosen by: any text, such as a commit.
    #[arg(long)]
    seed: Option<String>,
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
    let defects = load(root()).map_err(LabError)?;
    let mut found = defect::found(root()).map_err(LabError)?;
    found.retain(|name, _| defects.iter().any(|defect| defect.name == *name));
    let mut chosen: Vec<_> = defects.iter().filter(|defect| defect.name.contains(&options.pattern)).collect();
    if let (Some(count), Some(seed)) = (options.slice, &options.seed) {
        chosen = chosen[slice(seed, count, chosen.len())].to_vec();
    }
    let is_stale = |defect: &Defect| defect.digest(root()).ok().as_ref() != found.get(&defect.name);
    chosen.retain(|defect| !options.new || is_stale(defect));
    let (copy, built) = Copy::beside(root())?;
    let mut missed = 0;
    for defect in &chosen {
        let whole = std::fs::read_to_string(root().join(&defect.file))?;
        let broken = defect.apply(&whole).map_err(LabError)?;
        copy.put(&defect.file, broken.as_bytes())?;
        let runs = if options.slice.is_some() { 0 } else { options.runs };
        let said = attempt(&copy, &built, defect, runs);
        copy.put(&defect.file, whole.as_bytes())?;
        let Said { named, many } = said.map_err(|error| lab_error!("{}: {error}", defect.name))?;
        if let Some(line) = named {
            println!("{}: {line}", defect.name);
            found.insert(defect.name.clone(), defect.digest(root()).map_err(LabError)?);
        } else {
            missed += 1;
            found.remove(&defect.name);
            println!("{}: not found by {}{}", defect.name, defect.found, many.unwrap_or_default());
        }
        // After each one: an interrupted run has not been for nothing.
        if options.slice.is_none() {
            defect::record(root(), &found).map_err(LabError)?;
        }
    }
    if options.slice.is_some() {
        let (verdict, hits) = (if missed == 0 { "ok" } else { "FAILED" }, chosen.len() - missed);
        println!("test result: {verdict}. {hits} passed; {missed} failed; 0 ignored");
    } else {
        println!("defects: {}, not found: {missed}", chosen.len());
    }
    Ok(missed)
}

/// What became of a defect.
struct Said {
    /// By the run that has to find it.
    named: Option<String>,
    /// Where that does not: by the first of many that does, and how many do.
    many: Option<String>,
}

/// What the simulator says of the run that has to find it; where that does not, of `runs` others.
fn attempt(copy: &Copy, built: &Path, defect: &Defect, runs: u64) -> Result<Said> {
    let said = Run::new("cargo")
        .args(["build", "--quiet", "-p", "tests", "--no-default-features", "--bin", "simulate"])
        .arg("--manifest-path")
        .arg(copy.path().join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", built)
        .spawn()?
        .finish(PATIENCE)?;
    if !said.status.success() {
        return Err(lab_error!("does not build: {}", said.text));
    }
    // Out of the place where the whole tree's is found.
    let program = copy.path().with_extension("simulate");
    std::fs::rename(built.join("debug/simulate"), &program)?;
    let (scenario, seed) = defect.run().map_err(LabError)?;
    let named = simulate(&program, &["--scenario", scenario.name, "--seed", &seed.to_string()])?;
    let first = format!("{} {seed} at ", scenario.name);
    if let Some(line) = named.lines().find(|line| line.starts_with(&first)) {
        return Ok(Said { named: Some(line.to_owned()), many: None });
    }
    if runs == 0 {
        return Ok(Said { named: None, many: None });
    }
    let many = simulate(&program, &["--runs", &runs.to_string()])?;
    let mut failures = many.lines().filter(|line| line.starts_with("scenario "));
    let first = failures.next().map(str::to_owned);
    let many = first.map(|first| {
        let count = 1 + failures.count();
        format!(", but by {count} of {runs} runs: name the first with it, {first}")
    });
    Ok(Said { named: None, many })
}

/// What the simulator that was built says.
fn simulate(program: &Path, arguments: &[&str]) -> Result<String> {
    // Captures of what fails: of no use here.
    let captures = program.with_extension("captures");
    std::fs::create_dir_all(&captures)?;
    let ran = Run::new("env")
        .arg(program)
        .args(arguments)
        .env("RUST_BACKTRACE", "0")
        .env("TMPDIR", &captures)
        .spawn()?
        .finish(PATIENCE)?;
    std::fs::remove_dir_all(&captures)?;
    Ok(ran.text)
}
