//! The figures of one core, taken from the results of a machine.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Number of bytes of a frame's Ethernet header, FCS, preamble and gap.
const FRAME_OVERHEAD_BYTES: f64 = 38.0;

/// Number of bytes of the IPv4 header and of the TCP header with timestamps.
const HEADER_BYTES: f64 = 52.0;

/// Number of bytes of an FPDU in addition to its payload: the length, the DDP and RDMAP header of a tagged
/// segment, and the CRC.
const FPDU_OVERHEAD_BYTES: f64 = 20.0;

/// The part of a document of `scripts/compare --json` that this module uses.
#[derive(Debug, Deserialize)]
pub(super) struct Results {
    machine: ResultMachine,
    rate_64: Option<ResultRow>,
    write_1500: Option<ResultRow>,
    write_9000: Option<ResultRow>,
    cores_2: ResultRow,
    /// Goodput by message size, which `scripts/compare` draws but does not write.
    sizes: Option<Sizes>,
}

#[derive(Debug, Deserialize)]
struct ResultMachine {
    cpu: String,
}

#[derive(Debug, Deserialize)]
struct ResultRow {
    ours: f64,
}

#[derive(Debug, Deserialize)]
struct Sizes {
    mtu: u16,
    gbps: BTreeMap<u32, f64>,
}

/// The rate of one core for messages of one size at one MTU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CoreRate {
    /// Number of bytes of a message.
    pub(super) bytes: u32,
    pub(super) mtu: u16,
    /// Payload in Gb/s that one core on each side moves.
    pub(super) goodput: f64,
}

impl CoreRate {
    /// Returns the payload of an FPDU in bytes.
    fn fpdu_bytes(&self) -> f64 {
        payload_bytes(self.mtu).min(f64::from(self.bytes))
    }

    /// Returns the maximum time in ns that a core spends on an FPDU.
    pub(super) fn fpdu_ns(&self) -> f64 {
        self.fpdu_bytes() * 8.0 / self.goodput
    }
}

/// Returns the payload in bytes of an FPDU that fills a segment.
pub(super) fn payload_bytes(mtu: u16) -> f64 {
    // The length of an FPDU is a multiple of four bytes.
    ((f64::from(mtu) - HEADER_BYTES - FPDU_OVERHEAD_BYTES) / 4.0).floor() * 4.0
}

/// Millions of frames per second for a payload of `gbps` Gb/s in full frames.
pub(super) fn frames(gbps: f64, mtu: u16) -> f64 {
    gbps * 1000.0 / 8.0 / payload_bytes(mtu)
}

/// Returns the part of a wire's rate that is payload, if all frames are full.
pub(super) fn efficiency(mtu: u16) -> f64 {
    payload_bytes(mtu) / (f64::from(mtu) + FRAME_OVERHEAD_BYTES)
}

impl Results {
    /// # Errors
    /// Fails if the text is not JSON, if it does not have the row `cores_2`, or if this row has no gain.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let results: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let gain = results.cores_2.ours;
        if gain > 1.0 { Ok(results) } else { Err(format!("cores_2: a gain of {gain} is none")) }
    }

    pub(super) fn cpu(&self) -> &str {
        &self.machine.cpu
    }

    /// Returns the rate of two cores relative to the rate of one core.
    pub(super) fn gain(&self) -> f64 {
        self.cores_2.ours
    }

    /// Returns the measured rates by MTU and message size. Many messages of 64 bytes share a frame, so the
    /// MTU does not matter for these messages.
    pub(super) fn cases(&self) -> Vec<CoreRate> {
        let case = |bytes, mtu, goodput| CoreRate { bytes, mtu, goodput };
        let mut cases = Vec::new();
        cases.extend(self.rate_64.iter().map(|row| case(64, 1500, row.ours * 64.0 * 8.0 / 1000.0)));
        cases.extend(self.write_1500.iter().map(|row| case(1 << 20, 1500, row.ours)));
        if let Some(sizes) = &self.sizes {
            cases.extend(sizes.gbps.iter().map(|(bytes, gbps)| case(*bytes, sizes.mtu, *gbps)));
        }
        cases.extend(self.write_9000.iter().map(|row| case(1 << 20, 9000, row.ours)));
        cases
    }

    /// Returns the rates of one core that touches no payload, at both MTUs, for messages of 1 MiB: the NIC of
    /// the receiver splits headers from payload, and a copy engine checks the payload and writes it to its
    /// target.
    ///
    /// The time of an FPDU is taken for a line over its payload. The measured times at two MTUs give the
    /// line, and the core keeps the time that does not depend on the payload. `None` if one of the two was
    /// not measured, or if the line leaves no such time.
    pub(super) fn header_cases(&self) -> Option<[CoreRate; 2]> {
        let rows = [(1500, self.write_1500.as_ref()?), (9000, self.write_9000.as_ref()?)];
        let [small, large] = rows.map(|(mtu, row)| CoreRate { bytes: 1 << 20, mtu, goodput: row.ours });
        let ns_per_byte = (large.fpdu_ns() - small.fpdu_ns()) / (large.fpdu_bytes() - small.fpdu_bytes());
        let header_ns = small.fpdu_ns() - ns_per_byte * small.fpdu_bytes();
        let only_headers = |case: CoreRate| CoreRate { goodput: case.fpdu_bytes() * 8.0 / header_ns, ..case };
        (header_ns > 0.0).then(|| [small, large].map(only_headers))
    }

    /// Returns the number of cores on each side for a payload of `gbps` Gb/s.
    pub(super) fn cores(&self, case: &CoreRate, gbps: f64) -> f64 {
        let times = gbps / case.goodput;
        if times <= 1.0 { times } else { 1.0 + (times - 1.0) / (self.gain() - 1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
        "machine": { "cpu": "a CPU", "cores": 2 }, "quick": false,
        "rate_64": { "ours": 10.0, "theirs": 1.0 },
        "write_1500": { "ours": 50.0 }, "cores_2": { "ours": 1.5 },
        "sizes": { "mtu": 9000, "gbps": { "65536": 80.0, "4096": 40.0 } }
    }"#;

    #[test]
    fn a_document_of_compare_is_read() {
        let results = Results::parse(TEXT).unwrap();
        assert_eq!((results.cpu(), results.gain()), ("a CPU", 1.5));
        let cases = results.cases();
        let named: Vec<_> = cases.iter().map(|case| (case.bytes, case.mtu, case.goodput)).collect();
        assert_eq!(named, [(64, 1500, 5.12), (1 << 20, 1500, 50.0), (4096, 9000, 40.0), (65536, 9000, 80.0)]);
    }

    #[test]
    fn results_without_two_cores_are_refused() {
        for text in ["{", "{}", &TEXT.replace("cores_2", "cores_3"), &TEXT.replace("1.5", "1.0")] {
            assert!(Results::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn each_core_adds_what_the_second_adds() {
        let results = Results::parse(TEXT).unwrap();
        let case = CoreRate { bytes: 1 << 20, mtu: 1500, goodput: 50.0 };
        let cores = [25.0, 50.0, 75.0, 100.0, 150.0].map(|gbps| results.cores(&case, gbps));
        assert_eq!(cores, [0.5, 1.0, 2.0, 3.0, 5.0]);
    }

    #[test]
    fn a_core_that_reads_only_headers_keeps_the_time_without_payload() {
        // 100 ns for the headers, and 0.1 ns for each byte of payload.
        let goodput = |bytes: f64| bytes * 8.0 / (100.0 + 0.1 * bytes);
        let rows = format!(
            r#"{{"machine": {{"cpu": ""}}, "cores_2": {{"ours": 2.0}}, "write_1500": {{"ours": {}}}, "write_9000": {{"ours": {}}}}}"#,
            goodput(1428.0),
            goodput(8928.0)
        );
        let cases = Results::parse(&rows).unwrap().header_cases().unwrap();
        assert_eq!(cases.map(|case| (case.bytes, case.mtu)), [(1 << 20, 1500), (1 << 20, 9000)]);
        assert!(cases.iter().all(|case| (case.fpdu_ns() - 100.0).abs() < 1e-6), "{cases:?}");
    }

    #[test]
    fn without_both_mtus_or_a_time_of_headers_there_is_no_such_core() {
        let of = |rows: &str| {
            Results::parse(&format!(r#"{{"machine": {{"cpu": ""}}, "cores_2": {{"ours": 2.0}}, {rows}}}"#))
        };
        let none = [
            r#""write_1500": {"ours": 50.0}"#,
            r#""write_9000": {"ours": 50.0}"#,
            // The time of an FPDU is 0.16 ns for each byte, and nothing for its headers.
            r#""write_1500": {"ours": 50.0}, "write_9000": {"ours": 49.0}"#,
        ];
        assert!(none.into_iter().all(|rows| of(rows).unwrap().header_cases().is_none()));
    }

    #[test]
    fn an_fpdu_takes_the_time_of_its_payload() {
        let case = |bytes, mtu| CoreRate { bytes, mtu, goodput: 8.0 };
        assert_eq!(case(1 << 20, 1500).fpdu_ns(), 1428.0);
        assert_eq!(case(1 << 20, 9000).fpdu_ns(), 8928.0);
        assert_eq!(case(64, 1500).fpdu_ns(), 64.0);
    }

    #[test]
    fn full_frames_carry_their_payload() {
        // 100 Gb/s are 12.5 GB/s.
        assert!((frames(100.0, 1500) * 1428.0 - 12_500.0).abs() < 1e-6);
        assert!((efficiency(1500) - 1428.0 / 1538.0).abs() < 1e-12);
        assert!((efficiency(9000) - 8928.0 / 9038.0).abs() < 1e-12);
    }
}
