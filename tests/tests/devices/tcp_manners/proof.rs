//! Proves that the behaviour of a case occurred, by the programs' output and Linux's counters.

use tests::lab::{Namespace, Result};
use tests::{ensure, lab_error, witness};

use super::START;

/// The source of a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// The counters of Linux's TCP and IP, by their names in `/proc/net/netstat` and `/proc/net/snmp`.
    Linux,
    /// Our stack's counters.
    Stack,
    /// The frames that we sent.
    Ours,
    /// The frames that Linux sent.
    Theirs,
}

/// A condition on a number or list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proof {
    /// The number has at least this value.
    AtLeast(Source, &'static str, u64),
    /// The number has at most this value.
    AtMost(Source, &'static str, u64),
    /// The list of option kinds contains this kind.
    Has(Source, &'static str, u8),
    /// The list of option kinds does not contain this kind.
    Lacks(Source, &'static str, u8),
}

/// All output about a stream.
pub(crate) struct Evidence {
    /// The output of our program.
    pub(crate) ours: String,
    /// The counters of Linux's TCP and IP.
    pub(crate) linux: String,
}

impl Evidence {
    /// Reads Linux's counters.
    pub(crate) fn new(ours: String, linux: &Namespace) -> Result<Self> {
        let linux = linux.run("cat").args(["/proc/net/netstat", "/proc/net/snmp"]).check(START)?;
        Ok(Self { ours, linux })
    }

    /// Checks all conditions.
    pub(crate) fn check(&self, proofs: &[Proof]) -> Result<()> {
        proofs.iter().try_for_each(|proof| self.check_one(*proof))
    }

    fn check_one(&self, proof: Proof) -> Result<()> {
        let (text, holds) = match proof {
            Proof::AtLeast(source, name, least) => {
                let text = self.word(source, name)?;
                let holds = number(&text)? >= least;
                (text, holds)
            }
            Proof::AtMost(source, name, most) => {
                let text = self.word(source, name)?;
                let holds = number(&text)? <= most;
                (text, holds)
            }
            Proof::Has(source, name, kind) => {
                let text = self.word(source, name)?;
                let holds = has(&text, kind);
                (text, holds)
            }
            Proof::Lacks(source, name, kind) => {
                let text = self.word(source, name)?;
                let holds = !has(&text, kind);
                (text, holds)
            }
        };
        ensure!(holds, "{proof:?}: it is '{text}'\n{}\n{}", self.ours, self.linux);
        Ok(())
    }

    fn word(&self, source: Source, name: &str) -> Result<String> {
        let found = match source {
            Source::Linux => linux_counter(&self.linux, name),
            Source::Stack => stack_counter(&self.ours, name),
            Source::Ours => Some(witness::word(&self.ours, "ours", name)?.to_owned()),
            Source::Theirs => Some(witness::word(&self.ours, "theirs", name)?.to_owned()),
        };
        found.ok_or_else(|| lab_error!("there is no {name} of {source:?}: {}", self.ours))
    }
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| lab_error!("'{text}' is no number"))
}

fn has(list: &str, kind: u8) -> bool {
    list.split(',').any(|word| word == kind.to_string())
}

/// Returns a counter of `/proc/net/netstat` or `/proc/net/snmp`. These files have a line of names and then a
/// line of values; both lines begin with the same word.
fn linux_counter(text: &str, name: &str) -> Option<String> {
    let lines: Vec<_> = text.lines().collect();
    lines.windows(2).find_map(|pair| {
        let at = pair[0].split_whitespace().position(|word| word == name)?;
        pair[1].split_whitespace().nth(at).map(str::to_owned)
    })
}

/// Returns a counter in the debug text of our stack's counters.
fn stack_counter(text: &str, name: &str) -> Option<String> {
    let mut words = text.split([' ', ',', '{', '}']).skip_while(|word| *word != format!("{name}:"));
    words.nth(1).map(str::to_owned)
}
