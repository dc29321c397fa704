//! Tests of folders, wires and stations, such as folders that other users can change, and stations that are
//! taken, stale or free.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::*;

fn refusal(config: &LocalConfig) -> String {
    let error = open(config).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_folder_that_others_may_use_is_refused() {
    let scratch = Scratch::new();
    fs::create_dir(&scratch.0).unwrap();
    for mode in [0o777, 0o750, 0o701, 0o600, 0o2770, 0o1701] {
        chmod(&scratch.0, mode);
        let error = refusal(&scratch.config());
        assert!(error.contains(&format!("has mode {mode:o}: run chmod 700")), "{error}");
    }
    // `chmod 700` does not clear the setgid bit, which a folder inherits from its parent. The setgid bit
    // gives no access.
    for mode in [0o700, 0o2700, 0o1700] {
        chmod(&scratch.0, mode);
        scratch.open(1);
        private_folder(&scratch.0).unwrap();
    }
}

/// In a Kubernetes emptyDir (mode 2777), other users can replace the folder of the wire. Existing stations
/// continue to use the folder after it was moved.
#[test]
fn a_folder_that_others_can_move_is_used_wherever_it_is() {
    let scratch = Scratch::new();
    let (way, moved) = (scratch.0.join("a"), scratch.0.join("moved"));
    let folder = way.join("b/net");
    let config = LocalConfig { folder: folder.clone(), ..scratch.config() };
    let at = |station| open(&LocalConfig { station: Some(station), ..config.clone() }).unwrap();
    fs::create_dir_all(&way).unwrap();
    for mode in [0o777, 0o2777, 0o775, 0o1777, 0o755] {
        chmod(&way, mode);
        let others_can = mode & 0o022 != 0 && mode & 0o1000 == 0;
        let refused = private_folder(&folder).err().map(|error| error.to_string());
        let says = format!("others may rename what is in {} (mode {mode:o}): run chmod +t", way.display());
        assert_eq!(refused.is_some(), others_can, "{mode:o}: {refused:?}");
        assert!(refused.is_none_or(|line| line.starts_with(&says) && !line.contains('\n')), "{says}");
        let wire = WireFolder::open(&folder).unwrap();
        assert_eq!(wire.path() != folder, others_can, "{mode:o}");
        let (mut a, mut b) = (at(1), at(2));
        if others_can {
            fs::rename(way.join("b"), &moved).unwrap();
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("2.sock"), "of somebody else").unwrap();
            let moved = moved.join("net");
            assert!(fs::metadata(wire.path()).unwrap().ino() == fs::metadata(&moved).unwrap().ino());
            assert_eq!(stations(&moved).unwrap().len(), 2);
        }
        let sent = frame(&a, 2, 0, 64);
        assert!(send(&mut a, sent));
        assert_eq!(receive(&mut [&mut a, &mut b], 1).len(), 1);
        drop((a, b));
        if others_can {
            assert!(stations(&moved.join("net")).unwrap().is_empty());
            assert!(fs::read_dir(moved.join("net")).unwrap().next().is_none(), "sockets are left");
            fs::remove_dir_all(&moved).unwrap();
            fs::remove_dir_all(way.join("b")).unwrap();
        }
    }
}

#[test]
fn a_folder_of_somebody_else_is_refused() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make such a folder.
        return;
    }
    let scratch = Scratch::new();
    fs::create_dir(&scratch.0).unwrap();
    chmod(&scratch.0, 0o700);
    std::os::unix::fs::chown(&scratch.0, Some(12_345), None).unwrap();
    assert!(refusal(&scratch.config()).contains("belongs to user 12345, not to user 0"));
    for way in ["net", "a/net", "a/b/c/net"] {
        let inside = LocalConfig { folder: scratch.0.join(way), ..scratch.config() };
        assert!(refusal(&inside).contains("belongs to user 12345"), "{way}");
        assert!(fs::read_dir(&scratch.0).unwrap().next().is_none(), "{way}: something was made");
    }
    // The folder of the other user may also be an ancestor of the parent folder.
    let (inner, folder) = (scratch.0.join("a"), scratch.0.join("a/net"));
    fs::create_dir(&inner).unwrap();
    chmod(&inner, 0o700);
    assert!(refusal(&LocalConfig { folder, ..scratch.config() }).contains("belongs to user 12345"));
}

/// The owner of a symbolic link in the path decides where the folder is. So a path is refused if a user who
/// is not trusted owns one of its links.
#[test]
fn links_on_the_way_are_followed_if_their_owners_are_trusted() {
    let scratch = Scratch::new();
    let (real, links) = (scratch.0.join("real"), scratch.0.join("links"));
    fs::create_dir_all(&real).unwrap();
    fs::create_dir(&links).unwrap();
    symlink("../real", links.join("relative")).unwrap();
    symlink(links.join("relative"), links.join("absolute")).unwrap();
    symlink("itself", links.join("itself")).unwrap();
    let through = |name: &str| LocalConfig { folder: links.join(name).join("net"), ..scratch.config() };
    for name in ["relative", "absolute", "../links/absolute"] {
        assert_eq!(open(&LocalConfig { station: Some(3), ..through(name) }).unwrap().station(), 3);
    }
    assert!(real.join("net").is_dir());
    assert!(refusal(&through("itself")).contains("itself"));
    // The targets of links are also checked.
    chmod(&real, 0o777);
    assert!(private_folder(&through("absolute").folder).unwrap_err().to_string().contains("may rename"));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(links.join("relative"), Some(12_345), None).unwrap();
        for name in ["relative", "absolute"] {
            assert!(refusal(&through(name)).contains("links/relative belongs to user 12345"), "{name}");
        }
    }
}

/// A path may have as many symbolic links as the kernel follows. The error names the first link beyond the
/// limit.
#[test]
fn a_way_has_forty_links_and_no_more() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.0.join("real")).unwrap();
    // The path of the folder for temporary files may also have links.
    let base = fs::canonicalize(&scratch.0).unwrap();
    symlink("real", base.join("41")).unwrap();
    for number in (1..41).rev() {
        symlink((number + 1).to_string(), base.join(number.to_string())).unwrap();
    }
    let through = |first: &str| LocalConfig { folder: base.join(first).join("net"), ..scratch.config() };
    drop(open(&through("2")).unwrap());
    let refused = refusal(&through("1"));
    assert!(refused.contains(&format!("the folder {} of the wire", base.join("41").display())), "{refused}");
}

#[test]
fn a_link_a_file_and_a_relative_path_are_no_folder() {
    let scratch = Scratch::new();
    let (real, link, file) = (scratch.0.join("real"), scratch.0.join("link"), scratch.0.join("file"));
    fs::create_dir_all(&real).unwrap();
    chmod(&real, 0o700);
    symlink(&real, &link).unwrap();
    fs::write(&file, "").unwrap();
    assert!(refusal(&LocalConfig { folder: link, ..scratch.config() }).contains("is no folder"));
    assert!(refusal(&LocalConfig { folder: file, ..scratch.config() }).contains("cannot be used"));
    assert!(refusal(&LocalConfig { folder: "here".into(), ..scratch.config() }).contains("is not absolute"));
    let long = scratch.0.join("x".repeat(98));
    assert!(refusal(&LocalConfig { folder: long, ..scratch.config() }).contains("too long"));
    open(&LocalConfig { folder: real, ..scratch.config() }).unwrap();
}

#[test]
fn a_name_of_a_wire_is_plain() {
    for name in ["default", "a-b_c.9", "x"] {
        assert!(default_folder(name).unwrap().ends_with(name));
    }
    for name in ["", ".", "..", ".hidden", "a/b", "a b", "ä", &"x".repeat(65)] {
        assert!(matches!(default_folder(name), Err(LocalError::Name(_))), "{name}");
    }
}

#[test]
fn a_station_belongs_to_one_process() {
    let scratch = Scratch::new();
    let _first = scratch.open(5);
    let error = refusal(&LocalConfig { station: Some(5), ..scratch.config() });
    let pid = std::process::id();
    assert!(error.contains(&format!("station 5 belongs to process {pid}: choose another")), "{error}");
    let others = [(); 3].map(|()| open(&scratch.config()).unwrap());
    let mut numbers: Vec<u16> = others.iter().map(LocalPort::station).collect();
    numbers.push(5);
    numbers.sort_unstable();
    numbers.dedup();
    let listed = stations(&scratch.0).unwrap();
    assert_eq!(listed.iter().map(|station| station.number).collect::<Vec<_>>(), numbers);
    assert!(listed.len() == 4 && listed.iter().all(|station| station.pid == pid as i32));
    drop(others);
    assert_eq!(stations(&scratch.0).unwrap(), [Station { number: 5, pid: pid as i32 }]);
}

/// Listing the stations connects to each station. The stations do not count these connections as errors.
#[test]
fn listing_disturbs_nobody() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    for number in 0..200 {
        assert_eq!(stations(&scratch.0).unwrap().len(), 2);
        let sent = frame(&a, 2, number, 64);
        assert!(send(&mut a, sent));
        receive(&mut [&mut a, &mut b], 1);
    }
    for port in [&a, &b] {
        assert_eq!(port.local_counters(), LocalCounters { pairs: 1, ..LocalCounters::default() });
    }
    assert!(stations(Path::new("/nowhere/at/all")).unwrap().is_empty());
    // A second name for a socket is not a second station.
    symlink(scratch.0.join("1.sock"), scratch.0.join("01.sock")).unwrap();
    fs::write(scratch.0.join("notes.txt"), "").unwrap();
    assert_eq!(stations(&scratch.0).unwrap().len(), 2);
}

#[test]
fn the_socket_of_a_dead_process_is_taken_over() {
    let scratch = Scratch::new();
    drop(scratch.open(1));
    // The socket is bound and closed, like the socket of a killed process.
    let path = scratch.0.join("7.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists() && stations(&scratch.0).unwrap().is_empty());
    assert_eq!(scratch.open(7).station(), 7);
    assert!(!path.exists(), "removed by its owner");
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let scratch = Scratch::new();
    drop(scratch.open(1));
    // A connection to an ordinary file is also refused. The file is not replaced, since the file is not a
    // socket.
    let path = scratch.0.join("7.sock");
    fs::write(&path, "precious").unwrap();
    assert!(refusal(&LocalConfig { station: Some(7), ..scratch.config() }).contains("station 7"));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_claim_that_was_replaced_is_not_removed_by_its_former_owner() {
    let scratch = Scratch::new();
    let old = scratch.open(1);
    fs::remove_file(scratch.0.join("1.sock")).unwrap();
    let new = scratch.open(1);
    drop(old);
    assert_eq!(stations(&scratch.0).unwrap().len(), 1);
    drop(new);
    assert!(stations(&scratch.0).unwrap().is_empty());
}
