//! Runs a test on several cores at once, with a thread for each core, and adds up the threads' rows.

use std::collections::VecDeque;
use std::sync::mpsc;

use crate::driver::Interrupt;
use crate::errors::Error;
use crate::runs::{OnRow, Row, merge};

/// Calls `run` in a thread for each core, with the state of that core. Whenever each core has produced
/// another row, calls `on_row` with the sum of these rows. `cpus` has the CPU of each core, which the sum
/// lists. Returns the results of all cores.
///
/// # Errors
/// If a core fails, it interrupts the other cores. Returns the error of this core, not the interrupts that
/// follow from it.
pub fn together<S: Send, T: Send>(
    states: Vec<S>,
    cpus: &[usize],
    interrupt: &Interrupt,
    on_row: OnRow<'_>,
    run: impl Fn(usize, S, OnRow<'_>) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let (hz, cores) = (merge::span_hz(), states.len());
    let (send, receive) = mpsc::channel();
    let run = &run;
    std::thread::scope(|scope| {
        let start = |(index, state): (usize, S)| {
            let send = send.clone();
            scope.spawn(move || {
                // Sending fails only if `on_row` has panicked, since the receiver otherwise waits for all
                // senders to end.
                let mut tell = |row: &Row| drop(send.send((index, row.clone())));
                run(index, state, &mut tell).inspect_err(|_| interrupt.raise())
            })
        };
        let threads: Vec<_> = states.into_iter().enumerate().map(start).collect();
        drop(send);
        let mut waiting: Vec<VecDeque<(usize, Row)>> = vec![VecDeque::new(); cores];
        for (index, row) in receive {
            waiting[index].push_back((cpus[index], row));
            if waiting.iter().all(|rows| !rows.is_empty()) {
                let rows: Vec<_> = waiting.iter_mut().filter_map(VecDeque::pop_front).collect();
                on_row(&merge::merge(&rows, hz));
            }
        }
        let mut ended = Ok(Vec::new());
        for thread in threads {
            let one = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ended = first_cause(ended, one).map(|(mut all, one): (Vec<T>, _)| {
                all.push(one);
                all
            });
        }
        ended.map_err(|error| interrupt.explain(error))
    })
}

/// Returns both results. If one of the results is an error, returns this error. If both results are errors,
/// returns the error that is the cause. A side that was interrupted or has lost its peer is not the cause if
/// the other side has an error of its own.
pub fn first_cause<A, B>(ran: Result<A, Error>, served: Result<B, Error>) -> Result<(A, B), Error> {
    match (ran, served) {
        (
            Err(Error::Interrupted | Error::PeerInterrupted { .. } | Error::Disconnected { .. }),
            Err(error),
        ) if !is_interrupted(&error) => Err(error),
        (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        (Ok(ran), Ok(served)) => Ok((ran, served)),
    }
}

fn is_interrupted(error: &Error) -> bool {
    matches!(error, Error::Interrupted | Error::PeerInterrupted { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_peer_is_not_the_cause() {
        let lost = || Err::<(), _>(Error::Disconnected { doing: "measuring", error: None });
        let cause = || Err::<(), _>(Error::Validation("byte 7".into()));
        for (ran, served) in [(lost(), cause()), (cause(), lost()), (Err(Error::Interrupted), cause())] {
            assert!(matches!(first_cause(ran, served), Err(Error::Validation(_))));
        }
        assert!(matches!(
            first_cause(lost(), Err::<(), _>(Error::Interrupted)),
            Err(Error::Disconnected { .. })
        ));
        assert!(first_cause(Ok(()), Ok(())).is_ok());
    }

    #[test]
    fn the_error_of_one_core_ends_the_others_and_is_reported() {
        let interrupt = Interrupt::default();
        let ran = together(vec![false, true, false], &[0, 1, 2], &interrupt, &mut |_| {}, |_, fails, _| {
            if fails {
                return Err::<(), _>(Error::Validation("byte 7".into()));
            }
            while !interrupt.is_raised() {
                std::thread::yield_now();
            }
            Err(Error::Interrupted)
        });
        assert!(matches!(ran, Err(Error::Validation(_))));
    }
}
