//! The kernel's TCP between two namespaces that are connected by a veth pair. Each side is pinned to a core;
//! with only one core, both sides share this core.
//!
//! The baseline of most rows is the best of a list of settings, by the medians of several runs of each
//! setting. Each run of the table tries the settings again, since the best setting depends on the kernel and
//! the machine.

pub(crate) mod baseline;
pub(crate) mod iperf3;
pub(crate) mod program;
pub(crate) mod shape;
pub(crate) mod small;
pub(crate) mod sockets;
pub(crate) mod writes;

use std::time::Duration;

use testing::lab::{Namespace, Process, Result, Run};

use crate::compare::session::Session;
use shape::{DEV, Shape};

/// The IPv4 and IPv6 addresses of the two sides.
const ADDRESSES: [[&str; 2]; 2] = [["10.91.0.1", "fd91::1"], ["10.91.0.2", "fd91::2"]];

/// Time limit for a program to begin listening.
const START: Duration = Duration::from_secs(10);

/// Time limit of a program.
const LIMIT: Duration = Duration::from_secs(60);

/// Two hosts and their wire.
#[derive(Debug)]
pub(crate) struct KernelHosts {
    ends: [Namespace; 2],
    cpus: [usize; 2],
}

/// A program that listens at the first host, and a program that connects from the second host.
#[derive(Clone, Debug)]
pub(crate) struct ServerAndClient {
    pub(crate) server: Run,
    /// The line that the server prints when it listens.
    pub(crate) ready: &'static str,
    pub(crate) client: Run,
}

impl KernelHosts {
    /// Makes two hosts with interfaces of this MTU.
    ///
    /// # Errors
    /// Fails, for example, without the privilege to create namespaces.
    pub(crate) fn new(session: &Session, mtu: u16) -> Result<Self> {
        let ends = [Namespace::new()?, Namespace::new()?];
        let [left, right] = &ends;
        let mtu = mtu.to_string();
        let link = ["link", "add", DEV, "mtu", &mtu, "type", "veth", "peer", "name", DEV, "mtu", &mtu];
        left.ip(link.into_iter().chain(["netns", right.name()]))?;
        for (end, [v4, v6]) in ends.iter().zip(ADDRESSES) {
            end.address(DEV, &format!("{v4}/24"))?;
            end.address(DEV, &format!("{v6}/64"))?;
            end.ip(["link", "set", DEV, "up"])?;
        }
        Ok(Self { ends, cpus: session.cpus })
    }

    /// Changes the settings of both interfaces.
    ///
    /// # Errors
    /// Fails if the kernel or its tools do not support the settings.
    pub(crate) fn reshape(&self, shape: Shape) -> Result<()> {
        self.ends.iter().zip(self.cpus).try_for_each(|(end, cpu)| shape.apply(end, cpu))
    }

    /// Returns the listening host's address.
    pub(crate) fn address(&self, shape: Shape) -> &'static str {
        ADDRESSES[0][usize::from(shape == Shape::BigTcp)]
    }

    /// Runs a server and a client. Returns the output of the server and then the output of the client.
    ///
    /// # Errors
    /// Fails if one of the programs fails. The error has the output of that program.
    pub(crate) fn run_both(&self, programs: ServerAndClient) -> Result<[String; 2]> {
        let mut server = self.spawn(0, programs.server)?;
        server.wait_for(programs.ready, START)?;
        let client = self.spawn(1, programs.client)?.finish(LIMIT)?.success()?;
        Ok([server.finish(START)?.success()?, client])
    }

    /// Starts a program on a host, pinned to the host's CPU.
    ///
    /// # Errors
    /// Fails if the program cannot be started.
    pub(crate) fn spawn(&self, end: usize, run: Run) -> Result<Process> {
        run.pinned(self.cpus[end]).within(self.ends[end].name().to_owned()).spawn()
    }
}

/// Settings that were tried.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured<T> {
    pub(crate) settings: T,
    /// The figure of each round. A larger figure is better.
    pub(crate) figures: Vec<f64>,
}

impl<T> Measured<T> {
    /// Returns the median of the figures. If the number of figures is even, this is the lower of the middle
    /// two.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.figures.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NEG_INFINITY)
    }
}

/// Tries all `candidates` in each of `rounds` rounds. So a slow phase of the machine affects all candidates,
/// and a single good or bad run does not decide. Returns the candidate with the best median, and all figures.
/// Candidates that fail once are omitted.
///
/// # Errors
/// If all candidates fail, returns the last error.
pub(crate) fn best<T: Copy>(
    candidates: &[T],
    rounds: usize,
    mut measure: impl FnMut(T) -> Result<f64>,
) -> Result<(T, Vec<Measured<T>>)> {
    let mut tried: Vec<Measured<T>> =
        candidates.iter().map(|&settings| Measured { settings, figures: Vec::new() }).collect();
    let mut last = testing::lab_error!("nothing to try");
    for _ in 0..rounds {
        tried.retain_mut(|one| match measure(one.settings) {
            Ok(figure) => {
                one.figures.push(figure);
                true
            }
            Err(error) => {
                last = error;
                false
            }
        });
    }
    match tried.iter().max_by(|a, b| a.median().total_cmp(&b.median())) {
        Some(best) => Ok((best.settings, tried)),
        None => Err(last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_taken_and_failures_are_left_out() {
        let figures = |n: i32| if n == 2 { Err(testing::lab_error!("no")) } else { Ok(f64::from(n % 5)) };
        let (taken, all) = best(&[1, 2, 4, 5], 1, figures).unwrap();
        let all: Vec<_> = all.into_iter().map(|tried| (tried.settings, tried.figures)).collect();
        assert_eq!((taken, all), (4, vec![(1, vec![1.0]), (4, vec![4.0]), (5, vec![0.0])]));
        assert_eq!(best(&[2], 3, figures).unwrap_err().to_string(), "no");
        assert!(best(&[0; 0], 3, figures).is_err());
    }

    #[test]
    fn the_median_decides_and_not_the_luckiest_run() {
        let runs = |name| if name == "lucky" { [60.0, 12.0, 13.0] } else { [20.0, 30.0, 21.0] };
        let mut order = Vec::new();
        let (taken, all) = best(&["lucky", "steady"], 3, |name| {
            let round = order.iter().filter(|other| **other == name).count();
            order.push(name);
            Ok(runs(name)[round])
        })
        .unwrap();
        assert_eq!(taken, "steady");
        assert_eq!([all[0].median(), all[1].median()], [13.0, 21.0]);
        assert_eq!(order, ["lucky", "steady"].repeat(3), "rounds are interleaved");
    }

    #[test]
    fn settings_that_fail_in_a_later_round_are_left_out() {
        let mut calls = 0;
        let (taken, all) = best(&[1, 2], 3, |n| {
            calls += 1;
            if n == 2 && calls > 2 { Err(testing::lab_error!("no")) } else { Ok(f64::from(n)) }
        })
        .unwrap();
        assert_eq!((taken, all.len(), calls), (1, 1, 5));
    }
}
