//! Runs a load under callgrind.

use std::path::Path;

use benches::callgrind::Callgrind;

use crate::Result;
use crate::baseline::RowCost;
use crate::counted::Side;
use crate::row::NamedWork;

/// The profile of a load.
pub(crate) struct Profile(Callgrind);

/// First word of the line with which the load's process reports its processor.
pub(crate) const CPU: &str = "cpu";

impl Profile {
    /// Runs `row`. With `only`, instructions are counted only while that side's function runs.
    ///
    /// # Errors
    /// Fails if valgrind does not start or the load fails.
    pub(crate) fn take(row: &NamedWork, only: Option<Side>, scratch: &Path) -> Result<Self> {
        let program = std::env::current_exe()?;
        let only = only.map(Side::function);
        Callgrind::run(&program, &["--run", row.name], only, &scratch.join(row.name)).map(Self)
    }

    /// The features of the processor, as the load's process reported them.
    pub(crate) fn cpu(&self) -> &str {
        self.0.said(CPU)
    }

    /// The number of FPDUs or acknowledgements of `side`.
    ///
    /// # Errors
    /// Fails if the load did not report the number.
    pub(crate) fn times(&self, side: Side) -> Result<u64> {
        let times = self.0.said(side.name()).parse().ok().filter(|times| *times > 0);
        times.ok_or_else(|| format!("the load did not report its number of {}", side.name()).into())
    }

    /// The cost of each FPDU or acknowledgement.
    ///
    /// # Errors
    /// Fails if no FPDU or acknowledgement was counted.
    pub(crate) fn count(&self, side: Side) -> Result<RowCost> {
        let (all, times) = (self.0.cost(side.function())?, self.times(side)? as f64);
        Ok(RowCost { instructions: all.instructions as f64 / times, locked: all.locked as f64 / times })
    }

    /// Number of instructions by source file. An inlined instruction counts for the file that contains its
    /// source.
    pub(crate) fn files(&self) -> Vec<(String, u64)> {
        self.0.files()
    }
}
