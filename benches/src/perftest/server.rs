//! Runs the server of a test: listens, accepts clients, runs their tests, and returns the results.

use iwarp::verbs::CmId;

use crate::endpoint::{Endpoint, Request, conn_param};
use crate::errors::Error;
use crate::net::End;
use crate::params::Params;
use crate::path::Path;
use crate::perftest::client::{Outcome, finish, leave};
use crate::perftest::exchange::{Control, ControlLink, nothing};
use crate::perftest::script::Script;
use crate::perftest::wire::Dest;
use crate::private::{self, Hello};
use crate::runs::OnRow;
use crate::table::Unit;

/// A listening server.
pub struct Server {
    listener: CmId,
}

/// An accepted client, with its test.
pub struct Client {
    control: Control,
    /// The test.
    pub params: Params,
    with_iwperf: bool,
    /// The address of the client.
    pub remote: std::net::SocketAddr,
}

impl Server {
    /// Listens on `port`.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn listen(end: &mut End, port: u16) -> Result<Self, Error> {
        Ok(Self { listener: end.endpoint.listen(port, 64)? })
    }

    /// Waits for a client without a time limit, and accepts its control connection. A client that is not
    /// iwperf has the parameters in `fallback`.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] for a client that is not iwperf, if there is no fallback or if the fallback
    /// validates. Returns [`Error::Exchange`] for private data that iwperf cannot use, or an error of the
    /// connection.
    pub fn accept(&self, end: &mut End, fallback: Option<&Params>) -> Result<Client, Error> {
        let end = &mut end.endpoint;
        let request = end.request(None)?;
        let hello = match Hello::decode(&request.private_data) {
            Ok(hello) => hello,
            Err(reason) => return Err(reject(&request, Error::Exchange(reason))),
        };
        let with_iwperf = hello.is_some();
        let Some(params) = hello.map(|hello| hello.0).or_else(|| fallback.cloned()) else {
            let text =
                format!("{} is not iwperf: give its test with --test and the test's options", request.remote);
            return Err(reject(&request, Error::Usage(text)));
        };
        if !with_iwperf && params.validate {
            let text = format!("--validate needs iwperf on both ends: {} is not iwperf", request.remote);
            return Err(reject(&request, Error::Usage(text)));
        }
        let link = ControlLink::new(end)?;
        let welcome = if with_iwperf { private::welcome(params.test) } else { Vec::new() };
        let mut param = conn_param(&params, end.timeout, &welcome)?;
        (param.responder_resources, param.initiator_depth) = (0, 0);
        end.accept(&request, &link.qp, &param)?;
        let control = Control::new(link, request.id.clone(), false);
        Ok(Client { control, params, with_iwperf, remote: request.remote })
    }

    /// Runs the client's test.
    ///
    /// # Errors
    /// Returns any error that ends a test.
    pub fn serve(
        &self,
        end: &mut End,
        client: &mut Client,
        unit: Unit,
        on_row: OnRow<'_>,
    ) -> Result<Outcome, Error> {
        let (mtu, gid) = (end.mtu, end.gid());
        let end = &mut end.endpoint;
        let Client { control, params, with_iwperf, .. } = client;
        control.prefix(end, mtu)?;
        // The client connects after the answer to this message, so the path has to exist before the answer.
        let mut path = Path::new(end, params, false, *with_iwperf)?;
        control.dest(end, &Dest::default(), &mut nothing)?;
        accept_data(end, &mut path)?;
        control.dest(end, &Dest::default(), &mut nothing)?;
        let mut script = Script { end, control, path: &mut path, with_iwperf: *with_iwperf, unit, gid };
        let peer = script.run(on_row);
        let peer = peer.map_err(|error| leave(end, control, &path, *with_iwperf, error))?;
        finish(end, control, &path, peer, *with_iwperf)
    }

    /// Stops listening.
    pub fn stop(&self) {
        self.listener.disconnect();
    }
}

fn accept_data(end: &mut Endpoint, path: &mut Path) -> Result<(), Error> {
    let pd = end.pd.clone();
    for _index in 0..path.params.qps {
        let request = end.request(Some(end.timeout))?;
        let qp = path.create_qp(&pd)?;
        let param = conn_param(&path.params, end.timeout, &[])?;
        end.accept(&request, &qp, &param)?;
        path.add(qp, request.id)?;
    }
    Ok(())
}

/// Rejects the request with the reason of `error`, and returns `error`.
fn reject(request: &Request, error: Error) -> Error {
    // An error is ignored: a client that is gone does not need the rejection.
    let _gone = request.id.reject(&private::rejection(&error.to_string()));
    error
}
