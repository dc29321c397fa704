//! Prints statistics of the sources of a checkout.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tests::structure::records::{self, Instructions};
use tests::structure::ways::{self, Way};
use tests::structure::{Mentions, Structure};

/// Statistics of the sources, such as lines, the largest types, cycles of modules, and files on the path of a
/// packet
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
    for (root, modules) in &found.in_circles {
        println!("{:<40} {modules:>8}", format!("modules in circles, {root}"));
    }
    println!("{:<40} {:>8} {:>8} {:>8}", "largest types", "fields", "methods", "files");
    for size in found.types.iter().take(options.types) {
        println!("    {:<36} {:>8} {:>8} {:>8}", size.name, size.fields, size.methods, size.files);
    }
    println!("{:<40} {:>8} {:>8} {:>8}", "way", "functions", "files", "returns");
    for Way { name, functions, files, returns } in ways::ways(&options.root)? {
        println!("    {name:<36} {functions:>8} {files:>8} {returns:>8}");
    }
    println!("{:<40} {:>8} {:>8}", "instructions of an FPDU", "all", "locked");
    for Instructions { row, instructions, locked } in records::instructions(&options.root)? {
        println!("    {row:<36} {instructions:>8.0} {locked:>8.2}");
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| options.root.join("target"), PathBuf::from);
    match records::ci_times(&target)? {
        Some(times) => {
            println!("times of the last run of .ci/run");
            times.iter().for_each(|time| println!("    {time}"));
        }
        None => println!("times of the last run of .ci/run: none in {}", target.display()),
    }
    Ok(())
}
