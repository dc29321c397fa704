//! `instructions`: the cost of sending and receiving an FPDU, and of processing an acknowledgement. Callgrind
//! counts the instructions, and the program compares the counts with a committed baseline.
//! `scripts/instructions` builds and runs the program.
//!
//! Instruction counts are repeatable, unlike times: there is one thread, a wire in memory, virtual time, and
//! a fixed seed and number of messages. Setup, slow start and checks of the data are not counted.
//!
//! | file | what |
//! |---|---|
//! | `row.rs` | the table of loads |
//! | `stream.rs` | FPDUs between two engines |
//! | `ack.rs` | acknowledgements between two stacks |
//! | `counted.rs` | the functions whose instructions are counted |
//! | `profile.rs` | a load under callgrind (`benches::callgrind`) |
//! | `baseline.rs` | the committed counts, and the comparison |
#![forbid(unsafe_code)]

mod ack;
mod baseline;
mod counted;
mod profile;
mod row;
mod stream;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use benches::callgrind::Result;
use clap::Parser;

use baseline::{Baseline, RECORD, RowCost, Verdict};
use counted::Side;
use profile::{CPU, Profile};
use row::{Limit, NamedWork, ROWS, Work};

/// Counts the instructions of each FPDU and acknowledgement, and compares them with the baseline.
#[derive(Parser, Debug)]
#[command(name = "instructions")]
struct Args {
    /// Run only loads whose names contain this text.
    pattern: Option<String>,
    /// Record the present counts as the baseline.
    #[arg(long)]
    record: bool,
    /// List the instructions of this load by source file.
    #[arg(long, value_name = "LOAD", conflicts_with_all = ["pattern", "record"])]
    explain: Option<String>,
    /// Run this load (used under callgrind).
    #[arg(long, value_name = "LOAD", hide = true)]
    run: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // With `--run`, the process executes only the load, so that only the load is counted.
    if args.run.is_none() {
        benches::lines::end_when_output_is_lost("instructions");
    }
    let done = match (&args.run, &args.explain) {
        (Some(name), _) => named(name).and_then(run).map(|()| true),
        (None, Some(name)) => named(name).and_then(explain).map(|()| true),
        (None, None) => compare(args.pattern.as_deref().unwrap_or_default(), args.record),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn named(name: &str) -> Result<&'static NamedWork> {
    let names = || ROWS.map(|row| row.name).join(", ");
    NamedWork::named(name).ok_or_else(|| format!("no load {name}; there are: {}", names()).into())
}

/// Runs a load, and prints the number of FPDUs or acknowledgements of each side.
fn run(row: &NamedWork) -> Result<()> {
    match row.work {
        Work::Stream(load) => {
            for (side, times) in row.sides().iter().zip(stream::run(load)?) {
                println!("{} {times}", side.name());
            }
        }
        Work::Acks { holes } => println!("{} {}", Side::Acknowledged.name(), ack::run(holes)?),
    }
    println!("{CPU} {}", cpu());
    Ok(())
}

/// The features of this processor on which the code for copies and CRCs depends.
#[cfg(target_arch = "x86_64")]
fn cpu() -> String {
    let features = [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("vpclmulqdq", is_x86_feature_detected!("vpclmulqdq")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
    ];
    let present: Vec<&str> = features.iter().filter(|(_, here)| *here).map(|(name, _)| *name).collect();
    format!("x86_64 {}", present.join(" "))
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu() -> String {
    std::env::consts::ARCH.to_owned()
}

/// Counts the loads whose names contain `pattern`, and compares the counts with the baseline or records them.
/// Prints a summary like that of `cargo test`, so that scripts can add up the results. Returns true if no row
/// fails. Without valgrind nothing is counted, and the result is true unless the counts were to be recorded.
fn compare(pattern: &str, record: bool) -> Result<bool> {
    let rows: Vec<&NamedWork> = ROWS.iter().filter(|row| row.name.contains(pattern)).collect();
    if !benches::callgrind::is_there() {
        println!("valgrind is missing, nothing counted: run scripts/install test");
        summary(0, 0, rows.iter().map(|row| row.sides().len()).sum());
        return Ok(!record);
    }
    let old = match std::fs::read_to_string(baseline::FILE) {
        Ok(text) => Baseline::parse(&text)?,
        Err(_) if record => Baseline::default(),
        Err(error) => return Err(format!("{}: {error}", baseline::FILE).into()),
    };
    let mut now = Baseline::default();
    now.machine.tools = tools();
    let scratch = Scratch::new()?;
    println!(
        "{:<32} {:>10} {:>10} {:>9} {:>8} {:>8} {:>8} {:>8}",
        "instructions for each", "baseline", "now", "change", "at most", "locked", "change", "at most"
    );
    for row in rows {
        let profile = Profile::take(row, None, &scratch.0)?;
        now.machine.cpu = profile.cpu().to_owned();
        for &side in row.sides() {
            let (name, count) = (row.full_name(side), profile.count(side)?);
            println!("{}", line(&name, old.rows.get(&name), count));
            now.rows.insert(name, count);
        }
    }
    now.leave(&baseline::last_run())?;
    if record {
        return write(&old, now, pattern).map(|()| true);
    }
    Ok(print_comparison(&old, &now))
}

/// A line of the table. The line has a mark if the count exceeds its limit.
fn line(name: &str, before: Option<&RowCost>, now: RowCost) -> String {
    let limit = Limit::of(name);
    let most = |limit: Option<f64>, now: f64| match limit {
        Some(limit) => format!("{}{limit}", if now > limit { "> " } else { "" }),
        None => String::new(),
    };
    let [instructions, change, locked] = match before {
        Some(before) => [
            format!("{:.1}", before.instructions),
            format!("{:+.2} %", (now.instructions / before.instructions - 1.0) * 100.0),
            format!("{:+.2}", now.locked - before.locked),
        ],
        None => ["-".into(), "-".into(), "-".into()],
    };
    format!(
        "{name:<32} {instructions:>10} {:>10.1} {change:>9} {:>8} {:>8.2} {locked:>8} {:>8}",
        now.instructions,
        most(limit.instructions, now.instructions),
        now.locked,
        most(limit.locked, now.locked),
    )
}

/// Compares the counts, and prints the failures and a summary. Returns true if no row fails. On another
/// processor than the baseline's, nothing is compared.
fn print_comparison(old: &Baseline, now: &Baseline) -> bool {
    let Some(tolerance) = old.tolerance(&now.machine) else {
        println!("this processor ({}) is not the baseline's ({})", now.machine.cpu, old.machine.cpu);
        summary(0, 0, now.rows.len());
        return true;
    };
    if now.machine.tools != old.machine.tools {
        println!("recorded with: {}\nnow:           {}", old.machine.tools, now.machine.tools);
        println!("so that {tolerance} % are allowed");
    }
    let mut failed = 0;
    for (name, count) in &now.rows {
        let with_baseline = old.compare(name, *count, Limit::of(name), tolerance);
        let verdicts = [with_baseline, now.compare_same(name, *count)];
        let words: Vec<_> = verdicts.into_iter().filter_map(Verdict::words).collect();
        words.iter().for_each(|words| println!("FAILED {words}"));
        failed += usize::from(!words.is_empty());
    }
    summary(now.rows.len() - failed, failed, 0);
    failed == 0
}

fn summary(passed: usize, failed: usize, ignored: usize) {
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored");
}

/// Writes the baseline. If a pattern is given, the rows of other loads stay, and recording fails if these
/// rows come from another machine.
fn write(old: &Baseline, now: Baseline, pattern: &str) -> Result<()> {
    let mut new = Baseline { machine: now.machine, rows: Default::default() };
    if !pattern.is_empty() {
        if new.machine != old.machine {
            return Err(format!(
                "another compiler, C library, valgrind or processor: record all rows: {RECORD}"
            )
            .into());
        }
        new.rows.clone_from(&old.rows);
    }
    new.rows.extend(now.rows);
    std::fs::write(baseline::FILE, new.text())?;
    println!("recorded in {}", baseline::FILE);
    Ok(())
}

/// Versions of compiler, C library and valgrind.
fn tools() -> String {
    let said = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().ok();
        output.map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let [rustc, libc] = [said("rustc", "--version"), said("getconf", "GNU_LIBC_VERSION")];
    format!("{rustc}, {libc}, {}", said("valgrind", "--version"))
}

/// Prints the source files with the instructions of each side of a load.
fn explain(row: &NamedWork) -> Result<()> {
    let scratch = Scratch::new()?;
    for &side in row.sides() {
        let profile = Profile::take(row, Some(side), &scratch.0)?;
        let (files, times) = (profile.files(), profile.times(side)? as f64);
        let all: u64 = files.iter().map(|(_, cost)| cost).sum();
        println!("{}: {:.1} instructions for each", row.full_name(side), all as f64 / times);
        for (file, cost) in files.iter().take(300) {
            println!("{:10.1} {:5.1} %  {file}", *cost as f64 / times, 100.0 * *cost as f64 / all as f64);
        }
    }
    Ok(())
}

/// A folder for profiles, which is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let name = format!("uwarp-instructions-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The system cleans up the files that cannot be removed here.
        let _ = std::fs::remove_dir_all(Path::new(&self.0));
    }
}
