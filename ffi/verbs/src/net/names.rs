//! The name service of a `local` wire: which process listens at an address that programs see.
//!
//! Processes on one host share its addresses. A name is kept from others by a lock ([`ports`](super::ports)).
//! One that is bound has a file `listen/PORT@ADDRESS` as well, and a listener writes its address on the wire
//! into the file when it listens. That file is locked as long as the process lives. A file without a lock
//! is left over, and the next one to want the name takes it.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use dp::local::{self, OwnFd, WireFolder};
use iwarp_wire::address_of_station;

use super::address::Peer;
use super::ports::{self, Held, NameError, Ports};

/// The names of one wire.
pub(crate) struct Names {
    /// The folder of the wire.
    wire: WireFolder,
    /// The folder of names.
    folder: PathBuf,
    ports: Arc<Ports>,
    /// Where names have led.
    found: Mutex<HashMap<SocketAddr, IpAddr>>,
}

/// Names that are remembered at a time.
const MAX_FOUND: usize = 1024;

/// A name that is taken until this is dropped.
pub(crate) struct Listening {
    /// Its file, if it is bound: there may be one.
    path: Option<PathBuf>,
    /// Holds the lock of the file, once the name leads somewhere.
    file: Option<OwnFd>,
    /// Given up last.
    held: Held,
}

impl Names {
    /// The names of the wire in `folder`.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let wire = WireFolder::open(folder)?;
        let folder = wire.path().join("listen");
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let ports = Ports::open(wire.path())?;
        Ok(Self { wire, folder, ports, found: Mutex::default() })
    }

    fn path(&self, address: IpAddr, port: u16) -> PathBuf {
        self.folder.join(format!("{port}@{}", host(address)))
    }

    /// Takes the name of `visible`. It leads nowhere before it is published.
    pub(super) fn take(&self, visible: SocketAddr) -> Result<Listening, NameError> {
        let mut taken = self.take_source(visible)?;
        let path = self.path(visible.ip(), visible.port());
        // What is left over of a process that was killed leads nowhere any more.
        options().create(true).truncate(true).open(&path)?;
        taken.path = Some(path);
        Ok(taken)
    }

    /// Takes the name of `visible` for a connection from there, which nobody looks for.
    pub(super) fn take_source(&self, visible: SocketAddr) -> Result<Listening, NameError> {
        let held = self.ports.take(&host(visible.ip()), visible.port())?;
        // A process with an older version of this library has the lock of the file alone.
        if is_locked(&self.path(visible.ip(), visible.port()))? {
            return Err(NameError::InUse);
        }
        Ok(Listening { path: None, file: None, held })
    }

    /// The listener at `visible`.
    ///
    /// # Errors
    /// The system's, if it cannot be found out.
    pub(super) fn find(&self, visible: SocketAddr) -> io::Result<Peer> {
        let address = visible.ip().to_canonical();
        let any = IpAddr::from([0, 0, 0, 0]);
        let mut peer = Peer::Nobody;
        for address in [address, any] {
            if peer == Peer::Nobody {
                peer = self.read(address, visible.port())?;
            }
        }
        if let Peer::At(wire) = peer {
            let mut found = self.found.lock().expect("no holder of this lock panics");
            if found.len() == MAX_FOUND {
                found.clear();
            }
            found.insert(visible, wire.ip());
        }
        Ok(peer)
    }

    /// What one name leads to.
    fn read(&self, address: IpAddr, port: u16) -> io::Result<Peer> {
        match read(&self.path(address, port))? {
            Peer::Nobody if self.ports.is_taken(&host(address), port)? => Ok(Peer::Bound),
            peer => Ok(peer),
        }
    }

    /// Whether the process that has listened at `visible` when this end asked before still lives; `None` if
    /// none has.
    ///
    /// # Errors
    /// The system's, if it cannot be found out.
    pub(super) fn lives(&self, visible: SocketAddr) -> io::Result<Option<bool>> {
        let found = self.found.lock().expect("no holder of this lock panics").get(&visible).copied();
        let Some(address) = found else { return Ok(None) };
        let stations = local::stations(self.wire.path())?;
        Ok(Some(stations.iter().any(|station| address_of_station(station.number) == address)))
    }

    /// Whether a listener has announced `address`.
    ///
    /// # Errors
    /// The system's, if it cannot be found out.
    pub(super) fn knows(&self, address: IpAddr) -> io::Result<bool> {
        let suffix = format!("@{}", address.to_canonical());
        for entry in fs::read_dir(&self.folder)? {
            if entry?.file_name().to_string_lossy().ends_with(&suffix) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// An address in names. A wildcard is one name for both families, as a listener of IPv6 takes both.
fn host(address: IpAddr) -> String {
    let address = address.to_canonical();
    if address.is_unspecified() { "any".into() } else { address.to_string() }
}

/// How the file of a name is opened.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

impl Listening {
    /// The name leads to `wire` from now on.
    pub(super) fn publish(&mut self, wire: SocketAddr) -> Result<(), NameError> {
        let path = self.path.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        loop {
            let file = options().create(true).truncate(false).open(path)?;
            // A process with an older version of this library may have taken the file.
            ports::lock(&file, ports::whole(libc::F_WRLCK))?;
            if !is_at(&file, path) {
                continue;
            }
            file.set_len(0)?;
            let file = OwnFd::new(OwnedFd::from(file));
            // One write of some twenty bytes: a reader sees all of them or none.
            rustix::io::write(&file, wire.to_string().as_bytes()).map_err(io::Error::from)?;
            self.file = Some(file);
            return Ok(());
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // In a child of fork the file belongs to the parent.
        if self.held.is_ours()
            && let Some(path) = &self.path
        {
            // A file that cannot be removed is taken over by the next one: its lock goes with this process.
            let _ = fs::remove_file(path);
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

/// Whether the process that listens by this file lives.
fn is_locked(path: &Path) -> io::Result<bool> {
    match options().write(false).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        file => ports::is_locked(file?, ports::whole(libc::F_WRLCK)),
    }
}

/// What a file leads to, if its process lives.
fn read(path: &Path) -> io::Result<Peer> {
    let mut file = match options().write(false).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Peer::Nobody),
        file => file?,
    };
    // Nobody holds the lock of a file that is left over.
    if !ports::is_locked(&file, ports::whole(libc::F_WRLCK))? {
        return Ok(Peer::Nobody);
    }
    let mut text = String::new();
    match file.read_to_string(&mut text)? {
        0 => Ok(Peer::Bound),
        _ => Ok(text.parse().map_or(Peer::Nobody, Peer::At)),
    }
}

/// The names of the wire in `folder` that lead somewhere: as programs see them, and where they lead.
pub(super) fn listening(folder: &Path) -> Vec<(String, SocketAddr)> {
    let Ok(entries) = fs::read_dir(folder.join("listen")) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (port, address) = name.split_once('@')?;
            let address = if address == "any" { "*" } else { address };
            match read(&entry.path()) {
                Ok(Peer::At(wire)) => Some((format!("{address}:{port}"), wire)),
                Ok(Peer::Bound | Peer::Nobody | Peer::Silent) | Err(_) => None,
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

    #[test]
    fn a_name_is_known_while_its_listener_lives() {
        let (folder, names) = names();
        let wire = at("100.64.0.7:18515");
        assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Peer::Nobody);
        let mut any = names.take(at("0.0.0.0:7471")).unwrap();
        assert!(matches!(names.take(at("[::]:7471")), Err(NameError::InUse)));
        assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Peer::Bound);
        any.publish(wire).unwrap();
        // A lock is that of an open file, so this process sees it as others do.
        assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Peer::At(wire));
        assert_eq!(names.find(at("[::1]:7471")).unwrap(), Peer::At(wire));
        assert_eq!(names.find(at("127.0.0.1:7472")).unwrap(), Peer::Nobody);
        let mut own = names.take(at("127.0.0.1:7471")).unwrap();
        own.publish(at("100.64.0.8:1")).unwrap();
        assert_eq!(
            names.find(at("127.0.0.1:7471")).unwrap(),
            Peer::At(at("100.64.0.8:1")),
            "the specific one comes first"
        );
        drop((any, own));
        assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Peer::Nobody);
        // No process of the wire has the address at which the name was found.
        assert_eq!(names.lives(at("127.0.0.1:7471")).unwrap(), Some(false));
        assert_eq!(fs::read_dir(folder.join("listen")).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_name_that_is_left_over_is_nobodys_and_is_taken() {
        let (folder, names) = names();
        let wire = at("100.64.0.7:18515");
        fs::write(names.path(at("10.0.0.1:5").ip(), 5), "100.64.0.9:5").unwrap();
        assert_eq!(names.find(at("10.0.0.1:5")).unwrap(), Peer::Nobody);
        let mut taken = names.take(at("10.0.0.1:5")).unwrap();
        taken.publish(wire).unwrap();
        assert_eq!(names.find(at("10.0.0.1:5")).unwrap(), Peer::At(wire));
        assert!(names.knows(at("10.0.0.1:0").ip()).unwrap() && !names.knows(at("10.0.0.2:0").ip()).unwrap());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_listener_that_goes_may_come_again_while_its_process_lives() {
        let (folder, names) = names();
        let port = local::open(&local::LocalConfig::new(folder.clone())).unwrap();
        let mut name = names.take(at("127.0.0.1:7471")).unwrap();
        name.publish(SocketAddr::new(address_of_station(port.station()), 5)).unwrap();
        assert_eq!(names.lives(at("127.0.0.1:7471")).unwrap(), None, "nobody has asked for it");
        assert!(matches!(names.find(at("127.0.0.1:7471")), Ok(Peer::At(_))));
        drop(name);
        assert_eq!(names.lives(at("127.0.0.1:7471")).unwrap(), Some(true));
        drop(port);
        assert_eq!(names.lives(at("127.0.0.1:7471")).unwrap(), Some(false));
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
            let refused = (0..3000).find(|_| names.take(at("127.0.0.1:7471")).is_err());
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(refused, None);
        });
        fs::remove_dir_all(folder).unwrap();
    }

    /// Another process on the wire, as far as its names go.
    fn other(folder: &Path) -> Names {
        Names::new(folder).unwrap()
    }

    fn descriptors() -> usize {
        fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn a_name_is_kept_from_this_process_and_from_others_until_it_is_given_up() {
        let (folder, names) = names();
        let others = other(&folder);
        for visible in ["127.0.0.1:7471", "0.0.0.0:7471", "[fd00::1]:7471", "127.0.0.1:7472", "10.0.0.1:1"] {
            let visible = at(visible);
            for (mine, theirs) in [(&names, &others), (&others, &names)] {
                let is_free = || {
                    let found = [mine, theirs].map(|names| names.find(visible).unwrap());
                    found == [Peer::Nobody; 2]
                };
                assert!(is_free(), "{visible}");
                for source in [true, false] {
                    let taken = if source { mine.take_source(visible) } else { mine.take(visible) };
                    let taken = taken.unwrap();
                    for names in [mine, theirs] {
                        assert!(matches!(names.take(visible), Err(NameError::InUse)), "{visible}");
                        assert!(matches!(names.take_source(visible), Err(NameError::InUse)), "{visible}");
                        assert_eq!(names.find(visible).unwrap(), Peer::Bound);
                    }
                    drop(taken);
                    assert!(is_free(), "{visible}");
                }
            }
        }
        // The port before and the port after are others.
        let _taken = names.take(at("127.0.0.1:500")).unwrap();
        for port in [499, 501] {
            drop(others.take(SocketAddr::new(at("127.0.0.1:0").ip(), port)).unwrap());
        }
        drop(others.take(at("127.0.0.2:500")).unwrap());
        fs::remove_dir_all(folder).unwrap();
    }

    /// A connection of a process costs none of its descriptors, and neither does an address that is bound.
    #[test]
    fn names_of_connections_need_no_descriptors() {
        let (folder, names) = names();
        let others = other(&folder);
        let all = (1..=2000).map(|port| SocketAddr::new(at("127.0.0.1:0").ip(), port));
        let before = descriptors();
        let mut taken: Vec<Listening> = Vec::new();
        for (number, visible) in all.clone().enumerate() {
            let name = if number % 2 == 0 { names.take_source(visible) } else { names.take(visible) };
            taken.push(name.unwrap());
        }
        // Other tests have a few open meanwhile.
        assert!(descriptors() < before + 1000, "{} of {before}", descriptors());
        assert!(all.clone().all(|visible| matches!(others.take_source(visible), Err(NameError::InUse))));
        // From the middle on.
        for _ in 0..500 {
            taken.swap_remove(taken.len() / 2);
        }
        let free = all.clone().filter(|visible| others.take_source(*visible).is_ok()).count();
        assert_eq!(free, 500);
        drop(taken);
        assert!(all.clone().all(|visible| others.take_source(visible).is_ok()));
        assert_eq!(fs::read_dir(folder.join("listen")).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    /// A listener of an older version has the lock of its file alone.
    #[test]
    fn a_listener_that_has_its_file_alone_keeps_its_name() {
        let (folder, names) = names();
        let path = names.path(at("10.0.0.1:5").ip(), 5);
        fs::write(&path, "100.64.0.9:5").unwrap();
        let file = options().open(&path).unwrap();
        ports::lock(&file, ports::whole(libc::F_WRLCK)).unwrap();
        assert_eq!(names.find(at("10.0.0.1:5")).unwrap(), Peer::At(at("100.64.0.9:5")));
        assert!(matches!(names.take(at("10.0.0.1:5")), Err(NameError::InUse)));
        assert!(matches!(names.take_source(at("10.0.0.1:5")), Err(NameError::InUse)));
        assert_eq!(fs::read(&path).unwrap(), b"100.64.0.9:5");
        drop(file);
        // And it finds ours by the lock of the file.
        let mut ours = names.take(at("10.0.0.1:5")).unwrap();
        ours.publish(at("100.64.0.7:6")).unwrap();
        assert!(is_locked(&path).unwrap());
        drop(ours);
        assert!(!path.exists());
        fs::remove_dir_all(folder).unwrap();
    }

    /// What cannot be found out is no answer.
    #[test]
    fn a_folder_that_cannot_be_read_is_an_error() {
        let (folder, names) = names();
        fs::remove_dir_all(folder.join("listen")).unwrap();
        fs::write(folder.join("listen"), "").unwrap();
        assert!(names.find(at("10.0.0.1:5")).is_err());
        assert!(names.knows(at("10.0.0.1:5").ip()).is_err());
        assert!(matches!(names.take(at("10.0.0.1:5")), Err(NameError::System(_))));
        fs::remove_dir_all(folder).unwrap();
    }
}
