//! The configurations in which `iwprobe` and its target are run, and the expected outcomes.

use std::collections::BTreeSet;

use iwprobe::case::Case;

use crate::lab::Result;
use crate::{ensure, lab_error};

/// One configuration.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The name of the plan.
    pub name: &'static str,
    /// Whether the target listens and the probe connects. Otherwise the probe listens and the target
    /// connects.
    pub listens: bool,
    /// Whether the probe and the target ask for markers.
    pub markers: bool,
    /// Whether the target asks for CRCs.
    pub crc: bool,
    /// Whether the target connects in the peer-to-peer model.
    pub peer_to_peer: bool,
    /// MPA revision of the target's Requests.
    pub revision: u8,
    /// The only case that is run; `None`: all cases are run.
    pub only: Option<&'static str>,
}

const LISTENS: Plan = Plan {
    name: "connect_plain",
    listens: true,
    markers: false,
    crc: true,
    peer_to_peer: true,
    revision: 2,
    only: None,
};
const CONNECTS: Plan = Plan { name: "listen_plain", listens: false, ..LISTENS };

/// All configurations. Each name begins with the probe's command.
pub const PLANS: [Plan; 7] = [
    LISTENS,
    Plan { name: "connect_markers_both_ways", markers: true, ..LISTENS },
    Plan { name: "connect_no_crc", crc: false, only: Some("crc-not-asked-for"), ..LISTENS },
    CONNECTS,
    Plan { name: "listen_markers_both_ways", markers: true, ..CONNECTS },
    Plan { name: "listen_client_server", peer_to_peer: false, ..CONNECTS },
    Plan { name: "listen_revision_1", peer_to_peer: false, revision: 1, ..CONNECTS },
];

/// The outcome of a case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The name of the case.
    pub case: String,
    /// The name of the case's verdict.
    pub verdict: String,
    /// The reason for the verdict, unless the case conforms.
    pub reason: String,
}

impl From<&iwprobe::run::Outcome> for Outcome {
    fn from(outcome: &iwprobe::run::Outcome) -> Self {
        let iwprobe::run::Outcome { name, verdict, reason, .. } = outcome;
        Self { case: (*name).into(), verdict: verdict.name().into(), reason: reason.clone() }
    }
}

/// The file with the cases that do not apply: the plan, the case, and the probe's reason.
const NOT_APPLICABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/probe-not-applicable.csv");

/// Cases, each with its reason.
type Cases = BTreeSet<(String, String)>;

impl Plan {
    /// Returns the cases that are run.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = iwprobe::cases::all();
        cases.retain(|case| self.only.is_none_or(|only| case.name == only));
        cases
    }

    /// Returns the options of `iwprobe-target`.
    pub fn target_options(&self) -> Vec<String> {
        let Self { listens, markers, crc, peer_to_peer, revision, .. } = *self;
        let flags =
            [("--markers", markers), ("--no-crc", !crc), ("--client-server", !listens && !peer_to_peer)];
        let flags = flags.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| (*name).to_owned());
        flags.chain(["--revision".to_owned(), revision.to_string()]).collect()
    }

    /// Returns the options of `iwprobe`.
    pub fn probe_options(&self) -> Vec<&'static str> {
        let case = self.only.map(|case| ["--case", case]);
        self.markers.then_some("--markers").into_iter().chain(case.into_iter().flatten()).collect()
    }

    /// Checks that each case conforms, except the cases that are listed as not applicable.
    ///
    /// # Errors
    /// If a case has another outcome, or if a case was not run.
    pub fn conclude(&self, outcomes: &[Outcome]) -> Result<()> {
        let with = |verdict: &'static str| outcomes.iter().filter(move |outcome| outcome.verdict == verdict);
        let wrong: Vec<_> = with("deviates").chain(with("needs target")).collect();
        ensure!(wrong.is_empty(), "{wrong:#?}");
        // `scripts/test` reads these lines: the rows of a case count as proven if the case conforms.
        for Outcome { case, verdict, .. } in outcomes {
            println!("\ncase {case} ... {}", if verdict == "conforms" { "ok" } else { "ignored" });
        }
        let cases = self.cases().len();
        ensure!(outcomes.len() == cases, "{} cases of {cases} were run", outcomes.len());
        let found: Cases = with("not applicable").map(|it| (it.case.clone(), it.reason.clone())).collect();
        let listed = self.not_applicable()?;
        let lines = |these: &Cases, without: &Cases| -> String {
            let lines = these.difference(without);
            lines.map(|(case, reason)| format!("\n{},{case},{reason}", self.name)).collect()
        };
        ensure!(
            found == listed,
            "{NOT_APPLICABLE}: these do not apply and are not listed:{}\nthese are listed and apply:{}",
            lines(&found, &listed),
            lines(&listed, &found)
        );
        let conforming = with("conforms").count();
        ensure!(conforming == cases - listed.len(), "{conforming} of {cases} cases conform");
        Ok(())
    }

    fn not_applicable(&self) -> Result<Cases> {
        let told = |error: csv::Error| lab_error!("{NOT_APPLICABLE}: {error}");
        let mut reader = csv::Reader::from_path(NOT_APPLICABLE).map_err(told)?;
        let rows: Vec<[String; 3]> =
            reader.deserialize().collect::<std::result::Result<_, _>>().map_err(told)?;
        let own = rows.into_iter().filter(|row| row[0] == self.name);
        Ok(own.map(|[_, case, reason]| (case, reason)).collect())
    }
}
