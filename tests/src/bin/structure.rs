//! Prints statistics of the sources of a checkout.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tests::structure::{Mentions, Structure};

/// Numbers about the sources: lines, the largest types, matches on the phase of a connection, circles
#[derive(Parser)]
struct Options {
    /// The checkout
    #[arg(default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/.."))]
    root: PathBuf,
    /// Types to list
    #[arg(long, default_value_t = 10)]
    types: usize,
}

fn main() -> ExitCode {
    benches::lines::end_when_output_is_lost("structure");
    let options = Options::parse();
    let found = match Structure::of(&options.root) {
        Ok(found) => found,
        Err(error) => {
            eprintln!("structure: {error}");
            return ExitCode::FAILURE;
        }
    };
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
    ExitCode::SUCCESS
}
