//! A program of ours in Go, whose goroutines call librdmacm and libibverbs by cgo.

use std::process::Command;

use super::{From, Other};
use crate::interface::{self, Interfaces};
use crate::pair::Pair;
use crate::wire::Wire;

pub(crate) const ALL: [Other; 1] = [Other {
    test: "go",
    program: "Go with cgo, a ping-pong of 8 goroutines ([ours](../ffi/verbs/tests/programs/go/pingpong.go))",
    from: From::Debian(&["golang-go"]),
    how: "`uwarp run -- ./pingpong 7471 127.0.0.1`; on one host and on two",
    checks: "the client compares messages, and bytes that it has written and read, while the garbage collector \
             runs and nil pointers make panics",
    run,
}];

fn run() -> Result<(), String> {
    ping_pong(&Wire::new()?)?;
    if interface::can_be_made() { ping_pong(&Wire::between(Interfaces::hosts()?)?) } else { Ok(()) }
}

fn ping_pong(wire: &Wire) -> Result<(), String> {
    let source = format!("{}/tests/programs/go/pingpong.go", env!("CARGO_MANIFEST_DIR"));
    let program = wire.folder().join("pingpong");
    let mut go = Command::new("go");
    // The cache spares the next run a minute.
    go.env("GOCACHE", super::folder("go")?).args(["build", "-o"]).arg(&program).arg(source);
    super::succeed(&mut go)?;
    let server = format!("{} 7471", program.display());
    let pair = Pair::of_test("go", &server, &format!("{server} 127.0.0.1"));
    pair.shows("8 goroutines have compared 1600 messages").run_over(wire)
}
