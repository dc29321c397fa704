//! `iwperf` between two processes in two network namespaces, over a veth pair and `net_af_packet`: every
//! test, both MTUs, both families, with and without markers, with every byte checked at its target.

use tests::iwperf::{Net, Test, client, conclude, serve};
use tests::lab::{Namespace, Need, Result, Scratch, Suite, Wire, veth};

/// Runs the suite; returns whether it passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let mut suite = Suite::new(
        "af_packet",
        &[Need::Dpdk, Need::Program("ip"), Need::Program("ethtool"), Need::Namespaces],
    );
    for (family, addresses) in
        [("ipv4", ["10.61.0.1/24", "10.61.0.2/24"]), ("ipv6", ["fd61::1/64", "fd61::2/64"])]
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
    suite.run(arguments)
}

fn run(test: Test, [server_ip, client_ip]: [&str; 2], mtu: u16, options: &[&str]) -> Result<()> {
    let scratch = Scratch::new()?;
    let json = scratch.file("result.json");
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    veth(Wire { namespace: &left, dev: "v0" }, Wire { namespace: &right, dev: "v0" }, mtu)?;
    let server_net = Net::af_packet("v0", server_ip, mtu);
    let server = serve(Some(&left), &server_net, ["server", "--validate"].iter().chain(options))?;
    let net = Net::af_packet("v0", client_ip, mtu);
    let client = client(Some(&right), test, server_ip, &net, &json)?.args(options).spawn()?;
    conclude(client, server, &json)?;
    Ok(())
}
