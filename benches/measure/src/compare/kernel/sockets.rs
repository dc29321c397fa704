//! RDMA Writes over the kernel's sockets between the two hosts: the settings to try, and the measurements of
//! goodput and round trips.

use serde_json::{Map, Value};
use testing::ensure;
use testing::lab::{Result, Run};

use super::program::{READY, Received, RoundTrips};
use super::shape::Shape;
use super::{KernelHosts, ServerAndClient, best};
use crate::compare::last_line::last_line;
use crate::compare::session::Session;

const PORT: u16 = 7401;

/// Number of bytes of a bulk message.
const BULK: u32 = 1 << 20;

/// The length of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FpduBytes {
    /// The FPDU fits a TCP segment, as RFC 5044 section 5.1 recommends.
    Segment,
    /// The longest FPDU that MPA allows. Such FPDUs need fewer CRCs and headers. The receiver can handle such
    /// FPDUs, since it places bytes in order.
    Longest,
}

/// The settings of Writes over sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteSettings {
    fpdus: FpduBytes,
    shape: Shape,
}

impl WriteSettings {
    fn name(&self) -> String {
        let fpdus = if self.fpdus == FpduBytes::Segment { "a segment" } else { "64 KiB" };
        format!("FPDUs of {fpdus}{}", self.shape.name())
    }

    /// Returns the number of bytes of the segment into which an FPDU has to fit, over interfaces with the MTU
    /// `mtu`. For [`FpduBytes::Segment`], this is the MTU less the IP header and the TCP header with
    /// timestamps.
    fn emss(&self, mtu: u16) -> usize {
        let headers = if self.shape == Shape::BigTcp { 40 + 32 } else { 20 + 32 };
        match self.fpdus {
            FpduBytes::Segment => usize::from(mtu) - headers,
            FpduBytes::Longest => usize::from(u16::MAX),
        }
    }
}

/// The settings to try for bulk messages.
const SETTINGS: [WriteSettings; 5] = [
    WriteSettings { fpdus: FpduBytes::Longest, shape: Shape::Plain },
    WriteSettings { fpdus: FpduBytes::Segment, shape: Shape::Plain },
    WriteSettings { fpdus: FpduBytes::Longest, shape: Shape::Steered },
    WriteSettings { fpdus: FpduBytes::Longest, shape: Shape::Gro },
    WriteSettings { fpdus: FpduBytes::Longest, shape: Shape::BigTcp },
];

/// A quick run tries this many settings: the first settings of the list.
const QUICK: usize = 2;

/// The settings to try for the round trip of one small FPDU.
const SMALL: [WriteSettings; 2] = [SETTINGS[1], WriteSettings { shape: Shape::Steered, ..SETTINGS[1] }];

/// Duration of one trial in seconds.
const TRIAL_SECONDS: f64 = 0.5;
const TRIAL_ROUND_TRIPS: u32 = 20_000;

/// Two hosts with Writes over sockets, with the settings that are best for the measurement.
#[derive(Debug)]
pub(crate) struct SocketWrites {
    hosts: KernelHosts,
    mtu: u16,
    settings: WriteSettings,
    /// The tried settings, with the medians of their figures.
    pub(crate) tried: Map<String, Value>,
}

impl SocketWrites {
    /// Finds the settings with the highest goodput over interfaces with the MTU `mtu`.
    ///
    /// # Errors
    /// Fails without the privilege to create namespaces, or if all settings fail.
    pub(crate) fn for_bulk(session: &Session, mtu: u16) -> Result<Self> {
        let all = if session.options.quick { &SETTINGS[..QUICK] } else { &SETTINGS };
        Self::new(session, mtu, all, |writes| writes.goodput(TRIAL_SECONDS))
    }

    /// Finds the settings with the shortest round trip for messages of `size` bytes.
    ///
    /// # Errors
    /// Fails without the privilege to create namespaces, or if all settings fail.
    pub(crate) fn for_round_trips(session: &Session, mtu: u16, size: u32) -> Result<Self> {
        Self::new(session, mtu, &SMALL, |writes| {
            writes.round_trips(size, TRIAL_ROUND_TRIPS).map(|trips| -trips.median_us)
        })
    }

    fn new(
        session: &Session,
        mtu: u16,
        all: &[WriteSettings],
        measure: impl Fn(&Self) -> Result<f64>,
    ) -> Result<Self> {
        let hosts = KernelHosts::new(session, mtu)?;
        let mut writes = Self { hosts, mtu, settings: SETTINGS[0], tried: Map::new() };
        let (settings, tried) = best(all, session.pace.trials, |settings| {
            writes.apply(settings)?;
            measure(&writes)
        })?;
        writes.apply(settings)?;
        writes.tried = tried.iter().map(|one| (one.settings.name(), one.median().abs().into())).collect();
        Ok(writes)
    }

    fn apply(&mut self, settings: WriteSettings) -> Result<()> {
        self.settings = settings;
        self.hosts.reshape(settings.shape)
    }

    pub(crate) fn name(&self) -> String {
        self.settings.name()
    }

    /// Measures the goodput in Gb/s of Writes of 1 MiB that the target has placed.
    ///
    /// # Errors
    /// Fails if a program fails or finds a wrong byte.
    pub(crate) fn goodput(&self, seconds: f64) -> Result<f64> {
        let [server, _client] = self.hosts.run_both(ServerAndClient {
            server: self.part("target", BULK)?,
            ready: READY,
            client: self.part("writer", BULK)?.args(["--seconds", &seconds.to_string()]),
        })?;
        let placed: Received = last_line(&server)?;
        ensure!(placed.seconds > 0.0, "nothing was placed: {server}");
        Ok(placed.bytes as f64 * 8.0 / placed.seconds / 1e9)
    }

    /// Measures round trips of Writes of `size` bytes.
    ///
    /// # Errors
    /// Fails if a program fails or finds a wrong byte.
    pub(crate) fn round_trips(&self, size: u32, count: u32) -> Result<RoundTrips> {
        let [_server, client] = self.hosts.run_both(ServerAndClient {
            server: self.part("pong", size)?,
            ready: READY,
            client: self.part("ping", size)?.args(["--count", &count.to_string()]),
        })?;
        last_line(&client)
    }

    fn part(&self, end: &str, size: u32) -> Result<Run> {
        let address = self.hosts.address(self.settings.shape);
        let address =
            if address.contains(':') { format!("[{address}]:{PORT}") } else { format!("{address}:{PORT}") };
        let emss = self.settings.emss(self.mtu).to_string();
        Ok(Session::part("kernel-iwarp")?.args([end, &address, "--size", &size.to_string(), "--emss", &emss]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_fpdu_of_a_segment_leaves_room_for_the_headers() {
        let [v4, v6] = [Shape::Plain, Shape::BigTcp]
            .map(|shape| WriteSettings { fpdus: FpduBytes::Segment, shape }.emss(1500));
        assert_eq!([v4, v6], [1448, 1428]);
        assert!(SETTINGS[0].emss(1500) > 64_768);
    }

    #[test]
    fn settings_have_names_of_their_own() {
        let names: std::collections::BTreeSet<String> = SETTINGS.iter().map(WriteSettings::name).collect();
        assert_eq!(names.len(), SETTINGS.len());
        assert!(names.contains("FPDUs of 64 KiB, BIG TCP"));
    }
}
