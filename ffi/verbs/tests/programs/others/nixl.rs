//! NIXL, whose package contains a UCX and a libibverbs of its own. `LD_PRELOAD` reaches both.

use super::{From, Other, ends, python};
use crate::wire::Wire;

const NIXL: From = From::PyPi("nixl-cu12", "1.5.1");

pub(super) const ALL: [Other; 2] = [
    Other {
        test: "nixl_files",
        program: "NIXL over UCX",
        from: NIXL,
        how: "two agents with memory of type DRAM, which exchange their metadata by files; `UWARP_PRETEND=ib`",
        checks: "the agents compare bytes that were read and written, and `uwarp status` shows the bytes",
        run: by_files,
    },
    Other {
        test: "nixl_listener",
        program: "NIXL over UCX",
        from: NIXL,
        how: "the same agents, which exchange their metadata by NIXL's listener",
        checks: "the agents compare bytes that were read and written, and `uwarp status` shows the bytes",
        run: by_listener,
    },
];

fn by_files() -> Result<(), String> {
    run(" files")
}

fn by_listener() -> Result<(), String> {
    run(" listener")
}

fn run(way: &str) -> Result<(), String> {
    // Without its dependencies: torch with CUDA takes gigabytes, and NIXL uses torch only if it is loaded.
    let python = python("nixl", &["--no-deps", "nixl-cu12==1.5.1", "numpy==2.2.6"])?;
    // Without the launcher's folder of links, UCX also loads Debian's libefa, and with it a second libnl: the
    // process then crashes when it exits, with and without uwarp.
    let wire = Wire::new()?.with_launcher();
    // NIXL ends if it may not read its file in the home folder.
    let command = format!(
        "env HOME={} UWARP_PRETEND=ib UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=uwarp0:1 {}",
        wire.folder().display(),
        python.display()
    );
    ends::exchange(&wire, include_str!("nixl.py"), &command, way)
}
