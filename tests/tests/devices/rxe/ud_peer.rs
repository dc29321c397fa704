//! `ud_peer.c`, and the counters of the process that runs it.

use std::time::{Duration, Instant};

use tests::iwperf::{START_TIMEOUT, TEST_TIMEOUT};
use tests::lab::{Process, Result, Run, Scratch, programs};
use tests::{ensure, lab_error};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/devices/rxe/ud_peer.c");

/// The program, compiled.
pub(super) struct Program {
    scratch: Scratch,
}

impl Program {
    pub(super) fn compile() -> Result<Self> {
        let program = Self { scratch: Scratch::new()? };
        let options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"];
        Run::new("cc").args(options).arg(program.path()).args([SOURCE, "-libverbs"]).check(TEST_TIMEOUT)?;
        Ok(program)
    }

    pub(super) fn path(&self) -> std::path::PathBuf {
        self.scratch.file("ud_peer")
    }
}

/// Returns what `uwarp status` reports about a running program, if it has opened a wire.
pub(super) fn status(program: &Process) -> Result<Option<serde_json::Value>> {
    let text = Run::new(programs::uwarp()?).args(["status", "--json"]).check(START_TIMEOUT)?;
    let mut status: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| lab_error!("{error}: {text}"))?;
    let listed = status["processes"].as_array_mut().map(std::mem::take);
    let is_own = |process: &serde_json::Value| process["pid"].as_u64() == Some(u64::from(program.id()));
    Ok(listed.into_iter().flatten().find(is_own))
}

/// The counters of UD of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) received: u64,
    pub(super) invalid: u64,
    pub(super) refused: u64,
    pub(super) not_ready: u64,
    pub(super) sent: u64,
    /// Messages that were not sent.
    pub(super) unsent: u64,
}

impl Counters {
    /// Reads the counters of a running program from `uwarp status`.
    pub(super) fn of(program: &Process) -> Result<Self> {
        let process = status(program)?.ok_or_else(|| lab_error!("no process {}", program.id()))?;
        let counters = process["engines"].get(0).map(|engine| &engine["counters"]);
        let counters = counters.ok_or_else(|| lab_error!("no engine in {process}"))?;
        let value = |name: &str| {
            let value = counters[format!("uwarp_{name}_total")].as_u64();
            value.ok_or_else(|| lab_error!("no counter {name} in {counters}"))
        };
        Ok(Self {
            received: value("rx_ud")?,
            invalid: value("rx_ud_invalid")?,
            refused: value("rx_ud_refused")?,
            not_ready: value("rx_ud_not_ready")?,
            sent: value("tx_ud")?,
            unsent: value("tx_ud_dropped")?,
        })
    }

    /// Waits until the counters of a program are as expected.
    pub(super) fn wait(program: &Process, expected: Self) -> Result<()> {
        let started = Instant::now();
        loop {
            let counters = Self::of(program)?;
            if counters == expected {
                return Ok(());
            }
            ensure!(started.elapsed() < START_TIMEOUT, "{counters:?}, and not {expected:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
