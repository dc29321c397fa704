//! `iwperf local`: all tests between two engines over a wire in memory. The runs with `--validate` check
//! every byte.

use testkit::folder::Folder;

use crate::common::local;

const TESTS: [&str; 7] =
    ["write-bw", "read-bw", "send-bw", "write-lat", "read-lat", "send-lat", "write-imm-bw"];

const ATOMICS: [&str; 2] = ["atomic-bw", "atomic-lat"];

/// Runs a test, which has to succeed, and returns the rows of its table.
fn rows(test: &str, options: &str) -> Vec<Vec<f64>> {
    let output = local(test, options);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} {options}: {err}\n{out}");
    let numbers = |line: &str| line.split_whitespace().map(|w| w.parse().ok()).collect::<Option<Vec<f64>>>();
    let rows: Vec<_> = out.lines().filter_map(numbers).filter(|row| row.len() >= 5).collect();
    assert!(!rows.is_empty(), "{out}");
    rows
}

#[test]
fn every_test_places_every_byte() {
    for test in TESTS {
        let row = &rows(test, "--validate -s 5000 -n 40")[0];
        assert_eq!(row[..2], [5000.0, 40.0], "{test}");
    }
}

#[test]
fn atomics_return_what_was_there_before() {
    for test in ATOMICS {
        for operation in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
            let row = &rows(test, &format!("--validate -n 300 -A {operation}"))[0];
            assert_eq!(row[..2], [8.0, 300.0], "{test}");
        }
    }
    let row = &rows("atomic-bw", "--validate -n 100 -q 3 -b --drop-ppm 5000 --perform_warm_up")[0];
    assert_eq!(row[..2], [8.0, 300.0]);
    let output = local("atomic-bw", "--validate -n 300 -q 2");
    assert!(String::from_utf8_lossy(&output.stdout).contains("validated: 600 messages here"), "{output:?}");
    rows("atomic-bw", "-D 1");
    rows("atomic-lat", "-n 20 -e");
}

#[test]
fn a_warm_up_comes_before_the_measurement_and_is_not_part_of_it() {
    for test in TESTS.iter().chain(&ATOMICS) {
        let checked = |options: &str| {
            let output = local(test, &format!("-n 30 --validate {options}"));
            let out = String::from_utf8(output.stdout).unwrap();
            let line =
                out.lines().find(|line| line.starts_with(" validated:")).unwrap_or_else(|| panic!("{out}"));
            let numbers = line.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
            assert!(out.lines().any(|line| line.split_whitespace().nth(1) == Some("30")), "{out}");
            numbers.sum::<u32>()
        };
        let (cold, warm) = (checked(""), checked("--perform_warm_up"));
        assert!(cold > 0 && warm >= cold + 10, "{test}: {cold} {warm}");
    }
}

#[test]
fn one_message_is_enough() {
    for test in ["write-bw", "read-bw", "send-bw", "write-imm-bw", "atomic-bw", "read-lat", "atomic-lat"] {
        let row = &rows(test, "-n 1 --validate")[0];
        assert_eq!(row[1], 1.0, "{test}");
        // The rate of one atomic may be 0.00 MiB/s.
        assert!(row[2..].iter().any(|&figure| figure > 0.0), "{test}: {row:?}");
    }
    for test in ["write-lat", "send-lat"] {
        assert!(rows(test, "-n 2")[0][2] > 0.0, "{test}");
    }
}

#[test]
fn receives_are_posted_in_lists_of_any_length() {
    for test in ["send-bw", "write-imm-bw"] {
        for options in
            ["-r 30 --recv_post_list 30", "-r 1", "-r 500 --recv_post_list 7", "-r 8 --recv_post_list 3 -b"]
        {
            rows(test, &format!("--validate -s 500 -n 400 {options}"));
        }
    }
    rows("send-lat", "-n 100 --recv_post_list 4 --validate");
}

#[test]
fn jumbo_frames_ipv6_and_markers_change_nothing() {
    for test in TESTS {
        rows(test, "--validate -s 20000 -n 20 --mtu 9000 -6 --markers");
    }
}

#[test]
fn a_lossy_wire_changes_nothing() {
    for test in ["write-bw", "read-bw", "send-bw", "write-imm-bw"] {
        rows(test, "--validate -s 20000 -n 100 --drop-ppm 5000 --markers");
    }
}

#[test]
fn several_queue_pairs_both_ways_place_every_byte() {
    for test in ["write-bw", "read-bw", "send-bw", "write-imm-bw"] {
        rows(test, "--validate -s 3000 -n 50 -q 3 -b");
    }
}

#[test]
fn lists_inline_moderation_and_shallow_queues_work() {
    rows("write-bw", "-s 64 -n 1000 -I 64 -l 8 -t 64");
    rows("send-bw", "-s 64 -n 1000 -I 64 -l 4 -t 16 -Q 4");
    rows("read-bw", "-s 64 -n 300 -t 8 -o 2");
    rows("send-bw", "-s 1 -n 2000 -t 1 --no-crc");
}

#[test]
fn events_instead_of_polling_work() {
    for test in ["write-bw", "read-bw", "send-bw", "read-lat", "send-lat", "write-imm-bw"] {
        rows(test, "--validate -s 2000 -n 20 -e");
    }
}

#[test]
fn a_run_by_time_ends() {
    for test in TESTS {
        rows(test, "-s 1000 -D 1");
    }
    rows("write-bw", "-s 1000 -D 1 --validate");
    rows("write-imm-bw", "-s 1000 -D 1 --validate");
}

#[test]
fn all_sizes_make_23_rows() {
    for test in ["write-lat", "send-bw"] {
        let rows = rows(test, "-a -n 5 --validate");
        assert_eq!(rows.len(), 23, "{test}");
        assert_eq!(rows[22][0], 8_388_608.0);
    }
}

#[test]
fn json_and_pcap_files_are_written() {
    let dir = Folder::new("iwperf-local");
    let (json, pcap) = (dir.join("r.json"), dir.join("r.pcapng"));
    let options = format!("-s 1000 -n 10 --stats --json {} --pcap {}", json.display(), pcap.display());
    rows("send-bw", &options);
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(value["results"][0]["iterations"], 10);
    assert_eq!(value["results"][0]["confirmed_by_target"], true);
    assert!(std::fs::metadata(&pcap).unwrap().len() > 1000);
}

#[test]
fn a_given_rate_is_not_exceeded_and_has_latencies() {
    for test in ["write-bw", "read-bw", "send-bw", "write-imm-bw"] {
        for options in ["", "-b", "--burst_size 10 --drop-ppm 2000", "-D 1"] {
            let length = if options.contains("-D") { "" } else { "-n 500" };
            let load = "-s 100 -q 3 --validate --rate_limit 5000 --rate_units p --timeout 20";
            let row = &rows(test, &format!("{load} {length} {options}"))[0];
            let &[size, messages, _average, asked, rate, p50, _, p99, _, _, most] = &row[..] else {
                panic!("{test} {options}: {row:?}")
            };
            assert!(
                size == 100.0 && (options.contains("-D") || messages == 1500.0),
                "{test} {options}: {row:?}"
            );
            // In a bidirectional run, each side sends at the given rate.
            let ways = if options == "-b" { 2.0 } else { 1.0 };
            assert!(asked == 0.005 && rate <= ways * 0.00505, "{test} {options}: {row:?}");
            assert!(0.0 < p50 && p50 <= p99 && p99 <= most, "{test} {options}: {row:?}");
        }
    }
}

#[cfg(feature = "profile")]
#[test]
fn a_profile_has_the_layers_of_both_ends_and_adds_up() {
    let path = std::env::temp_dir().join(format!("iwperf-profile-{}.json", std::process::id()));
    let json = || {
        let text = std::fs::read(&path).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()
    };
    let of = |profile: &serde_json::Value, layer: &str, figure: &str| {
        let layers = profile["layers"].as_array().unwrap();
        let found = layers.iter().find(|entry| entry["layer"] == layer);
        found.map_or(0.0, |entry| entry[figure].as_f64().unwrap())
    };
    let cycles = |profile: &serde_json::Value, layer: &str| of(profile, layer, "cycles_per_fpdu");
    for test in TESTS {
        rows(test, &format!("-s 4096 -n 400 --profile --json {}", path.display()));
        let json = json();
        let here = &json["results"][0]["profile"];
        let all = [
            "port rx",
            "TCP in",
            "verbs post",
            "verbs poll",
            "DDP/RDMAP out",
            "TCP out",
            "port tx",
            "engine",
        ];
        for layer in all {
            assert!(cycles(here, layer) > 0.0, "{test}: {layer}: {here}");
        }
        let sum: f64 = here["layers"].as_array().unwrap().iter().map(|l| l["share"].as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{test}: {sum}");
        assert!(
            here["fpdus"].as_u64().unwrap() >= 400
                && here["stamps"]["cycles_per_scope"].as_f64().unwrap() > 0.0
        );
        // The source of Writes receives only acknowledgements and one short Send. The source of Reads
        // receives all data.
        if test == "write-bw" || test == "read-bw" {
            // The counts are compared and not the times, since a placement takes about as long as writing a
            // Read Request.
            let few = of(here, "placement", "scopes_per_fpdu") < of(here, "fetch + CRC", "scopes_per_fpdu");
            assert_eq!(few, test == "write-bw", "{test}: {here}");
        }
        if test != "read-lat" {
            let target = &json["target_profiles"][0];
            assert!(
                cycles(target, "deframe + CRC") > 0.0 && cycles(target, "port rx") > 0.0,
                "{test}: {target}"
            );
        }
    }
    std::fs::remove_file(&path).unwrap();
}

#[cfg(not(feature = "profile"))]
#[test]
fn a_profile_without_stamps_is_refused_in_one_line() {
    let output = local("write-bw", "--profile");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.lines().count() == 1, "{stderr}");
    assert!(stderr.contains("--features profile"), "{stderr}");
}

#[test]
fn cores_add_up() {
    let cores = std::thread::available_parallelism().unwrap().get().min(2);
    let path = std::env::temp_dir().join(format!("iwperf-cores-{}.json", std::process::id()));
    for test in ["write-bw", "read-bw", "send-bw"] {
        let options = format!(
            "-s 3000 -n 60 -q 5 -b --validate --timeout 30 --cores {cores} --json {}",
            path.display()
        );
        let row = &rows(test, &options)[0];
        assert_eq!(row[..2], [3000.0, 300.0], "{test}");
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let entry = &json["results"][0];
        let each = entry["cores"].as_array().unwrap();
        let sum = |name: &str| each.iter().map(|core| core[name].as_u64().unwrap()).sum::<u64>();
        assert_eq!((each.len(), sum("messages"), sum("queue_pairs")), (cores, 300, 5), "{test}: {json}");
        let checked = &json["validation"];
        assert_eq!(checked["messages_checked_by_peer"], 300, "{test}: {checked}");
        // Each core's own time is at most the time of the whole run.
        let all = entry["bytes_per_s"].as_f64().unwrap();
        let own: f64 = each.iter().map(|core| core["bytes_per_s"].as_f64().unwrap()).sum();
        assert!(all <= 2.0 * own * 1.001, "{test}: {json}");
    }
    rows("write-bw", &format!("-a -n 5 -q 2 --cores {cores}"));
    rows("write-bw", &format!("-s 64 -n 500 -q 2 --rate_limit 5000 --rate_units p --cores {cores}"));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_thousand_queue_pairs_place_every_byte() {
    for test in ["write-bw", "read-bw", "send-bw"] {
        let row = &rows(test, "-s 500 -n 5 -t 8 -q 1100 --validate --timeout 60")[0];
        assert_eq!(row[..2], [500.0, 5500.0], "{test}");
    }
}

#[test]
fn a_report_holds_the_plots_of_what_was_measured() {
    let dir = Folder::absent("iwperf-report");
    let has = |name: &str| std::fs::read_to_string(dir.join(name)).is_ok_and(|text| text.contains("</svg>"));
    rows("write-bw", &format!("-a -n 5 --report {}", dir.display()));
    assert!(has("index.html") && has("bandwidth.svg") && has("message-rate.svg"));
    let swept = rows("write-bw", &format!("-s 3000 -n 50 -q 1,4,16 --cores 1 --report {}", dir.display()));
    assert_eq!(swept.iter().map(|row| row[1]).collect::<Vec<_>>(), [50.0, 200.0, 800.0]);
    assert!(has("queue-pairs.svg"));
    rows("read-lat", &format!("-n 50 --report {}", dir.display()));
    assert!(has("index.html") && has("latency-distribution.svg"));
}

/// Runs the command of the chapter on CI (`docs/ci.md`), also with a limit that no machine reaches.
#[test]
fn a_limit_fails_a_job() {
    let chapter = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ci.md")).unwrap();
    let line = chapter.lines().find_map(|line| line.strip_prefix("    iwperf local write-bw ")).unwrap();
    assert!(line.contains("-w "), "{line}");
    assert_eq!(local("write-bw", line).status.code(), Some(0));
    assert_eq!(local("write-bw", &format!("{line}e9")).status.code(), Some(1));
}

#[test]
fn a_wrong_option_is_one_line_and_status_2() {
    for options in [
        "-s 0",
        "-e",
        "--frobnicate",
        "-q 2",
        "--rate_limit 5",
        "--rate_limit x",
        "--burst_size 3",
        "--cores 2",
        "--cores 0",
    ] {
        let output = local("write-lat", options);
        assert_eq!(output.status.code(), Some(2), "{options}");
        assert!(output.stdout.is_empty(), "{options}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with("iwperf: ") && stderr.lines().count() == 1, "{options}: {stderr}");
    }
}
