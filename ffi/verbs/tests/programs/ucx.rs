//! A program of ours for UCP, whose ends connect by the addresses of sockets.

use std::path::Path;

use crate::c;
use crate::interface::Interfaces;
use crate::pair::{Pair, is_installed};
use crate::wire::Wire;

/// Whether the program cannot be compiled here.
pub(crate) fn is_missing() -> bool {
    !is_installed("cc") || !Path::new("/usr/include/ucp/api/ucp.h").exists()
}

pub(crate) fn sockets_on_one_host() -> Result<(), String> {
    run(&Wire::new()?)
}

pub(crate) fn sockets_between_hosts() -> Result<(), String> {
    run(&Wire::between(Interfaces::hosts()?)?)
}

fn run(wire: &Wire) -> Result<(), String> {
    const ENV: &str = "env UWARP_PRETEND=ib UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=uwarp0:1 \
                       UCX_SOCKADDR_TLS_PRIORITY=rdmacm";
    let program = c::compile_with(wire, "ucp_sockets", &["-lucp", "-lucs"])?;
    let server = format!("{ENV} {program}");
    let pair = Pair::of_test("ucp_sockets", &server, &format!("{server} 127.0.0.1"));
    pair.shows("18 messages are right").run_over(wire)
}
