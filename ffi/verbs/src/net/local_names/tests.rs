use std::os::unix::fs::DirBuilderExt;

use super::*;

fn names() -> (PathBuf, LocalNames) {
    let folder = std::env::temp_dir().join(format!(
        "uwarp-names-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
    let names = LocalNames::new(&folder).unwrap();
    (folder, names)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Returns the claim of a program that sets no option.
fn claim_of(visible: SocketAddr) -> Claim {
    Claim { address: visible.ip(), family_only: visible.is_ipv4(), reuses: false }
}

/// Reserves the name of an address, for a program that sets no option.
fn take(names: &LocalNames, visible: impl ToString) -> Result<LocalNameLease, NameError> {
    let visible = at(&visible.to_string());
    Ok(names.take(visible.port(), &claim_of(visible))?.expect("nobody shares it"))
}

/// Reserves the name of an address for a connection.
fn take_source(names: &LocalNames, visible: SocketAddr) -> Result<LocalNameLease, NameError> {
    names.take_source(visible.port(), &claim_of(visible))
}

#[test]
fn a_name_is_known_while_its_listener_lives() {
    let (folder, names) = names();
    let wire = at("100.64.0.7:18515");
    assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Lookup::NotFound);
    let mut any = take(&names, "[::]:7471").unwrap();
    // This process already holds the name.
    assert!(matches!(take(&names, "[::]:7471"), Err(NameError::InUse)));
    assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Lookup::Bound);
    any.publish(wire).unwrap();
    // A file lock belongs to the open file. A lookup opens the file again, and so sees the lock of this
    // process too.
    assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Lookup::At(wire));
    assert_eq!(names.find(at("[::1]:7471")).unwrap(), Lookup::At(wire));
    assert_eq!(names.find(at("127.0.0.1:7472")).unwrap(), Lookup::NotFound);
    assert_eq!(listening(&folder), [("*:7471".to_owned(), wire)]);
    // In `LocalNames`, overlapping names of one process do not conflict, since `BoundPorts` checks such names
    // earlier.
    let mut own = take(&names, "127.0.0.1:7471").unwrap();
    own.publish(at("100.64.0.8:1")).unwrap();
    assert_eq!(
        names.find(at("127.0.0.1:7471")).unwrap(),
        Lookup::At(at("100.64.0.8:1")),
        "the specific one comes first"
    );
    drop((any, own));
    assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Lookup::NotFound);
    // No process on the wire has the address that the lookup found.
    assert_eq!(names.lives(at("127.0.0.1:7471")).unwrap(), Some(false));
    assert_eq!(fs::read_dir(folder.join("listen")).unwrap().count(), 0);
    fs::remove_dir_all(folder).unwrap();
}

/// The port spaces have separate names, and the folder of the names of datagrams is made when it is needed.
#[test]
fn the_same_name_of_both_port_spaces_may_be_in_use() {
    let (folder, names) = names();
    let of_datagrams = names.of_datagrams();
    let place = folder.join("listen-udp");
    let wires = [at("100.64.0.7:7471"), at("100.64.0.7:1")];
    assert_eq!(of_datagrams.find(at("127.0.0.1:7471")).unwrap(), Lookup::NotFound);
    assert!(!of_datagrams.knows(at("127.0.0.1:0").ip()).unwrap() && !place.exists());
    let mut connections = take(&names, "127.0.0.1:7471").unwrap();
    connections.publish(wires[0]).unwrap();
    assert_eq!(of_datagrams.find(at("127.0.0.1:7471")).unwrap(), Lookup::NotFound);
    let mut datagrams = take(&of_datagrams, "127.0.0.1:7471").unwrap();
    assert!(matches!(take(&of_datagrams, "127.0.0.1:7471"), Err(NameError::InUse)));
    assert_eq!(of_datagrams.find(at("127.0.0.1:7471")).unwrap(), Lookup::Bound);
    datagrams.publish(wires[1]).unwrap();
    let found = [&names, &of_datagrams].map(|names| names.find(at("127.0.0.1:7471")).unwrap());
    assert_eq!(found, wires.map(Lookup::At));
    assert!(of_datagrams.knows(at("127.0.0.1:0").ip()).unwrap());
    let shown = ["127.0.0.1:7471", "127.0.0.1:7471/udp"].map(str::to_owned);
    assert_eq!(listening(&folder), shown.into_iter().zip(wires).collect::<Vec<_>>());
    // Connections and wildcards do not conflict across port spaces, either.
    let source = take_source(&names, at("127.0.0.2:9")).unwrap();
    assert!(take(&of_datagrams, "0.0.0.0:9").is_ok());
    let own = take_source(&of_datagrams, at("127.0.0.2:9")).unwrap();
    let other = LocalNames::new(&folder).unwrap();
    assert!(matches!(take(&other.of_datagrams(), "0.0.0.0:9"), Err(NameError::Overlaps)));
    drop((source, own));
    assert!(take(&other, "0.0.0.0:9").is_ok() && take(&other.of_datagrams(), "0.0.0.0:9").is_ok());
    drop((connections, datagrams));
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_name_that_is_left_over_is_nobodys_and_is_taken() {
    let (folder, names) = names();
    let wire = at("100.64.0.7:18515");
    fs::write(names.path(at("10.0.0.1:5").ip(), 5), "100.64.0.9:5").unwrap();
    fs::write(names.path(at("0.0.0.0:5").ip(), 5), "100.64.0.9:5").unwrap();
    assert_eq!(names.find(at("10.0.0.1:5")).unwrap(), Lookup::NotFound);
    let mut taken = take(&names, "10.0.0.1:5").unwrap();
    taken.publish(wire).unwrap();
    assert_eq!(names.find(at("10.0.0.1:5")).unwrap(), Lookup::At(wire));
    assert!(names.knows(at("10.0.0.1:0").ip()).unwrap() && !names.knows(at("10.0.0.2:0").ip()).unwrap());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_listener_that_goes_may_come_again_while_its_process_lives() {
    let (folder, names) = names();
    let port = local::open(&local::LocalConfig::new(folder.clone())).unwrap();
    let mut name = take(&names, "127.0.0.1:7471").unwrap();
    name.publish(SocketAddr::new(address_of_station(port.station()), 5)).unwrap();
    assert_eq!(names.lives(at("127.0.0.1:7471")).unwrap(), None, "nobody has asked for it");
    assert!(matches!(names.find(at("127.0.0.1:7471")), Ok(Lookup::At(_))));
    drop(name);
    assert_eq!(names.lives(at("127.0.0.1:7471")).unwrap(), Some(true));
    drop(port);
    assert_eq!(names.lives(at("127.0.0.1:7471")).unwrap(), Some(false));
    fs::remove_dir_all(folder).unwrap();
}

/// A process can reserve a name even while other threads look up this name all the time.
#[test]
fn those_who_look_for_a_name_keep_nobody_from_taking_it() {
    let (folder, names) = names();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = names.find(at("127.0.0.1:7471"));
                }
            });
        }
        let refused = (0..3000).find(|_| take(&names, "127.0.0.1:7471").is_err());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(refused, None);
    });
    fs::remove_dir_all(folder).unwrap();
}

/// The wildcards of the two families have different names. With `family_only`, each wildcard matches only
/// addresses of its own family.
#[test]
fn wildcards_take_the_families_that_they_say() {
    let (folder, names) = names();
    let [ipv4, ipv6] = ["100.64.0.7:1", "100.64.0.7:2"].map(at);
    let claim =
        |address: &str, family_only| Claim { address: address.parse().unwrap(), family_only, reuses: false };
    let mut of_ipv6 = names.take(7471, &claim("::", true)).unwrap().unwrap();
    of_ipv6.publish(ipv6).unwrap();
    assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Lookup::NotFound);
    let mut of_ipv4 = names.take(7471, &claim("0.0.0.0", true)).unwrap().unwrap();
    of_ipv4.publish(ipv4).unwrap();
    let at_both =
        ["127.0.0.1:7471", "[::ffff:127.0.0.1]:7471", "[::1]:7471"].map(|text| names.find(at(text)).unwrap());
    assert_eq!(at_both, [ipv4, ipv4, ipv6].map(Lookup::At));
    drop(of_ipv6);
    assert_eq!(names.find(at("[::1]:7471")).unwrap(), Lookup::NotFound, "IPv4 alone");
    drop(of_ipv4);
    fs::remove_dir_all(folder).unwrap();
}

/// Another process can reserve exactly the names that do not conflict with the names of this process.
#[test]
fn names_of_other_processes_exclude_as_those_of_this_one() {
    let (folder, names) = names();
    let other = LocalNames::new(&folder).unwrap();
    let claim = |text: &str| {
        let (address, options) = text.split_once(' ').unwrap_or((text, ""));
        let address: IpAddr = address.parse().unwrap();
        let family_only = address.is_ipv4() || options.contains("only");
        Claim { address, family_only, reuses: options.contains("reuse") }
    };
    for (one, second, answer) in [
        ("0.0.0.0", "0.0.0.0", "Overlaps"),
        ("0.0.0.0", "127.0.0.1", "Overlaps"),
        ("127.0.0.1", "0.0.0.0", "Overlaps"),
        ("127.0.0.1", "127.0.0.1", "InUse"),
        ("127.0.0.1", "127.0.0.2", "taken"),
        ("::", "0.0.0.0", "Overlaps"),
        (":: only", "0.0.0.0", "taken"),
        ("0.0.0.0", ":: only", "taken"),
        ("127.0.0.1 reuse", "127.0.0.1", "InUse"),
        ("127.0.0.1", "127.0.0.1 reuse", "InUse"),
        ("127.0.0.1 reuse", "127.0.0.1 reuse", "shared"),
        ("0.0.0.0 reuse", "127.0.0.1 reuse", "taken"),
        (":: only reuse", ":: only reuse", "shared"),
    ] {
        let mut first = names.take(7, &claim(one)).unwrap().unwrap();
        let answered = |taken: Result<Option<LocalNameLease>, NameError>| match taken {
            Ok(Some(_)) => "taken",
            Ok(None) => "shared",
            Err(NameError::InUse) => "InUse",
            Err(NameError::Overlaps) => "Overlaps",
            Err(NameError::System(error)) => panic!("{error}"),
        };
        assert_eq!(answered(other.take(7, &claim(second))), answer, "{second} beside {one}");
        assert_eq!(answered(other.take(8, &claim(second))), "taken", "another port");
        // A listener does not share its name.
        first.publish(at("100.64.0.7:1")).unwrap();
        let later = answered(other.take(7, &claim(second)));
        let expected = match answer {
            "shared" if one.starts_with("::") => "Overlaps",
            "shared" => "InUse",
            "taken" if one.contains("reuse") => "Overlaps",
            answer => answer,
        };
        assert_eq!(later, expected, "{second} beside a listener at {one}");
        drop(first);
        assert_eq!(answered(other.take(7, &claim(second))), "taken");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// Returns the names of another process on the wire.
fn other(folder: &Path) -> LocalNames {
    LocalNames::new(folder).unwrap()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_name_is_kept_from_this_process_and_from_others_until_it_is_given_up() {
    let (folder, names) = names();
    let others = other(&folder);
    for visible in
        ["127.0.0.1:7471", "0.0.0.0:7471", "[::]:7471", "[fd00::1]:7471", "127.0.0.1:7472", "10.0.0.1:1"]
    {
        let visible = at(visible);
        for (mine, theirs) in [(&names, &others), (&others, &names)] {
            let is_free = || {
                let found = [mine, theirs].map(|names| names.find(visible).unwrap());
                found == [Lookup::NotFound; 2]
            };
            assert!(is_free(), "{visible}");
            for source in [true, false] {
                let is_any = visible.ip().is_unspecified();
                if source && is_any {
                    continue;
                }
                let taken = if source { take_source(mine, visible) } else { take(mine, visible) };
                let taken = taken.unwrap();
                for names in [mine, theirs] {
                    let is_refused = |taken: Result<LocalNameLease, NameError>| match taken {
                        Err(NameError::InUse) => true,
                        Err(NameError::Overlaps) => is_any,
                        _ => false,
                    };
                    assert!(is_refused(take(names, visible)), "{visible}");
                    assert!(is_any || is_refused(take_source(names, visible)), "{visible}");
                    assert_eq!(names.find(visible).unwrap(), Lookup::Bound);
                }
                drop(taken);
                assert!(is_free(), "{visible}");
            }
        }
    }
    // The neighbouring ports are not affected.
    let _taken = take(&names, at("127.0.0.1:500")).unwrap();
    for port in [499, 501] {
        drop(take(&others, SocketAddr::new(at("127.0.0.1:0").ip(), port)).unwrap());
    }
    drop(take(&others, at("127.0.0.2:500")).unwrap());
    fs::remove_dir_all(folder).unwrap();
}

/// Neither the name of a connection nor the name of a bound address needs a descriptor.
#[test]
fn names_of_connections_need_no_descriptors() {
    let (folder, names) = names();
    let others = other(&folder);
    let all = (1..=2000).map(|port| SocketAddr::new(at("127.0.0.1:0").ip(), port));
    let before = descriptors();
    let mut taken: Vec<LocalNameLease> = Vec::new();
    for (number, visible) in all.clone().enumerate() {
        let name = if number % 2 == 0 { take_source(&names, visible) } else { take(&names, visible) };
        taken.push(name.unwrap());
    }
    // Other tests that run at the same time have a few descriptors open.
    assert!(descriptors() < before + 1000, "{} of {before}", descriptors());
    assert!(all.clone().all(|visible| matches!(take_source(&others, visible), Err(NameError::InUse))));
    // The test releases names from the middle of the list.
    for _ in 0..500 {
        taken.swap_remove(taken.len() / 2);
    }
    let free = all.clone().filter(|visible| take_source(&others, *visible).is_ok()).count();
    assert_eq!(free, 500);
    drop(taken);
    assert!(all.clone().all(|visible| take_source(&others, visible).is_ok()));
    assert_eq!(fs::read_dir(folder.join("listen")).unwrap().count(), 0);
    fs::remove_dir_all(folder).unwrap();
}

/// A listener with an older version of this library locks only its file. This lock is enough for the listener
/// to keep its name.
#[test]
fn a_listener_that_has_its_file_alone_keeps_its_name() {
    let (folder, names) = names();
    let path = names.path(at("10.0.0.1:5").ip(), 5);
    fs::write(&path, "100.64.0.9:5").unwrap();
    let file = options().open(&path).unwrap();
    name_locks::lock(&file, name_locks::whole(libc::F_WRLCK)).unwrap();
    assert_eq!(names.find(at("10.0.0.1:5")).unwrap(), Lookup::At(at("100.64.0.9:5")));
    assert!(matches!(take(&names, "10.0.0.1:5"), Err(NameError::InUse)));
    assert!(matches!(take_source(&names, at("10.0.0.1:5")), Err(NameError::InUse)));
    assert_eq!(fs::read(&path).unwrap(), b"100.64.0.9:5");
    drop(file);
    // The older version also sees our listener, since the file of our listener is locked.
    let mut ours = take(&names, "10.0.0.1:5").unwrap();
    ours.publish(at("100.64.0.7:6")).unwrap();
    assert!(matches!(Entry::read(&path, at("10.0.0.1:5").ip()), Ok(Some((_, true)))));
    drop(ours);
    assert!(!path.exists());
    fs::remove_dir_all(folder).unwrap();
}

/// If the folder of names cannot be read, calls that look for a name return an error.
#[test]
fn a_folder_that_cannot_be_read_is_an_error() {
    let (folder, names) = names();
    fs::remove_dir_all(folder.join("listen")).unwrap();
    fs::write(folder.join("listen"), "").unwrap();
    assert!(names.find(at("10.0.0.1:5")).is_err());
    assert!(names.knows(at("10.0.0.1:5").ip()).is_err());
    assert!(matches!(take(&names, "10.0.0.1:5"), Err(NameError::System(_))));
    fs::remove_dir_all(folder).unwrap();
}

/// Wildcards and connections of several processes conflict, although connections have no files.
#[test]
fn wildcards_and_connections_exclude_each_other() {
    let (folder, names) = names();
    let others = other(&folder);
    let claim = |text: &str| {
        let (address, options) = text.split_once(' ').unwrap_or((text, ""));
        let address: IpAddr = address.parse().unwrap();
        let family_only = address.is_ipv4() || options.contains("only");
        Claim { address, family_only, reuses: options.contains("reuse") }
    };
    for (wildcard, source, is_allowed) in [
        ("0.0.0.0", "127.0.0.1", false),
        ("0.0.0.0", "::1", false),
        ("0.0.0.0", "::1 only", true),
        ("::", "127.0.0.1", false),
        (":: only", "127.0.0.1", true),
        (":: only", "::1 only", false),
        ("0.0.0.0 reuse", "127.0.0.1", false),
        ("0.0.0.0 reuse", "127.0.0.1 reuse", true),
    ] {
        let (wildcard, source) = (claim(wildcard), claim(source));
        for first in [true, false] {
            let wildcard = || names.take(7, &wildcard).map(|taken| taken.unwrap());
            let source = || others.take_source(7, &source);
            let (_held, second) = match first {
                true => (wildcard().unwrap(), source()),
                false => (source().unwrap(), wildcard()),
            };
            match second {
                Ok(_) => assert!(is_allowed),
                Err(error) => assert!(!is_allowed && matches!(error, NameError::Overlaps), "{error}"),
            }
        }
    }
    // The wildcard is refused until the last connection is closed.
    let [one, two] = ["127.0.0.1:7", "127.0.0.2:7"].map(|text| take_source(&others, at(text)).unwrap());
    drop(one);
    assert!(matches!(take(&names, "0.0.0.0:7"), Err(NameError::Overlaps)));
    drop(two);
    take(&names, "0.0.0.0:7").unwrap();
    fs::remove_dir_all(folder).unwrap();
}
