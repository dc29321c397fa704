//! Tests of paths, with a small tree in a folder for temporary files.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A tree with a device, a link to it, and a loop of links. It is removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("uwarp-place-{}-{number}", std::process::id()));
        for path in
            ["sys/class/infiniband", "sys/devices/virtual/uwarp/u0/infiniband/u0/ports", "dev/infiniband"]
        {
            fs::create_dir_all(folder.join(path)).unwrap();
        }
        fs::write(folder.join("sys/devices/virtual/uwarp/u0/numa_node"), "0\n").unwrap();
        for (target, path) in [
            ("../../devices/virtual/uwarp/u0/infiniband/u0", "sys/class/infiniband/u0"),
            ("../../../u0", "sys/devices/virtual/uwarp/u0/infiniband/u0/device"),
            ("loop", "sys/class/infiniband/loop"),
        ] {
            symlink(target, folder.join(path)).unwrap();
        }
        Self(folder)
    }

    fn find(&self, path: &str) -> Result<String, i32> {
        match Ours::of(path.as_bytes()).ok_or(-1)?.find(&self.0).map_err(|Errno(number)| number)? {
            Found::InTree(path) => Ok(path.to_str().unwrap().replace(&self.0.display().to_string(), "TREE")),
            Found::Node(node) => Ok(node.name().to_owned()),
            Found::Elsewhere(path) => Ok(path.to_str().unwrap().to_owned()),
        }
    }

    fn resolve(&self, path: &str) -> Result<String, i32> {
        let found = Ours::of(path.as_bytes()).ok_or(-1)?.resolve(&self.0, Last::Followed);
        found.map(|path| String::from_utf8(path).unwrap()).map_err(|Errno(number)| number)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_ours(path: &CStr) -> bool {
    // SAFETY: this is a C string.
    unsafe { ours(path.as_ptr()) }.is_some()
}

#[test]
fn a_path_is_ours_if_it_begins_with_the_parts_of_a_place() {
    for path in [
        c"/sys/class/infiniband",
        c"/sys/class/infiniband/",
        c"/sys/class/infiniband/u0/ports",
        c"/sys/class/infiniband_verbs/uverbs0",
        c"/sys/devices/virtual/uwarp/u0",
        c"/dev/infiniband/uverbs0",
        c"/sys//class/infiniband",
        c"//sys/class///infiniband//u0",
        c"/./sys/./class/././infiniband",
        c"/dev/infiniband/..",
    ] {
        assert!(is_ours(path), "{path:?}");
    }
    for path in [
        c"",
        c"/",
        c"/s",
        c"/sys",
        c"/sys/class",
        c"/sys/class/",
        c"/sys/class/net",
        c"/sys/class/infiniban",
        c"/sys/class/infiniband0",
        c"/sys/class/infiniband_mad",
        c"/sys/class/infiniband_verbs2",
        c"/sys/devices/virtual/uwarp0",
        c"/sys/devices/virtual/net/lo",
        c"/dev/null",
        c"/dev/infinibands",
        c"sys/class/infiniband",
        c"infiniband",
        c"./sys/class/infiniband",
        c"/xsys/class/infiniband",
        c"/.sys/class/infiniband",
        c"/../sys/class/infiniband",
        c"/tmp/sys/class/infiniband",
    ] {
        assert!(!is_ours(path), "{path:?}");
    }
    // SAFETY: the path is NULL.
    assert!(unsafe { ours(std::ptr::null()) }.is_none());
}

#[test]
fn each_place_is_ours() {
    for place in Place::ALL {
        let path = format!("{}/x", place.path());
        assert_eq!(Ours::of(path.as_bytes()), Some(Ours { place, rest: b"/x" }));
    }
}

#[test]
fn a_path_leads_into_the_tree_to_a_node_or_elsewhere() {
    let folder = Folder::new();
    for (path, wanted) in [
        ("/sys/class/infiniband", Ok("TREE/sys/class/infiniband")),
        ("//sys/./class//infiniband//u0/", Ok("TREE/sys/class/infiniband//u0/")),
        ("/sys/class/infiniband/none/x", Ok("TREE/sys/class/infiniband/none/x")),
        ("/dev/infiniband/uverbs0", Ok("uverbs0")),
        ("/dev/infiniband/.//rdma_cm", Ok("rdma_cm")),
        ("/dev/infiniband/uverbs0/", Ok("TREE/dev/infiniband/uverbs0/")),
        ("/dev/infiniband/uverbs1", Ok("TREE/dev/infiniband/uverbs1")),
        ("/sys/class/infiniband/uverbs0", Ok("TREE/sys/class/infiniband/uverbs0")),
        ("/dev/infiniband/../infiniband/uverbs0", Ok("uverbs0")),
        ("/dev/infiniband/../null", Ok("/dev/null")),
        ("/dev/infiniband/..", Ok("/dev")),
        ("/dev/infiniband/../..", Ok("/")),
        ("/dev/infiniband/../../../etc/passwd", Ok("/etc/passwd")),
        ("/sys/class/infiniband/../net/./lo/../x", Ok("/sys/class/net/lo/../x")),
        ("/sys/class/infiniband/../net/", Ok("/sys/class/net/")),
        ("/sys/class/infiniband/u0/../..", Ok("TREE/sys/devices/virtual/uwarp/u0")),
        ("/sys/class/infiniband/u0/../../../u0/numa_node", Ok("TREE/sys/devices/virtual/uwarp/u0/numa_node")),
        ("/sys/class/infiniband/u0/device/../../net/lo", Ok("/sys/devices/virtual/net/lo")),
        ("/sys/class/infiniband/../infiniband/u0", Ok("TREE/sys/class/infiniband/u0")),
        ("/sys/class/infiniband/../infiniband/new", Ok("TREE/sys/class/infiniband/new")),
        ("/sys/class/infiniband/none/..", Err(libc::ENOENT)),
        ("/sys/class/infiniband/u0/device/numa_node/..", Err(libc::ENOTDIR)),
        ("/sys/class/infiniband/loop/..", Err(libc::ELOOP)),
        ("/dev/infiniband/uverbs0/..", Err(libc::ENOTDIR)),
    ] {
        assert_eq!(folder.find(path), wanted.map(str::to_owned), "{path}");
    }
    let long = format!("/sys/class/infiniband/{}", "x/".repeat(3000));
    assert_eq!(folder.find(&long), Err(libc::ENAMETOOLONG));
}

#[test]
fn a_resolved_path_has_no_links_and_the_names_that_programs_know() {
    let folder = Folder::new();
    let device = "/sys/devices/virtual/uwarp/u0";
    let of_class = format!("{device}/infiniband/u0");
    for (path, wanted) in [
        ("/sys/class/infiniband", Ok("/sys/class/infiniband")),
        ("/sys/class/infiniband/u0", Ok(of_class.as_str())),
        ("/sys/class/infiniband/u0/", Ok(of_class.as_str())),
        ("/sys/class/infiniband/u0/device", Ok(device)),
        ("/sys/class/infiniband/u0/device/infiniband/u0/device", Ok(device)),
        ("/sys/class/infiniband/u0/../..", Ok(device)),
        ("/dev/infiniband/uverbs0", Ok("/dev/infiniband/uverbs0")),
        ("/sys/class/infiniband/../net", Ok("/sys/class/net")),
        ("/sys/class/infiniband/../../..", Ok("/")),
        ("/sys/class/infiniband/none", Err(libc::ENOENT)),
        ("/sys/class/infiniband/u0/device/numa_node/", Err(libc::ENOTDIR)),
        ("/sys/class/infiniband/u0/device/numa_node/x", Err(libc::ENOTDIR)),
        ("/sys/class/infiniband/loop", Err(libc::ELOOP)),
        ("/dev/infiniband/uverbs0/", Err(libc::ENOTDIR)),
    ] {
        assert_eq!(folder.resolve(path), wanted.map(str::to_owned), "{path}");
    }
}
