//! Prints statistics of the sources of a checkout.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tests::layout::floors::Broken;
use tests::structure::records::{self, Instructions};
use tests::structure::ways::{self, Way};
use tests::structure::{Mentions, Structure};

/// Statistics of the sources, such as lines, the largest types, uses of higher floors, cycles of modules, and
/// files on the path of a packet
#[derive(Parser)]
struct Options {
    /// The checkout
    #[arg(default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/.."))]
    root: PathBuf,
    /// Number of types to list
    #[arg(long, default_value_t = 10)]
    types: usize,
}

fn main() -> ExitCode {
    benches::lines::end_when_output_is_lost("structure");
    let options = Options::parse();
    match print(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("structure: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(options: &Options) -> std::io::Result<()> {
    let found = Structure::of(&options.root)?;
    for (part, lines) in &found.lines {
        println!("{:<40} {lines:>8}", format!("lines of {part:?}").to_lowercase());
    }
    let counts: [(&str, Mentions); 3] = [
        ("matches on a connection's phase", found.phase_matches),
        ("mentions of ib_semantics", found.ib_semantics),
        ("mentions of sending without a copy", found.zero_copy),
    ];
    for (what, Mentions { lines, files }) in counts {
        println!("{what:<40} {lines:>8} in {files} files");
    }
    print_layout(&found);
    println!("{:<40} {:>8} {:>8} {:>8}", "largest types", "fields", "methods", "files");
    for size in found.types.iter().take(options.types) {
        println!("    {:<36} {:>8} {:>8} {:>8}", size.name, size.fields, size.methods, size.files);
    }
    println!("{:<40} {:>8} {:>8} {:>8}", "way (tests/ways)", "functions", "files", "returns");
    match ways::ways(&options.root)? {
        Some(ways) => ways.iter().for_each(|Way { name, functions, files, returns }| {
            println!("    {name:<36} {functions:>8} {files:>8} {returns:>8}");
        }),
        None => println!("    none: the checkout has no list"),
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| options.root.join("target"), PathBuf::from);
    print_instructions(records::baseline(&options.root)?, records::counted(&target)?);
    println!("times of the last run of .ci/run");
    match records::ci_times(&target)? {
        Some(times) => times.iter().for_each(|time| println!("    {time}")),
        None => println!("    not run"),
    }
    Ok(())
}

/// Prints the cycles of modules, and what breaks the rules of the floors.
fn print_layout(found: &Structure) {
    let arrows = |broken: &Broken| broken.back.len();
    let back: usize = found.floors.iter().map(|(_, broken)| arrows(broken)).sum();
    println!("{:<40} {back:>8}", "arrows back (uses of a higher floor)");
    for (root, broken) in found.floors.iter().filter(|(_, broken)| arrows(broken) > 0) {
        for ((from, to), uses) in &broken.back {
            println!("    {:<36} {uses:>8} uses in {root}", format!("{from} -> {to}"));
        }
    }
    let without = |broken: &Broken| broken.without_floor.len();
    let homeless: usize = found.floors.iter().map(|(_, broken)| without(broken)).sum();
    println!("{:<40} {homeless:>8}", "modules on no floor of their crate");
    for (root, broken) in found.floors.iter().filter(|(_, broken)| without(broken) > 0) {
        println!("    {root:<36} {:>8}", without(broken));
    }
    let all: usize = found.circles.iter().map(|(_, circles)| circles.len()).sum();
    println!("{:<40} {all:>8}", "circles of modules");
    for (root, circles) in &found.circles {
        let sizes: Vec<String> = circles.iter().map(usize::to_string).collect();
        println!("    {root:<36} {:>8} of {} modules", circles.len(), sizes.join(", "));
    }
}

/// Prints the baseline, and beside it the last counts of `scripts/instructions`, if there are any.
fn print_instructions(baseline: Option<Vec<Instructions>>, counted: Option<Vec<Instructions>>) {
    println!("instructions of an FPDU: the recorded baseline, and the last run of scripts/instructions");
    let Some(baseline) = baseline else { return println!("    none: the checkout has no baseline") };
    println!("    {:<36} {:>8} {:>8} {:>10} {:>8}", "", "baseline", "locked", "last run", "locked");
    let counted = counted.unwrap_or_default();
    for Instructions { row, instructions, locked } in &baseline {
        let now = match counted.iter().find(|counted| counted.row == *row) {
            Some(now) => format!("{:>10.0} {:>8.2}", now.instructions, now.locked),
            None => format!("{:>10}", "not run"),
        };
        println!("    {row:<36} {instructions:>8.0} {locked:>8.2} {now}");
    }
}
