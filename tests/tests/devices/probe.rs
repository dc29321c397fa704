//! `iwprobe` over the kernel's TCP against this stack, which listens or connects, for example with and
//! without markers, and with revisions 2 and 1. No case may deviate. The cases that do not apply are listed,
//! each with the probe's reason.

use std::time::Duration;

use serde_json::Value;
use tests::iwperf::{Net, START_TIMEOUT};
use tests::lab::{Namespace, Prerequisite, Result, Run, Scratch, Suite, Wire, programs, veth};
use tests::target::plan::{Outcome, PLANS, Plan};
use tests::{ensure, lab_error};

const PORT: &str = "18515";
const PROBE: &str = "10.64.0.1";
const TARGET: &str = "10.64.0.2";
/// Maximum duration of all cases on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// A network for a target and a probe.
struct Lab {
    probe: Namespace,
    target: Namespace,
    scratch: Scratch,
}

impl Lab {
    fn new() -> Result<Self> {
        // The target is built now, so that the probe does not wait for the build.
        programs::own("iwprobe-target")?;
        let lab = Self { probe: Namespace::new()?, target: Namespace::new()?, scratch: Scratch::new()? };
        let end = |namespace| Wire { namespace, dev: "v0" };
        veth(end(&lab.probe), end(&lab.target), 1500)?;
        lab.probe.address("v0", &format!("{PROBE}/24"))?;
        Ok(lab)
    }

    fn target(&self, words: &[&str], options: &[&str]) -> Result<Run> {
        let net = Net::af_packet("v0", &format!("{TARGET}/24"), 1500);
        let run = self.target.run(programs::own("iwprobe-target")?);
        Ok(run.args(words).args(net.args()).args(options))
    }

    fn probe(&self, words: &[&str], options: &[&str]) -> Result<Run> {
        let run = self.probe.run(programs::iwprobe()?).args(words).args(options);
        Ok(run.arg("--json").arg(self.scratch.file("outcomes.json")))
    }

    fn outcomes(&self) -> Result<Value> {
        let text = std::fs::read_to_string(self.scratch.file("outcomes.json"))?;
        serde_json::from_str(&text).map_err(|error| lab_error!("{error}: {text}"))
    }

    /// Runs the probe with a target that listens. Returns the outcomes.
    fn connect(&self, target: &[&str], probe: &[&str]) -> Result<Value> {
        let mut server = self.target(&["listen", PORT], target)?.spawn()?;
        server.wait_for("listening on port", START_TIMEOUT)?;
        let ran = self.probe(&["connect", TARGET, PORT], probe)?.check(LIMIT);
        ensure!(server.is_running()?, "the target ended: {}", server.text());
        ran.map_err(|error| lab_error!("{error}\ntarget: {}", server.text()))?;
        self.outcomes()
    }

    /// Runs the probe with a target that connects. Returns the outcomes.
    fn listen(&self, target: &[&str], probe: &[&str]) -> Result<Value> {
        let mut waiting = self.probe(&["listen", PROBE, PORT], probe)?.spawn()?;
        waiting.wait_for("listening on", START_TIMEOUT)?;
        let client = self.target(&["connect", PROBE, PORT], target)?.spawn()?;
        waiting.finish(LIMIT)?.success().map_err(|error| lab_error!("{error}\ntarget: {}", client.text()))?;
        client.finish(START_TIMEOUT)?.success()?;
        self.outcomes()
    }
}

fn run(plan: &Plan) -> Result<()> {
    let lab = Lab::new()?;
    let options = plan.target_options();
    let target: Vec<&str> = options.iter().map(String::as_str).collect();
    let probe = plan.probe_options();
    let said = if plan.listens { lab.connect(&target, &probe)? } else { lab.listen(&target, &probe)? };
    ensure!(said["not_run"] == 0, "{said:#}");
    let text = |case: &Value, name: &str| case[name].as_str().unwrap_or_default().to_owned();
    let cases = said["cases"].as_array().map_or(&[][..], Vec::as_slice);
    let outcome = |case: &Value| Outcome {
        case: text(case, "name"),
        verdict: text(case, "verdict"),
        reason: text(case, "reason"),
    };
    plan.conclude(&cases.iter().map(outcome).collect::<Vec<_>>())
}

/// Runs the suite. Returns whether all tests passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let mut suite = Suite::new(
        "probe",
        &[
            Prerequisite::Dpdk,
            Prerequisite::Program("ip"),
            Prerequisite::Program("ethtool"),
            Prerequisite::Namespaces,
        ],
    );
    for plan in &PLANS {
        suite.add(plan.name, || run(plan));
    }
    suite.run(arguments)
}
