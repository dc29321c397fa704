//! The origin of results: the version of iwperf, the time, the machine, and the command line.

use std::time::SystemTime;

use serde::Serialize;

use crate::machine::MachineInfo;

/// The origin of the results, which is written to every file of results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Provenance {
    /// Version of iwperf.
    pub(crate) version: &'static str,
    /// The time at which the results were written, in UTC (RFC 3339).
    pub(crate) time: String,
    /// Name of the host.
    pub(crate) host: String,
    /// Processor, memory and kernel.
    pub(crate) machine: MachineInfo,
    /// The command line, quoted for a shell.
    pub(crate) command_line: String,
}

impl Provenance {
    /// Describes the origin of results that this process writes now.
    pub(crate) fn here() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            time: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            host: host.trim().to_owned(),
            machine: MachineInfo::here(),
            command_line: command_line(std::env::args()),
        }
    }

    /// The provenance in one line, without the command line.
    pub(crate) fn line(&self) -> String {
        let Self { version, time, host, machine, .. } = self;
        format!("iwperf {version}, {time}, {host}: {machine}")
    }
}

fn command_line(words: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    let quoted = |word: String| {
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    // The first word is omitted, since it is a path of this machine.
    let words = words.skip(1).map(quoted);
    ["iwperf".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        let words = ["/usr/bin/iwperf", "local", "write-bw", "--eal", "-l 1 'x'", ""].map(String::from);
        assert_eq!(command_line(words.into_iter()), r"iwperf local write-bw --eal '-l 1 '\''x'\''' ''");
    }

    #[test]
    fn the_time_is_in_utc_and_whole_seconds() {
        let here = Provenance::here();
        assert!(here.time.ends_with('Z') && here.time.len() == "2026-01-01T00:00:00Z".len(), "{}", here.time);
        assert!(here.line().contains(&here.time) && !here.host.contains('\n'));
    }
}
