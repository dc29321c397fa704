//! Tests of the example program `cache`, such as a test with a server that is killed.

#[path = "common/limited.rs"]
mod limited;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use testkit::chapter::{Chapter, without_comment};

/// Returns the command of an example, which `cargo test` has built in a folder next to the tests.
fn run(example: &str) -> Command {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples");
    path.push(example);
    Command::new(&path)
}

/// Starts a process of the cache. Returns the process, and its lines of output.
fn cache(wire: &str, argument: &str) -> (Child, impl Iterator<Item = String> + use<>) {
    start(run("cache").arg(argument).env("WIRE", wire))
}

fn start(command: &mut Command) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    (child, lines)
}

#[test]
fn a_client_says_why_when_its_server_dies() {
    let _watched = limited::watch();
    let wire = format!("local:cache-{}", std::process::id());
    let (mut server, mut says) = cache(&wire, "server");
    let line = says.next().unwrap();
    let address = line.strip_prefix("a cache at ").unwrap();
    assert!(address.starts_with("100.64."), "{address}");
    let mut clients = [cache(&wire, address), cache(&wire, address)];
    let mut numbers: Vec<String> = clients.iter_mut().map(|(_, says)| says.next().unwrap()).collect();
    numbers.sort();
    assert_eq!(numbers, ["client 1", "client 2"]);
    for (_, says) in &mut clients {
        assert_eq!(says.next().unwrap(), "colour Some(\"blue\"), shape None");
    }
    server.kill().unwrap();
    server.wait().unwrap();
    for (client, mut says) in clients {
        assert_eq!(says.next(), None);
        let ended = client.wait_with_output().unwrap();
        let cause = String::from_utf8(ended.stderr).unwrap();
        assert!(cause.starts_with("Error: \"the connection has ended: "), "{cause}");
        assert_eq!(ended.status.code(), Some(1));
    }
}

/// `uwarp status` lists the server until the server ends.
#[test]
#[cfg(feature = "status")]
fn the_server_is_shown() {
    let _watched = limited::watch();
    use iwarp::status::processes;

    let folder = testkit::folder::Folder::new("cache-shown");
    let sockets = folder.join(".status");
    let (mut server, mut says) = start(run("cache").arg("server").env("UWARP_DIR", &*folder));
    let line = says.next().unwrap();
    let found = processes(&sockets).unwrap().answered;
    server.kill().unwrap();
    server.wait().unwrap();
    let [report] = &found[..] else { panic!("{found:?}") };
    assert_eq!((report.pid, &*report.program, report.memory_regions), (server.id(), "cache", 1));
    let [engine] = &report.engines[..] else { panic!("{report:?}") };
    assert_eq!(engine.listens, [7471]);
    assert_eq!(format!("{}/10", line.strip_prefix("a cache at ").unwrap()), engine.addresses[0]);

    let found = processes(&sockets).unwrap();
    assert!(found.answered.is_empty() && found.silent.is_empty(), "{found:?}");
}

/// The command with which the chapter (`docs/tokio.md`) starts the example.
const START: &str = "cargo run -p iwarp-tokio --example cache --";

/// The chapter has two lines for one host, which the first test of this file starts, and two lines for two
/// hosts, which this test starts.
#[test]
fn the_chapter_on_tokio_starts_the_example() {
    let _watched = limited::watch();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tokio.md");
    let mut chapter = Chapter::read(path).unwrap();
    let lines = chapter.block("In two terminals").unwrap();
    let lines: Vec<&str> = lines.iter().map(|line| without_comment(line)).collect();
    assert_eq!(lines, [format!("{START} server"), format!("{START} 100.64.12.34")]);
    let lines = chapter.block("Between hosts").unwrap();
    chapter.is_complete().unwrap();
    let [server, client] = &lines[..] else { panic!("two lines, not {lines:?}") };
    let Some(hosts) = Hosts::new() else {
        println!("two hosts need root and network namespaces: not started");
        return;
    };
    let (mut server, mut says) = hosts.start(0, without_comment(server));
    assert_eq!(says.next().unwrap(), "a cache at 10.0.0.11");
    let (mut client, mut says) = hosts.start(1, without_comment(client));
    assert_eq!(says.next().unwrap(), "client 1");
    assert_eq!(says.next().unwrap(), "colour Some(\"blue\"), shape None");
    for child in [&mut client, &mut server] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Two network namespaces, each with an interface `eth0`. Dropping this value removes the namespaces.
struct Hosts([String; 2]);

impl Hosts {
    fn new() -> Option<Self> {
        let hosts = Self(["a", "b"].map(|end| format!("uwt{}{end}", std::process::id())));
        let [a, b] = &hosts.0;
        if !ip(&format!("netns add {a}")) || !ip(&format!("netns add {b}")) {
            return None;
        }
        assert!(ip(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}")));
        for host in [a, b] {
            assert!(ip(&format!("-n {host} link set eth0 up")));
        }
        Some(hosts)
    }

    /// Starts the example on a host with a line of the chapter. Returns the process, and its lines of output.
    fn start(&self, host: usize, line: &str) -> (Child, impl Iterator<Item = String> + use<>) {
        let (wire, argument) = line.split_once(&format!(" {START} ")).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[host]]).arg(run("cache").get_program()).arg(argument);
        start(command.env("WIRE", wire.strip_prefix("WIRE=").unwrap()))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            ip(&format!("netns del {host}"));
        }
    }
}

/// Runs `ip`. Returns whether `ip` is installed and has succeeded.
fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn the_example_is_short() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/cache.rs");
    let lines = std::fs::read_to_string(source).unwrap().lines().count();
    assert!(lines <= 90, "{lines} lines");
}
