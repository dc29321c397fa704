//! Unmodified RDMA programs from Debian's packages, in pairs over a `local` wire, as an ordinary user without
//! capabilities.
//!
//! | file | contents |
//! |---|---|
//! | `pairs.rs` | the programs with their arguments, and how each shows its success |
//! | `pair.rs` | runs a server and its client |
//! | `interface.rs` | two namespaces with an interface each |
//! | `wire.rs` | a wire of its own for each test, and the user that owns it |
//! | `end.rs` | programs that are killed, and what is left behind |
//!
//! A program that is not installed makes its tests skip, with a line that names the package.

mod end;
mod interface;
mod pair;
mod pairs;
mod wire;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let mut arguments = Arguments::from_args();
    // Programs have ports of their own outside of the wire, and polling ones need a processor.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    for pair in pairs::all() {
        let missing = pair.missing();
        let skips = !missing.is_empty();
        if skips {
            println!("skipped: {} (apt-get install {})", pair.name, missing.join(" "));
        }
        let name = pair.name.clone();
        let test = move || twice(&pair.name, || pair.run());
        trials.push(Trial::test(name, test).with_ignored_flag(skips));
    }
    let has_interfaces = interface::can_be_made();
    if !has_interfaces {
        println!("skipped: interface (needs root and network namespaces)");
    }
    for pair in pairs::connection_managed() {
        let skips = !has_interfaces || !pair.missing().is_empty();
        let name = format!("interface_{}", pair.name);
        let test = move || twice(&pair.name, || pair.run_between_interfaces());
        trials.push(Trial::test(name, test).with_ignored_flag(skips));
    }
    for (name, test) in end::all() {
        let skips = !pair::is_installed("rping");
        trials.push(Trial::test(name, move || test().map_err(Failed::from)).with_ignored_flag(skips));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// Runs a pair, and once more if it fails: programs have races of their own, as perftest, whose client gives
/// up if its server is slow. The first failure is printed.
fn twice(name: &str, run: impl Fn() -> Result<(), String>) -> Result<(), Failed> {
    run().or_else(|error| {
        println!("{name} is run once more, after: {error}");
        run().map_err(Failed::from)
    })
}
