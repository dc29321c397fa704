//! `iwprobe`, over the kernel's TCP, against this stack: it listens and it connects, with markers and without, with
//! revision 2 and 1. No case may deviate, and hardly any may not apply.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tests::iwperf::{Net, START_TIMEOUT};
use tests::lab::{Namespace, Need, Result, Run, Scratch, Suite, Wire, programs, veth};
use tests::{ensure, lab_error};

const PORT: &str = "18515";
const PROBE: &str = "10.64.0.1";
const TARGET: &str = "10.64.0.2";
/// All cases, on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// A target and a probe, and how they come together.
struct Lab {
    probe: Namespace,
    target: Namespace,
    scratch: Scratch,
}

impl Lab {
    fn new() -> Result<Self> {
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

    /// The target listens. Returns the outcomes.
    fn connect(&self, target: &[&str], probe: &[&str]) -> Result<Value> {
        let mut server = self.target(&["listen", PORT], target)?.spawn()?;
        server.wait_for("listening on port", START_TIMEOUT)?;
        let ran = self.probe(&["connect", TARGET, PORT], probe)?.check(LIMIT);
        ensure!(server.is_running()?, "the target ended: {}", server.text());
        ran.map_err(|error| lab_error!("{error}\ntarget: {}", server.text()))?;
        self.outcomes()
    }

    /// The target connects. Returns the outcomes.
    fn listen(&self, target: &[&str], probe: &[&str]) -> Result<Value> {
        let mut waiting = self.probe(&["listen", PROBE, PORT], probe)?.spawn()?;
        waiting.wait_for("listening on", START_TIMEOUT)?;
        let client = self.target(&["connect", PROBE, PORT], target)?.spawn()?;
        waiting.finish(LIMIT)?.success().map_err(|error| lab_error!("{error}\ntarget: {}", client.text()))?;
        client.finish(START_TIMEOUT)?.success()?;
        self.outcomes()
    }
}

/// What a run has to come to, beside its exit status.
fn conclude(outcomes: &Value, at_least: u64) -> Result<()> {
    let number = |name: &str| outcomes[name].as_u64().unwrap_or(u64::MAX);
    ensure!(number("deviates") == 0, "{outcomes:#}");
    ensure!(number("needs_target") == 0, "the target was not taken for one: {outcomes:#}");
    // Read by scripts/test: what a case is to prove counts as shown where it conforms.
    for case in outcomes["cases"].as_array().into_iter().flatten() {
        let outcome = if case["verdict"] == "conforms" { "ok" } else { "ignored" };
        println!("\ncase {} ... {outcome}", case["name"].as_str().unwrap_or("?"));
    }
    let conforms = number("conforms");
    ensure!(conforms >= at_least, "only {conforms} cases of {at_least} apply: {outcomes:#}");
    Ok(())
}

fn main() -> ExitCode {
    let mut suite =
        Suite::new("probe", &[Need::Dpdk, Need::Program("ip"), Need::Program("ethtool"), Need::Namespaces]);
    suite.add("connect_plain", || conclude(&Lab::new()?.connect(&[], &[])?, 150));
    suite.add("connect_markers_both_ways", || {
        conclude(&Lab::new()?.connect(&["--markers"], &["--markers"])?, 150)
    });
    suite.add("connect_no_crc", || {
        conclude(&Lab::new()?.connect(&["--no-crc"], &["--case", "crc-not-asked-for"])?, 1)
    });
    suite.add("listen_plain", || conclude(&Lab::new()?.listen(&[], &[])?, 150));
    suite.add("listen_markers_both_ways", || {
        conclude(&Lab::new()?.listen(&["--markers"], &["--markers"])?, 150)
    });
    suite.add("listen_client_server", || conclude(&Lab::new()?.listen(&["--client-server"], &[])?, 150));
    suite.add("listen_revision_1", || {
        let options = ["--revision", "1", "--client-server"];
        conclude(&Lab::new()?.listen(&options, &[])?, 120)
    });
    suite.run()
}
