//! Tests with processes in other PID namespaces, as in a container that shares the folder of the wire.

use super::*;

#[test]
#[ignore = "another process, in a PID namespace of its own: looks at a station outside"]
fn process_that_looks_out() {
    let Some((folder, station)) = duty() else { return };
    let listed = local::stations(&folder).unwrap();
    assert_eq!(listed.iter().map(|found| (found.number, found.pid)).collect::<Vec<_>>(), [(station, 0)]);
    match open(&folder, Some(station)) {
        Err(LocalError::Taken { station: taken, pid: 0 }) => assert_eq!(taken, station),
        other => panic!("{other:?}"),
    }
    let socket = std::os::unix::net::UnixStream::connect(folder.join("plain")).unwrap();
    assert_eq!(local::pid_of_peer(&socket), None);
    println!("outcome fine");
}

/// A process in an inner PID namespace sees no PID for the owner of a station outside. Nevertheless the
/// process can list the station.
#[test]
fn a_station_of_another_pid_namespace_has_no_process_number() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make a PID namespace without a user namespace.
        return;
    }
    let wire = Wire::new();
    let _port = wire.open(1);
    let plain = std::os::unix::net::UnixListener::bind(wire.0.join("plain")).unwrap();
    let ours = std::os::unix::net::UnixStream::connect(wire.0.join("plain")).unwrap();
    assert_eq!(local::pid_of_peer(&ours), Some(std::process::id() as i32));
    let mut outside = Command::new("unshare");
    outside.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    let mut inside = wire.start_by(outside, "namespaces::process_that_looks_out", 1);
    assert_eq!(inside.hear("outcome"), "fine");
    drop(plain);
}
