//! The example of a cache: two processes on a local wire, of which the server is killed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// `cargo test` builds the examples beside the tests.
fn run(example: &str) -> Command {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples");
    path.push(example);
    Command::new(&path)
}

/// A process, and its lines.
fn cache(wire: &str, argument: &str) -> (Child, impl Iterator<Item = String>) {
    let mut command = run("cache");
    command.arg(argument).env("WIRE", wire).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    (child, lines)
}

#[test]
fn a_client_says_why_when_its_server_dies() {
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

/// The chapter (`docs/tokio.md`) starts the server and its client as the test above does.
#[test]
fn the_chapter_on_tokio_starts_the_example() {
    let chapter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tokio.md");
    let chapter = std::fs::read_to_string(chapter).unwrap();
    for argument in ["server", "100.64."] {
        let line = format!("\n    cargo run -p iwarp-tokio --example cache -- {argument}");
        assert!(chapter.contains(&line), "{line}");
    }
}

#[test]
fn the_example_is_short() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/cache.rs");
    let lines = std::fs::read_to_string(source).unwrap().lines().count();
    assert!(lines <= 90, "{lines} lines");
}
