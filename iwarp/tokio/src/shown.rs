//! Shows an endpoint to `uwarp status`.

use std::io;

use iwarp::status::{StatusSocket, default_folder, serve};
use iwarp::verbs::Context;

/// Shows a context in the usual folder of the user. If the system refuses that, the endpoint works all the
/// same: an event says why.
pub(crate) fn show(context: &Context) -> Option<StatusSocket> {
    let socket = default_folder().and_then(|folder| serve(context, &folder));
    socket.inspect_err(not_shown).ok()
}

dp::events! {
    /// The folder or the socket was refused.
    fn not_shown(error: &io::Error) {
        tracing::warn!(%error, "uwarp status does not show this endpoint");
    }
}
