//! Converts corpora between archives and files, and records runs. `scripts/fuzz` runs this program.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};

use fuzz::archive::{Corpus, pack, unpack};
use fuzz::target::{ALL, Target};

/// Number of characters of the hash that names an entry.
const NAME: usize = 12;

const USAGE: &str = "\
corpus list                                  the targets, with the bytes of their longest inputs
corpus unpack TARGET FOLDER                  writes a target's archive as files
corpus pack TARGET FOLDER                    makes it of the files of a folder, and of its entries named by hand
corpus keep TARGET NAME FILE                 puts an input that broke a rule into it, under a name that says what it was
corpus run TARGET [FILE]                     runs it, or one file
corpus record TARGET BUILD CPU EDGES LOG...  adds a run, of the build `asan` or `plain`, to the record and prints it";

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["list"] => ALL.iter().for_each(|target| println!("{} {}", target.name, target.max_bytes)),
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
        ["record", target, build @ ("asan" | "plain"), cpu_seconds, edges, ref logs @ ..] => {
            let [cpu_seconds, edges] = [cpu_seconds, edges].map(str::parse);
            let number = |parsed: Result<u64, _>| parsed.map_err(io::Error::other);
            let growth = growth(logs)?;
            record(&named(target)?, build, number(cpu_seconds)?, number(edges)?, &growth)?;
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
        Ok(bytes) => unpack(&bytes).ok_or_else(|| io::Error::other("no archive")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Corpus::new()),
        Err(error) => Err(error),
    }
}

/// Whether an entry is always kept: its name is not a hash of its contents, so a person named it.
fn is_kept(name: &str) -> bool {
    name.len() < NAME || !name.chars().all(|c| c.is_ascii_hexdigit())
}

/// Pairs in the order of a run: a number of executions, and the number of edges that these executions
/// covered.
type Growth = Vec<(u64, u64)>;

/// Returns the growth of coverage in libFuzzer's logs of one run. The first log has the initial coverage.
fn growth(logs: &[&str]) -> io::Result<Growth> {
    let mut growth = Growth::new();
    for log in logs {
        let (before, reached) = growth.last().copied().unwrap_or_default();
        let mut has_begun = false;
        // The log contains panic messages of the code under test, which may hold any bytes.
        let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let executions = words.next().and_then(|word| word.strip_prefix('#')?.parse::<u64>().ok());
            let (Some(executions), Some(what), Some("cov:")) = (executions, words.next(), words.next())
            else {
                continue;
            };
            let Some(edges) = words.next().and_then(|word| word.parse::<u64>().ok()) else { continue };
            // Before INITED, libFuzzer replays the corpus.
            has_begun |= what == "INITED";
            if has_begun {
                growth.push((before + executions, edges.max(reached)));
            }
        }
    }
    Ok(growth)
}

const HEAD: &str = "\
# What was run

`scripts/fuzz` updates these tables. In the first table, each target has one row: the CPU time of all its runs, the number of inputs that
were executed, and how many of these executions were under AddressSanitizer. The column `edges` has the number of control-flow edges in
`dp`, `tcp-lite`, `iwarp` and smoltcp that the corpus of the target reaches, counted in a build without AddressSanitizer. The last two
columns have the size of the corpus.

| target | CPU seconds | executions | under AddressSanitizer | edges | inputs | bytes |
|---|---|---|---|---|---|---|
";

const GROWTH_HEAD: &str = "
## How coverage grew

Each run has one row, in the order of the runs. The columns on the right have the number of edges that the run had reached after it had
replayed the corpus (`at first`), and after each quarter of its executions. Edges of the builds `plain` and `asan` (AddressSanitizer) cannot
be compared.

| target | build | executions | at first | 25 % | 50 % | 75 % | 100 % |
|---|---|---|---|---|---|---|---|
";

/// Updates a target's row in `RECORD.md`, and adds a row for the run.
fn record(target: &Target, build: &str, cpu_seconds: u64, edges: u64, growth: &Growth) -> io::Result<()> {
    let path = folder().join("RECORD.md");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let (sums, runs) = text.split_once(GROWTH_HEAD).unwrap_or((&text, ""));
    let row = |name: &str| -> Option<Vec<u64>> {
        let row = sums.lines().find(|line| line.starts_with(&format!("| {name} |")))?;
        Some(row.split('|').filter_map(|cell| cell.trim().parse().ok()).collect())
    };
    let executions = growth.last().map_or(0, |(executions, _)| *executions);
    let sanitized = if build == "asan" { executions } else { 0 };
    let mut out = String::from(HEAD);
    for other in ALL {
        let mut cells = match row(other.name) {
            Some(cells) if cells.len() == 6 => cells,
            Some(_) => {
                return Err(io::Error::other(format!("RECORD.md: the row of {} is broken", other.name)));
            }
            None => vec![0; 6],
        };
        if other.name == target.name {
            let corpus = read(other)?;
            let bytes: usize = corpus.values().map(Vec::len).sum();
            cells = vec![
                cells[0] + cpu_seconds,
                cells[1] + executions,
                cells[2] + sanitized,
                // The checks that the sanitizer inserts also count as edges, so edge counts of different
                // builds cannot be compared.
                if build == "asan" { cells[3] } else { edges },
                corpus.len() as u64,
                bytes as u64,
            ];
            println!(
                "{}: {cpu_seconds} CPU seconds, {executions} executions ({build}), {edges} edges, corpus {} inputs of {bytes} \
                 bytes; in all {} CPU seconds, {} executions",
                target.name, cells[4], cells[0], cells[1],
            );
        }
        let cells: Vec<String> = cells.iter().map(u64::to_string).collect();
        out += &format!("| {} | {} |\n", other.name, cells.join(" | "));
    }
    out += GROWTH_HEAD;
    out += runs;
    if let Some((_, first)) = growth.first() {
        let reached = |quarter: u64| {
            let by_then = growth.iter().take_while(|(at, _)| *at * 4 <= executions * quarter);
            by_then.last().map_or(*first, |(_, edges)| *edges)
        };
        let edges: Vec<String> = (1..=4).map(|quarter| reached(quarter).to_string()).collect();
        out += &format!("| {} | {build} | {executions} | {first} | {} |\n", target.name, edges.join(" | "));
    }
    fs::write(path, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each run of the fuzzer writes the record again with these heads, and looks for the second head.
    #[test]
    fn the_record_has_both_heads() {
        let record = fs::read_to_string(folder().join("RECORD.md")).unwrap();
        assert!(record.starts_with(HEAD));
        assert!(record.contains(GROWTH_HEAD));
    }
}
