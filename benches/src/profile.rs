//! `--profile`: the cost of an FPDU by layer.
//!
//! [`dp::profile`] takes the time stamps. This module starts and stops the profile around a run. It divides
//! the cycles by the number of FPDUs that this side sent and received in the run, and prints the results. The
//! cycles of idle polls are not divided, and only JSON contains them.

use dp::profile::{self, Layer, Profile};
use serde::Serialize;

use crate::endpoint::Endpoint;
use crate::errors::Error;

/// The profile of one side's thread in one run.
#[derive(Clone, Debug, Default)]
pub struct Profiled {
    /// Cycles by layer.
    pub profile: Profile,
    /// Number of FPDUs sent and received.
    pub fpdus: u64,
}

impl Profiled {
    /// Adds up the profiles of two threads.
    pub fn merged(self, other: Self) -> Self {
        Self { profile: self.profile.merged(&other.profile), fpdus: self.fpdus + other.fpdus }
    }
}

/// A running profile.
#[derive(Debug)]
pub struct Profiling {
    fpdus_before: u64,
}

/// Checks that this program can profile.
///
/// # Errors
/// Returns [`Error::Usage`] with the command that builds a profiling program.
pub fn check_available() -> Result<(), Error> {
    if profile::AVAILABLE {
        return Ok(());
    }
    let build = "cargo build --release -p benches --features profile";
    Err(Error::Usage(format!("--profile: this iwperf was built without profiling: {build}")))
}

impl Profiling {
    /// Starts profiling in the calling thread, if `end` is to be profiled.
    pub fn start(end: &Endpoint) -> Option<Self> {
        end.profile.then(|| {
            let profiling = Self { fpdus_before: fpdus(end) };
            profile::start();
            profiling
        })
    }

    /// Stops profiling. Returns the profile since the start.
    pub fn stop(self, end: &Endpoint) -> Profiled {
        let profile = profile::stop();
        Profiled { profile, fpdus: fpdus(end) - self.fpdus_before }
    }
}

fn fpdus(end: &Endpoint) -> u64 {
    let counters = end.driver.counters();
    counters.tx_fpdus + counters.rx_fpdus
}

/// A [`Profiled`] as figures, for a table and for JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Breakdown {
    /// Number of FPDUs sent and received.
    pub fpdus: u64,
    /// Cycles per FPDU, summed over all layers.
    pub cycles_per_fpdu: f64,
    /// Nanoseconds per FPDU, summed over all layers.
    pub ns_per_fpdu: f64,
    /// Layers that have cycles, in the order in which a packet passes them.
    pub layers: Vec<LayerCost>,
    /// Cost of the time stamps, which is included in the cost of the layers.
    pub stamps: StampCost,
    /// Cycles of idle polls, which are not included in the cost of the layers.
    pub idle_cycles: u64,
}

/// The cost of one layer.
#[derive(Clone, Debug, Serialize)]
pub struct LayerCost {
    /// Name of the layer.
    pub layer: &'static str,
    /// Exclusive cycles per FPDU: without the layers that this layer called.
    pub cycles_per_fpdu: f64,
    /// Exclusive nanoseconds per FPDU.
    pub ns_per_fpdu: f64,
    /// This layer's share of the sum of all layers.
    pub share: f64,
    /// How often the layer was entered per FPDU.
    pub scopes_per_fpdu: f64,
}

/// The cost of measuring.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StampCost {
    /// Cost of an empty scope, which has two time stamps.
    pub cycles_per_scope: f64,
    /// Cost of all scopes of an FPDU.
    pub cycles_per_fpdu: f64,
}

impl Breakdown {
    /// Calculates the figures for a machine with `hz` cycles per second, on which an empty scope takes
    /// `scope_cycles`.
    pub fn new(profiled: &Profiled, hz: u64, scope_cycles: f64) -> Self {
        let Profiled { profile, fpdus } = profiled;
        let (busy, count) = (profile.busy(), (*fpdus).max(1) as f64);
        let (each, ns) = (|cycles: u64| cycles as f64 / count, 1e9 / hz as f64);
        let cost = |layer: Layer| {
            let cost = profile.cost(layer);
            LayerCost {
                layer: layer.name(),
                cycles_per_fpdu: each(cost.cycles),
                ns_per_fpdu: each(cost.cycles) * ns,
                share: cost.cycles as f64 / busy.cycles.max(1) as f64,
                scopes_per_fpdu: each(cost.scopes),
            }
        };
        let used = |layer: &Layer| *layer != Layer::Idle && profile.cost(*layer).cycles > 0;
        Self {
            fpdus: *fpdus,
            cycles_per_fpdu: each(busy.cycles),
            ns_per_fpdu: each(busy.cycles) * ns,
            layers: Layer::ALL.into_iter().filter(used).map(cost).collect(),
            stamps: StampCost {
                cycles_per_scope: scope_cycles,
                cycles_per_fpdu: each(busy.scopes) * scope_cycles,
            },
            idle_cycles: profile.cost(Layer::Idle).cycles,
        }
    }

    /// The lines of a table under `title`.
    pub fn lines(&self, title: &str) -> Vec<String> {
        let head = format!(
            " {title:<24} {:>12} {:>10} {:>8} {:>12}",
            "cycles/FPDU", "ns/FPDU", "share", "scopes/FPDU"
        );
        let line = |name: &str, cycles: f64, ns: f64, share: f64, scopes: String| {
            format!(" {name:<24} {cycles:>12.1} {ns:>10.1} {:>6.1} % {scopes:>12}", share * 100.0)
        };
        let mut lines = vec![head];
        lines.extend(self.layers.iter().map(|l| {
            let scopes = format!("{:.2}", l.scopes_per_fpdu);
            line(&format!("  {}", l.layer), l.cycles_per_fpdu, l.ns_per_fpdu, l.share, scopes)
        }));
        let total = format!("  together, {} FPDUs", self.fpdus);
        lines.push(line(&total, self.cycles_per_fpdu, self.ns_per_fpdu, 1.0, String::new()));
        let StampCost { cycles_per_scope, cycles_per_fpdu } = self.stamps;
        lines.push(format!(
            "  of which stamps, about {cycles_per_fpdu:.0} cycles/FPDU: {cycles_per_scope:.0} a scope, half in its layer, \
             half in the one around"
        ));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_stamps_one_line_says_how_to_build_with_them() {
        let checked = check_available();
        assert_eq!(checked.is_ok(), cfg!(feature = "profile"));
        if let Err(error) = checked {
            let text = error.to_string();
            assert!(text.contains("--features profile") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn no_fpdu_and_no_stamp_divide_by_nothing() {
        let breakdown = Breakdown::new(&Profiled::default(), 1_000_000_000, 10.0);
        assert!(breakdown.layers.is_empty() && breakdown.cycles_per_fpdu == 0.0);
        assert_eq!(breakdown.lines("t").len(), 3);
    }

    // The test invents a run, and checks that its figures add up.
    #[test]
    #[cfg(feature = "profile")]
    fn shares_add_up_and_figures_are_per_fpdu() {
        profile::start();
        for layer in [Layer::TcpIn, Layer::Place] {
            profile::within(layer, || std::thread::sleep(std::time::Duration::from_millis(2)));
        }
        let profiled = Profiled { profile: profile::stop(), fpdus: 4 };
        let (hz, all) = (dp::Clock::new().hz(), profiled.profile.busy().cycles as f64);
        let breakdown = Breakdown::new(&profiled, hz, 10.0);
        let sum = |figure: fn(&LayerCost) -> f64| breakdown.layers.iter().map(figure).sum::<f64>();
        assert!((sum(|l| l.share) - 1.0).abs() < 1e-9);
        assert!((sum(|l| l.cycles_per_fpdu) - all / 4.0).abs() < 1e-3);
        assert!((breakdown.ns_per_fpdu * 4.0 - all / hz as f64 * 1e9).abs() < 1.0);
        // Two scopes of ten cycles each in four FPDUs.
        assert!((breakdown.stamps.cycles_per_fpdu - 5.0).abs() < 1e-9);
        let lines = breakdown.lines("t");
        assert!(lines.iter().any(|line| line.contains("TCP in") && line.contains("0.25")), "{lines:?}");
    }
}
