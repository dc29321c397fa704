//! The command line: selects the cases, runs the cases one after the other, and writes the outcomes.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::case::{Case, Verdict};
use crate::expect::Expected;
use crate::json::Run;
use crate::probe::Probe;
use crate::run::Outcome;
use crate::session::Patience;
use crate::socket::Mode;
use crate::{cases, run, table};

/// Tests an iWARP endpoint against RFC 5040, 5041, 5042, 5044, 6581 and 7306.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, disable_help_subcommand = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    selection: Selection,
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  iwprobe connect 10.0.0.2 18515                     all cases, the endpoint listening
  iwprobe listen 10.0.0.1 18515                      the endpoint connects again and again
  iwprobe connect 10.0.0.2 18515 --case terminate -v one area, with the bytes
  iwprobe --list --row RDMAP-134                     what shows a requirement

Exit status: 0 nothing deviates, 1 something does (or differs from --expect), 2 wrong usage or no connection.";

#[derive(Debug, Subcommand)]
enum Command {
    /// The endpoint listens: we connect and are the MPA initiator
    Connect {
        /// Name or address of the endpoint
        addr: String,
        /// TCP port of the endpoint
        #[arg(value_parser = clap::value_parser!(u16).range(1..))]
        port: u16,
        #[command(flatten)]
        options: Options,
    },
    /// The endpoint connects repeatedly: we listen and are the MPA responder
    Listen {
        /// Local address to listen on (0.0.0.0 or :: for any)
        addr: IpAddr,
        /// TCP port to listen on
        #[arg(value_parser = clap::value_parser!(u16).range(1..))]
        port: u16,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Debug, Args)]
struct Selection {
    /// List the cases, with their rows, and exit
    #[arg(long, global = true)]
    list: bool,
    /// Only cases whose names contain PATTERN; can be repeated
    #[arg(long = "case", value_name = "PATTERN", global = true)]
    cases: Vec<String>,
    /// Only cases for this row (DDP-047) or for rows with this prefix (DDP-); can be repeated
    #[arg(long = "row", value_name = "ROW", global = true)]
    rows: Vec<String>,
}

/// The options that `connect` and `listen` share.
#[derive(Debug, Args)]
struct Options {
    /// Seconds to wait for an expected message
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
    /// Seconds without a message after which the endpoint counts as silent
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    quiet: Duration,
    /// Seconds to wait for the first connection
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    wait: Duration,
    /// Ask for markers in what we receive (the endpoint may refuse)
    #[arg(long)]
    markers: bool,
    /// Cases that are known to deviate, one name on each line: any other difference is an error
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Write the outcomes as JSON; - is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show the messages on the wire, with all bytes
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
    /// Runs the command. Returns whether all outcomes are as expected.
    ///
    /// # Errors
    /// A one-line description, for example if the usage is wrong or there is no connection.
    pub fn run(self) -> Result<bool, String> {
        let cases = self.selection.cases()?;
        match self.command {
            _ if self.selection.list => list(&cases),
            Some(Command::Connect { addr, port, options }) => options.connect(&addr, port, &cases),
            Some(Command::Listen { addr, port, options }) => options.listen(addr, port, &cases),
            None => Err("say connect or listen (see --help)".into()),
        }
    }
}

/// Writes to standard output. Returns `false` if the reader has closed the pipe.
fn say(text: &str) -> Result<bool, String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("standard output: {error}")),
    }
}

fn list(cases: &[Case]) -> Result<bool, String> {
    let text: String = cases.iter().map(table::listed).collect();
    say(&text).map(|_| true)
}

impl Selection {
    fn cases(&self) -> Result<Vec<Case>, String> {
        let mut cases = cases::all();
        let all = self.cases.is_empty() && self.rows.is_empty();
        let is_row = |row: &&str, part: &String| {
            *row == part || (part.ends_with('-') && row.starts_with(part.as_str()))
        };
        cases.retain(|case| {
            let named = self.cases.iter().any(|part| case.name.contains(part));
            all || named || self.rows.iter().any(|part| case.rows().iter().any(|row| is_row(row, part)))
        });
        if cases.is_empty() {
            let wanted = [self.cases.as_slice(), self.rows.as_slice()].concat().join(" or ");
            return Err(format!("no case has {wanted} in its name or among its rows (see --list)"));
        }
        Ok(cases)
    }
}

impl Options {
    fn connect(self, addr: &str, port: u16, cases: &[Case]) -> Result<bool, String> {
        let found = (addr, port).to_socket_addrs().map_err(|error| format!("{addr}: {error}"))?;
        let endpoint = format!("{addr} port {port}");
        self.probe(Mode::Connect(found.collect()), &endpoint, cases)
    }

    fn listen(self, ip: IpAddr, port: u16, cases: &[Case]) -> Result<bool, String> {
        let address = SocketAddr::new(ip, port);
        let wrong = |error: std::io::Error| format!("cannot listen on {address}: {error}");
        let listener = TcpListener::bind(address).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        eprintln!("listening on {address}");
        self.probe(Mode::Listen(listener), &format!("{ip} port {port}"), cases)
    }

    fn expected(&self) -> Result<Option<Expected>, String> {
        let Some(path) = &self.expect else { return Ok(None) };
        let told = |error: String| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| told(error.to_string()))?;
        let names: Vec<&str> = cases::all().iter().map(|case| case.name).collect();
        Expected::parse(&text, &names).map(Some).map_err(told)
    }

    fn json_to_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// Opens the file for the outcomes. Called before the first connection, so that an error costs no time.
    fn json_file(&self) -> Result<Option<File>, String> {
        let Some(path) = self.json.as_ref().filter(|_| !self.json_to_stdout()) else { return Ok(None) };
        File::create(path).map(Some).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn probe(self, mode: Mode, endpoint: &str, cases: &[Case]) -> Result<bool, String> {
        let (expected, file) = (self.expected()?.unwrap_or_default(), self.json_file()?);
        let patience = Patience { timeout: self.timeout, quiet: self.quiet };
        let mut probe = Probe::new(mode, patience, self.markers);
        let found = probe.meet(self.wait).map_err(|reason| format!("{endpoint}: {reason}"))?;
        let _ = probe.take_log();
        let table = !self.json_to_stdout();
        let mut read = !table || say(&format!("{endpoint}: {found}\n"))?;
        let mut outcomes: Vec<Outcome> = Vec::new();
        for case in cases {
            let outcome = run::run(case, &mut probe);
            if table && read {
                let known = expected.contains(case.name) && outcome.verdict == Verdict::Deviates;
                read = say(&table::outcome(&outcome, known, self.verbose))?;
            }
            outcomes.push(outcome);
            if probe.is_alone() {
                break;
            }
        }
        let not_run = cases.len() - outcomes.len();
        if probe.is_alone() {
            eprintln!("iwprobe: the endpoint is not there any more: {not_run} cases not run");
        } else {
            probe.dismiss();
        }
        let run = Run { endpoint, found: &found, target: probe.has_target(), outcomes: &outcomes, not_run };
        match file {
            Some(mut file) => write!(file, "{run}").map_err(|error| format!("--json: {error}"))?,
            None if !table => drop(say(&run.to_string())?),
            None => {}
        }
        if table {
            say(&table::summary(&outcomes))?;
        }
        Ok(conclude(&outcomes, &expected))
    }
}

fn conclude(outcomes: &[Outcome], expected: &Expected) -> bool {
    let differences = expected.differences(outcomes);
    for difference in &differences {
        eprintln!("iwprobe: {difference}");
    }
    differences.is_empty()
}
