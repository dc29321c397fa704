//! A machine whose device is on a vhost-user socket of `iwperf`, without a tap device and without DPDK. The
//! driver of the device is Linux's, with interrupts, mergeable buffers, checksums and superframes.

use std::time::Duration;

use tests::iwperf::{TEST_TIMEOUT, Test, serve_vhost_without_dpdk};
use tests::lab::{Driver, Ended, Result, Scratch, Siw, SiwConfig, Suite};
use tests::{ensure, lab_error};

use super::perftest::{has_result, shape, tool};

const OURS: &str = "10.78.0.1";
const THEIRS: &str = "10.78.0.2/24";

/// Adds the test, which boots a machine of its own.
pub(crate) fn add(suite: &mut Suite) {
    suite.add("vhost_user", || {
        let scratch = Scratch::new()?;
        let socket = scratch.file("vhost.sock");
        let test = Test::WriteBw;
        let shape = shape(test);
        let options = ["server", "--test", test.name(), "--timeout", "120"];
        let words = options.into_iter().chain(shape.iter().map(String::as_str));
        let server = serve_vhost_without_dpdk(&socket, &format!("{OURS}/24"), 1500, words)?;
        let config =
            SiwConfig { driver: Driver::Siw, mtu: 1500, addresses: vec![THEIRS.into()], params: vec![] };
        let machine = Siw::start_on_socket(&socket, &config)?;
        run(&machine, test).map_err(|error| lab_error!("{error}\n---- our side\n{}", server.text()))?;
        server.finish(Duration::from_secs(20))?.success()?;
        ensure!(!socket.exists(), "the socket is removed at the end");
        Ok(())
    });
}

/// Runs a client of perftest in the machine.
fn run(machine: &Siw, test: Test) -> Result<()> {
    let mut tool = tool(test);
    tool.push(OURS.to_owned());
    let client = machine.run(TEST_TIMEOUT, tool).spawn()?;
    let said = client.finish(TEST_TIMEOUT + Duration::from_secs(5)).and_then(Ended::success)?;
    has_result(&said)
}
