//! Formats the results of `measure scaling` as two Markdown tables: the cores that each rate needs, and the
//! rates of frames, of the wire and of the memory bus.

use std::fmt::Write;

use super::results::{CoreRate, Results, efficiency, frames};

/// Rates of payload in Gb/s.
const RATES: [f64; 3] = [100.0, 200.0, 400.0];

const MTUS: [u16; 2] = [1500, 9000];

/// Number of bytes that cross the memory bus for each byte of payload. `cached` applies if frame buffers stay
/// in the last-level cache, and `uncached` if all frame buffers go to memory and back.
struct BusTraffic {
    end: &'static str,
    cached: f64,
    uncached: f64,
}

/// The sender reads the source, reads the buffer into the cache and writes it (a copy), and the NIC reads the
/// buffer. At the receiver, the NIC writes the buffer, the CRC code reads it, and the copy finds it in the
/// core's cache. Then the receiver reads the target into the cache and writes it. A copy engine writes the
/// target without reading it before.
const TRAFFIC: [BusTraffic; 3] = [
    BusTraffic { end: "sends", cached: 1.0, uncached: 4.0 },
    BusTraffic { end: "receives", cached: 2.0, uncached: 4.0 },
    BusTraffic { end: "receives, headers split", cached: 1.0, uncached: 3.0 },
];

/// Returns the tables in Markdown.
pub(super) fn text(results: &Results) -> String {
    let mut text = String::new();
    cores(&mut text, results);
    text.push('\n');
    limits(&mut text);
    text
}

/// Writes a line of text. The result is ignored, since writing to a string does not fail.
macro_rules! line {
    ($text:expr, $($format:tt)*) => {{
        let _ = writeln!($text, $($format)*);
    }};
}

fn cores(text: &mut String, results: &Results) {
    let [a, b, c] = RATES;
    let (cpu, gain) = (results.cpu(), results.gain());
    line!(text, "Cores at each end, of an {cpu}; a second core gains {gain:.2}:\n");
    line!(text, "| messages, MTU | one core, Gb/s | ns an FPDU | {a:.0} Gb/s | {b:.0} Gb/s | {c:.0} Gb/s |");
    line!(text, "|---|---:|---:|---:|---:|---:|");
    for case in results.cases() {
        let [a, b, c] = RATES.map(|rate| results.cores(&case, rate));
        let (goodput, ns) = (case.goodput, case.fpdu_ns());
        line!(text, "| {} | {goodput:.1} | {ns:.0} | {a:.1} | {b:.1} | {c:.1} |", named(&case));
    }
    for case in results.header_cases().into_iter().flatten() {
        let [a, b, c] = RATES.map(|rate| results.cores(&case, rate));
        let (goodput, ns, mtu) = (case.goodput, case.fpdu_ns(), case.mtu);
        line!(text, "| receiver, headers split, {mtu} | {goodput:.1} | {ns:.0} | {a:.1} | {b:.1} | {c:.1} |");
    }
}

fn limits(text: &mut String) {
    let [a, b, c] = RATES;
    line!(text, "| for payload of | {a:.0} Gb/s | {b:.0} Gb/s | {c:.0} Gb/s |");
    line!(text, "|---|---:|---:|---:|");
    for mtu in MTUS {
        let [a, b, c] = RATES.map(|rate| frames(rate, mtu));
        line!(text, "| frames, MTU {mtu}, M/s | {a:.1} | {b:.1} | {c:.1} |");
    }
    for mtu in MTUS {
        let [a, b, c] = RATES.map(|rate| rate / efficiency(mtu));
        line!(text, "| wire, MTU {mtu}, Gb/s | {a:.0} | {b:.0} | {c:.0} |");
    }
    for BusTraffic { end, cached, uncached } in TRAFFIC {
        let [a, b, c] = RATES.map(|rate| {
            let [least, most] = [cached, uncached].map(|times| times * rate / 8.0);
            format!("{least:.1} to {most:.0}")
        });
        line!(text, "| memory bus, {end}, GB/s | {a} | {b} | {c} |");
    }
}

fn named(case: &CoreRate) -> String {
    let CoreRate { bytes, mtu, .. } = *case;
    match bytes {
        // Many small messages share a frame.
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB, {mtu}", bytes >> 10),
        _ => format!("{} MiB, {mtu}", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_have_the_figures_of_the_results() {
        let text = text(
            &Results::parse(
                r#"{"machine": {"cpu": "EPYC"}, "rate_64": {"ours": 10.0}, "write_9000": {"ours": 50.0},
                "write_1500": {"ours": 20.0}, "cores_2": {"ours": 1.5}, "sizes": {"mtu": 9000, "gbps": {"4096": 25.0}}}"#,
            )
            .unwrap(),
        );
        for line in [
            "Cores at each end, of an EPYC; a second core gains 1.50:",
            "| 64 B | 5.1 | 100 | 38.1 | 77.1 | 155.2 |",
            "| 4 KiB, 9000 | 25.0 | 1311 | 7.0 | 15.0 | 31.0 |",
            "| 1 MiB, 9000 | 50.0 | 1428 | 3.0 | 7.0 | 15.0 |",
            // The line through 571 ns for 1,428 bytes and 1,428 ns for 8,928 bytes begins at 408 ns.
            "| receiver, headers split, 1500 | 28.0 | 408 | 6.1 | 13.3 | 27.6 |",
            "| receiver, headers split, 9000 | 175.1 | 408 | 0.6 | 1.3 | 3.6 |",
            "| frames, MTU 1500, M/s | 8.8 | 17.5 | 35.0 |",
            "| wire, MTU 9000, Gb/s | 101 | 202 | 405 |",
            "| memory bus, sends, GB/s | 12.5 to 50 | 25.0 to 100 | 50.0 to 200 |",
            "| memory bus, receives, GB/s | 25.0 to 50 | 50.0 to 100 | 100.0 to 200 |",
            "| memory bus, receives, headers split, GB/s | 12.5 to 38 | 25.0 to 75 | 50.0 to 150 |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is not in:\n{text}");
        }
    }
}
