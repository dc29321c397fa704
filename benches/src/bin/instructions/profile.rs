//! A load under callgrind.

use std::path::Path;

use benches::callgrind::Callgrind;

use crate::Result;
use crate::counted::Side;
use crate::row::NamedWork;

/// What a load came to.
pub(crate) struct Profile(Callgrind);

/// What the load's process says: how often a side's work was done, and the processor it sees.
pub(crate) const CPU: &str = "cpu";

impl Profile {
    /// Runs `row`. With `only`, nothing outside that side's function is in the profile.
    ///
    /// # Errors
    /// Where valgrind does not start or the load fails.
    pub(crate) fn take(row: &NamedWork, only: Option<Side>, scratch: &Path) -> Result<Self> {
        let program = std::env::current_exe()?;
        let only = only.map(Side::function);
        Callgrind::run(&program, &["--run", row.name], only, &scratch.join(row.name)).map(Self)
    }

    /// What the processor can do, as the load saw it.
    pub(crate) fn cpu(&self) -> &str {
        self.0.said(CPU)
    }

    /// How often `side`'s work was done: FPDUs or acknowledgements.
    ///
    /// # Errors
    /// Where the load did not say.
    pub(crate) fn times(&self, side: Side) -> Result<u64> {
        let times = self.0.said(side.name()).parse().ok().filter(|times| *times > 0);
        times.ok_or_else(|| format!("the load did nothing that was {}", side.name()).into())
    }

    /// Instructions for each time.
    ///
    /// # Errors
    /// Where there are none.
    pub(crate) fn instructions(&self, side: Side) -> Result<f64> {
        Ok(self.0.instructions(side.function())? as f64 / self.times(side)? as f64)
    }

    /// Instructions by source file; what was inlined counts for the file that it is from.
    pub(crate) fn files(&self) -> Vec<(String, u64)> {
        self.0.files()
    }
}
