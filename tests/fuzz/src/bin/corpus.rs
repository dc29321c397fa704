//! Corpora between archives and files, and the record of what was run. `scripts/fuzz` calls it.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};

use fuzz::archive::{Corpus, pack, unpack};
use fuzz::target::{ALL, Target};

/// Characters of a content's hash that name an entry.
const NAME: usize = 12;

const USAGE: &str = "\
corpus list                                  the targets, with the octets of their longest inputs
corpus unpack TARGET FOLDER                  writes a target's archive as files
corpus pack TARGET FOLDER                    makes it of the files of a folder, and of its entries named by hand
corpus keep TARGET NAME FILE                 puts an input that broke a rule into it, under a name that says what it was
corpus run TARGET [FILE]                     runs it, or one file
corpus record TARGET CPU EXECUTIONS EDGES    adds a run to the record and prints it";

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["list"] => ALL.iter().for_each(|target| println!("{} {}", target.name, target.max_octets)),
        ["unpack", target, folder] => unpack_to(&named(target)?, Path::new(folder))?,
        ["pack", target, folder] => pack_from(&named(target)?, Path::new(folder))?,
        ["keep", target, name, file] => {
            let target = named(target)?;
            let mut corpus = read(&target)?;
            corpus.insert(name.to_owned(), fs::read(file)?);
            fs::write(archive(&target), pack(&corpus))?;
        }
        ["run", target] => run(&named(target)?, read(&named(target)?)?.into_values().collect()),
        ["run", target, file] => run(&named(target)?, vec![fs::read(file)?]),
        ["record", target, cpu_seconds, executions, edges] => {
            let [cpu_seconds, executions, edges] = [cpu_seconds, executions, edges].map(str::parse);
            let number = |parsed: Result<u64, _>| parsed.map_err(io::Error::other);
            record(&named(target)?, [number(cpu_seconds)?, number(executions)?], number(edges)?)?;
        }
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
    Ok(())
}

fn unpack_to(target: &Target, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, input) in read(target)? {
        fs::write(folder.join(name), input)?;
    }
    Ok(())
}

fn pack_from(target: &Target, folder: &Path) -> io::Result<()> {
    let mut corpus = read(target)?;
    corpus.retain(|name, _| is_kept(name));
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let input = fs::read(entry.path())?;
        if !is_kept(&name) && !corpus.values().any(|kept| *kept == input) {
            corpus.insert(name.chars().take(NAME).collect(), input);
        }
    }
    fs::write(archive(target), pack(&corpus))
}

fn run(target: &Target, inputs: Vec<Vec<u8>>) {
    let start = Instant::now();
    inputs.iter().for_each(|input| (target.run)(input));
    println!("{}: {} inputs in {:?}", target.name, inputs.len(), start.elapsed());
}

fn named(name: &str) -> io::Result<Target> {
    fuzz::named(name).ok_or_else(|| io::Error::other(format!("no target {name}")))
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn archive(target: &Target) -> PathBuf {
    folder().join("corpus").join(target.name)
}

fn read(target: &Target) -> io::Result<Corpus> {
    match fs::read(archive(target)) {
        Ok(octets) => unpack(&octets).ok_or_else(|| io::Error::other("no archive")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Corpus::new()),
        Err(error) => Err(error),
    }
}

/// Whether an entry stays whatever it covers: it was named by hand, not after its content.
fn is_kept(name: &str) -> bool {
    name.len() < NAME || !name.chars().all(|c| c.is_ascii_hexdigit())
}

const HEAD: &str = "\
# What was run

By `scripts/fuzz`, which adds to it: processor time and executions of all runs, and what the corpus reaches (edges of the
control flow in instrumented code) and holds.

| target | CPU seconds | executions | edges | inputs | octets |
|---|---|---|---|---|---|
";

/// Adds to a target's row of `RECORD.md`.
fn record(target: &Target, run: [u64; 2], edges: u64) -> io::Result<()> {
    let path = folder().join("RECORD.md");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let row = |name: &str| -> Option<Vec<u64>> {
        let row = text.lines().find(|line| line.starts_with(&format!("| {name} |")))?;
        Some(row.split('|').filter_map(|cell| cell.trim().parse().ok()).collect())
    };
    let mut out = String::from(HEAD);
    for other in ALL {
        let mut cells = match row(other.name) {
            Some(cells) if cells.len() == 5 => cells,
            Some(_) => {
                return Err(io::Error::other(format!("RECORD.md: the row of {} is broken", other.name)));
            }
            None => vec![0; 5],
        };
        if other.name == target.name {
            let corpus = read(other)?;
            let octets: usize = corpus.values().map(Vec::len).sum();
            let [cpu_seconds, executions] = run;
            cells = vec![
                cells[0] + cpu_seconds,
                cells[1] + executions,
                edges,
                corpus.len() as u64,
                octets as u64,
            ];
            println!(
                "{}: {cpu_seconds} CPU seconds, {executions} executions, {edges} edges, corpus {} inputs of {octets} octets; \
                 in all {} CPU seconds, {} executions",
                target.name, cells[3], cells[0], cells[1],
            );
        }
        let cells: Vec<String> = cells.iter().map(u64::to_string).collect();
        out += &format!("| {} | {} |\n", other.name, cells.join(" | "));
    }
    fs::write(path, out)
}
