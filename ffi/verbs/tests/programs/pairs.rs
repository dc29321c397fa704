//! The pairs of programs with their arguments, and the signs that they have succeeded.

use std::fs;
use std::path::Path;

use crate::pair::{Files, Pair};

const ADDR: &str = "127.0.0.1";

/// Number of bytes of the file that `rcopy` copies.
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
            lacks: "",
            codes: &[0],
            server_stays: false,
            files: None,
        }
    }

    /// Makes a pair whose server and client are programs that a test has built.
    pub(crate) fn of_test(name: &str, server: &str, client: &str) -> Self {
        Self::new(name, "", server, client)
    }

    pub(crate) fn shows(self, shows: &'static str) -> Self {
        Self { shows, ..self }
    }

    /// Requires that no result of qperf is zero, which would mean that nothing arrived.
    fn measures(self) -> Self {
        Self { lacks: "=  0 ", ..self }
    }

    fn server_stays(self) -> Self {
        Self { server_stays: true, ..self }
    }

    /// Makes the device report itself as an InfiniBand device. The programs of the pair open no iWARP device,
    /// or send no datagrams over such a device.
    fn pretends_ib(self) -> Self {
        let with = |command: String| match command.strip_prefix("env ") {
            Some(rest) => format!("env UWARP_PRETEND=ib {rest}"),
            None => format!("env UWARP_PRETEND=ib {command}"),
        };
        Self { server: with(self.server), client: with(self.client), ..self }
    }
}

pub(crate) fn all() -> Vec<Pair> {
    let mut pairs = Vec::new();
    pairs.extend(rdmacm_utils());
    pairs.extend(ibverbs_utils());
    pairs.extend(perftest());
    pairs.extend(perftest_datagrams());
    pairs.extend(qperf());
    pairs.extend(fio());
    pairs.extend([curl(), iperf()]);
    pairs.extend(libfabric());
    pairs.extend(ucx());
    pairs
}

/// Returns the pairs that connect only by rdma_cm, to the address in their arguments. The ends of these pairs
/// can have addresses that the kernel does not have.
pub(crate) fn connection_managed() -> Vec<Pair> {
    let by_address = |pair: &Pair| {
        let is_other = ["rping_ipv6", "rdma_xclient", "udaddy_ipv6"].contains(&pair.name.as_str());
        !is_other && !pair.name.contains("stream") && pair.name != "rcopy"
    };
    let mut pairs: Vec<Pair> = rdmacm_utils().into_iter().filter(by_address).collect();
    pairs.extend(perftest().into_iter().filter(|pair| pair.name.ends_with("_rdmacm")));
    // `fio_send` sends before its peer has posted receives. This works only on wires that other
    // implementations of iWARP cannot use, such as `local`.
    pairs.extend(fio().into_iter().filter(|pair| pair.name != "fio_send"));
    pairs
}

/// Returns the pairs for two hosts on which programs use the kernels' addresses.
pub(crate) fn between_hosts() -> Vec<Pair> {
    let few = "rc_lat rc_bw rc_rdma_read_bw rc_rdma_write_bw ver_rc_compare_swap ver_rc_fetch_add";
    let client = format!("qperf {ADDR} -cm 1 -t 1 {few}");
    let qperf = Pair::new("qperf_rdmacm", "qperf", "qperf", &client).shows("ver_rc_fetch_add");
    let qperf = qperf.measures().server_stays();
    let names = [
        "rping",
        "rping_ipv6",
        "ucmatose_many",
        "rdma_client",
        "udaddy_many",
        "mckey",
        "send_lat_ud_rdmacm",
        "rstream",
        "rcopy",
        "rc_pingpong",
        "srq_pingpong_events",
        "uc_pingpong",
        "write_bw_uc",
        "send_lat_uc",
        "send_bw_rdmacm_events",
        "atomic_lat_rdmacm",
        "fio_send",
        "curl_rsockets",
        "fabric_messages",
        "fabric_datagrams",
        "fabric_ud",
        "fabric_datagrams_ud",
        "ud_pingpong",
        "send_bw_ud",
        "ucp_tags",
        "ucp_put",
    ];
    all().into_iter().filter(|pair| names.contains(&pair.name.as_str())).chain([qperf]).collect()
}

/// Whether the programs of a pair wait only in calls of the library, so that they do not need the library's
/// thread.
pub(crate) fn waits_in_calls(pair: &Pair) -> bool {
    let names =
        ["rping", "ucmatose_many", "udaddy_many", "rc_pingpong", "send_bw_rdmacm_events", "read_lat_rdmacm"];
    names.contains(&pair.name.as_str())
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
        pair("udaddy", "udaddy", &format!("udaddy -s {ADDR}")).shows("return status 0"),
        pair("udaddy_ipv6", "udaddy -b ::1", "udaddy -s ::1").shows("return status 0"),
        pair("udaddy_many", "udaddy -c 20 -C 10 -S 1000", &format!("udaddy -s {ADDR} -c 20 -C 10 -S 1000"))
            .shows("return status 0"),
        pair("mckey", "mckey -m 239.7.7.7 -c 2", "mckey -m 239.7.7.7 -c 2 -s").shows("return status 0"),
        // The sender does not receive its own messages.
        pair("mckey_no_loopback", "mckey -m 239.7.7.7 -l", "mckey -m 239.7.7.7 -l -s")
            .shows("return status 0"),
        pair("rstream", "rstream -T v -S 65536", &format!("rstream -s {ADDR} -T v -S 65536")).shows("Gb/sec"),
        pair("rstream_nonblocking", "rstream -T n -S 65536", &format!("rstream -s {ADDR} -T n -S 65536"))
            .shows("Gb/sec"),
        // Both sides spin on memory, so they compete with the engines for the processors.
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
        pair("rc_pingpong_events", "ibv_rc_pingpong -g 0 -e -c"),
        pair("rc_pingpong_by_lid", "ibv_rc_pingpong -c"),
        pair("rc_pingpong_extended", "ibv_rc_pingpong -g 0 -N -c"),
        pair("uc_pingpong", "ibv_uc_pingpong -g 0"),
        pair("uc_pingpong_events", "ibv_uc_pingpong -g 0 -e"),
        pair("srq_pingpong", "ibv_srq_pingpong -g 0 -c"),
        pair("srq_pingpong_events", "ibv_srq_pingpong -g 0 -e -c"),
        pair("ud_pingpong", "ibv_ud_pingpong -g 3 -c"),
        pair("ud_pingpong_events", "ibv_ud_pingpong -g 1 -e -c"),
        pair("ud_pingpong_by_lid", "ibv_ud_pingpong -c"),
    ]
}

fn perftest() -> Vec<Pair> {
    let tools =
        ["write_bw", "write_lat", "read_bw", "read_lat", "send_bw", "send_lat", "atomic_bw", "atomic_lat"];
    let mut pairs = Vec::new();
    for tool in tools {
        for manager in [true, false] {
            for events in [false, true] {
                // A Write generates no completion on the other side, so perftest does not support events for
                // Writes.
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
                if tool == "send_bw" && events {
                    // One completion for 30 messages instead of 100: the client then seldom waits for a
                    // credit while no completion is outstanding. At most four completions are outstanding.
                    // With more than 16, perftest could wait for ever, since it reads 16 for each event.
                    command.push_str(" -Q 30");
                }
                let mut pair = Pair::new(&name, "perftest", &command, &format!("{command} {ADDR}"));
                pair.shows = "#bytes";
                if tool == "send_bw" && !manager {
                    // Without -R on iWARP devices, perftest does not deregister the region of its credits, so
                    // the protection domain is busy when perftest deallocates it.
                    pair.codes = &[0, 1];
                    pair.shows = "Failed to deallocate PD";
                }
                pairs.push(pair);
            }
        }
    }
    for tool in ["write_bw", "write_lat", "send_bw", "send_lat"] {
        let command = format!("ib_{tool} -c UC -F -n 300");
        let pair = Pair::new(&format!("{tool}_uc"), "perftest", &command, &format!("{command} {ADDR}"));
        pairs.push(match tool {
            // As for RC, perftest does not deregister the region of its credits.
            "send_bw" => Pair { codes: &[0, 1], ..pair }.shows("Failed to deallocate PD"),
            _ => pair.shows("#bytes"),
        });
    }
    // With an iWARP device, `ib_send_bw` of type UD posts an RDMA Write, which no such queue pair allows.
    for (name, command) in [
        ("send_lat_ud_rdmacm", "ib_send_lat -R -c UD -F -n 300"),
        ("send_bw_ud_rdmacm", "env UWARP_PRETEND=ib ib_send_bw -R -c UD -F -n 300"),
        ("send_bw_ud_rdmacm_events", "env UWARP_PRETEND=ib ib_send_bw -R -c UD -F -n 300 -e"),
    ] {
        pairs.push(Pair::new(name, "perftest", command, &format!("{command} {ADDR}")).shows("#bytes"));
    }
    let all_sizes = "ib_send_bw -R -F -a -n 20";
    let all_sizes = Pair::new("send_bw_all_sizes", "perftest", all_sizes, &format!("{all_sizes} {ADDR}"));
    // For each size, perftest needs a third of a second of CPU time to measure the processor's frequency.
    pairs.push(Pair { limit: 240, ..all_sizes }.shows("8388608"));
    pairs
}

/// perftest's datagrams. Over iWARP devices, perftest's bandwidth tests post RDMA Writes as credits, which no
/// queue pair of datagrams allows.
fn perftest_datagrams() -> Vec<Pair> {
    let pair = |name: &str, command: &str| {
        Pair::new(name, "perftest", command, &format!("{command} {ADDR}")).shows("#bytes").pretends_ib()
    };
    vec![
        pair("send_lat_ud", "ib_send_lat -F -n 300 -c UD"),
        pair("send_lat_ud_events", "ib_send_lat -F -n 300 -c UD -e"),
        pair("send_bw_ud", "ib_send_bw -F -n 300 -c UD"),
        pair("send_bw_ud_both_ways", "ib_send_bw -F -n 300 -c UD -b"),
    ]
}

fn qperf() -> Vec<Pair> {
    const TESTS: &str = "rc_lat rc_bw rc_bi_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_lat \
                         rc_rdma_write_bw rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr \
                         ver_rc_compare_swap ver_rc_fetch_add";
    let pair = |name: &str, more: &str| {
        let client = format!("qperf {ADDR} {more}-t 1 {TESTS}");
        let client = client.split_whitespace().collect::<Vec<_>>().join(" ");
        Pair::new(name, "qperf", "qperf", &client).shows("ver_rc_fetch_add").measures().server_stays()
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

/// A script that runs a program on rsockets, with Debian's `librspreload.so` preloaded behind this library.
const WITH_RSOCKETS: &str = "\
LD_PRELOAD=$LD_PRELOAD:$(ls /usr/lib/*/rsocket/librspreload.so) exec \"$@\"
";

/// A script that serves one request, and sends all byte values 4096 times. The script calls the socket
/// functions of C, since Python's own socket calls use features that rsockets do not have, and so use kernel
/// sockets. The script checks that the descriptor of its socket is a device file, as it is for an rsocket.
const HTTP_SERVER: &str = r#"
import ctypes, os, socket, stat
preloaded = ctypes.CDLL(None)
def made(fd):
    assert fd >= 0 and stat.S_ISCHR(os.fstat(fd).st_mode), fd
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
listener = made(preloaded.socket(socket.AF_INET, socket.SOCK_STREAM, 0))
listener.bind(("", 8080))
listener.listen()
client = made(preloaded.accept(listener.fileno(), None, None))
request = b""
while b"\r\n\r\n" not in request:
    request += client.recv(4096)
body = bytes(range(256)) * 4096
client.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
client.shutdown(socket.SHUT_WR)
client.recv(1)
"#;

/// Writes the script that runs programs on rsockets, and the HTTP server.
fn write_scripts(folder: &Path) -> Result<(), String> {
    [("with_rsockets", WITH_RSOCKETS), ("http.py", HTTP_SERVER)].into_iter().try_for_each(|(name, text)| {
        fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))
    })
}

/// iperf3, a program with ordinary sockets. Both sides wait with `select`. The listening side may notice a
/// connection only after five seconds, since rsockets wait for a descriptor whose events another thread of
/// rsockets reads.
fn iperf() -> Pair {
    let server = "sh with_rsockets iperf3 -s -1";
    let client = format!("sh with_rsockets iperf3 -c {ADDR} -n 20M");
    Pair {
        files: Some(Files { before: write_scripts, after: |_| Ok(()) }),
        ..Pair::new("iperf3_rsockets", "iperf3", server, &client).shows("iperf Done")
    }
}

/// curl, a client with ordinary sockets, which waits with `poll`.
fn curl() -> Pair {
    let after = |folder: &Path| {
        let body = fs::read(folder.join("body")).map_err(|error| format!("body: {error}"))?;
        let is_whole = body.len() == 1 << 20 && body.iter().enumerate().all(|(at, byte)| *byte == at as u8);
        if is_whole { Ok(()) } else { Err(format!("{} bytes, not those that were served", body.len())) }
    };
    let client = format!("sh with_rsockets curl -s -o body http://{ADDR}:8080/");
    Pair {
        files: Some(Files { before: write_scripts, after }),
        ..Pair::new("curl_rsockets", "curl", "sh with_rsockets python3 http.py", &client)
    }
}

/// Pairs over libfabric's message endpoints, over its datagrams (UD), and over its reliable datagrams, which
/// use message endpoints (`ofi_rxm`) or datagrams (`ofi_rxd`). libfabric sends datagrams only on InfiniBand
/// devices.
fn libfabric() -> Vec<Pair> {
    let pair = |name, provider, shows| {
        let server = format!("fi_pingpong -p {provider} -I 20 -c");
        Pair::new(name, "libfabric-bin", &server, &format!("{server} {ADDR}")).shows(shows)
    };
    vec![
        pair("fabric_messages", "verbs -e msg", "\n1m "),
        pair("fabric_datagrams", "verbs;ofi_rxm -e rdm", "\n1m "),
        pair("fabric_ud", "verbs -e dgram", "\n1k ").pretends_ib(),
        pair("fabric_datagrams_ud", "verbs;ofi_rxd -e rdm", "\n1m ").pretends_ib(),
    ]
}

/// UCX, which opens only InfiniBand devices: its transports `rc_verbs` and `ud_verbs`, and UCP above them.
/// UCP connects by datagrams, and the workers' addresses are exchanged by TCP of the kernel.
fn ucx() -> Vec<Pair> {
    const UCT: &str = "ucx_perftest -n 2000 -w 100 -d uwarp0:1";
    const UCP: &str =
        "env UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=uwarp0:1 ucx_perftest -n 2000 -w 100";
    let pair = |name: &str, command: &str, options: &str| {
        let server = format!("{command} {options}");
        let pair = Pair::new(name, "ucx-utils", &server, &format!("{server} {ADDR}"));
        pair.shows("Final:                  2000").pretends_ib()
    };
    vec![
        pair("ucx_active_messages", UCT, "-x rc_verbs -t am_lat"),
        pair("ucx_put", UCT, "-x rc_verbs -t put_bw -D zcopy -s 16384"),
        pair("ucx_get", UCT, "-x rc_verbs -t get -D zcopy -s 16384"),
        pair("ucx_atomics", UCT, "-x rc_verbs -t fadd"),
        pair("ucx_datagrams", UCT, "-x ud_verbs -t am_lat -D bcopy -s 1000"),
        pair("ucp_tags", UCP, "-t tag_lat -s 64"),
        // Messages of this size are sent by a rendezvous, with an RDMA Read of the receiver.
        pair("ucp_tags_by_rendezvous", UCP, "-t tag_bw -s 300000"),
        pair("ucp_put", UCP, "-t ucp_put_bw -s 65536"),
        pair("ucp_get", UCP, "-t ucp_get -s 4096"),
        pair("ucp_fetch_and_add", UCP, "-t ucp_fadd"),
        pair("ucp_compare_and_swap", UCP, "-t ucp_cswap"),
        pair("ucp_stream", UCP, "-t stream_lat -s 64"),
        pair("ucp_active_messages", UCP, "-t ucp_am_lat -s 64"),
    ]
}
