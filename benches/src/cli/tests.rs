use super::*;
use crate::errors::Error;
use crate::params::{AtomicKind, Params};
use crate::rate::Rate;
use crate::table::Unit;

const NET: &str = "--ip 10.0.0.2/24 --vdev net_null0";

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

fn client(options: &str) -> ClientArgs {
    match parse(&format!("iwperf write-bw 10.0.0.1 {NET} {options}")).unwrap().command {
        Command::WriteBw(args) => args,
        other => panic!("{other:?}"),
    }
}

fn params(options: &str) -> Params {
    client(options).args.params(Test::WriteBw).unwrap()
}

fn refusal(line: &str) -> String {
    parse(line).unwrap_err().to_string()
}

#[test]
fn the_definition_is_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn defaults_are_perftests() {
    let bw = params("");
    assert_eq!((bw.size, bw.iters, bw.tx_depth, bw.cq_mod, bw.qps), (65536, 5000, 128, 100, 1));
    let lat = client("").args.params(Test::SendLat).unwrap();
    assert_eq!((lat.size, lat.iters, lat.tx_depth, lat.cq_mod), (2, 1000, 1, 1));
    assert_eq!(client("").args.params(Test::ReadBw).unwrap().iters, 1000);
    assert_eq!(
        client("").remote.resolve(None, DEFAULT_PORT, &[]).unwrap(),
        "10.0.0.1:18515".parse().unwrap()
    );
}

#[test]
fn every_letter_of_perftest_is_taken() {
    let p = params("-s 4K -n 77 -b -t 32 -q 3 -Q 8 -l 4 -I 64 -o 5 -e -F");
    assert_eq!((p.size, p.iters, p.bidirectional, p.tx_depth, p.qps), (4096, 77, true, 32, 3));
    assert_eq!((p.cq_mod, p.post_list, p.inline, p.outs, p.events), (8, 4, 64, 5, true));
    assert_eq!(params("-D 3").duration_s, 3);
    assert_eq!(params("-a").sizes().len(), 23);
    assert_eq!(client("--report_gbits").args.unit(), Unit::GigabitsPerSecond);
}

#[test]
fn scripts_of_perftest_run_as_they_are() {
    let p = params(
        "-R -F -d siw0 -i 1 -x 3 -m 4096 -S 0 -u 14 -c RC -p 4000 -n 1 -r 99 --recv_post_list 8 --perform_warm_up \
         --post_list=4 --inline_size=16",
    );
    assert_eq!((p.iters, p.rx_depth, p.recv_post_list, p.warm_up), (1, 99, 8, true));
    assert_eq!((p.post_list, p.inline), (4, 16));
    assert_eq!(client("-p 4000").port, Some(4000));
    let note = client("-R -d siw0 -x 3").args.perftest.note().unwrap();
    assert_eq!(note.lines().count(), 1);
    for part in ["-R (connections", "-d siw0 (the device", "-x 3 (addresses"] {
        assert!(note.contains(part), "{note}");
    }
    assert_eq!(client("").args.perftest.note(), None);
    let endless = params("--run_infinitely");
    assert_eq!((endless.endless, endless.duration_s, endless.iters), (true, 5, 0));
    assert_eq!(params("--run_infinitely -D 2").duration_s, 2);
    for test in [Test::SendBw, Test::WriteImmBw, Test::ReadBw] {
        assert!(client("--run_infinitely -b").args.params(test).unwrap().bidirectional);
    }
    let args = client("-w 3.5 -y 0.1 -N --cpu_util -T 184 --out_json").args;
    assert_eq!(
        (args.limit_bw, args.limit_msgrate, args.no_peak, args.cpu_util),
        (Some(3.5), Some(0.1), true, true)
    );
    assert_eq!(args.perftest_json(), Some("perftest_out.json".into()));
    assert_eq!(client("--out_json_file=x.json").args.perftest_json(), Some("x.json".into()));
    assert_eq!(client("").args.perftest_json(), None);
    assert_eq!(client("--tos 184").net.tos, Some(184));
}

#[test]
fn atomics_have_both_operations_and_eight_bytes() {
    let atomic = |options: &str| client(options).args.params(Test::AtomicBw);
    assert_eq!(atomic("").unwrap().atomic, AtomicKind::FetchAdd);
    assert_eq!(atomic("-A CMP_AND_SWAP -s 8").unwrap().atomic, AtomicKind::CompareSwap);
    assert!(atomic("-s 16").unwrap_err().to_string().contains("8 bytes"));
}

#[test]
fn each_run_is_repeated() {
    assert_eq!(client("-q 1,4 --runs 3").args.sweep(Test::WriteBw).unwrap().len(), 6);
}

#[test]
fn a_list_of_queue_pairs_is_a_run_for_each() {
    let qps = |options: &str| {
        client(options).args.sweep(Test::WriteBw).unwrap().iter().map(|p| p.qps).collect::<Vec<_>>()
    };
    assert_eq!(qps(""), [1]);
    assert_eq!(qps("-q 1,16,256"), [1, 16, 256]);
    for (options, word) in [("-q 1,20000", "--qp 20000"), ("-q 0", "--qp 0")] {
        let error = client(options).args.sweep(Test::WriteBw).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn rates_are_taken_in_perftests_units() {
    let rate = |options: &str| params(options).rate;
    assert_eq!(rate(""), None);
    assert_eq!(rate("--rate_limit=2"), Some(Rate::Bytes(250_000_000)));
    assert_eq!(rate("--rate_limit 0.5 --rate_units M"), Some(Rate::Bytes(524_288)));
    assert_eq!(rate("--rate_limit=1e6 --rate_units=p"), Some(Rate::Messages(1_000_000)));
    assert_eq!(params("--rate_limit 1 --burst_size 32").burst, 32);
}

#[test]
fn every_long_form_is_taken() {
    let p = params(
        "--size 1M --iters 9 --bidirectional --tx-depth 7 --qp 2 --cq-mod 3 --inline 8 --outs 4 --events --markers \
         --no-crc --validate --seed 5 --zero-copy",
    );
    assert_eq!((p.size, p.iters, p.tx_depth, p.qps, p.cq_mod), (1 << 20, 9, 7, 2, 3));
    assert!(p.markers && !p.crc && p.validate && p.events && p.bidirectional && p.zero_copy);
    assert_eq!(params("--duration 2").iters, 0);
    assert!(params("--all").all);
}

#[test]
fn net_options_are_taken() {
    let line = "iwperf server --ip 10.0.0.1/24 --ip fd00::1/64 --gateway 10.0.0.254 --vlan 7 --pci 0000:03:00.0 \
        --no-huge --mtu 9000 --rx-desc 128 --cpu 1 --timeout 2.5 --pcap out.pcapng -p 4000 -P --test read-lat";
    let Command::Server(server) = parse(line).unwrap().command else { panic!() };
    let net = &server.net;
    assert_eq!(net.ips, ["10.0.0.1/24", "fd00::1/64"]);
    assert_eq!((net.vlan, net.mtu, net.cpu, net.no_huge), (Some(7), Some(9000), Some(1), true));
    assert_eq!(net.rx_desc, Some(128));
    assert_eq!(net.timeout, std::time::Duration::from_millis(2500));
    assert_eq!((server.port, server.persistent, server.test), (4000, true, Some(Test::ReadLat)));
    let raw = Cli::try_parse_from([
        "iwperf",
        "server",
        "--ip",
        "10.0.0.1/24",
        "--vdev",
        "x",
        "--eal",
        "-l 1 --in-memory",
    ]);
    let Command::Server(server) = raw.unwrap().command else { panic!() };
    assert_eq!(server.net.eal_args(), ["-l", "1", "--in-memory"]);
}

#[test]
fn offloads_are_chosen_or_left_out() {
    let net = |list: &str| {
        let line = format!("iwperf server --ip 10.0.0.1/24 --pci 03:00.0 {list}");
        let Command::Server(server) = parse(&line).unwrap().command else { panic!() };
        server.net.offloads
    };
    assert_eq!(net(""), None);
    assert_eq!(net("--offloads -tso"), Some(dp::Offloads::all() - dp::Offloads::TX_TSO));
    assert_eq!(net("--offloads=none"), Some(dp::Offloads::empty()));
}

#[test]
fn the_completion_period_never_exceeds_the_queue() {
    assert_eq!(params("-t 16").cq_mod, 16);
    assert_eq!(params("-n 5").cq_mod, 5);
}

#[test]
fn wrong_options_are_named() {
    let cases = [
        ("iwperf write-bw", "HOST[:PORT]"),
        ("iwperf write-bw 10.0.0 --ip 10.0.0.2/24", "give HOST, HOST:PORT or [IPv6]:PORT"),
        ("iwperf write-bw 10.0.0.1", "--ip <ADDR/LEN>"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2", "not ADDR/LEN"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/33", "longer than the address"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 -s 5X", "not a number of bytes"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 -s 0", "from 1 to"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 -n 5 -D 5", "cannot be used with"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 --vlan 4095", "4095"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 --vdev a --pci b", "cannot be used with"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 --timeout never", "not a number of seconds"),
        (
            "iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 --vdev a --offloads gso",
            "there are none all tx-checksum",
        ),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 --packet a --vdev b", "cannot be used with"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 --packet a --mac 02:00", "not an Ethernet address"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 --vdev a --mac 02:00:00:00:00:01", "cannot be used with"),
        ("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 --mac 02:00:00:00:00:01", "--packet"),
        ("iwperf frobnicate", "frobnicate"),
        ("iwperf local write-bandwidth", "write-bandwidth"),
    ];
    for (line, word) in cases {
        let text = refusal(line);
        assert!(text.contains(word), "{line}: {text}");
    }
}

#[test]
fn combinations_are_refused_with_a_reason() {
    let refuse = |options: &str, test| client(options).args.params(test).unwrap_err();
    for (options, test, word) in [
        ("-q 2", Test::WriteLat, "for bandwidth"),
        ("-e", Test::WriteLat, "--events"),
        ("--rate_limit 5 --rate_units p", Test::WriteLat, "--rate_limit"),
        ("--rate_limit 0.1 --rate_units p", Test::WriteBw, "--rate_limit"),
        ("-I 1000", Test::WriteBw, "--inline"),
        ("-l 64 -t 32", Test::WriteBw, "--tx-depth"),
        ("-H", Test::WriteBw, "latency tests"),
        ("-w 5", Test::WriteLat, "bandwidth tests"),
        ("-n 1", Test::SendLat, "at least 2"),
        ("--run_infinitely", Test::SendLat, "--run_infinitely works with bandwidth tests"),
        ("--run_infinitely --rate_limit 1", Test::WriteBw, "without --iters and --rate_limit"),
    ] {
        let error = refuse(options, test);
        assert!(matches!(&error, Error::Usage(text) if text.contains(word)), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn no_device_is_a_usage_error() {
    let Command::WriteBw(args) = parse("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24").unwrap().command else {
        panic!()
    };
    assert!(args.net.check().unwrap_err().to_string().contains("--vdev"));
}

#[test]
fn only_a_wire_in_shared_memory_has_an_mtu_above_9698() {
    for (device, mtu, is_accepted) in [
        ("--packet eth0", 9698, true),
        ("--packet eth0", 9699, false),
        ("--vdev net_vhost0", 65_000, false),
        ("--wire a", 65_000, true),
        ("--wire vhost:/tmp/wire.sock", 9698, true),
        ("--wire vhost:/tmp/wire.sock", 9699, false),
    ] {
        let line = format!("iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 {device} --mtu {mtu}");
        let Command::WriteBw(args) = parse(&line).unwrap().command else { panic!() };
        let checked = args.net.check().map_err(|error| error.to_string());
        let expected = if is_accepted { Ok(()) } else { Err("an MTU above 9698 needs --wire".to_owned()) };
        assert_eq!(checked, expected, "{line}");
    }
    let line = "iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 --wire a --mtu 65001";
    assert!(refusal(line).contains("65001"));
}

#[test]
fn an_interface_is_taken_without_dpdk() {
    let line = "iwperf write-bw 10.0.0.1 --ip 10.0.0.2/24 --packet eth0";
    let Command::WriteBw(args) = parse(&format!("{line} --mac 02:00:00:00:0a:ff")).unwrap().command else {
        panic!()
    };
    assert!(args.net.check().is_ok());
    assert_eq!((args.net.packet.as_deref(), args.net.mac), (Some("eth0"), Some([2, 0, 0, 0, 10, 255])));
    for mac in ["02:00:00:00:0a", "02:00:00:00:0a:ff:", "02:00:00:00:0a:1ff", "020000000aff"] {
        assert!(refusal(&format!("{line} --mac {mac}")).contains("not an Ethernet address"), "{mac}");
    }
}

#[test]
fn rpings_letters_are_taken() {
    let line = format!("iwperf ping 10.0.0.1 {NET} -C 10 -S 4096 -V -v");
    let Command::Ping(args) = parse(&line).unwrap().command else { panic!() };
    assert_eq!(
        (args.ping.count, args.ping.size, args.ping.validate, args.ping.verbose),
        (10, 4096, true, true)
    );
    assert_eq!(args.remote.resolve(None, 7174, &[]).unwrap().port(), 7174);
    let Command::Pong(args) = parse(&format!("iwperf pong {NET} -P")).unwrap().command else { panic!() };
    assert_eq!((args.port, args.persistent), (7174, true));
}
