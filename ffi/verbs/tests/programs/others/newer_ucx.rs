//! A newer UCX than Debian's: the libraries are those in PyPI's `mpich`, since PyPI's `libucx-cu12` is built
//! without verbs. `libucx-cu12` of the same version has `ucx_perftest` and the headers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{From, Other, mpich, python};
use crate::c;
use crate::pair::Pair;
use crate::wire::Wire;

pub(super) const ALL: [Other; 2] = [
    Other {
        test: "ucx_1_20_perftest",
        program: "UCX 1.20 (`rc_verbs`, `ud_verbs`)",
        from: From::PyPi("libucx-cu12", "1.20.1"),
        how: "`ucx_info -d`, and `ucx_perftest` with `tag_lat`, `tag_bw`, `ucp_put_bw`, `ucp_get`, `ucp_fadd`, \
              `ucp_cswap`, `stream_lat`, `ucp_am_lat`, and `ucp_am_bw`, with the libraries of PyPI's `mpich`",
        checks: "`ucx_info` shows both transports, and each test sends all its messages",
        run: perftest,
    },
    Other {
        test: "ucx_1_20_sockets",
        program: "UCP 1.20, connected by addresses of sockets ([ours](../ffi/verbs/tests/programs/c/ucp_sockets.c))",
        from: From::PyPi("libucx-cu12", "1.20.1"),
        how: "a server and a client, with the libraries of PyPI's `mpich`",
        checks: "both ends compare messages of 0 bytes to 1 MiB",
        run: sockets,
    },
];

/// The package's requirements are libraries for GPUs.
const PACKAGES: [&str; 2] = ["--no-deps", "libucx-cu12==1.20.1"];
const ONLY_OURS: &str = "UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=uwarp0:1";

/// The options of `ucx_perftest`. Between two messages of a put, it calls `ucp_worker_fence`. UCX 1.20 and
/// 1.22 then read from address 0 with the key 0xff on each device that is not mlx5's
/// (`uct_rc_verbs_ep_flush_remote`), unless the fence is weak.
const TESTS: [&str; 9] = [
    "-t tag_lat -s 64",
    "-t tag_bw -s 300000",
    "-t ucp_put_bw -s 65536",
    "-t ucp_get -s 4096",
    "-t ucp_fadd",
    "-t ucp_cswap",
    "-t stream_lat -s 64",
    "-t ucp_am_lat -s 64",
    "-t ucp_am_bw -s 100000",
];

fn perftest() -> Result<(), String> {
    let (package, libraries) = (package()?, libraries()?);
    let [info, perftest] = ["ucx_info", "ucx_perftest"].map(|name| package.join("bin").join(name));
    for program in [&info, &perftest] {
        let failed = |error: std::io::Error| format!("{}: {error}", program.display());
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    let found = format!("env LD_LIBRARY_PATH={} UCX_FENCE_MODE=weak", libraries.display());
    let wire = Wire::new()?.with("UWARP_PRETEND", "ib");
    let words = format!("timeout 60 {found} {} -d", info.display());
    let output = wire.command(0, &words.split(' ').collect::<Vec<_>>()).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    for transport in ["rc_verbs", "ud_verbs"] {
        let shown = format!("Transport: {transport}\n#         Device: uwarp0:1\n");
        if !text.contains(&shown) {
            return Err(format!("ucx_info shows no {transport}: {text}"));
        }
    }
    for test in TESTS {
        let wire = Wire::new()?.with("UWARP_PRETEND", "ib");
        let server = format!("{found} {ONLY_OURS} {} -n 2000 -w 100 {test}", perftest.display());
        let pair = Pair::of_test("ucx_perftest", &server, &format!("{server} 127.0.0.1"));
        let result = pair.shows("Final:                  2000").run_over(&wire);
        result.map_err(|error| format!("{test}: {error}"))?;
    }
    Ok(())
}

fn sockets() -> Result<(), String> {
    let (package, libraries) = (package()?, libraries()?);
    let wire = Wire::new()?.with("UWARP_PRETEND", "ib");
    let include = format!("-isystem{}", package.join("include").display());
    let path = format!("-Wl,-rpath,{0},-rpath-link,{0}", libraries.display());
    let found = format!("-L{}", libraries.display());
    let program = c::compile_with(
        &wire,
        "ucp_sockets",
        &[&include, &found, &path, "-l:libucp.so.0", "-l:libucs.so.0"],
    )?;
    let server = format!("env {ONLY_OURS} UCX_SOCKADDR_TLS_PRIORITY=rdmacm {program}");
    let pair = Pair::of_test("ucp_sockets", &server, &format!("{server} 127.0.0.1"));
    pair.shows("18 messages are right").run_over(&wire)
}

/// The folder of UCX's libraries with verbs.
fn libraries() -> Result<PathBuf, String> {
    Ok(mpich::prefix()?.join("lib/mpich"))
}

/// The folder `libucx` of the package.
fn package() -> Result<PathBuf, String> {
    let python = python("ucx", &PACKAGES)?;
    let lib = python.parent().and_then(Path::parent).ok_or("the environment has no folder")?.join("lib");
    let entries = fs::read_dir(&lib).map_err(|error| format!("{}: {error}", lib.display()))?;
    let folders = entries.flatten().map(|entry| entry.path().join("site-packages/libucx"));
    folders
        .into_iter()
        .find(|folder| folder.is_dir())
        .ok_or_else(|| format!("{} has no libucx", lib.display()))
}
