//! Runs a program under callgrind, and reads its profile.
//!
//! The process has only `PATH` in its environment, and a fixed working directory, so that its stack hardly
//! depends on the caller. Valgrind maps memory at fixed addresses, and presents every x86-64 CPU with AVX2 as
//! the same processor without AVX-512. So on every such machine, our crates and libc run the same code.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// A result in programs and tests, where any error type will do.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The cost of a piece of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Number of instructions.
    pub instructions: u64,
    /// Number of these instructions that lock the bus: atomic read-modify-write operations, and fences. Such
    /// an instruction waits for all earlier stores, which takes some 20 cycles.
    pub locked: u64,
}

impl std::ops::AddAssign for Executed {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.locked += other.locked;
    }
}

/// The profile of a program.
#[derive(Debug)]
pub struct Callgrind {
    said: BTreeMap<String, String>,
    profile: String,
}

/// Whether valgrind is installed.
pub fn is_there() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok()
}

impl Callgrind {
    /// Runs `program` and writes its profile to `file`. With `only`, instructions are counted only while the
    /// function whose name contains `only` runs.
    ///
    /// # Errors
    /// Fails if valgrind does not start, if the program fails, or if the profile cannot be read.
    pub fn run(program: &Path, args: &[&str], only: Option<&str>, file: &Path) -> Result<Self> {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--tool=callgrind", "--compress-strings=no", "--demangle=no"]);
        command.arg("--collect-bus=yes");
        command.arg(format!("--callgrind-out-file={}", file.display()));
        if let Some(function) = only {
            command.arg(format!("--toggle-collect=*{function}*"));
        }
        command.arg(program).args(args);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).current_dir("/");
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} under callgrind: {}", args.join(" "), words.trim()).into());
        }
        let said = String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(word, rest)| (word.to_owned(), rest.to_owned()))
            .collect();
        Ok(Self { said, profile: std::fs::read_to_string(file)? })
    }

    /// The rest of the line of the program's output that begins with `word`, or an empty text if no line
    /// begins with `word`.
    pub fn said(&self, word: &str) -> &str {
        self.said.get(word).map_or("", String::as_str)
    }

    /// Number of instructions of all calls of the function whose name contains `name`, including the
    /// functions that it calls.
    ///
    /// # Errors
    /// Fails if the profile has no such call.
    pub fn instructions(&self, name: &str) -> Result<u64> {
        self.cost(name).map(|cost| cost.instructions)
    }

    /// Cost of all calls of the function whose name contains `name`, including the functions that it calls.
    ///
    /// # Errors
    /// Fails if the profile has no such call.
    pub fn cost(&self, name: &str) -> Result<Executed> {
        match inclusive(&self.profile, name) {
            Executed { instructions: 0, .. } => Err(format!("the profile has no call of {name}").into()),
            all => Ok(all),
        }
    }

    /// Number of instructions by source file. An inlined instruction counts for the file that contains its
    /// source.
    pub fn files(&self) -> Vec<(String, u64)> {
        let mut files: Vec<_> = by_file(&self.profile).into_iter().collect();
        files.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        files
    }
}

/// Cost of all calls of the function whose name contains `name`, including the functions that it calls.
fn inclusive(profile: &str, name: &str) -> Executed {
    let (mut all, mut is_it) = (Executed::default(), false);
    let mut lines = profile.lines();
    while let Some(line) = lines.next() {
        if let Some(callee) = line.strip_prefix("cfn=") {
            is_it = callee.contains(name);
        } else if line.starts_with("calls=") {
            // The next line has the cost of all these calls.
            let calls = lines.next().map(cost).unwrap_or_default();
            all += if std::mem::take(&mut is_it) { calls } else { Executed::default() };
        }
    }
    all
}

/// Number of instructions by file, without the called functions.
fn by_file(profile: &str) -> BTreeMap<String, u64> {
    let (mut files, mut file) = (BTreeMap::new(), String::new());
    let mut lines = profile.lines();
    while let Some(line) = lines.next() {
        if let Some(path) = ["fl=", "fi=", "fe="].iter().find_map(|key| line.strip_prefix(key)) {
            file = short(path);
        } else if line.starts_with("calls=") {
            lines.next();
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            *files.entry(file.clone()).or_default() += cost(line).instructions;
        }
    }
    files
}

/// Parses the costs in a line, which begins with a position. Valgrind omits zeros at the end of a line.
fn cost(line: &str) -> Executed {
    let mut costs = line.split(' ').skip(1).map(|cost| cost.parse().unwrap_or(0));
    let mut next = || costs.next().unwrap_or(0);
    Executed { instructions: next(), locked: next() }
}

/// The path of a source file, beginning with the folder of its crate.
fn short(path: &str) -> String {
    let Some((before, within)) = path.rsplit_once("/src/") else { return path.to_owned() };
    let package = before.rsplit('/').next().unwrap_or(before);
    format!("{package}/src/{within}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
events: Ir Ge
fl=/a/benches/src/bin/instructions/counted.rs
fn=_ZN12instructions7counted13count_as_sentE
40 5
fi=/rust/core/src/hint.rs
482 1
cfi=/a/iwarp/src/engine/mod.rs
cfn=_ZN5iwarp6engine7poll_atE
calls=3 10
41 900 4

fl=/a/iwarp/src/engine/mod.rs
fn=_ZN5iwarp6engine7poll_atE
80 900 4

fl=/a/benches/src/bin/instructions/stream.rs
fn=main
7 20
cfn=_ZN12instructions7counted13count_as_sentE
calls=2 40
8 600 3
cfn=_ZN12instructions7counted17count_as_receivedE
calls=2 40
+1 50
cfn=_ZN12instructions7counted13count_as_sentE
calls=1 40
* 306 1
summary: 976 4
";

    #[test]
    fn calls_of_a_function_are_added_up_whoever_calls() {
        let cost = |instructions, locked| Executed { instructions, locked };
        assert_eq!(inclusive(PROFILE, "count_as_sent"), cost(906, 4));
        assert_eq!(inclusive(PROFILE, "count_as_received"), cost(50, 0));
        assert_eq!(inclusive(PROFILE, "count_as_acknowledged"), cost(0, 0));
    }

    #[test]
    fn a_file_has_what_was_inlined_from_it_and_not_what_it_calls() {
        let files = by_file(PROFILE);
        assert_eq!(files["core/src/hint.rs"], 1);
        assert_eq!(files["iwarp/src/engine/mod.rs"], 900);
        assert_eq!(files["benches/src/bin/instructions/counted.rs"], 5);
    }
}
