//! The server of rping's protocol.

use iwarp::verbs::{CmId, RemoteAddr, SendOp, SendRequest};

use super::link::{Link, conn_param};
use super::wire::{Advert, printable};
use super::{MAX_BYTES, OnLine};
use crate::cli::PingArgs;
use crate::endpoint::Endpoint;
use crate::errors::Error;

/// A listening server.
pub struct PingServer {
    listener: CmId,
}

impl PingServer {
    /// Listens on `port`.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn listen(end: &mut Endpoint, port: u16) -> Result<Self, Error> {
        Ok(Self { listener: end.listen(port, 8)? })
    }

    /// Waits for a client, and serves this client until it disconnects.
    ///
    /// # Errors
    /// Returns connection errors, and [`Error::Exchange`] for a client whose data is too long.
    pub fn serve(&self, end: &mut Endpoint, args: &PingArgs, on_line: OnLine<'_>) -> Result<(), Error> {
        let request = end.request(None)?;
        let mut link = Link::new(end, MAX_BYTES as usize)?;
        let (param, pd) = (conn_param(end), end.pd.clone());
        let qp = link.qp(0, &pd)?;
        end.accept(&request, &qp, &param)?;
        let id = request.id;
        while let Some(source) = link.receive(end, &id)? {
            round(end, &id, &mut link, &source, args, on_line)?;
        }
        end.finish(&id)
    }

    /// Stops listening.
    pub fn stop(&self) {
        self.listener.disconnect();
    }
}

fn round(
    end: &mut Endpoint,
    id: &CmId,
    link: &mut Link,
    source: &Advert,
    args: &PingArgs,
    on_line: OnLine<'_>,
) -> Result<(), Error> {
    let length = |advert: &Advert| match advert.size {
        size @ 1..=MAX_BYTES => Ok(size as usize),
        size => Err(Error::Exchange(format!("a round of {size} bytes: the limit is {MAX_BYTES}"))),
    };
    let bytes = length(source)?;
    let op = SendOp::Read { remote: RemoteAddr { addr: source.addr, rkey: source.rkey } };
    let read = SendRequest::new(0, op, link.data.sge(0, bytes));
    link.post(end, id, &read)?;
    if args.verbose {
        let mut text = vec![0; bytes];
        link.data.read_at(0, &mut text)?;
        on_line(&format!("server ping data: {}", printable(&text)));
    }
    link.send(end, id, &Advert::default())?;
    let Some(sink) = link.receive(end, id)? else {
        return Err(Error::Disconnected { doing: "in a round", error: None });
    };
    let op = SendOp::Write { remote: RemoteAddr { addr: sink.addr, rkey: sink.rkey } };
    let write = SendRequest::new(0, op, link.data.sge(0, length(&sink)?));
    link.post(end, id, &write)?;
    link.send(end, id, &Advert::default())
}
