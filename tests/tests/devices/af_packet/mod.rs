//! Packet sockets at both ends of a veth pair between two network namespaces.
//!
//! - `iwperf` over DPDK's `net_af_packet`: every test, both MTUs, both families, with and without markers,
//!   with every byte checked at its target.
//! - `programs`: `iwperf` and our TCP over our own port (`dp::packet`), also against Linux's TCP.
//! - `port`: our port by itself, frame by frame, with its interface going and coming back.

mod port;
mod programs;

use tests::iwperf::{Case, Net, cases, client, conclude, serve};
use tests::lab::{Namespace, Need, Result, Scratch, Suite, Wire, veth};

/// Runs the suite; returns whether it passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let needs = [Need::Program("ip"), Need::Program("ethtool"), Need::Namespaces];
    let mut suite = Suite::new("af_packet", &needs);
    port::add_to(&mut suite);
    programs::add_to(&mut suite);
    for case in cases(61) {
        suite.add_with(&[Need::Dpdk], case.name.clone(), move || run(&case));
    }
    suite.run(arguments)
}

fn run(case: &Case) -> Result<()> {
    let Case { test, ref server_ip, ref client_ip, mtu, options, .. } = *case;
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
