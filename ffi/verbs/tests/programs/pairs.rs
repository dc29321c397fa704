//! The programs with their arguments, and how each shows its success.

use std::fs;
use std::path::Path;

use crate::pair::{Files, Pair};

const ADDR: &str = "127.0.0.1";

/// Bytes of the file that `rcopy` copies.
const COPY_BYTES: usize = 3 << 20;

impl Pair {
    fn new(name: &str, package: &'static str, server: &str, client: &str) -> Self {
        Self {
            name: name.to_owned(),
            package,
            server: server.to_owned(),
            client: client.to_owned(),
            limit: 60,
            shows: "",
            codes: &[0],
            server_stays: false,
            files: None,
        }
    }

    fn shows(self, shows: &'static str) -> Self {
        Self { shows, ..self }
    }

    fn server_stays(self) -> Self {
        Self { server_stays: true, ..self }
    }
}

/// All pairs.
pub(crate) fn all() -> Vec<Pair> {
    let mut pairs = Vec::new();
    pairs.extend(rdmacm_utils());
    pairs.extend(ibverbs_utils());
    pairs.extend(perftest());
    pairs.extend(qperf());
    pairs.extend(fio());
    pairs
}

/// The pairs that connect by rdma_cm alone, so that they can be on different hosts. (qperf connects to the
/// kernel's address of its control connection.)
pub(crate) fn connection_managed() -> Vec<Pair> {
    let by_address = |pair: &Pair| {
        let is_other = ["rping_ipv6", "rdma_xclient"].contains(&pair.name.as_str());
        !is_other && !pair.name.contains("stream") && pair.name != "rcopy"
    };
    let mut pairs: Vec<Pair> = rdmacm_utils().into_iter().filter(by_address).collect();
    pairs.extend(perftest().into_iter().filter(|pair| pair.name.ends_with("_rdmacm")));
    // fio sends without waiting for receives, which only two ends on a `local` wire make good.
    pairs.extend(fio().into_iter().filter(|pair| pair.name != "fio_send"));
    pairs
}

fn rdmacm_utils() -> Vec<Pair> {
    let pair = |name: &str, server: &str, client: &str| Pair::new(name, "rdmacm-utils", server, client);
    let rping = |name: &str, address: &str, more: &str| {
        let server = format!("rping -s -a {address} -V -C 20{more}");
        let client = format!("rping -c -a {address} -v -V -C 20{more}");
        pair(name, &server, &client).shows("rdma-ping-19: ")
    };
    vec![
        rping("rping", ADDR, ""),
        rping("rping_own_queue_pair", ADDR, " -q"),
        rping("rping_ipv6", "::1", ""),
        rping("rping_64k", ADDR, " -S 65000"),
        pair("ucmatose", "ucmatose", &format!("ucmatose -s {ADDR}")).shows("return status 0"),
        pair("ucmatose_migrates", "ucmatose -m", &format!("ucmatose -s {ADDR} -m")).shows("return status 0"),
        pair(
            "ucmatose_many",
            "ucmatose -c 10 -C 20 -S 5000",
            &format!("ucmatose -s {ADDR} -c 10 -C 20 -S 5000"),
        )
        .shows("return status 0"),
        pair("cmtime", "cmtime -c 100", &format!("cmtime -s {ADDR} -c 100")).shows("destroy").server_stays(),
        pair("rdma_client", "rdma_server", &format!("rdma_client -s {ADDR}")).shows("rdma_client: end 0"),
        pair("rdma_xclient", "rdma_xserver -c r", &format!("rdma_xclient -c r -s {ADDR}"))
            .shows("rdma_xclient: end 0"),
        pair("rstream", "rstream -T v -S 65536", &format!("rstream -s {ADDR} -T v -S 65536")).shows("Gb/sec"),
        pair("rstream_nonblocking", "rstream -T n -S 65536", &format!("rstream -s {ADDR} -T n -S 65536"))
            .shows("Gb/sec"),
        // Its ends spin on memory, and need the processors of the engines.
        pair(
            "riostream",
            "riostream -T v -I 5 -C 5 -S 5000",
            &format!("riostream -s {ADDR} -T v -I 5 -C 5 -S 5000"),
        )
        .shows("Gb/sec"),
        Pair {
            server_stays: true,
            files: Some(Files { before: make_file, after: compare_files }),
            ..pair("rcopy", "rcopy", &format!("rcopy from {ADDR}:to"))
        },
    ]
}

fn make_file(folder: &Path) -> Result<(), String> {
    let bytes: Vec<u8> = (0..COPY_BYTES).map(|at| (at * 7 + at / 251) as u8).collect();
    let path = folder.join("from");
    fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}

fn compare_files(folder: &Path) -> Result<(), String> {
    let read = |name: &str| fs::read(folder.join(name)).map_err(|error| format!("{name}: {error}"));
    if read("from")? == read("to")? { Ok(()) } else { Err("the copy differs".into()) }
}

fn ibverbs_utils() -> Vec<Pair> {
    let pair = |name: &str, program: &str| {
        Pair::new(name, "ibverbs-utils", program, &format!("{program} {ADDR}")).shows("usec/iter")
    };
    vec![
        pair("rc_pingpong", "ibv_rc_pingpong -g 0 -c"),
        pair("rc_pingpong_by_lid", "ibv_rc_pingpong -c"),
        pair("rc_pingpong_extended", "ibv_rc_pingpong -g 0 -N -c"),
        pair("srq_pingpong", "ibv_srq_pingpong -g 0 -c"),
    ]
}

fn perftest() -> Vec<Pair> {
    let tools =
        ["write_bw", "write_lat", "read_bw", "read_lat", "send_bw", "send_lat", "atomic_bw", "atomic_lat"];
    let mut pairs = Vec::new();
    for tool in tools {
        for manager in [true, false] {
            for events in [false, true] {
                // A Write completes nothing at the other end, so perftest has no events for it.
                if events && tool.starts_with("write") {
                    continue;
                }
                let mut name = tool.to_owned();
                let mut command = format!("ib_{tool} -F -n 300");
                for (option, text, is_on) in [("-R", "_rdmacm", manager), ("-e", "_events", events)] {
                    if is_on {
                        command = format!("{command} {option}");
                        name.push_str(text);
                    }
                }
                let mut pair = Pair::new(&name, "perftest", &command, &format!("{command} {ADDR}"));
                pair.shows = "#bytes";
                if tool == "send_bw" && !manager {
                    // Without -R, perftest leaves a region of its credits registered on iWARP devices, and
                    // so the protection domain is busy when it is deallocated.
                    pair.codes = &[0, 1];
                    pair.shows = "Failed to deallocate PD";
                }
                pairs.push(pair);
            }
        }
    }
    let all_sizes = "ib_send_bw -R -F -a -n 20";
    pairs.push(
        Pair::new("send_bw_all_sizes", "perftest", all_sizes, &format!("{all_sizes} {ADDR}"))
            .shows("8388608"),
    );
    pairs
}

fn qperf() -> Vec<Pair> {
    const TESTS: &str = "rc_lat rc_bw rc_bi_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_lat \
                         rc_rdma_write_bw rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr \
                         ver_rc_compare_swap ver_rc_fetch_add";
    let pair = |name: &str, more: &str| {
        let client = format!("qperf {ADDR} {more}-t 1 {TESTS}");
        let client = client.split_whitespace().collect::<Vec<_>>().join(" ");
        let pair = Pair::new(name, "qperf", "qperf", &client).shows("ver_rc_fetch_add").server_stays();
        Pair { limit: 60, ..pair }
    };
    vec![pair("qperf_rdmacm", "-cm 1 "), pair("qperf_by_lid", "")]
}

fn fio() -> Vec<Pair> {
    const READER: &str = "--name=r --ioengine=rdma --port=7999 --bs=64k --size=16m --iodepth=4 --rw=read";
    ["write", "read", "send"]
        .map(|verb| {
            let server = format!("fio {READER}");
            let client = format!(
                "fio --name=s --ioengine=rdma --hostname={ADDR} --port=7999 --verb={verb} --bs=64k --size=16m \
                 --iodepth=4 --rw=write"
            );
            let client = client.split_whitespace().collect::<Vec<_>>().join(" ");
            Pair::new(&format!("fio_{verb}"), "fio", &server, &client).shows("err= 0")
        })
        .into()
}
