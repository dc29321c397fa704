//! `iwperf local`: both sides in this process, each with its own engine, over a wire in memory.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dp::Port;
use dp::link::{self, LinkConfig, LinkPlan, LinkTso};

use crate::cores::{first_cause, together};
use crate::driver::{Interrupt, WaitMode};
use crate::errors::Error;
use crate::net::{End, EndConfig, has_one_cpu, make_end};
use crate::params::Params;
use crate::perftest::client::{self, Outcome};
use crate::perftest::server::Server;
use crate::rendezvous::Rendezvous;
use crate::runs::{OnRow, Row};
use crate::table::Unit;

/// The wire between the two sides.
#[derive(Clone, Debug)]
pub struct Wire<'a> {
    /// Whether the wire uses IPv6 addresses.
    pub ipv6: bool,
    /// IP MTU.
    pub mtu: u16,
    /// Number of frames per million that the wire loses in each direction.
    pub drop_ppm: u32,
    /// Traffic class of TCP's packets.
    pub tos: u8,
    /// Capture file for the client's port.
    pub pcap: Option<&'a Path>,
    /// Time limit for a peer from which nothing arrives.
    pub timeout: Duration,
    /// Whether to profile both sides by layer.
    pub profile: bool,
    /// Whether the user wants each latency.
    pub keeps_samples: bool,
    /// The port on which the server listens.
    pub port: u16,
    /// The core on which the threads of both sides run. `None` means any core.
    pub core: Option<Core>,
}

/// One of several cores. Each core has its own wire with both sides.
#[derive(Clone, Debug)]
pub struct Core {
    /// Number of the CPU.
    pub cpu: usize,
    /// The rendezvous of the cores.
    pub rendezvous: Arc<Rendezvous>,
}

/// The results of a run.
pub struct Ended {
    /// The client's side.
    pub end: End,
    /// The client's results.
    pub outcome: Outcome,
    /// The server's rows.
    pub target: Vec<Row>,
}

/// Number of large buffers of each side for bulk data.
const BULK_MBUFS: usize = 512;

/// Runs the test `params` between two sides.
///
/// # Errors
/// Returns the error of a side that failed. If both sides failed, returns the error that is the cause.
pub fn run(
    wire: &Wire<'_>,
    params: &Params,
    unit: Unit,
    interrupt: &Interrupt,
    on_row: OnRow<'_>,
) -> Result<Ended, Error> {
    let plan = LinkPlan { drop_ppm: wire.drop_ppm, ..LinkPlan::default() };
    let link = LinkConfig {
        mtu: wire.mtu,
        a_to_b: plan.clone(),
        b_to_a: plan,
        seed: params.seed,
        bulk_mbufs: BULK_MBUFS,
        checksum_offload: true,
        // A lossy wire loses single frames of MTU size, as a real wire does.
        tso: if wire.drop_ppm > 0 { LinkTso::Cut } else { LinkTso::Whole },
        ..Default::default()
    };
    run_between(link::pair(&link), wire, params, unit, interrupt, on_row)
}

/// Runs the test `params` on several cores at once, with the queue pairs spread over the cores. Each row is
/// the sum over all cores.
///
/// # Errors
/// If cores fail, returns the error that is the cause.
pub fn run_cores(
    wire: &Wire<'_>,
    params: &Params,
    unit: Unit,
    interrupt: &Interrupt,
    cpus: &[usize],
    on_row: OnRow<'_>,
) -> Result<Vec<Ended>, Error> {
    let rendezvous = Arc::new(Rendezvous::new(cpus.len()));
    together(cpus.to_vec(), cpus, interrupt, on_row, |index, cpu, on_row| {
        let share = params.share(index as u32, cpus.len() as u32);
        let wire = Wire { core: Some(Core { cpu, rendezvous: Arc::clone(&rendezvous) }), ..wire.clone() };
        run(&wire, &share, unit, interrupt, on_row)
    })
}

/// Runs the test `params` over another wire, whose two ports the caller passes. The fields of `wire` apply,
/// except those that describe a wire in memory (`mtu`, `drop_ppm`).
///
/// # Errors
/// Returns the errors of [`run`].
pub fn run_between(
    (client_port, server_port): (Box<dyn Port>, Box<dyn Port>),
    wire: &Wire<'_>,
    params: &Params,
    unit: Unit,
    interrupt: &Interrupt,
    on_row: OnRow<'_>,
) -> Result<Ended, Error> {
    let config = |last: u8, pcap| EndConfig {
        ips: vec![cidr(wire.ipv6, last)],
        gateways: Vec::new(),
        vlan: None,
        tos: wire.tos,
        pcap,
        cpu: wire.core.as_ref().map(|core| core.cpu),
        shares_cpu: wire.core.is_some() || has_one_cpu(),
        events: params.events,
        crc: params.crc,
        link_timeout: None,
        is_local_wire: false,
        timeout: wire.timeout,
    };
    let remote = SocketAddr::new(address(wire.ipv6, 1), wire.port);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            // When a signal arrives, the client ends the test, in an orderly way if possible. So signals do
            // not interrupt the server.
            let told = interrupt.of_failures_only();
            let served = make_end(server_port, &config(1, None), &told).and_then(|mut end| {
                end.endpoint.profile = wire.profile;
                serve(&mut end, wire.port, unit)
            });
            // The interrupt is raised because the client would otherwise wait until its time limit, and would
            // report the timeout instead of the server's error.
            served.inspect_err(|_| interrupt.raise())
        });
        let ran = make_end(client_port, &config(2, wire.pcap), interrupt).and_then(|mut end| {
            end.endpoint.profile = wire.profile;
            end.endpoint.keeps_samples = wire.keeps_samples;
            end.endpoint.rendezvous = wire.core.as_ref().map(|core| Arc::clone(&core.rendezvous));
            let outcome = client::run(&mut end, remote, params, unit, on_row)?;
            end.endpoint.driver.set_wait_mode(WaitMode::Waiting);
            // The client still polls, since the server may need an answer.
            while !server.is_finished() {
                if !end.endpoint.driver.poll()? {
                    end.endpoint.driver.idle()?;
                }
            }
            Ok((end, outcome))
        });
        if ran.is_err() {
            interrupt.raise();
        }
        let served = server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let ended = first_cause(ran, served).map_err(|error| interrupt.explain(error));
        let ((end, outcome), target) = ended?;
        Ok(Ended { end, outcome, target })
    })
}

/// Serves one client. Returns the rows.
fn serve(end: &mut End, port: u16, unit: Unit) -> Result<Vec<Row>, Error> {
    let server = Server::listen(end, port)?;
    let mut client = server.accept(end, None)?;
    let mut rows = Vec::new();
    server.serve(end, &mut client, unit, &mut |row| rows.push(row.clone()))?;
    Ok(rows)
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
