//! The view of other programs on a run: `--metrics`, which a scraper reads during the run, and the socket of
//! `uwarp status`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::folder::Folder;

/// Maximum duration of any step, even if other programs use the processors.
const PATIENCE: Duration = Duration::from_secs(30);

/// A run that is longer than any test. When the value is dropped, the run is stopped.
struct Run {
    child: Child,
    /// The standard error of the run, which shows its progress.
    _errors: BufReader<ChildStderr>,
    folder: Folder,
    address: String,
}

impl Run {
    fn start(name: &str) -> Self {
        let folder = Folder::new(&format!("iwperf-inside-{name}"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_iwperf"))
            .args(["local", "write-bw", "-D", "120", "-s", "4096", "-q", "2", "--metrics", "127.0.0.1:0"])
            .env("UWARP_DIR", &*folder)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        errors.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("iwperf: metrics at http://");
        let address = address.and_then(|rest| rest.strip_suffix("/metrics")).expect(&line).to_owned();
        Self { child, _errors: errors, folder, address }
    }

    /// Returns the response to a request for a path: the line with the status, and the body.
    fn get(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: it\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (header, body) = answer.split_once("\r\n\r\n").unwrap();
        let length = header.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        assert_eq!(length.parse(), Ok(body.len()));
        (header.lines().next().unwrap().to_owned(), body.to_owned())
    }

    /// Waits until `is_wanted` returns true for the samples, and returns the samples.
    fn samples(&self, is_wanted: impl Fn(&HashMap<String, f64>) -> bool) -> HashMap<String, f64> {
        let begun = Instant::now();
        loop {
            let (status, body) = self.get("GET /metrics");
            assert_eq!(status, "HTTP/1.1 200 OK");
            let samples = parse(&body);
            if is_wanted(&samples) {
                return samples;
            }
            assert!(begun.elapsed() < PATIENCE, "{body}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Parses the samples of a text in Prometheus's format. Checks that the help and the type of a metric precede
/// its samples.
fn parse(text: &str) -> HashMap<String, f64> {
    let mut samples = HashMap::new();
    let (mut helped, mut typed) = ("", "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            helped = rest.split_once(' ').expect("a help").0;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!((name, kind == "counter"), (helped, name.ends_with("_total")), "{line}");
            typed = name;
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(sample.split('{').next(), Some(typed), "{line}");
            assert!(
                samples.insert(sample.to_owned(), value.parse().unwrap()).is_none(),
                "{line} comes twice"
            );
        }
    }
    samples
}

#[test]
fn a_scraper_sees_a_run_move() {
    let run = Run::start("metrics");
    const PLACED: &str = "uwarp_rx_placed_bytes_total{context=\"0\",engine=\"0\"}";
    const PLACED_TOO: &str = "uwarp_rx_placed_bytes_total{context=\"1\",engine=\"0\"}";
    let placed = |samples: &HashMap<String, f64>| {
        [PLACED, PLACED_TOO].iter().filter_map(|name| samples.get(*name)).sum::<f64>()
    };
    // An engine may be asked twice before it sends any data. If an engine answers late, its samples are
    // missing.
    let sent = ["0", "1"]
        .map(|context| format!("uwarp_tcp_tx_segments_total{{context=\"{context}\",engine=\"0\"}}"));
    let first =
        run.samples(|samples| placed(samples) > 1e6 && sent.iter().all(|name| samples.contains_key(name)));
    let later = run.samples(|samples| {
        let has_sent = |name| samples.get(name).is_some_and(|count| *count > first[name]);
        placed(samples) > placed(&first) && sent.iter().all(has_sent)
    });
    // The number counts the connections of two queue pairs, and the connection by which the ends exchange
    // figures.
    const CONNECTIONS: f64 = 3.0;
    for context in ["0", "1"] {
        assert_eq!(later[&format!("uwarp_tcp_connections{{context=\"{context}\"}}")], CONNECTIONS);
        assert_eq!(
            later[&format!("uwarp_connections_total{{context=\"{context}\",engine=\"0\"}}")],
            CONNECTIONS
        );
        assert!(later[&format!("uwarp_registered_bytes{{context=\"{context}\"}}")] >= 4096.0);
        assert!(later[&format!("uwarp_port_rx_bytes_total{{context=\"{context}\",engine=\"0\"}}")] > 0.0);
    }
    assert_eq!(run.get("GET /other").0, "HTTP/1.1 404 Not Found");
    assert_eq!(run.get("POST /metrics").0, "HTTP/1.1 405 Method Not Allowed");
}

#[test]
fn a_run_is_shown_while_it_lasts() {
    let run = Run::start("status");
    run.samples(|samples| samples.contains_key("uwarp_tcp_connections{context=\"1\"}"));
    let sockets: &Path = &run.folder.join(".status");
    let begun = Instant::now();
    let found = loop {
        let found = iwarp::status::processes(sockets).unwrap();
        if found.silent.is_empty() {
            break found;
        }
        // The search is repeated if the process was not scheduled in time.
        assert!(begun.elapsed() < PATIENCE, "{found:?}");
    };
    let pids: Vec<u32> = found.answered.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [run.child.id(); 2], "both ends are in one process");
    assert!(found.answered.iter().all(|process| process.program == "iwperf"));
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_iwperf"))
        .args(["local", "write-bw", "-n", "5", "--metrics", &address])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(&address) && said.lines().count() == 1, "{said}");
}
