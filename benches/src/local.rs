//! `iwperf local`: both ends in this process, each with an engine of its own, over a wire in memory.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use dp::link::{self, LinkConfig, LinkPlan};

use crate::driver::Interrupt;
use crate::errors::Error;
use crate::net::{End, EndConfig, make_end};
use crate::params::{DEFAULT_PORT, Params};
use crate::perftest::client::{self, Outcome};
use crate::perftest::script::OnRow;
use crate::perftest::server::Server;
use crate::table::Unit;

/// The wire between both ends.
#[derive(Clone, Debug)]
pub struct Wire<'a> {
    /// Between IPv6 addresses.
    pub ipv6: bool,
    /// IP MTU.
    pub mtu: u16,
    /// Frames lost of a million, in each direction.
    pub drop_ppm: u32,
    /// Capture of the client's port.
    pub pcap: Option<&'a Path>,
    /// Longest silence.
    pub timeout: Duration,
}

/// Runs `params` between two ends; `at_end` sees the client's end before it goes.
///
/// # Errors
/// The first error of either end.
pub fn run(
    wire: &Wire<'_>,
    params: &Params,
    unit: Unit,
    interrupt: &Interrupt,
    on_row: OnRow<'_>,
    at_end: impl FnOnce(&End, &Outcome) -> Result<(), Error>,
) -> Result<(), Error> {
    let plan = LinkPlan { drop_ppm: wire.drop_ppm, ..LinkPlan::default() };
    let link = LinkConfig {
        mtu: wire.mtu,
        a_to_b: plan.clone(),
        b_to_a: plan,
        seed: params.seed,
        ..Default::default()
    };
    let (client_port, server_port) = link::pair(&link);
    let config = |last: u8, pcap| EndConfig {
        ips: vec![cidr(wire.ipv6, last)],
        gateways: Vec::new(),
        vlan: None,
        pcap,
        cpu: None,
        events: params.events,
        timeout: wire.timeout,
    };
    let remote = SocketAddr::new(address(wire.ipv6, 1), DEFAULT_PORT);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let served =
                make_end(server_port, &config(1, None), interrupt).and_then(|mut end| serve(&mut end, unit));
            // The client would wait in vain: its time-out is not what is wrong.
            served.inspect_err(|_| interrupt.raise())
        });
        let ran = make_end(client_port, &config(2, wire.pcap), interrupt).and_then(|mut end| {
            let outcome = client::run(&mut end, remote, params, unit, on_row)?;
            at_end(&end, &outcome)
        });
        if ran.is_err() {
            interrupt.raise();
        }
        let served = server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        first_cause(ran, served)
    })
}

fn serve(end: &mut End, unit: Unit) -> Result<(), Error> {
    let server = Server::listen(end, DEFAULT_PORT)?;
    let mut client = server.accept(end, None)?;
    let served = server.serve(end, &mut client, unit, &mut |_row| {});
    served.map(drop)
}

/// Of two errors the cause: an end that was interrupted, or lost its peer, only shows that the other one ended.
fn first_cause(ran: Result<(), Error>, served: Result<(), Error>) -> Result<(), Error> {
    match (ran, served) {
        (Err(Error::Interrupted | Error::Disconnected { .. }), Err(error)) if !is_interrupted(&error) => {
            Err(error)
        }
        (Err(error), _) | (Ok(()), Err(error)) => Err(error),
        (Ok(()), Ok(())) => Ok(()),
    }
}

fn is_interrupted(error: &Error) -> bool {
    matches!(error, Error::Interrupted)
}

fn address(ipv6: bool, last: u8) -> IpAddr {
    if ipv6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)).into()
    } else {
        Ipv4Addr::new(10, 0, 0, last).into()
    }
}

fn cidr(ipv6: bool, last: u8) -> String {
    format!("{}/{}", address(ipv6, last), if ipv6 { 64 } else { 24 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_peer_is_not_the_cause() {
        let lost = || Err(Error::Disconnected { doing: "measuring", error: None });
        let cause = || Err(Error::Validation("octet 7".into()));
        for (ran, served) in [(lost(), cause()), (cause(), lost()), (Err(Error::Interrupted), cause())] {
            assert!(matches!(first_cause(ran, served), Err(Error::Validation(_))));
        }
        assert!(matches!(first_cause(lost(), Err(Error::Interrupted)), Err(Error::Disconnected { .. })));
        assert!(first_cause(Ok(()), Ok(())).is_ok());
    }
}
