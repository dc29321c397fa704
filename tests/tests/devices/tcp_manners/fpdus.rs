//! iWARP over Linux's TCP with keepalives, and with urgent bytes in FPDUs. Our bridge counts the keepalives
//! and the urgent segments.

use tests::device::af_packet;
use tests::iwperf::{Net, START_TIMEOUT};
use tests::lab::{Ended, Namespace, Result, Suite, Wire, programs, veth};
use tests::{ensure, lab_error, witness};

use super::{LIMIT, LINUX, OURS, PORT, START};

/// A counter of the bridge, and its minimum value.
type Least = (&'static str, u64);

pub(crate) fn add(suite: &mut Suite) {
    suite.add("an_idle_iwarp_connection_answers_keepalives_and_goes_on", || {
        run("idle", &[], ("keepalives", 2))
    });
    suite.add("urgent_bytes_of_fpdus_are_bytes_of_fpdus", || run("urgent", &[], ("urgent", 64)));
    suite.add("urgent_bytes_of_fpdus_with_markers_are_bytes_of_fpdus", || {
        run("urgent", &["--markers"], ("urgent", 64))
    });
    suite.add("an_urgent_byte_between_fpdus_is_terminated_for_its_crc", || {
        run("urgent-between", &[], ("urgent", 1))
    });
}

/// Runs Linux's side with the behaviour `behaviour` against our side.
fn run(behaviour: &str, options: &[&str], (name, least): Least) -> Result<()> {
    // The programs are built now, so that the bridge does not wait for their builds.
    programs::own("iwprobe-target")?;
    programs::own("fpdu-peer")?;
    let [left, middle, right] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
    veth(Wire { namespace: &left, dev: "v0" }, Wire { namespace: &middle, dev: "w0" }, 1500)?;
    veth(Wire { namespace: &right, dev: "v0" }, Wire { namespace: &middle, dev: "w1" }, 1500)?;
    right.address("v0", &format!("{LINUX}/24"))?;
    let run =
        middle.run(programs::own("bad-wire")?).args(["--rate", "1000", "--delay", "100", "--mbufs", "2048"]);
    let run = run.args(["--left", &af_packet(0, "w0", 2048), "--right", &af_packet(1, "w1", 2048)]);
    let mut bridge = run.args(["--seconds", &(2 * LIMIT).as_secs().to_string()]).spawn()?;
    bridge.wait_for("ready", START)?;

    let net = Net::af_packet("v0", &format!("{OURS}/24"), 1500);
    let target = left.run(programs::own("iwprobe-target")?).args(["listen", &PORT.to_string()]);
    let mut target = target.args(net.args()).args(options).spawn()?;
    target.wait_for("listening on port", START_TIMEOUT)?;
    let peer =
        right.run(programs::own("fpdu-peer")?).args([&format!("{OURS}:{PORT}"), behaviour]).args(options);
    let done = peer.spawn()?.finish(LIMIT).and_then(Ended::success);
    done.map_err(|error| lab_error!("{error}\n---- the target\n{}", target.text()))?;
    ensure!(target.is_running()?, "the target ended: {}", target.text());

    bridge.terminate();
    let told = bridge.finish(START)?.success()?;
    let found = witness::count(&told, "right", name)?;
    ensure!(found >= least, "{name} is {found}: {told}");
    Ok(())
}
