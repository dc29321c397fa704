//! A NIC that is unplugged while a program uses it, and plugged in again.

use std::time::{Duration, Instant};

use tests::iwperf::Test;
use tests::lab::{NicMachine, Result, Suite};
use tests::{ensure, lab_error};

use super::faults::traffic;
use super::rig::{Binding, Family, Nic, NicPair, SharedPair};
use super::transfers::transfer;

const NIC: Nic = Nic::Pluggable;
/// Maximum time until Linux has removed or detected a NIC.
const PLUG_TIMEOUT: Duration = Duration::from_secs(20);

/// Adds a test for this binding.
pub(crate) fn add(suite: &mut Suite, shared: &SharedPair, binding: Binding) {
    let shared = shared.clone();
    suite.add(format!("{}_e1000e_unplugged", binding.name()), move || shared.with(binding, unplugged));
}

fn unplugged(pair: &NicPair) -> Result<()> {
    let between = (Family::V4.client(), Family::V4.server());
    let server = pair.serve(&pair.b, NIC, between.1, &[])?;
    let client = traffic(pair, NIC, "60", &[])?;
    let address = pair.address(NIC);
    pair.a.set_plugged(&address, false)?;
    let ended = client.finish(PLUG_TIMEOUT);
    // The NIC is plugged in again even if the client has not ended, since the next tests need the NIC.
    let came_back = linux_sees(&pair.a, &address, false).and_then(|()| {
        pair.a.set_plugged(&address, true)?;
        linux_sees(&pair.a, &address, true)
    });
    let ended = ended?;
    let said = ended.failure()?;
    ensure!(said.contains("the network device was taken away"), "another cause: {said}");
    came_back?;
    drop(server);

    pair.a.shell(&format!("nic-bind {address}"))?;
    let server = pair.serve(&pair.b, NIC, between.1, &[])?;
    transfer(pair, &pair.a, NIC, between, Test::WriteBw, &[])
        .map(drop)
        .map_err(|error| lab_error!("{error}\n---- server\n{}", server.text()))
}

/// Waits until Linux has detected or removed a PCI device.
fn linux_sees(machine: &NicMachine, address: &str, present: bool) -> Result<()> {
    let deadline = Instant::now() + PLUG_TIMEOUT;
    let script = format!("[ -e /sys/bus/pci/devices/{address} ] && echo yes || echo no");
    while (machine.shell(&script)?.trim() == "yes") != present {
        ensure!(Instant::now() < deadline, "{address}: present should be {present}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}
