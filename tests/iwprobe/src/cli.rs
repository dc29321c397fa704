//! The command line.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::case::{Case, Verdict};
use crate::expect::Expected;
use crate::probe::{Mode, Probe};
use crate::run::Outcome;
use crate::session::Patience;
use crate::{cases, json, run, table};

/// Tries an iWARP endpoint against RFC 5040, 5041, 5042, 5044, 6581 and 7306.
///
/// Exit status: 0 all conform, 1 deviations (or differences from --expect), 2 wrong usage or no connection.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub struct Cli {
    /// Lists the cases, with their rows, and exits.
    #[arg(long)]
    list: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The endpoint listens: we connect and are the MPA initiator.
    Connect(Options),
    /// The endpoint connects, again and again: we listen and are the MPA responder.
    Listen(Options),
}

/// What both ways of probing have.
#[derive(Debug, Args)]
struct Options {
    /// Whom to connect to, or which address of ours to listen on.
    addr: String,
    /// TCP port.
    port: u16,
    /// Only the cases whose name contains this; several allowed.
    #[arg(long = "case", value_name = "PATTERN")]
    cases: Vec<String>,
    /// Lists the cases that would be run, and exits.
    #[arg(long)]
    list: bool,
    /// Seconds to wait for what has to come.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
    /// Seconds without anything that count as silence.
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    quiet: Duration,
    /// Seconds to wait for the first connection.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    wait: Duration,
    /// Ask for markers in what we receive (the endpoint may refuse).
    #[arg(long)]
    markers: bool,
    /// Cases that are known to deviate, one name a line: any other difference is an error.
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Write the outcomes as JSON; - is standard output, instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show what passed on the wire, octets included.
    #[arg(short, long)]
    verbose: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if !(0.01..=3600.0).contains(&seconds) {
        return Err("must be from 0.01 to 3600 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

impl Cli {
    /// Does what was asked for. Returns whether all is as it should be.
    ///
    /// # Errors
    /// One line: wrong usage, or no connection.
    pub fn run(self) -> Result<bool, String> {
        match self.command {
            Some(Command::Connect(options)) if !(self.list || options.list) => options.connect(),
            Some(Command::Listen(options)) if !(self.list || options.list) => options.listen(),
            Some(Command::Connect(options) | Command::Listen(options)) => list(&options.selected()?),
            None if self.list => list(&cases::all()),
            None => Err("say connect or listen (see --help)".into()),
        }
    }
}

fn list(cases: &[Case]) -> Result<bool, String> {
    for case in cases {
        println!("{}", table::listed(case));
    }
    Ok(true)
}

impl Options {
    fn connect(self) -> Result<bool, String> {
        let wrong = |error: std::io::Error| format!("{}: {error}", self.addr);
        let mut found = (self.addr.as_str(), self.port).to_socket_addrs().map_err(wrong)?;
        let address = found.next().ok_or_else(|| format!("{} has no address", self.addr))?;
        self.probe(Mode::Connect(address), &address.to_string())
    }

    fn listen(self) -> Result<bool, String> {
        let ip: IpAddr = self.addr.parse().map_err(|_| format!("{} is no address of ours", self.addr))?;
        let address = SocketAddr::new(ip, self.port);
        let wrong = |error: std::io::Error| format!("cannot listen on {address}: {error}");
        let listener = TcpListener::bind(address).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        eprintln!("listening on {address}");
        self.probe(Mode::Listen(listener), &address.to_string())
    }

    fn selected(&self) -> Result<Vec<Case>, String> {
        let mut cases = cases::all();
        let wanted = |name: &str| self.cases.is_empty() || self.cases.iter().any(|part| name.contains(part));
        cases.retain(|case| wanted(case.name));
        if cases.is_empty() {
            return Err(format!("no case has {} in its name (see --list)", self.cases.join(" or ")));
        }
        Ok(cases)
    }

    fn expected(&self) -> Result<Option<Expected>, String> {
        let Some(path) = &self.expect else { return Ok(None) };
        let told = |error: String| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| told(error.to_string()))?;
        let names: Vec<&str> = cases::all().iter().map(|case| case.name).collect();
        Expected::parse(&text, &names).map(Some).map_err(told)
    }

    fn probe(self, mode: Mode, endpoint: &str) -> Result<bool, String> {
        let (cases, expected) = (self.selected()?, self.expected()?);
        let patience = Patience { timeout: self.timeout, quiet: self.quiet };
        let mut probe = Probe::new(mode, patience, self.markers);
        let to_stdout = self.json.as_deref().is_some_and(|path| path.as_os_str() == "-");
        let found = probe.meet(self.wait)?;
        let _ = probe.take_log();
        if !to_stdout {
            println!("{endpoint}: {found}");
        }
        let mut outcomes: Vec<Outcome> = Vec::new();
        for case in &cases {
            let outcome = run::run(case, &mut probe);
            let known = expected.as_ref().is_some_and(|list| list.contains(case.name));
            if !to_stdout {
                let expected = known && outcome.verdict == Verdict::Deviates;
                print!("{}", table::outcome(&outcome, expected, self.verbose));
            }
            outcomes.push(outcome);
            if probe.is_alone() {
                eprintln!(
                    "iwprobe: the endpoint is not there any more: {} cases not run",
                    cases.len() - outcomes.len()
                );
                break;
            }
        }
        if !probe.is_alone() {
            probe.dismiss();
        }
        self.write_json(endpoint, &outcomes, to_stdout)?;
        if !to_stdout {
            println!("{}", table::summary(&outcomes));
        }
        Ok(conclude(&outcomes, &expected.unwrap_or_default()))
    }

    fn write_json(&self, endpoint: &str, outcomes: &[Outcome], to_stdout: bool) -> Result<(), String> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = format!("{:#}\n", json::run(endpoint, outcomes));
        if to_stdout {
            print!("{text}");
            return Ok(());
        }
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn conclude(outcomes: &[Outcome], expected: &Expected) -> bool {
    let differences = expected.differences(outcomes);
    for difference in &differences {
        eprintln!("iwprobe: {difference}");
    }
    differences.is_empty()
}
