//! Unmodified RDMA programs from Debian's packages, and C programs of our own. Programs run in pairs over a
//! `local` wire as an ordinary user without capabilities. Many pairs also run between interfaces of two
//! network namespaces. With `UWARP_VERBS=hosts` only the tests between network namespaces run, and with
//! `UWARP_VERBS=local` only the other tests. Those of `others` run only with `UWARP_VERBS=others`.
//!
//! | file | contents |
//! |---|---|
//! | `pairs.rs` | the programs with their arguments, and the sign of each program's success |
//! | `pair.rs` | runs a server and its client |
//! | `interface.rs` | wires other than `local`: interfaces in namespaces, and sockets of DPDK's devices |
//! | `dpdk.rs` | pairs over DPDK's devices, in a build with the feature `dpdk` |
//! | `loopback.rs` | a loopback interface that no program outside of the test uses |
//! | `wire.rs` | a wire of its own for each test, and the user that owns the wire |
//! | `built.rs` | the launcher and the library that are tested |
//! | `refused.rs` | mistakes in the settings |
//! | `launch.rs` | how programs find the library that the launcher sets up, and the output of the launcher |
//! | `limits.rs` | programs that run out of descriptors or memory |
//! | `libs.rs` | programs that load `libuwarp.so` in place of libibverbs and librdmacm |
//! | `idle.rs` | the CPU time of waiting programs, and the time until a message wakes them |
//! | `container.rs` | the commands of the guide between two containers |
//! | `docs.rs` | the commands of the README and the guide, the man pages, and the device's attributes |
//! | `completions.rs` | the completions of shells |
//! | `c.rs` | programs in C of our own |
//! | `cm.rs` | C programs that need interfaces: peers that violate the protocol, killed peers, links that go down or are removed, GIDs, datagram services, groups, memory calls |
//! | `end.rs` | files that programs leave behind |
//! | `files.rs` | the files in which programs look for a device |
//! | `listed.rs` | `uwarp ls` |
//! | `lossy.rs` | programs on wires that lose and delay frames on purpose |
//! | `migrate.rs` | a guest of QEMU that moves to another QEMU |
//! | `valgrind.rs` | a pair under valgrind |
//! | `status.rs` | `uwarp status` |
//! | `table.rs` | the chapter of programs that run, made from the tests' lists |
//! | `ucx.rs` | UCP, connected by the addresses of sockets |
//! | `kill.rs` | killed programs, and how their peers notice; stopped programs |
//! | `judges.rs` | test suites of other projects |
//! | `mpi.rs` | Open MPI over libfabric and over UCX, with a program in Python |
//! | `others` | programs that need large packages or minutes |
//!
//! If a program is not installed, its tests are skipped, usually with a line that names the package.

mod built;
mod c;
mod cm;
mod completions;
mod container;
mod docs;
#[cfg(feature = "dpdk")]
mod dpdk;
mod end;
mod files;
mod idle;
mod interface;
mod judges;
mod kill;
mod launch;
mod libs;
mod limits;
mod listed;
mod loopback;
mod lossy;
mod migrate;
mod mpi;
mod others;
mod pair;
mod pairs;
mod pods;
mod refused;
mod status;
mod table;
mod ucx;
mod valgrind;
mod wire;

use libtest_mimic::{Arguments, Failed, Trial};
use wire::Wire;

/// The first part of the names of the tests in `others`.
const OTHERS: &str = "others_";

fn main() {
    let mut arguments = Arguments::from_args();
    // Tests run one at a time: programs use fixed ports of the kernel's TCP, and polling programs need a
    // processor.
    arguments.test_threads = Some(1);
    if let Err(error) = built::keep() {
        eprintln!("{error}");
        std::process::exit(1);
    }
    let mut trials = Vec::new();
    for pair in pairs::all() {
        let missing = pair.missing();
        let skips = !missing.is_empty();
        if skips {
            println!("skipped: {} (apt-get install {})", pair.name, missing.join(" "));
        }
        let name = pair.name.clone();
        let test = move || pair.run().map_err(Failed::from);
        trials.push(Trial::test(name, test).with_ignored_flag(skips));
    }
    let has_interfaces = interface::can_be_made();
    if !has_interfaces {
        println!("skipped: interface (needs root and network namespaces)");
    }
    for pair in pairs::connection_managed() {
        let skips = !has_interfaces || !pair.missing().is_empty();
        let name = format!("interface_{}", pair.name);
        let test = move || pair.run_between_interfaces().map_err(Failed::from);
        trials.push(Trial::test(name, test).with_ignored_flag(skips));
    }
    for pair in pairs::between_hosts() {
        let skips = !has_interfaces || !pair.missing().is_empty();
        let name = format!("hosts_{}", pair.name);
        let test = move || pair.run_between_hosts().map_err(Failed::from);
        trials.push(Trial::test(name, test).with_ignored_flag(skips));
    }
    for pair in pairs::all().into_iter().filter(pairs::waits_in_calls) {
        let skips = !pair.missing().is_empty();
        let name = format!("without_thread_{}", pair.name);
        let run = move || pair.run_over(&Wire::new()?.with("UWARP_THREAD", "caller"));
        trials.push(Trial::test(name, move || run().map_err(Failed::from)).with_ignored_flag(skips));
    }
    #[cfg(feature = "dpdk")]
    trials.extend(dpdk::all(has_interfaces));
    let mut others = refused::all(has_interfaces);
    others.extend(launch::all());
    others.extend(libs::all());
    others.extend(limits::all());
    others.extend(files::all(has_interfaces));
    others.extend(docs::all());
    others.push(container::test());
    others.extend(pods::all());
    others.extend(completions::all());
    others.extend(idle::all(has_interfaces));
    others.extend(lossy::all(has_interfaces));
    for (name, runs, test) in others {
        trials.push(Trial::test(name, move || test().map_err(Failed::from)).with_ignored_flag(!runs));
    }
    for name in c::ALL {
        trials.push(Trial::test(format!("c_{name}"), move || c::run(name).map_err(Failed::from)));
    }
    let run = |test: fn() -> Result<(), String>| move || test().map_err(Failed::from);
    trials.push(Trial::test("without_thread_rejected", run(c::rejects_without_thread)));
    trials.push(Trial::test("c_dummies_of_ib", run(c::dummies_of_ib)));
    for (name, test) in [
        ("interface_odd_peers", run(cm::odd_peers)),
        ("hosts_killed_peer", run(cm::killed_peer)),
        ("hosts_uc", run(cm::uc)),
        ("hosts_binds", run(cm::binds)),
        ("hosts_memory_calls", run(cm::memory_calls)),
        ("interface_ports", run(cm::ports)),
        ("interface_gids", run(cm::gids_of_own_addresses)),
        ("hosts_gids", run(cm::gids_of_hosts)),
        ("interface_shared", run(cm::shared_interface)),
        ("interface_service", run(cm::service)),
        ("hosts_service", run(cm::service_of_host)),
        ("interface_group", run(cm::group)),
        ("hosts_group", run(cm::group_of_hosts)),
        ("hosts_datagrams_of_one_host", run(cm::datagrams_on_shared_interface)),
        ("interface_removed", run(cm::removed)),
        ("hosts_removed", run(cm::removed_of_host)),
    ] {
        trials.push(Trial::test(name, test).with_ignored_flag(!has_interfaces));
    }
    trials.push(Trial::test("the_other_end_notices_a_kill", run(kill::on_local)));
    let stopped = Trial::test("a_connection_outlasts_a_stopped_program", run(kill::stopped_on_local));
    let are_there = ["rping", "ibv_rc_pingpong"].into_iter().all(pair::is_installed);
    trials.push(stopped.with_ignored_flag(!are_there));
    let between = Trial::test("interface_the_other_end_notices_a_kill", run(kill::between_interfaces));
    trials.push(between.with_ignored_flag(!has_interfaces));
    let port = Trial::test("a_port_outside_is_free_inside", run(loopback::a_port_outside_is_free_inside));
    trials.push(port.with_ignored_flag(!loopback::can_be_made() || !pair::is_installed("ibv_rc_pingpong")));
    let has_qemu = pair::is_installed("qemu-system-x86_64");
    let migrate = Trial::test("qemu_migration", run(migrate::guest_moves_and_goes_on));
    trials.push(migrate.with_ignored_flag(!has_qemu));
    let checks = pair::is_installed("valgrind") && pair::is_installed("rping");
    let valgrind = Trial::test("valgrind_rping", run(valgrind::rping_has_no_errors));
    trials.push(valgrind.with_ignored_flag(!checks));
    let watches = has_interfaces && pair::is_installed("ibv_asyncwatch");
    let watch = Trial::test("interface_asyncwatch", run(end::asyncwatch_sees_a_lost_link));
    trials.push(watch.with_ignored_flag(!watches));
    let listed = Trial::test("interface_is_listed", run(end::interface_is_listed));
    trials.push(listed.with_ignored_flag(!watches));
    let missing = mpi::missing();
    if !missing.is_empty() {
        println!("skipped: mpi (apt-get install {})", missing.join(" "));
    }
    for (ranks, over) in mpi::RUNS {
        let name = format!("mpi{}_{ranks}_ranks", over.suffix());
        let test = move || mpi::on_one_host(ranks, over).map_err(Failed::from);
        trials.push(Trial::test(&name, test).with_ignored_flag(!missing.is_empty()));
        let test = move || mpi::on_two_hosts(ranks, over).map_err(Failed::from);
        let skips = !has_interfaces || !missing.is_empty();
        trials.push(Trial::test(format!("hosts_{name}"), test).with_ignored_flag(skips));
    }
    let has_netpipe = pair::is_installed("NPopenmpi");
    if !has_netpipe {
        println!("skipped: netpipe (apt-get install netpipe-openmpi)");
    }
    let netpipe = Trial::test("hosts_mpi_netpipe", run(mpi::netpipe));
    trials.push(netpipe.with_ignored_flag(!has_interfaces || !has_netpipe));
    if ucx::is_missing() {
        println!("skipped: ucp_sockets (apt-get install libucx-dev)");
    }
    let sockets = Trial::test("ucp_sockets", run(ucx::sockets_on_one_host));
    trials.push(sockets.with_ignored_flag(ucx::is_missing()));
    let sockets = Trial::test("hosts_ucp_sockets", run(ucx::sockets_between_hosts));
    trials.push(sockets.with_ignored_flag(!has_interfaces || ucx::is_missing()));
    // Cargo and cmake build the suite of the crate `ibverbs` for a minute.
    let quick = std::env::var_os("UWARP_QUICK").is_some_and(|set| !set.is_empty());
    for (suite, package) in judges::SUITES.into_iter().filter(|(suite, _)| !quick || *suite != "ibverbs") {
        let missing = judges::missing(suite);
        if missing {
            println!("skipped: {suite} (apt-get install {package})");
        }
        let test = move || judges::run(suite).map_err(Failed::from);
        trials.push(Trial::test(format!("judges_{suite}"), test).with_ignored_flag(missing));
    }
    for (name, test) in listed::ALL.into_iter().chain(status::ALL) {
        let skips = !pair::is_installed("rping");
        trials.push(Trial::test(name, move || test().map_err(Failed::from)).with_ignored_flag(skips));
    }
    for (name, test) in end::all() {
        let skips = !pair::is_installed("rping");
        trials.push(Trial::test(name, move || test().map_err(Failed::from)).with_ignored_flag(skips));
    }
    if std::env::var("UWARP_VERBS").as_deref() == Ok(OTHERS.trim_end_matches('_')) {
        for other in others::all() {
            let missing = other.missing();
            if !missing.is_empty() {
                println!("skipped: {} ({missing})", other.name());
            }
            let test = move || (other.run)().map_err(Failed::from);
            trials.push(Trial::test(other.name(), test).with_ignored_flag(!missing.is_empty()));
        }
    }
    let names: Vec<String> = trials.iter().map(|trial| trial.name().to_owned()).collect();
    let chapter = move || table::check(&names).map_err(Failed::from);
    trials.push(Trial::test("the_chapter_on_programs_is_that_of_the_tests", chapter));
    match std::env::var("UWARP_VERBS").as_deref() {
        Ok("hosts") => trials.retain(|trial| is_between_namespaces(trial.name())),
        Ok("local") => trials.retain(|trial| !is_between_namespaces(trial.name())),
        Ok("others") => trials.retain(|trial| trial.name().starts_with(OTHERS)),
        Ok(other) => {
            eprintln!(
                "UWARP_VERBS={other}: write hosts, local or others, or leave it out to run hosts and local"
            );
            built::remove();
            std::process::exit(1);
        }
        Err(_) => {}
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    built::remove();
    conclusion.exit();
}

/// Whether the programs of a test run in network namespaces of their own. Such a test uses no ports of the
/// kernel's TCP outside of these namespaces, so it may run at the same time as the other tests.
fn is_between_namespaces(name: &str) -> bool {
    ["hosts_", "interface_"].iter().any(|prefix| name.starts_with(prefix))
}
