//! Baselines on a pair of hosts. A baseline measures with the best of several settings that it has tried, or
//! with settings that the caller chooses.

use serde_json::{Map, Value};
use testing::lab::Result;

use super::iperf3::StreamLoad;
use super::program::RoundTrips;
use super::small::{self, RATE, ROUND_TRIP};
use super::{KernelHosts, Measured, best, iperf3};
use crate::compare::session::Session;

/// One stream over the kernel's TCP.
#[derive(Debug)]
pub(crate) struct Stream {
    hosts: KernelHosts,
    settings: iperf3::StreamSettings,
    /// The tried settings, with the median of their goodput in Gb/s.
    pub(crate) tried: Map<String, Value>,
    /// The tried settings, with the goodput of each run.
    pub(crate) runs: Map<String, Value>,
    /// Medians with `sendfile`, which avoids the copy at the sender. These medians are not the baseline.
    pub(crate) sendfile: Map<String, Value>,
}

impl Stream {
    /// Finds the best settings over interfaces with the MTU `mtu`.
    ///
    /// # Errors
    /// Fails without the privilege to create namespaces, or if all settings fail, for example because
    /// `iperf3` is missing.
    pub(crate) fn new(session: &Session, mtu: u16) -> Result<Self> {
        let hosts = KernelHosts::new(session, mtu)?;
        let quick = session.options.quick;
        let try_all = |manners: &[iperf3::StreamSettings]| {
            best(if quick { &manners[..iperf3::QUICK] } else { manners }, session.pace.trials, |settings| {
                hosts.reshape(settings.shape)?;
                iperf3::streams(&hosts, settings, TRIAL)
            })
        };
        let (_, sendfile) = try_all(&iperf3::SENDFILE)?;
        let (settings, tried) = try_all(&iperf3::COPYING)?;
        hosts.reshape(settings.shape)?;
        let runs = by_name(&tried, |tried| tried.figures.clone().into());
        let [tried, sendfile] = [tried, sendfile].map(|all| by_name(&all, |tried| tried.median().into()));
        Ok(Self { hosts, settings, tried, runs, sendfile })
    }

    /// Sets up a stream with these settings over interfaces with the MTU `mtu`. No other settings are tried.
    ///
    /// # Errors
    /// Fails without the privilege to create namespaces, or if the settings are not supported.
    pub(crate) fn with(session: &Session, mtu: u16, settings: iperf3::StreamSettings) -> Result<Self> {
        let hosts = KernelHosts::new(session, mtu)?;
        hosts.reshape(settings.shape)?;
        let [tried, runs, sendfile] = Default::default();
        Ok(Self { hosts, settings, tried, runs, sendfile })
    }

    pub(crate) fn name(&self) -> String {
        self.settings.name()
    }

    /// Returns the same as [`name`](Self::name), but without the length of the messages.
    pub(crate) fn name_for_any_length(&self) -> String {
        self.settings.name_for_any_length()
    }

    /// Measures the goodput in Gb/s of all connections together.
    ///
    /// # Errors
    /// Fails if `iperf3` fails.
    pub(crate) fn goodput(&self, load: StreamLoad) -> Result<f64> {
        iperf3::streams(&self.hosts, self.settings, load)
    }
}

fn by_name(
    all: &[Measured<iperf3::StreamSettings>],
    value: impl Fn(&Measured<iperf3::StreamSettings>) -> Value,
) -> Map<String, Value> {
    all.iter().map(|tried| (tried.settings.name(), value(tried))).collect()
}

/// Small messages over the kernel's TCP.
#[derive(Debug)]
pub(crate) struct Small {
    hosts: KernelHosts,
    settings: small::MessageSettings,
}

/// Duration in seconds of one trial of a rate.
const TRIAL_SECONDS: f64 = 0.4;
const TRIAL_ROUND_TRIPS: u32 = 20_000;
const TRIAL: StreamLoad = StreamLoad { connections: 1, bytes: None, seconds: 1 };

impl Small {
    /// Finds the settings with the shortest round trip for messages of `size` bytes.
    ///
    /// # Errors
    /// Fails without the privilege to create namespaces, or if all settings fail.
    pub(crate) fn for_round_trips(session: &Session, size: u32) -> Result<Self> {
        Self::new(session, 1500, &ROUND_TRIP, |hosts, _manner| {
            small::round_trips(hosts, size, TRIAL_ROUND_TRIPS).map(|trips| -trips.median_us)
        })
    }

    /// Finds the settings with the highest rate of messages of `size` bytes over interfaces with the MTU
    /// `mtu`.
    ///
    /// # Errors
    /// Fails without the privilege to create namespaces, or if all settings fail.
    pub(crate) fn for_rate(session: &Session, mtu: u16, size: u32) -> Result<Self> {
        Self::new(session, mtu, &RATE, |hosts, settings| {
            small::messages_per_s(hosts, size, settings, TRIAL_SECONDS)
        })
    }

    fn new(
        session: &Session,
        mtu: u16,
        manners: &[small::MessageSettings],
        measure: impl Fn(&KernelHosts, small::MessageSettings) -> Result<f64>,
    ) -> Result<Self> {
        let hosts = KernelHosts::new(session, mtu)?;
        let (settings, _tried) = best(manners, session.pace.trials, |settings| {
            hosts.reshape(settings.shape)?;
            measure(&hosts, settings)
        })?;
        hosts.reshape(settings.shape)?;
        Ok(Self { hosts, settings })
    }

    /// Sets up small messages with these settings over interfaces with the MTU `mtu`. No other settings are
    /// tried.
    ///
    /// # Errors
    /// Fails without the privilege to create namespaces, or if the settings are not supported.
    pub(crate) fn with(session: &Session, mtu: u16, settings: small::MessageSettings) -> Result<Self> {
        let hosts = KernelHosts::new(session, mtu)?;
        hosts.reshape(settings.shape)?;
        Ok(Self { hosts, settings })
    }

    pub(crate) fn name(&self) -> String {
        self.settings.name()
    }

    /// Measures round trips.
    ///
    /// # Errors
    /// Fails if a program fails.
    pub(crate) fn round_trips(&self, size: u32, count: u32) -> Result<RoundTrips> {
        small::round_trips(&self.hosts, size, count)
    }

    /// Measures messages per second.
    ///
    /// # Errors
    /// Fails if a program fails.
    pub(crate) fn messages_per_s(&self, size: u32, seconds: f64) -> Result<f64> {
        small::messages_per_s(&self.hosts, size, self.settings, seconds)
    }
}
