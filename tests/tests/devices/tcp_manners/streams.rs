//! Plain streams between our stack and Linux's, each with one special behaviour.

use tests::device::af_packet;
use tests::lab::{Ended, Namespace, Result, Run, Suite, Wire, programs, veth};
use tests::{ensure, lab_error};

use super::proof::Source::{Linux, Ours, Stack, Theirs};
use super::proof::{Evidence, Proof};
use super::{LIMIT, LINUX, OURS, PORT, START};

/// The kinds of TCP options.
mod kind {
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const TIMESTAMPS: u8 = 8;
    pub(super) const MULTIPATH: u8 = 30;
    pub(super) const FAST_OPEN: u8 = 34;
}

/// The side that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// We send.
    Ours,
    /// Linux sends.
    Linux,
}

/// The side whose kernel joins received segments (GRO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gro {
    Off,
    /// The kernel on our side.
    Ours,
    Linux,
}

/// One stream, and its special behaviour.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    sender: Sender,
    /// Whether we connect.
    active: bool,
    bytes: u64,
    /// Settings of Linux's side: a name below `net.ipv4`, and a value.
    sysctls: &'static [(&'static str, &'static str)],
    gro: Gro,
    /// Further options of our side, and of Linux's side.
    ours: &'static [&'static str],
    linux: &'static [&'static str],
    proofs: &'static [Proof],
}

impl Case {
    const fn new(name: &'static str, sender: Sender, active: bool) -> Self {
        let bytes = 2 * 1024 * 1024 + 12_345;
        Self { name, sender, active, bytes, sysctls: &[], gro: Gro::Off, ours: &[], linux: &[], proofs: &[] }
    }

    const fn sysctls(self, sysctls: &'static [(&'static str, &'static str)]) -> Self {
        Self { sysctls, ..self }
    }

    const fn ours(self, ours: &'static [&'static str]) -> Self {
        Self { ours, ..self }
    }

    const fn linux(self, linux: &'static [&'static str]) -> Self {
        Self { linux, ..self }
    }

    const fn gro(self, gro: Gro) -> Self {
        Self { gro, ..self }
    }

    const fn proofs(self, proofs: &'static [Proof]) -> Self {
        Self { proofs, ..self }
    }
}

/// Returns a case in which Linux connects and sends a few MiB to us.
const fn base(name: &'static str) -> Case {
    Case::new(name, Sender::Linux, false)
}

/// Returns a case in which we connect and send a few MiB to Linux.
const fn away(name: &'static str) -> Case {
    Case::new(name, Sender::Ours, true)
}

/// An unanswered probe would end these streams, since Linux gives up after the first unanswered probe.
const KEEPALIVES: &[Case] = &[
    away("keepalives_of_a_linux_that_receives_are_answered")
        .ours(&["--pause", "2500"])
        .linux(&["--keepalive", "1"])
        .proofs(&[Proof::AtLeast(Linux, "TCPKeepAlive", 2), Proof::AtLeast(Theirs, "keepalives", 2)]),
    base("keepalives_of_a_linux_that_sends_are_answered")
        .linux(&["--keepalive", "1", "--pause", "2500"])
        .proofs(&[Proof::AtLeast(Linux, "TCPKeepAlive", 2), Proof::AtLeast(Theirs, "keepalives", 2)]),
];

const WINDOWS: &[Case] = &[
    base("our_window_closes_is_probed_and_opens").ours(&["--window", "200000", "--pause", "2000"]).proofs(&[
        Proof::AtLeast(Ours, "zero_windows", 1),
        Proof::AtLeast(Linux, "TCPWinProbe", 2),
        Proof::AtLeast(Theirs, "window_probes", 2),
    ]),
    away("the_window_of_linux_closes_is_probed_and_opens").linux(&["--pause", "2000"]).proofs(&[
        Proof::AtLeast(Theirs, "zero_windows", 1),
        Proof::AtLeast(Linux, "TCPFromZeroWindowAdv", 1),
        Proof::AtLeast(Ours, "window_probes", 2),
    ]),
];

const RARE: &[Case] = &[
    base("urgent_bytes_are_bytes_of_the_stream")
        .linux(&["--urgent"])
        .proofs(&[Proof::AtLeast(Theirs, "urgent", 100)]),
    base("a_fast_open_that_asks_for_a_cookie_gets_none_and_a_connection")
        .sysctls(&[("tcp_fastopen", "1")])
        .linux(&["--fast-open"])
        .proofs(&[
            Proof::Has(Theirs, "syn_options", kind::FAST_OPEN),
            Proof::Lacks(Ours, "syn_options", kind::FAST_OPEN),
        ]),
    base("data_in_a_syn_is_not_lost")
        .sysctls(&[("tcp_fastopen", "5")])
        .linux(&["--fast-open"])
        .proofs(&[Proof::AtLeast(Theirs, "syn_bytes", 1), Proof::AtLeast(Linux, "TCPFastOpenActiveFail", 1)]),
    base("multipath_tcp_falls_back_to_tcp").linux(&["--multipath"]).proofs(&[
        Proof::Has(Theirs, "syn_options", kind::MULTIPATH),
        Proof::Lacks(Ours, "syn_options", kind::MULTIPATH),
        Proof::AtLeast(Linux, "MPCapableFallbackSYNACK", 1),
    ]),
    base("linux_probes_the_path_mtu")
        .sysctls(&[("tcp_mtu_probing", "2"), ("tcp_base_mss", "512")])
        .proofs(&[Proof::AtLeast(Linux, "TCPMTUPSuccess", 1)]),
];

const ECN: &[Case] = &[
    Case::new("ecn_that_linux_asks_for_is_used_by_us", Sender::Ours, false)
        .sysctls(&[("tcp_ecn", "1")])
        .proofs(&[Proof::AtLeast(Linux, "InECT0Pkts", 1000), Proof::AtLeast(Ours, "ect", 1000)]),
    away("ecn_that_we_ask_for_is_used_by_us")
        .sysctls(&[("tcp_ecn", "2")])
        .ours(&["--ecn"])
        .proofs(&[Proof::AtLeast(Linux, "InECT0Pkts", 1000), Proof::AtLeast(Ours, "ect", 1000)]),
    away("ecn_that_linux_refuses_is_not_used")
        .sysctls(&[("tcp_ecn", "0")])
        .ours(&["--ecn"])
        .proofs(&[Proof::AtMost(Linux, "InECT0Pkts", 0), Proof::AtMost(Ours, "ect", 0)]),
    base("ecn_that_linux_asks_for_is_used_by_linux")
        .sysctls(&[("tcp_ecn", "1")])
        .proofs(&[Proof::AtLeast(Theirs, "ect", 1000)]),
];

const NO_TIMESTAMPS: &[Proof] = &[
    Proof::Lacks(Theirs, "syn_options", kind::TIMESTAMPS),
    Proof::Lacks(Theirs, "options", kind::TIMESTAMPS),
    Proof::Lacks(Ours, "options", kind::TIMESTAMPS),
];
const NO_SACK: &[Proof] = &[Proof::Lacks(Theirs, "syn_options", kind::SACK_PERMITTED)];
const NO_SCALING: &[Proof] = &[Proof::Lacks(Theirs, "syn_options", kind::WINDOW_SCALE)];

const PLAIN: &[Case] = &[
    base("linux_without_timestamps_sends").sysctls(&[("tcp_timestamps", "0")]).proofs(NO_TIMESTAMPS),
    away("linux_without_timestamps_receives").sysctls(&[("tcp_timestamps", "0")]).proofs(NO_TIMESTAMPS),
    base("linux_without_sack_sends").sysctls(&[("tcp_sack", "0")]).proofs(NO_SACK),
    away("linux_without_sack_receives").sysctls(&[("tcp_sack", "0")]).proofs(NO_SACK),
    base("linux_without_window_scaling_sends").sysctls(&[("tcp_window_scaling", "0")]).proofs(NO_SCALING),
    away("linux_without_window_scaling_receives").sysctls(&[("tcp_window_scaling", "0")]).proofs(NO_SCALING),
    base("linux_without_any_option_sends")
        .sysctls(&[("tcp_timestamps", "0"), ("tcp_sack", "0"), ("tcp_window_scaling", "0")])
        .proofs(&[
            Proof::Lacks(Theirs, "syn_options", kind::TIMESTAMPS),
            Proof::Lacks(Theirs, "syn_options", kind::SACK_PERMITTED),
            Proof::Lacks(Theirs, "syn_options", kind::WINDOW_SCALE),
        ]),
];

/// The receiving kernel joins segments. Linux's TCP accepts joined segments. At our packet socket, joined
/// segments have checksums that are not filled in, and DPDK's `net_af_packet` does not report this. The
/// checksums are therefore wrong, and the stream continues with segments that were not joined.
const JOINED: &[Case] = &[
    Case {
        bytes: 64 * 1024 + 77,
        ..base("segments_joined_by_our_kernel_are_lost_and_sent_again").gro(Gro::Ours).proofs(&[
            Proof::AtLeast(Stack, "rx_bad_checksum", 1),
            Proof::AtLeast(Theirs, "longest", 2 * 1448),
        ])
    },
    away("segments_joined_by_linux_are_acknowledged")
        .gro(Gro::Linux)
        .proofs(&[Proof::AtLeast(Ours, "data", 1400), Proof::AtMost(Linux, "InSegs", 700)]),
];

pub(crate) fn add(suite: &mut Suite) {
    for case in [KEEPALIVES, WINDOWS, RARE, ECN, PLAIN, JOINED].into_iter().flatten() {
        suite.add(case.name, move || stream(case));
    }
}

/// Runs one stream over a veth pair. Our side opens its interface by DPDK's `net_af_packet`.
fn stream(case: &Case) -> Result<()> {
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    veth(Wire { namespace: &left, dev: "v0" }, Wire { namespace: &right, dev: "v0" }, 1500)?;
    right.address("v0", &format!("{LINUX}/24"))?;
    for (name, value) in case.sysctls {
        right.sysctl(name, value)?;
    }
    match case.gro {
        Gro::Off => {}
        Gro::Ours => left.gro_on("v0")?,
        Gro::Linux => right.gro_on("v0")?,
    }
    let frame = if case.gro == Gro::Ours { 16_384 } else { 2048 };
    let ours = left.run(programs::own("tcp-stream")?).args(["--witness", "--mbufs", "2048"]).args(case.ours);
    let ours = ours.args(["--vdev", &af_packet(0, "v0", frame), "--ip", &format!("{OURS}/24")]);
    let linux = right.run(programs::own("tcp-stream")?).args(case.linux);
    let ours = both(ours, linux, case.active, case.sender, case.bytes)?;
    Evidence::new(ours, &right)?.check(case.proofs)
}

/// Runs our side and Linux's side, which have to report the same bytes. `active`: our side connects. Returns
/// our output.
///
/// # Errors
/// If a side fails or the sides disagree, with the output of both sides.
pub(crate) fn both(ours: Run, linux: Run, active: bool, sender: Sender, bytes: u64) -> Result<String> {
    let ours = task(ours, bytes, active.then_some(LINUX), sender == Sender::Ours);
    let linux = task(linux, bytes, (!active).then_some(OURS), sender == Sender::Linux);
    let (first, second) = if active { (linux, ours) } else { (ours, linux) };
    let mut first = first.spawn()?;
    first.wait_for("ready", START)?;
    let second = second
        .spawn()?
        .finish(LIMIT + START)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- the listener\n{}", first.text()))?;
    let first = first.finish(START)?.success()?;
    let (ours, linux) = if active { (second, first) } else { (first, second) };
    let line = |text: &str| text.lines().find(|line| line.starts_with("bytes ")).map(str::to_owned);
    ensure!(line(&ours).is_some() && line(&ours) == line(&linux), "ours: {ours}\nLinux's: {linux}");
    Ok(ours)
}

/// Adds the task to a run of the program, with the peer's address if the program connects.
fn task(run: Run, bytes: u64, peer: Option<&str>, sends: bool) -> Run {
    let run = match peer {
        Some(peer) => run.args(["--connect", &format!("{peer}:{PORT}")]),
        None => run.args(["--listen", &PORT.to_string()]),
    };
    let way = if sends { "send" } else { "receive" };
    run.args(["--bytes", &bytes.to_string(), "--seconds", &LIMIT.as_secs().to_string(), way])
}
