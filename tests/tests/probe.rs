//! `iwprobe`, over the kernel's TCP, against this stack: in both directions, with markers and without, with
//! revisions 2 and 1. No case may deviate. The cases that do not apply are listed, each with the probe's
//! reason.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tests::iwperf::{Net, START_TIMEOUT};
use tests::lab::{Namespace, Need, Result, Run, Scratch, Suite, Wire, programs, veth};
use tests::{ensure, lab_error};

const PORT: &str = "18515";
const PROBE: &str = "10.64.0.1";
const TARGET: &str = "10.64.0.2";
/// Time limit of all cases, on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// A target and a probe, and their network.
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

/// The cases that do not apply: the run, the case, and the probe's reason.
const NOT_APPLICABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/probe-not-applicable.csv");

/// A case with its reason.
type Cases = BTreeSet<(String, String)>;

fn listed(run: &str) -> Result<Cases> {
    let told = |error: csv::Error| lab_error!("{NOT_APPLICABLE}: {error}");
    let mut reader = csv::Reader::from_path(NOT_APPLICABLE).map_err(told)?;
    let rows: Vec<[String; 3]> = reader.deserialize().collect::<std::result::Result<_, _>>().map_err(told)?;
    Ok(rows.into_iter().filter(|row| row[0] == run).map(|[_, case, reason]| (case, reason)).collect())
}

/// Checks the outcomes of a run of `cases`, in addition to its exit status: each conforms, except for the
/// listed ones, which do not apply.
fn conclude(run: &str, cases: usize, outcomes: &Value) -> Result<()> {
    let number = |name: &str| outcomes[name].as_u64().unwrap_or(u64::MAX);
    ensure!(number("deviates") == 0 && number("not_run") == 0, "{outcomes:#}");
    ensure!(number("needs_target") == 0, "the target was not taken for one: {outcomes:#}");
    let all = outcomes["cases"].as_array().map_or(&[][..], Vec::as_slice);
    // Parsed by scripts/test: a case counts as a proof if it conforms.
    for case in all {
        let outcome = if case["verdict"] == "conforms" { "ok" } else { "ignored" };
        println!("\ncase {} ... {outcome}", case["name"].as_str().unwrap_or("?"));
    }
    ensure!(all.len() == cases, "{} cases of {cases} were run", all.len());
    let text = |case: &Value, name: &str| case[name].as_str().unwrap_or_default().to_owned();
    let of_no_use = all.iter().filter(|case| case["verdict"] == "not applicable");
    let found: Cases = of_no_use.map(|case| (text(case, "name"), text(case, "reason"))).collect();
    let listed = listed(run)?;
    let lines = |these: &Cases, without: &Cases| -> String {
        let lines = these.difference(without);
        lines.map(|(case, reason)| format!("\n{run},{case},{reason}")).collect()
    };
    ensure!(
        found == listed,
        "{NOT_APPLICABLE}: these do not apply and are not listed:{}\nthese are listed and apply:{}",
        lines(&found, &listed),
        lines(&listed, &found)
    );
    ensure!(number("conforms") == (cases - listed.len()) as u64, "{outcomes:#}");
    Ok(())
}

/// The name of a run, whether the target listens, and the options of both programs.
struct Plan {
    name: &'static str,
    listens: bool,
    target: &'static [&'static str],
    probe: &'static [&'static str],
}

const PLANS: [Plan; 7] = [
    Plan { name: "connect_plain", listens: true, target: &[], probe: &[] },
    Plan { name: "connect_markers_both_ways", listens: true, target: &["--markers"], probe: &["--markers"] },
    Plan {
        name: "connect_no_crc",
        listens: true,
        target: &["--no-crc"],
        probe: &["--case", "crc-not-asked-for"],
    },
    Plan { name: "listen_plain", listens: false, target: &[], probe: &[] },
    Plan { name: "listen_markers_both_ways", listens: false, target: &["--markers"], probe: &["--markers"] },
    Plan { name: "listen_client_server", listens: false, target: &["--client-server"], probe: &[] },
    Plan {
        name: "listen_revision_1",
        listens: false,
        target: &["--revision", "1", "--client-server"],
        probe: &[],
    },
];

fn run(plan: &Plan) -> Result<()> {
    let lab = Lab::new()?;
    let outcomes = if plan.listens {
        lab.connect(plan.target, plan.probe)?
    } else {
        lab.listen(plan.target, plan.probe)?
    };
    let chosen = plan.probe.iter().filter(|word| **word == "--case").count();
    let cases = if chosen > 0 { chosen } else { iwprobe::cases::all().len() };
    conclude(plan.name, cases, &outcomes)
}

fn main() -> ExitCode {
    let mut suite =
        Suite::new("probe", &[Need::Dpdk, Need::Program("ip"), Need::Program("ethtool"), Need::Namespaces]);
    for plan in &PLANS {
        suite.add(plan.name, || run(plan));
    }
    suite.run()
}
