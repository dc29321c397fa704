//! Streams of `iperf3`: the settings to try, and the parser of the report of `iperf3`.

use serde_json::Value;
use testing::lab::{Result, Run};
use testing::lab_error;

use super::shape::Shape;
use super::{KernelHosts, ServerAndClient};

/// The settings of one stream of `iperf3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamSettings {
    /// Options of the client.
    pub(crate) options: &'static str,
    pub(crate) shape: Shape,
}

impl StreamSettings {
    /// Returns the name of the settings in results.
    pub(crate) fn name(&self) -> String {
        format!("iperf3 {}{}", self.options, self.shape.name()).trim_end().replace(" ,", ",")
    }

    /// Returns the name of the settings in results, without the length of the messages.
    pub(crate) fn name_for_any_length(&self) -> String {
        self.name().replace(" -l 1M", "")
    }
}

/// Returns the settings of the baseline with this name, or `None` if there are no such settings.
pub(crate) fn named(name: &str) -> Option<StreamSettings> {
    COPYING.into_iter().find(|settings| settings.name() == name)
}

/// The load that `iperf3` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamLoad {
    pub(crate) connections: u32,
    /// Number of bytes handed to the kernel at a time. `None` means the number in the settings.
    pub(crate) bytes: Option<u32>,
    /// Duration in seconds.
    pub(crate) seconds: u32,
}

/// Maximum number of bytes that `iperf3` hands to the kernel in one call. Longer messages are handed over in
/// several calls, which makes no difference to a stream without message boundaries.
const LONGEST: u32 = 1 << 20;

impl StreamLoad {
    /// Returns the client's options. On the command line, the options follow the settings, so the length in
    /// the options overrides the length in the settings.
    fn options(self) -> Vec<String> {
        let Self { connections, bytes, seconds } = self;
        let mut options = format!("-t {seconds} -P {connections}");
        if let Some(bytes) = bytes {
            options += &format!(" -l {}", bytes.min(LONGEST));
        }
        options.split(' ').map(str::to_owned).collect()
    }
}

/// The defaults of `iperf3`, of the system and of the interfaces.
pub(crate) const DEFAULT: StreamSettings = StreamSettings { options: "", shape: Shape::Plain };

/// The settings to try for the best stream. With each setting, the kernel copies the sender's bytes, as we
/// copy ours into packets. `-C cubic` replaces the system's default congestion control, which may pace the
/// stream.
pub(crate) const COPYING: [StreamSettings; 7] = [
    StreamSettings { options: "-C cubic -l 1M", shape: Shape::Plain },
    DEFAULT,
    StreamSettings { options: "-C cubic", shape: Shape::Plain },
    StreamSettings { options: "-C cubic -l 1M -w 4M", shape: Shape::Plain },
    StreamSettings { options: "-C cubic -l 1M", shape: Shape::Steered },
    StreamSettings { options: "-C cubic -l 1M", shape: Shape::Gro },
    StreamSettings { options: "-C cubic -l 1M", shape: Shape::BigTcp },
];

/// Settings that are shown for comparison. `-Z` uses `sendfile`, so the sender neither copies nor reads the
/// bytes.
pub(crate) const SENDFILE: [StreamSettings; 3] = [
    StreamSettings { options: "-C cubic -Z -l 1M", shape: Shape::Plain },
    StreamSettings { options: "-C cubic -Z -l 1M -w 4M", shape: Shape::Plain },
    StreamSettings { options: "-C cubic -Z -l 1M", shape: Shape::Steered },
];

/// A quick run tries this many settings: the first settings of the list.
pub(crate) const QUICK: usize = 2;

/// Measures the goodput in Gb/s of all connections together at the receiver. The interfaces have to be set up
/// already.
///
/// # Errors
/// Fails if `iperf3` fails.
pub(crate) fn streams(hosts: &KernelHosts, settings: StreamSettings, load: StreamLoad) -> Result<f64> {
    let client = Run::new("iperf3").args(["-c", hosts.address(settings.shape), "-J"]);
    let [_server, report] = hosts.run_both(ServerAndClient {
        server: Run::new("iperf3").args(["-s", "-1", "--forceflush"]),
        ready: "Server listening",
        client: client.args(settings.options.split_whitespace()).args(load.options()),
    })?;
    parse(&report)
}

/// Parses the receiver's goodput in Gb/s from a report of `iperf3 -J`.
///
/// # Errors
/// Returns the error in the report, or an error if the report has no such figure.
pub(crate) fn parse(report: &str) -> Result<f64> {
    let report: Value =
        serde_json::from_str(report).map_err(|error| lab_error!("iperf3's report: {error}"))?;
    if let Some(error) = report["error"].as_str() {
        return Err(lab_error!("iperf3: {error}"));
    }
    let rate = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    rate.filter(|rate| *rate > 0.0)
        .map(|rate| rate / 1e9)
        .ok_or_else(|| lab_error!("iperf3's report has no goodput of the receiver"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_goodput_is_taken_not_the_senders() {
        let report = r#"{"start": {}, "end": {"sum_sent": {"bits_per_second": 9e9},
            "sum_received": {"seconds": 1.0, "bytes": 1e9, "bits_per_second": 8.5e9}}}"#;
        assert_eq!(parse(report).unwrap(), 8.5);
    }

    #[test]
    fn an_error_and_an_empty_report_are_none() {
        let said = parse(r#"{"start": {}, "end": {}, "error": "unable to connect"}"#).unwrap_err();
        assert!(said.to_string().contains("unable to connect"), "{said}");
        for bad in ["", "{}", r#"{"end": {"sum_received": {"bits_per_second": 0}}}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn settings_are_found_by_their_names() {
        for settings in COPYING {
            assert_eq!(named(&settings.name()), Some(settings));
        }
        assert_eq!(named(&SENDFILE[0].name()), None);
    }

    #[test]
    fn a_length_is_that_of_the_load_and_not_of_the_settings() {
        let load = StreamLoad { connections: 4, bytes: None, seconds: 2 };
        assert_eq!(load.options(), ["-t", "2", "-P", "4"]);
        let options = StreamLoad { bytes: Some(64), ..load }.options();
        assert_eq!(options[4..], ["-l", "64"]);
        let options = StreamLoad { bytes: Some(4 << 20), ..load }.options();
        assert_eq!(options[4..], ["-l", "1048576"], "iperf3 refuses more");
        assert_eq!(COPYING[3].name_for_any_length(), "iperf3 -C cubic -w 4M");
        assert_eq!(DEFAULT.name_for_any_length(), "iperf3");
    }

    #[test]
    fn a_manner_has_a_name_for_people() {
        assert_eq!(SENDFILE[0].name(), "iperf3 -C cubic -Z -l 1M");
        assert_eq!(StreamSettings { options: "", shape: Shape::Gro }.name(), "iperf3, GRO");
    }
}
