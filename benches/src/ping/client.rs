//! The client of rping's protocol.

use std::net::SocketAddr;

use super::OnLine;
use super::link::{Link, conn_param};
use super::wire::{Advert, printable, text};
use crate::cli::PingArgs;
use crate::driver::WaitMode;
use crate::endpoint::{Endpoint, STARTING};
use crate::errors::Error;

/// Runs the rounds.
///
/// # Errors
/// Returns connection errors, and [`Error::Validation`] if `--validate` finds wrong data.
pub fn run(
    end: &mut Endpoint,
    remote: SocketAddr,
    args: &PingArgs,
    on_line: OnLine<'_>,
) -> Result<(), Error> {
    let size = args.size as usize;
    // The memory has two parts: the source, and then the sink.
    let mut link = Link::new(end, 2 * size)?;
    let (param, pd) = (conn_param(end), end.pd.clone());
    let mut attempt = 0;
    let (id, _qp, _private_data) = end.connect(
        || {
            attempt += 1;
            link.qp(attempt - 1, &pd)
        },
        remote,
        &param,
        STARTING,
    )?;
    end.driver.set_wait_mode(WaitMode::Measuring);
    let advert = |link: &Link, at: usize| Advert {
        addr: link.data.addr() + at as u64,
        rkey: link.data.rkey(),
        size: args.size,
    };
    let mut round = 0;
    while args.count == 0 || round < args.count {
        let sent = text(round, size);
        link.data.write_at(0, &sent)?;
        for at in [0, size] {
            let advert = advert(&link, at);
            link.send(end, &id, &advert)?;
            if link.receive(end, &id)?.is_none() {
                return Err(Error::Disconnected { doing: "in a round", error: None });
            }
        }
        let mut back = vec![0; size];
        link.data.read_at(size, &mut back)?;
        if args.validate && back != sent {
            let at = back.iter().zip(&sent).position(|(a, b)| a != b).unwrap_or(0);
            return Err(Error::Validation(format!("round {round} came back different at byte {at}")));
        }
        if args.verbose {
            on_line(&format!("ping data: {}", printable(&back)));
        }
        round += 1;
    }
    end.finish(&id)
}
