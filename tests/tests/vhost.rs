//! `iwperf` between two processes over `net_vhost` and `net_virtio_user`: every test, both MTUs, both families, with
//! and without markers, every octet checked at its target. Needs neither root nor hugepages.

use std::process::ExitCode;

use tests::ensure;
use tests::iwperf::{Net, Test, client, conclude, serve_vhost};
use tests::lab::{Need, Result, Scratch, Suite};

fn main() -> ExitCode {
    let mut suite = Suite::new("vhost", &[Need::Dpdk]);
    for (family, addresses) in
        [("ipv4", ["10.60.0.1/24", "10.60.0.2/24"]), ("ipv6", ["fd60::1/64", "fd60::2/64"])]
    {
        for mtu in [1500, 9000] {
            for (framing, options) in [("plain", &[][..]), ("markers", &["--markers"][..])] {
                for test in Test::ALL {
                    suite.add(format!("{}_{family}_mtu{mtu}_{framing}", test.name()), move || {
                        run(test, addresses, mtu, options)
                    });
                }
            }
        }
    }
    suite.run()
}

fn run(test: Test, [server_ip, client_ip]: [&str; 2], mtu: u16, options: &[&str]) -> Result<()> {
    let scratch = Scratch::new()?;
    let (socket, json) = (scratch.file("vhost.sock"), scratch.file("result.json"));
    let server = serve_vhost(&socket, server_ip, mtu, ["server", "--validate"].iter().chain(options))?;
    let net = Net::virtio_user(&socket, client_ip, mtu);
    let client = client(None, test, server_ip, &net, &json)?.args(options).spawn()?;
    let results = conclude(client, server, &json)?;
    if test == Test::ReadBw && options.is_empty() {
        // The vhost side answers in trains of segments: its peer takes large frames, and said so when it came.
        let count = |name: &str| results["counters"][name].as_u64().unwrap_or(0);
        let (frames, fpdus) = (count("rx_frames"), count("rx_fpdus"));
        ensure!(0 < frames && 2 * frames < fpdus, "{fpdus} FPDUs came in {frames} frames");
    }
    Ok(())
}
