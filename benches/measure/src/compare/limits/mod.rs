//! The limits of the machine and the wire, measured in the same run as the table (but not with `--only`). The
//! limits are those of bare frames over the vhost-user wire, without any protocol, of a core that copies
//! memory or computes CRCs of memory, and of a pipe between the two cores.

pub(crate) mod frames;
pub(crate) mod memory;
pub(crate) mod pipe;

use std::time::Duration;

use serde_json::{Map, Value, json};
use testing::lab::{Process, Result, Scratch};
use testing::{ensure, lab_error};

use crate::compare::distance::Ranged;
use crate::compare::last_line::last_line;
use crate::compare::session::Session;
use crate::compare::vhost::{SendingEnd, device, wait_for_socket};
use frames::ReceivedFrames;

/// The frames to send: full frames of both MTUs, and a superframe of 62 KiB.
const FRAMES: [(&str, u32, u16); 3] =
    [("frames_1514", 1514, 1500), ("frames_9014", 9014, 9000), ("superframes", 62 << 10, 9000)];

/// Duration in milliseconds of sending in one run.
const SEND_MS: u32 = 500;

/// Number of runs of each measurement. The median counts.
const RUNS: usize = 3;

/// Number of bytes of a frame in a round trip. This is the length of a frame with a Write of 64 bytes.
const ROUND_TRIP: u32 = 150;

/// Time limit of one run, including its start.
const LIMIT: Duration = Duration::from_secs(30);

/// Exit status of `bare-wire` if the device does not accept frames of the requested length.
pub(crate) const NOT_OFFERED: u8 = 3;

/// Measures all limits: Gb/s by direction and frame, the round trip by direction, and GB/s of memory. Prints
/// each result as soon as it is measured. If a measurement fails, its result is the error. The result of
/// frames that a device does not accept is null.
pub(crate) fn measure(session: &Session) -> Value {
    let mut all = Map::new();
    let taken = |name: &str, of: &str, figure: Result<Ranged<Option<f64>>>, unit: &str| {
        println!("{name:<14} {of:<18} {}", shown(&figure, unit));
        (name.to_owned(), value(figure))
    };
    for sender in SendingEnd::BOTH {
        let by_frame = FRAMES.map(|(name, bytes, mtu)| {
            let run = || median(runs(session), || frames_per_run(session, sender, bytes, mtu));
            let figure = session.ranged(run);
            taken(name, sender.name(), figure, "Gb/s")
        });
        let run = || median(runs(session), || round_trip(session, sender).map(Some));
        let figure = session.ranged(run);
        let round_trip = taken("round_trip", sender.name(), figure, "us");
        let of_sender = Map::from_iter(by_frame.into_iter().chain([round_trip]));
        all.insert(sender.name().to_owned(), of_sender.into());
    }
    for (name, work) in memory::WORKS {
        let figure = memory::bytes_per_s(session.cpus[0], work).map(|bytes| Some(bytes / 1e9));
        let figure = figure.map(|result| Ranged { result, distances: None });
        all.extend([taken(name, "one core", figure, "GB/s")]);
    }
    for (name, slots) in pipe::PIPES {
        let run = || median(runs(session), || pipe::gbps(session, slots).map(Some));
        all.extend([taken(name, "two cores", session.ranged(run), "Gb/s")]);
    }
    let units = json!({ "frames": "Gb/s", "round_trip": "us", "memory": "GB/s", "pipe": "Gb/s" });
    all.insert("unit".to_owned(), units);
    all.into()
}

fn runs(session: &Session) -> usize {
    if session.options.quick { 1 } else { RUNS }
}

/// Whether each result of [`measure`] is a figure, or null because the device does not accept the frames.
pub(crate) fn is_complete(limits: &Value) -> bool {
    match limits {
        Value::Object(map) => map.iter().all(|(name, value)| name != "not_measured" && is_complete(value)),
        _ => true,
    }
}

fn value(figure: Result<Ranged<Option<f64>>>) -> Value {
    figure.map_or_else(
        |error| json!({ "not_measured": error.to_string() }),
        |figure| Value::from(figure.result),
    )
}

/// Formats a figure, with the distances of the two cores if the runs used both.
fn shown(figure: &Result<Ranged<Option<f64>>>, unit: &str) -> String {
    match figure {
        Ok(Ranged { result: Some(figure), distances }) => {
            let distances = distances.map(|distances| distances.to_string()).unwrap_or_default();
            format!("{figure:>10.1} {unit:<4}  {distances}").trim_end().to_owned()
        }
        Ok(Ranged { result: None, .. }) => "not accepted by the device".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Returns the median of `runs` figures, or `None` if one of the figures is `None`.
fn median(runs: usize, figure: impl Fn() -> Result<Option<f64>>) -> Result<Option<f64>> {
    let figures = (0..runs).map(|_| figure()).collect::<Result<Option<Vec<f64>>>>()?;
    let Some(mut figures) = figures else { return Ok(None) };
    figures.sort_by(f64::total_cmp);
    figures.get(runs / 2).copied().map(Some).ok_or_else(|| lab_error!("no run"))
}

/// Returns the rate in Gb/s of bare frames from `sender`, or `None` if the sender's device does not accept
/// frames of `bytes` bytes.
fn frames_per_run(session: &Session, sender: SendingEnd, bytes: u32, mtu: u16) -> Result<Option<f64>> {
    let scratch = Scratch::new()?;
    let source = ["source", "--bytes", &bytes.to_string(), "--ms", &SEND_MS.to_string()].map(str::to_owned);
    let [source, sink] = over_wire(session, &scratch, sender, mtu, &source, "sink")?;
    let sent = source.finish(LIMIT)?;
    if sent.status.code() == Some(i32::from(NOT_OFFERED)) {
        return Ok(None);
    }
    sent.success()?;
    let output = sink.finish(LIMIT)?.success()?;
    let passed: ReceivedFrames = last_line(&output)?;
    ensure!(passed.bytes == passed.frames * u64::from(bytes), "frames of another length: {output}");
    ensure!(passed.seconds > 0.0, "nothing came: {output}");
    Ok(Some(passed.bytes as f64 * 8.0 / passed.seconds / 1e9))
}

/// Returns the median round trip in microseconds of a bare frame from `sender`.
fn round_trip(session: &Session, sender: SendingEnd) -> Result<f64> {
    let scratch = Scratch::new()?;
    let ping = ["ping", "--bytes", &ROUND_TRIP.to_string()].map(str::to_owned);
    let [ping, pong] = over_wire(session, &scratch, sender, 1500, &ping, "pong")?;
    let output = ping.finish(LIMIT)?.success()?;
    pong.finish(LIMIT)?.success()?;
    last_line(&output)
}

/// Starts `bare-wire` on both sides. `sender` runs with the arguments `first`, and the other side runs with
/// the argument `second`.
fn over_wire(
    session: &Session,
    scratch: &Scratch,
    sender: SendingEnd,
    mtu: u16,
    first: &[String],
    second: &str,
) -> Result<[Process; 2]> {
    let socket = scratch.file("wire.sock");
    let end = |is_vhost: bool| -> Result<Process> {
        let sends = (sender == SendingEnd::Vhost) == is_vhost;
        let run = Session::part("bare-wire")?;
        let run = if sends { run.args(first) } else { run.arg(second) };
        run.args(["--vdev", &device(&socket, is_vhost), "--mtu", &mtu.to_string()])
            .args(["--cpu", &session.cpus[usize::from(!is_vhost)].to_string()])
            .args(session.no_huge.then_some("--no-huge"))
            .spawn()
    };
    let vhost = end(true)?;
    wait_for_socket(&socket)?;
    let virtio_user = end(false)?;
    Ok(if sender == SendingEnd::Vhost { [vhost, virtio_user] } else { [virtio_user, vhost] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::distance::Distances;

    #[test]
    fn one_reason_anywhere_makes_it_incomplete() {
        let limits = |figure| json!({ "a": { "b": value(figure) }, "c": 2 });
        let ranged = |result| Ok(Ranged { result, distances: None });
        assert!(is_complete(&limits(ranged(Some(1.0)))) && is_complete(&limits(ranged(None))));
        assert!(!is_complete(&limits(Err(lab_error!("no")))));
    }

    #[test]
    fn a_figure_of_two_cores_has_its_distance() {
        let of = |distances| shown(&Ok(Ranged { result: Some(50.25), distances }), "Gb/s");
        assert_eq!(of(None), "      50.2 Gb/s");
        assert_eq!(of(Some(Distances::of(81.0))), "      50.2 Gb/s  81 ns");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |figures: [Option<f64>; 3]| {
            let figures = std::cell::RefCell::new(figures.to_vec());
            median(3, || Ok(figures.borrow_mut().pop().unwrap())).unwrap()
        };
        assert_eq!(of([Some(3.0), Some(1.0), Some(2.0)]), Some(2.0));
        assert_eq!(of([Some(3.0), None, Some(2.0)]), None);
        assert!(median(0, || Ok(Some(1.0))).is_err());
    }
}
