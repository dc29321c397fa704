//! Small messages over the kernel's TCP: the round trip, and how many a second.

use testing::ensure;
use testing::lab::Result;

use super::program::{READY, RoundTrips, Taken};
use super::shape::Shape;
use super::{ClientServer, KernelHosts};
use crate::compare::session::Session;
use crate::compare::told::last_line;

const PORT: u16 = 7400;

/// How small messages are received, and how the interfaces are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageVariant {
    /// The receiver sleeps while there is nothing, instead of spinning.
    pub(crate) block: bool,
    /// How the interfaces are set.
    pub(crate) shape: Shape,
}

impl MessageVariant {
    /// In results.
    pub(crate) fn name(&self) -> String {
        format!("{} receiver{}", if self.block { "blocking" } else { "spinning" }, self.shape.name())
    }
}

/// What the rate of messages is tried with.
pub(crate) const RATE: [MessageVariant; 4] = [
    MessageVariant { block: false, shape: Shape::Plain },
    MessageVariant { block: true, shape: Shape::Plain },
    MessageVariant { block: false, shape: Shape::Steered },
    MessageVariant { block: true, shape: Shape::Steered },
];

/// What the round trip is tried with.
pub(crate) const ROUND_TRIP: [MessageVariant; 2] = [RATE[0], RATE[2]];

/// Round trips of messages of `size` bytes. The interfaces have to be set already.
///
/// # Errors
/// When a program fails.
pub(crate) fn round_trips(hosts: &KernelHosts, size: u32, count: u32) -> Result<RoundTrips> {
    let [address, size, count] = [address(hosts), size.to_string(), count.to_string()];
    let [_server, client] = hosts.run_both(ClientServer {
        server: Session::part("kernel-tcp")?.args(["pong", &address, "--size", &size]),
        ready: READY,
        client: Session::part("kernel-tcp")?.args(["ping", &address, "--size", &size, "--count", &count]),
    })?;
    last_line(&client)
}

/// Messages of `size` bytes, one call each: how many a second came. The interfaces have to be set already.
///
/// # Errors
/// When a program fails.
pub(crate) fn messages_per_s(
    hosts: &KernelHosts,
    size: u32,
    manner: MessageVariant,
    seconds: f64,
) -> Result<f64> {
    let [address, bytes, seconds] = [address(hosts), size.to_string(), seconds.to_string()];
    let [server, _client] = hosts.run_both(ClientServer {
        server: Session::part("kernel-tcp")?.args(["sink", &address]).args(manner.block.then_some("--block")),
        ready: READY,
        client: Session::part("kernel-tcp")?.args([
            "source",
            &address,
            "--size",
            &bytes,
            "--seconds",
            &seconds,
        ]),
    })?;
    let taken: Taken = last_line(&server)?;
    ensure!(taken.seconds > 0.0, "nothing came: {server}");
    Ok(taken.bytes as f64 / f64::from(size) / taken.seconds)
}

fn address(hosts: &KernelHosts) -> String {
    format!("{}:{PORT}", hosts.address(Shape::Plain))
}
