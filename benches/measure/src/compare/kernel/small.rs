//! Small messages over the kernel's TCP: round trip and rate.

use testing::ensure;
use testing::lab::Result;

use super::program::{READY, Received, RoundTrips};
use super::shape::Shape;
use super::{KernelHosts, ServerAndClient};
use crate::compare::last_line::last_line;
use crate::compare::session::Session;

const PORT: u16 = 7400;

/// Settings for small messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageSettings {
    /// Whether the receiver sleeps when nothing has arrived, instead of spinning.
    pub(crate) block: bool,
    pub(crate) shape: Shape,
}

impl MessageSettings {
    pub(crate) fn name(&self) -> String {
        format!("{} receiver{}", if self.block { "blocking" } else { "spinning" }, self.shape.name())
    }
}

/// The settings to try for the rate.
pub(crate) const RATE: [MessageSettings; 4] = [
    MessageSettings { block: false, shape: Shape::Plain },
    MessageSettings { block: true, shape: Shape::Plain },
    MessageSettings { block: false, shape: Shape::Steered },
    MessageSettings { block: true, shape: Shape::Steered },
];

/// The settings to try for the round trip.
pub(crate) const ROUND_TRIP: [MessageSettings; 2] = [RATE[0], RATE[2]];

/// Returns the settings for the round trip with this name, or `None` if there are no such settings.
pub(crate) fn named(name: &str) -> Option<MessageSettings> {
    ROUND_TRIP.into_iter().find(|settings| settings.name() == name)
}

/// Measures round trips of messages of `size` bytes. The interfaces have to be set up already.
///
/// # Errors
/// Fails if a program fails.
pub(crate) fn round_trips(hosts: &KernelHosts, size: u32, count: u32) -> Result<RoundTrips> {
    let [address, size, count] = [address(hosts), size.to_string(), count.to_string()];
    let [_server, client] = hosts.run_both(ServerAndClient {
        server: Session::part("kernel-tcp")?.args(["pong", &address, "--size", &size]),
        ready: READY,
        client: Session::part("kernel-tcp")?.args(["ping", &address, "--size", &size, "--count", &count]),
    })?;
    last_line(&client)
}

/// Measures the rate of messages of `size` bytes at the receiver. Each message is sent with one call. The
/// interfaces have to be set up already.
///
/// # Errors
/// Fails if a program fails.
pub(crate) fn messages_per_s(
    hosts: &KernelHosts,
    size: u32,
    settings: MessageSettings,
    seconds: f64,
) -> Result<f64> {
    let [address, bytes, seconds] = [address(hosts), size.to_string(), seconds.to_string()];
    let [server, _client] = hosts.run_both(ServerAndClient {
        server: Session::part("kernel-tcp")?
            .args(["sink", &address])
            .args(settings.block.then_some("--block")),
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
    let taken: Received = last_line(&server)?;
    ensure!(taken.seconds > 0.0, "nothing came: {server}");
    Ok(taken.bytes as f64 / f64::from(size) / taken.seconds)
}

fn address(hosts: &KernelHosts) -> String {
    format!("{}:{PORT}", hosts.address(Shape::Plain))
}
