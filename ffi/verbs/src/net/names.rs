//! The name service of a `local` wire: which process listens at an address that programs see.
//!
//! Processes on one host share its addresses, so a listener makes a file `listen/PORT@ADDRESS` in the folder
//! of the wire when it binds, and writes its address on the wire into it when it listens. The file is locked
//! as long as the process lives. A file without a lock is left over, and the next one to want the name takes
//! it.
//!
//! A file has one line: the address on the wire, or `-` as long as nobody listens, then `only` and `reuse`
//! for what its [`Claim`] says. Names that take each other's addresses have different files, so whoever takes
//! one looks at the others first. The folder is locked meanwhile.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use dp::local;
use iwarp_wire::address_of_station;
use rustix::fs::FlockOperation;

use super::address::Peer;
use super::claim::{Claim, Conflict};
use crate::abi::Errno;

/// The names of one wire.
pub(crate) struct Names {
    /// The folder of the wire.
    wire: PathBuf,
    /// The folder of names.
    folder: PathBuf,
    /// Where names have led.
    found: Mutex<HashMap<SocketAddr, IpAddr>>,
    /// The files of this process.
    ours: Arc<Mutex<HashSet<PathBuf>>>,
}

/// The address in the name of a file for all addresses of a family.
const ANY_IPV4: &str = "any4";
const ANY_IPV6: &str = "any6";
/// The words of a line.
const NOWHERE: &str = "-";
const ONLY: &str = "only";
const REUSE: &str = "reuse";

/// Names that are remembered at a time.
const MAX_FOUND: usize = 1024;

/// A name that is taken until this is dropped.
pub(crate) struct Listening {
    path: PathBuf,
    /// Holds the lock.
    file: File,
    claim: Claim,
    ours: Arc<Mutex<HashSet<PathBuf>>>,
}

/// Why a name could not be announced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameError {
    /// Another listener has it.
    #[error("the address is in use")]
    InUse,
    /// Another listener takes all addresses, or is at one of those that are asked for.
    #[error("the port is in use at an address that this one includes, or is included by")]
    Overlaps,
    /// The system refused it.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl NameError {
    /// The kernel's error of binding a socket to an address.
    pub(super) fn of_bind(error: std::io::Error, address: IpAddr) -> Self {
        match error.kind() {
            std::io::ErrorKind::AddrInUse if address.is_unspecified() => Self::Overlaps,
            std::io::ErrorKind::AddrInUse => Self::InUse,
            _ => Self::System(error),
        }
    }
}

impl From<Conflict> for NameError {
    fn from(conflict: Conflict) -> Self {
        match conflict {
            Conflict::Same => Self::InUse,
            Conflict::Overlaps => Self::Overlaps,
        }
    }
}

impl From<NameError> for Errno {
    fn from(error: NameError) -> Self {
        match error {
            NameError::InUse => Self(libc::EADDRINUSE),
            NameError::Overlaps => Self(libc::EADDRNOTAVAIL),
            NameError::System(error) => error.into(),
        }
    }
}

impl Names {
    /// The names of the wire in `folder`.
    pub(super) fn new(folder: &Path) -> std::io::Result<Self> {
        let wire = folder.to_owned();
        let folder = folder.join("listen");
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self { wire, folder, found: Mutex::default(), ours: Arc::default() }),
        }
    }

    fn path(&self, address: IpAddr, port: u16) -> PathBuf {
        let address = match address.to_canonical() {
            address if !address.is_unspecified() => address.to_string(),
            IpAddr::V4(_) => ANY_IPV4.to_owned(),
            IpAddr::V6(_) => ANY_IPV6.to_owned(),
        };
        self.folder.join(format!("{port}@{address}"))
    }

    /// Takes a name. It leads nowhere before it is published. `None`: another process has it and does not
    /// listen, and both reuse it.
    pub(super) fn take(&self, port: u16, claim: &Claim) -> Result<Option<Listening>, NameError> {
        let _alone = lock_folder(&self.folder)?;
        for other in self.of_others(port)? {
            if !(other.claim.reuses && claim.reuses) {
                claim.check(&other.claim)?;
            }
        }
        let path = self.path(claim.address, port);
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            match lock(&file) {
                // The others have been asked: one of them has the name, and shares it.
                Err(NameError::InUse) if claim.reuses => return Ok(None),
                locked => locked?,
            }
            // The one before may have removed the file after it was opened here.
            if !is_at(&file, &path) {
                continue;
            }
            write_line(&file, NOWHERE, claim)?;
            self.ours.lock().expect("no holder of this lock panics").insert(path.clone());
            return Ok(Some(Listening { path, file, claim: *claim, ours: Arc::clone(&self.ours) }));
        }
    }

    /// The names that other processes have at a port.
    fn of_others(&self, port: u16) -> Result<Vec<Entry>, NameError> {
        let mut entries = Vec::new();
        let prefix = format!("{port}@");
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let name = entry.file_name();
            let Some(address) = name.to_str().and_then(|name| name.strip_prefix(&prefix)) else { continue };
            let path = self.folder.join(&name);
            if !self.ours.lock().expect("no holder of this lock panics").contains(&path) {
                entries.extend(address_of(address).and_then(|address| Entry::read(&path, address)));
            }
        }
        Ok(entries)
    }

    /// The listener at `visible`.
    pub(super) fn find(&self, visible: SocketAddr) -> Peer {
        let address = visible.ip().to_canonical();
        let mut places = vec![address];
        if address.is_ipv4() {
            places.push(Ipv4Addr::UNSPECIFIED.into());
        }
        places.push(Ipv6Addr::UNSPECIFIED.into());
        let takes =
            |entry: &Entry| !(entry.claim.family_only && entry.claim.address.is_ipv6() && address.is_ipv4());
        let mut entries =
            places.into_iter().filter_map(|at| Entry::read(&self.path(at, visible.port()), at)).filter(takes);
        let peer = entries.next().map_or(Peer::Nobody, |entry| entry.peer);
        if let Peer::At(wire) = peer {
            let mut found = self.found.lock().expect("no holder of this lock panics");
            if found.len() == MAX_FOUND {
                found.clear();
            }
            found.insert(visible, wire.ip());
        }
        peer
    }

    /// Whether the process that has listened at `visible` when this end asked before still lives; `None` if
    /// none has.
    pub(super) fn lives(&self, visible: SocketAddr) -> Option<bool> {
        let found = self.found.lock().expect("no holder of this lock panics").get(&visible).copied();
        let address = found?;
        let stations = local::stations(&self.wire).unwrap_or_default();
        Some(stations.iter().any(|station| address_of_station(station.number) == address))
    }

    /// Whether a listener has announced `address`.
    pub(super) fn knows(&self, address: IpAddr) -> bool {
        let suffix = format!("@{}", address.to_canonical());
        let Ok(entries) = fs::read_dir(&self.folder) else { return false };
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(&suffix))
    }
}

impl Listening {
    /// The name leads to `wire` from now on, and is not shared any more.
    pub(super) fn publish(&mut self, wire: SocketAddr) -> std::io::Result<()> {
        self.claim.reuses = false;
        write_line(&self.file, &wire.to_string(), &self.claim)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // In a child of fork the file belongs to the parent.
        if !crate::fork::is_child() {
            // A file that cannot be removed is taken over by the next one: its lock goes with this process.
            let _ = fs::remove_file(&self.path);
            self.ours.lock().expect("no holder of this lock panics").remove(&self.path);
        }
    }
}

/// A name that a living process has.
struct Entry {
    claim: Claim,
    /// Where it leads.
    peer: Peer,
}

impl Entry {
    /// What a file says, if its process lives.
    fn read(path: &Path, address: IpAddr) -> Option<Self> {
        let mut file = File::open(path).ok()?;
        // Nobody holds the lock of a file that is left over.
        if !is_locked(&file) {
            return None;
        }
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        let mut words = text.split_whitespace();
        // A file that was just made has no line yet.
        let peer = words.next().and_then(|wire| wire.parse().ok()).map_or(Peer::Bound, Peer::At);
        let mut claim = Claim { address, family_only: false, reuses: false };
        for word in words {
            claim.family_only |= word == ONLY;
            claim.reuses |= word == REUSE;
        }
        Some(Self { claim, peer })
    }
}

/// The address in the name of a file.
fn address_of(text: &str) -> Option<IpAddr> {
    match text {
        ANY_IPV4 => Some(Ipv4Addr::UNSPECIFIED.into()),
        ANY_IPV6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        address => address.parse().ok(),
    }
}

/// Writes the line of a file, in place of one that is not longer. One write of some twenty bytes: a reader
/// sees all of them or none.
fn write_line(file: &File, wire: &str, claim: &Claim) -> std::io::Result<()> {
    let mut line = wire.to_owned();
    for (word, is_so) in [(ONLY, claim.family_only), (REUSE, claim.reuses)] {
        if is_so {
            line.extend([" ", word]);
        }
    }
    file.write_all_at(line.as_bytes(), 0)?;
    file.set_len(line.len() as u64)
}

/// Keeps other processes from taking names, until the file is closed.
fn lock_folder(folder: &Path) -> std::io::Result<File> {
    let file = File::open(folder)?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            locked => return locked.map(|()| file).map_err(Into::into),
        }
    }
}

/// Whether `path` names this file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// The lock of a whole file, which belongs to the open file: it ends when the last descriptor is closed.
fn lock_of_file() -> libc::flock {
    let kind = libc::F_WRLCK as libc::c_short;
    libc::flock { l_type: kind, l_whence: libc::SEEK_SET as libc::c_short, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Takes the lock of a file.
fn lock(file: &File) -> Result<(), NameError> {
    let lock = lock_of_file();
    // SAFETY: the descriptor is open, and the struct is read only.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(NameError::InUse),
        _ => Err(error.into()),
    }
}

/// Whether another open file has the lock. It is only asked for: one that were taken for a moment would keep
/// off the process that wants the name.
fn is_locked(file: &File) -> bool {
    let mut lock = lock_of_file();
    // SAFETY: the descriptor is open, and the struct is a writable place.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
}

/// The names of the wire in `folder` that lead somewhere: as programs see them, and where they lead.
pub(super) fn listening(folder: &Path) -> Vec<(String, SocketAddr)> {
    let Ok(entries) = fs::read_dir(folder.join("listen")) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (port, address) = name.split_once('@')?;
            let of_name = address_of(address)?;
            let shown = if of_name.is_unspecified() { "*" } else { address };
            match Entry::read(&entry.path(), of_name)?.peer {
                Peer::At(wire) => Some((format!("{shown}:{port}"), wire)),
                Peer::Bound | Peer::Nobody | Peer::Silent => None,
            }
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt;

    use super::*;

    fn names() -> (PathBuf, Names) {
        let folder = std::env::temp_dir().join(format!(
            "uwarp-names-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let names = Names::new(&folder).unwrap();
        (folder, names)
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Takes the name of an address, as a program does that sets no option.
    fn take(names: &Names, text: &str) -> Result<Listening, NameError> {
        let address = at(text);
        let claim = Claim { address: address.ip(), family_only: address.is_ipv4(), reuses: false };
        Ok(names.take(address.port(), &claim)?.expect("nobody shares it"))
    }

    #[test]
    fn a_name_is_known_while_its_listener_lives() {
        let (folder, names) = names();
        let wire = at("100.64.0.7:18515");
        assert_eq!(names.find(at("127.0.0.1:7471")), Peer::Nobody);
        let mut any = take(&names, "[::]:7471").unwrap();
        // A lock is that of an open file, so this process sees it as others do.
        assert!(matches!(take(&names, "[::]:7471"), Err(NameError::InUse)));
        assert_eq!(names.find(at("127.0.0.1:7471")), Peer::Bound);
        any.publish(wire).unwrap();
        assert_eq!(names.find(at("127.0.0.1:7471")), Peer::At(wire));
        assert_eq!(names.find(at("[::1]:7471")), Peer::At(wire));
        assert_eq!(names.find(at("127.0.0.1:7472")), Peer::Nobody);
        assert_eq!(listening(&folder), [("*:7471".to_owned(), wire)]);
        // Names of one process do not exclude each other here: those who bind them have looked.
        let mut own = take(&names, "127.0.0.1:7471").unwrap();
        own.publish(at("100.64.0.8:1")).unwrap();
        assert_eq!(
            names.find(at("127.0.0.1:7471")),
            Peer::At(at("100.64.0.8:1")),
            "the specific one comes first"
        );
        drop((any, own));
        assert_eq!(names.find(at("127.0.0.1:7471")), Peer::Nobody);
        // No process of the wire has the address at which the name was found.
        assert_eq!(names.lives(at("127.0.0.1:7471")), Some(false));
        assert_eq!(fs::read_dir(folder.join("listen")).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_name_that_is_left_over_is_nobodys_and_is_taken() {
        let (folder, names) = names();
        let wire = at("100.64.0.7:18515");
        fs::write(names.path(at("10.0.0.1:5").ip(), 5), "100.64.0.9:5").unwrap();
        fs::write(names.path(at("0.0.0.0:5").ip(), 5), "100.64.0.9:5").unwrap();
        assert_eq!(names.find(at("10.0.0.1:5")), Peer::Nobody);
        let mut taken = take(&names, "10.0.0.1:5").unwrap();
        taken.publish(wire).unwrap();
        assert_eq!(names.find(at("10.0.0.1:5")), Peer::At(wire));
        assert!(names.knows(at("10.0.0.1:0").ip()) && !names.knows(at("10.0.0.2:0").ip()));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_listener_that_goes_may_come_again_while_its_process_lives() {
        let (folder, names) = names();
        let port = local::open(&local::LocalConfig::new(folder.clone())).unwrap();
        let mut name = take(&names, "127.0.0.1:7471").unwrap();
        name.publish(SocketAddr::new(address_of_station(port.station()), 5)).unwrap();
        assert_eq!(names.lives(at("127.0.0.1:7471")), None, "nobody has asked for it");
        assert!(matches!(names.find(at("127.0.0.1:7471")), Peer::At(_)));
        drop(name);
        assert_eq!(names.lives(at("127.0.0.1:7471")), Some(true));
        drop(port);
        assert_eq!(names.lives(at("127.0.0.1:7471")), Some(false));
        fs::remove_dir_all(folder).unwrap();
    }

    /// A program may look for a name at any moment while another one takes it.
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

    /// Wildcards of both families have names of their own, which lead to those of their family alone.
    #[test]
    fn wildcards_take_the_families_that_they_say() {
        let (folder, names) = names();
        let [ipv4, ipv6] = ["100.64.0.7:1", "100.64.0.7:2"].map(at);
        let claim = |address: &str, family_only| Claim {
            address: address.parse().unwrap(),
            family_only,
            reuses: false,
        };
        let mut of_ipv6 = names.take(7471, &claim("::", true)).unwrap().unwrap();
        of_ipv6.publish(ipv6).unwrap();
        assert_eq!(names.find(at("127.0.0.1:7471")), Peer::Nobody);
        let mut of_ipv4 = names.take(7471, &claim("0.0.0.0", true)).unwrap().unwrap();
        of_ipv4.publish(ipv4).unwrap();
        let at_both =
            ["127.0.0.1:7471", "[::ffff:127.0.0.1]:7471", "[::1]:7471"].map(|text| names.find(at(text)));
        assert_eq!(at_both, [ipv4, ipv4, ipv6].map(Peer::At));
        drop(of_ipv6);
        assert_eq!(names.find(at("[::1]:7471")), Peer::Nobody, "IPv4 alone");
        drop(of_ipv4);
        fs::remove_dir_all(folder).unwrap();
    }

    /// Another process takes what it may beside the names of this one.
    #[test]
    fn names_of_other_processes_exclude_as_those_of_this_one() {
        let (folder, names) = names();
        let other = Names::new(&folder).unwrap();
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
            let answered = |taken: Result<Option<Listening>, NameError>| match taken {
                Ok(Some(_)) => "taken",
                Ok(None) => "shared",
                Err(NameError::InUse) => "InUse",
                Err(NameError::Overlaps) => "Overlaps",
                Err(NameError::System(error)) => panic!("{error}"),
            };
            assert_eq!(answered(other.take(7, &claim(second))), answer, "{second} beside {one}");
            assert_eq!(answered(other.take(8, &claim(second))), "taken", "another port");
            // A listener shares nothing.
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
}
