//! Makes an endpoint visible to `uwarp status`.

use std::io;

use iwarp::status::{StatusSocket, default_folder, serve};
use iwarp::verbs::Context;

/// Serves the status of a context in the user's default folder. If the system refuses, the endpoint still
/// works, and a tracing event says why.
pub(crate) fn show(context: &Context) -> Option<StatusSocket> {
    let socket = default_folder().and_then(|folder| serve(context, &folder));
    socket.inspect_err(not_shown).ok()
}

dp::events! {
    /// Reports why the endpoint is not visible to `uwarp status`.
    fn not_shown(error: &io::Error) {
        tracing::warn!(%error, "uwarp status does not show this endpoint");
    }
}
