//! The simulator's middlebox joins and splits segments in our bridge between two hosts. In some tests the
//! peer is Linux's TCP; in the other tests both hosts run iWARP.

use tests::device::af_packet;
use tests::iwperf::{self, Net, Test};
use tests::lab::{Namespace, Process, Result, Scratch, Suite, Wire, programs, veth};
use tests::{ensure, witness};

use super::streams::{Sender, both};
use super::{LIMIT, LINUX, OURS, START};

/// MTU of devices that pass joined segments. The hosts announce an MSS for Ethernet.
const WIDE_MTU: u16 = 61_000;
/// Maximum length of a frame in a ring, and maximum payload of a joined segment: nearly the maximum of an IP
/// packet.
const WIDE_FRAME: usize = 61_440;
const WIDE_JOIN: usize = 60_000;
/// The MTU, the frame length and the payload for programs whose number of buffers cannot be set.
const LONG_MTU: u16 = 15_500;
const LONG_FRAME: usize = 16_384;
const LONG_JOIN: usize = 15_000;
/// Length in bytes of a stream.
const BYTES: u64 = 2 * 1024 * 1024 + 12_345;
/// Payload of a segment in bytes: an Ethernet packet minus the headers of IP and TCP and the timestamps.
const EMSS: u64 = 1448;

/// The behaviour of the middlebox.
#[derive(Clone, Copy)]
struct MiddleboxBehaviour {
    name: &'static str,
    joins: bool,
    cuts: bool,
}

const BEHAVIOURS: [MiddleboxBehaviour; 3] = [
    MiddleboxBehaviour { name: "joined", joins: true, cuts: false },
    MiddleboxBehaviour { name: "cut", joins: false, cuts: true },
    MiddleboxBehaviour { name: "joined_and_cut", joins: true, cuts: true },
];

pub(crate) fn add(suite: &mut Suite) {
    for behaviour in BEHAVIOURS {
        for (sender, way) in [(Sender::Linux, "from_linux"), (Sender::Ours, "to_linux")] {
            suite.add(format!("segments_{way}_{}_by_a_middlebox", behaviour.name), move || {
                plain(behaviour, sender)
            });
        }
        for (framing, options) in [("plain", &[][..]), ("markers", &["--markers"][..])] {
            suite.add(format!("fpdus_{}_by_a_middlebox_{framing}", behaviour.name), move || {
                fpdus(behaviour, options)
            });
        }
    }
}

/// Two hosts and the bridge between them, each in its own namespace.
struct Lab {
    left: Namespace,
    right: Namespace,
    bridge: Process,
    /// The bridge's namespace, kept as long as the bridge runs.
    _middle: Namespace,
}

impl Lab {
    fn new(
        behaviour: MiddleboxBehaviour,
        (mtu, frame, join): (u16, usize, usize),
        more: &[&str],
    ) -> Result<Self> {
        // The programs are built now, so that the bridge does not wait for their builds.
        programs::own("tcp-stream")?;
        programs::iwperf()?;
        let [left, middle, right] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        veth(Wire { namespace: &left, dev: "v0" }, Wire { namespace: &middle, dev: "w0" }, mtu)?;
        veth(Wire { namespace: &right, dev: "v0" }, Wire { namespace: &middle, dev: "w1" }, mtu)?;
        let run = middle.run(programs::own("bad-wire")?).args(more);
        let run = run.args(["--left", &af_packet(0, "w0", frame), "--right", &af_packet(1, "w1", frame)]);
        let run =
            run.args(["--mtu", &mtu.to_string(), "--rate", "1000", "--delay", "200", "--mbufs", "1024"]);
        let run = if behaviour.joins { run.args(["--join", &join.to_string()]) } else { run };
        let run = if behaviour.cuts { run.args(["--cut", "500000"]) } else { run };
        let mut bridge = run.args(["--seconds", &(2 * LIMIT).as_secs().to_string()]).spawn()?;
        bridge.wait_for("ready", START)?;
        Ok(Self { left, right, bridge, _middle: middle })
    }

    /// Ends the bridge, and checks that it has joined and split segments of `side` as required.
    fn conclude(mut self, behaviour: MiddleboxBehaviour, side: &str) -> Result<()> {
        self.bridge.terminate();
        let told = self.bridge.finish(START)?.success()?;
        let (joined, cut) = (witness::count(&told, side, "joined")?, witness::count(&told, side, "cut")?);
        println!("{} from the {side}: {joined} joined, {cut} cut", behaviour.name);
        ensure!(!behaviour.joins || joined > 500, "only {joined} joined: {told}");
        // After joining there are fewer segments to split.
        ensure!(!behaviour.cuts || cut > if behaviour.joins { 10 } else { 500 }, "only {cut} cut: {told}");
        Ok(())
    }
}

/// Sends a plain stream. Linux is the host on the right.
fn plain(behaviour: MiddleboxBehaviour, sender: Sender) -> Result<()> {
    let lab = Lab::new(behaviour, (WIDE_MTU, WIDE_FRAME, WIDE_JOIN), &[])?;
    lab.right.address("v0", &format!("{LINUX}/24"))?;
    let ours = lab.left.run(programs::own("tcp-stream")?).args(["--witness", "--mbufs", "1024"]);
    let ours = ours.args(["--vdev", &af_packet(0, "v0", WIDE_FRAME), "--ip", &format!("{OURS}/24")]);
    let linux = lab.right.run(programs::own("tcp-stream")?);
    let ours = both(ours, linux, sender == Sender::Ours, sender, BYTES)?;
    if sender == Sender::Linux && behaviour.joins && !behaviour.cuts {
        let longest = witness::count(&ours, "theirs", "longest")?;
        ensure!(longest > 20 * EMSS, "no more than {longest} bytes at once: {ours}");
    }
    lab.conclude(behaviour, if sender == Sender::Ours { "left" } else { "right" })
}

/// Makes RDMA Reads from the host on the right, with every byte checked. The wire also reorders segments, so
/// with markers FPDUs are found beyond holes.
fn fpdus(behaviour: MiddleboxBehaviour, options: &[&str]) -> Result<()> {
    let scratch = Scratch::new()?;
    let json = scratch.file("result.json");
    let lab = Lab::new(behaviour, (LONG_MTU, LONG_FRAME, LONG_JOIN), &["--reorder", "20000"])?;
    let (client_ip, server_ip) = (format!("{OURS}/24"), format!("{LINUX}/24"));
    let net = |ip: &str| Net::af_packet("v0", ip, 1500);
    let server =
        iwperf::serve(Some(&lab.right), &net(&server_ip), ["server", "--validate"].iter().chain(options))?;
    let client = iwperf::client(Some(&lab.left), Test::ReadBw, &server_ip, &net(&client_ip), &json)?;
    let value = iwperf::conclude(client.args(options).spawn()?, server, &json)?;
    let count = |name: &str| value["counters"][name].as_u64().unwrap_or(0);
    let (frames, fpdus, early) = (count("rx_frames"), count("rx_fpdus"), count("rx_fpdus_early"));
    println!("{}: {fpdus} FPDUs in {frames} frames, {early} of them early", behaviour.name);
    if behaviour.joins && !behaviour.cuts {
        ensure!(fpdus > 2 * frames, "{fpdus} FPDUs in {frames} frames: {value}");
    }
    // FPDUs can be found beyond a hole only with markers.
    ensure!((early == 0) == options.is_empty(), "{early} FPDUs were placed early: {value}");
    lab.conclude(behaviour, "right")
}
