//! The name service of a `local` wire: which process listens at an address that programs see.
//!
//! Processes on one host share its addresses. A name is kept from others by a lock that costs no descriptor
//! ([`ports`](super::ports)). One that is bound has a file `listen/PORT@ADDRESS` as well, and a listener
//! writes its address on the wire into the file when it listens. That file is locked as long as the process
//! lives. A file whose name nobody keeps is left over, and the next one to want the name takes it.
//!
//! A file has one line: the address on the wire, or `-` as long as nobody listens, then `only` and `reuse`
//! for what its [`Claim`] says. Names that take each other's addresses have different files, so whoever takes
//! one looks at the others first. The folder is locked meanwhile.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use dp::local::{self, OwnFd, WireFolder};
use iwarp_wire::address_of_station;
use rustix::fs::FlockOperation;

use super::address::Peer;
use super::claim::Claim;
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
    /// Its file, if it is bound: there may be one.
    path: Option<PathBuf>,
    claim: Claim,
    /// Holds the lock of the file, once the name leads somewhere.
    file: Option<OwnFd>,
    /// That of a connection tells wildcards that it is there.
    _shared: Option<Held>,
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

    /// Takes a name. It leads nowhere before it is published. `None`: another one has it and does not listen,
    /// and both reuse it.
    pub(super) fn take(&self, port: u16, claim: &Claim) -> Result<Option<Listening>, NameError> {
        let _alone = lock_folder(&self.folder)?;
        let others = self.of_others(port)?;
        for other in &others {
            other.allows(claim)?;
        }
        let host = host(claim.address);
        if claim.address.is_unspecified() {
            for source in sources() {
                if !(source.reuses && claim.reuses)
                    && claim.check(&source).is_err()
                    && self.ports.is_of_others(&sharing(&source), port)?
                {
                    return Err(NameError::Overlaps);
                }
            }
        }
        // Those who have the address and allow it share it.
        let is_shared = claim.reuses
            && (self.ports.is_ours(&host, port)
                || others.iter().any(|other| other.claim.address == claim.address));
        if is_shared {
            return Ok(None);
        }
        let held = self.ports.take(&host, port)?;
        let path = self.path(claim.address, port);
        // What is left over of a process that was killed leads nowhere any more.
        let file = options().create(true).truncate(false).open(&path)?;
        let taken = Listening { path: Some(path), claim: *claim, file: None, _shared: None, held };
        write_line(&file, NOWHERE, claim)?;
        Ok(Some(taken))
    }

    /// Takes a name for a connection from there, which nobody looks for.
    pub(super) fn take_source(&self, port: u16, claim: &Claim) -> Result<Listening, NameError> {
        let _alone = lock_folder(&self.folder)?;
        for address in [claim.address, Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()] {
            let is_ours = self.ports.is_ours(&host(address), port);
            if let Some(other) = if is_ours { None } else { self.entry(address, port)? } {
                other.allows(claim)?;
            }
        }
        let held = self.ports.take(&host(claim.address), port)?;
        // What is left over of a process that was killed is not of this one.
        match fs::remove_file(self.path(claim.address, port)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let shared = Some(self.ports.share(&sharing(claim), port)?);
        Ok(Listening { path: None, claim: *claim, file: None, _shared: shared, held })
    }

    /// The names that other processes have at a port, those of connections apart.
    fn of_others(&self, port: u16) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let prefix = format!("{port}@");
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let address = name.to_str().and_then(|name| address_of(name.strip_prefix(&prefix)?));
            if let Some(address) = address
                && !self.ports.is_ours(&host(address), port)
            {
                entries.extend(self.entry(address, port)?);
            }
        }
        Ok(entries)
    }

    /// Whoever has a name.
    fn entry(&self, address: IpAddr, port: u16) -> io::Result<Option<Entry>> {
        let mut claim = Claim { address, family_only: false, reuses: false };
        match Entry::read(&self.path(address, port), address)? {
            Some((entry, true)) => return Ok(Some(entry)),
            Some((entry, false)) => claim = entry.claim,
            None => {}
        }
        // One that is bound has no lock of its file, and a connection has no file.
        let is_taken = self.ports.is_taken(&host(address), port)?;
        Ok(is_taken.then_some(Entry { claim, peer: Peer::Bound }))
    }

    /// The listener at `visible`.
    ///
    /// # Errors
    /// The system's, if it cannot be found out.
    pub(super) fn find(&self, visible: SocketAddr) -> io::Result<Peer> {
        let address = visible.ip().to_canonical();
        let mut places = vec![address];
        if address.is_ipv4() {
            places.push(Ipv4Addr::UNSPECIFIED.into());
        }
        places.push(Ipv6Addr::UNSPECIFIED.into());
        let mut peer = Peer::Nobody;
        for place in places {
            let Some(entry) = self.entry(place, visible.port())? else { continue };
            if !(entry.claim.family_only && place.is_ipv6() && address.is_ipv4()) {
                peer = entry.peer;
                break;
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

/// An address in names. A wildcard of one family is another name than that of the other one.
fn host(address: IpAddr) -> String {
    match address.to_canonical() {
        address if !address.is_unspecified() => address.to_string(),
        IpAddr::V4(_) => ANY_IPV4.to_owned(),
        IpAddr::V6(_) => ANY_IPV6.to_owned(),
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

/// What connections claim, as far as it matters to wildcards. Their addresses do not.
fn sources() -> impl Iterator<Item = Claim> {
    [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].into_iter().flat_map(|address: IpAddr| {
        (0..4).map(move |bits| Claim { address, family_only: bits & 1 != 0, reuses: bits & 2 != 0 })
    })
}

/// The name that connections with such a claim have in common, for one port.
fn sharing(claim: &Claim) -> String {
    let family = if claim.address.is_ipv4() { 4 } else { 6 };
    let words = [(ONLY, claim.family_only), (REUSE, claim.reuses)]
        .map(|(word, is_so)| if is_so { word } else { NOWHERE });
    format!("sources{family} {} {}", words[0], words[1])
}

/// How the file of a name is opened.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

impl Listening {
    /// The name leads to `wire` from now on, and is not shared any more.
    pub(super) fn publish(&mut self, wire: SocketAddr) -> Result<(), NameError> {
        let path = self.path.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        loop {
            let file = options().create(true).truncate(false).open(path)?;
            // A process with an older version of this library may have taken the file.
            ports::lock(&file, ports::whole(libc::F_WRLCK))?;
            if !is_at(&file, path) {
                continue;
            }
            let claim = Claim { reuses: false, ..self.claim };
            write_line(&file, &wire.to_string(), &claim)?;
            self.claim = claim;
            self.file = Some(OwnFd::new(OwnedFd::from(file)));
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

/// A name that a living process has.
struct Entry {
    claim: Claim,
    /// Where it leads.
    peer: Peer,
}

impl Entry {
    /// What a file says, and whether its process listens; `None` if there is no file.
    fn read(path: &Path, address: IpAddr) -> io::Result<Option<(Self, bool)>> {
        let mut file = match options().write(false).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let is_locked = ports::is_locked(&file, ports::whole(libc::F_WRLCK))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut words = text.split_whitespace();
        // A file that was just made has no line yet.
        let peer = words.next().and_then(|wire| wire.parse().ok()).map_or(Peer::Bound, Peer::At);
        let mut claim = Claim { address, family_only: false, reuses: false };
        for word in words {
            claim.family_only |= word == ONLY;
            claim.reuses |= word == REUSE;
        }
        Ok(Some((Self { claim, peer }, is_locked)))
    }

    /// Checks whether another one may have its claim beside this one.
    fn allows(&self, claim: &Claim) -> Result<(), NameError> {
        if self.claim.reuses && claim.reuses { Ok(()) } else { Ok(claim.check(&self.claim)?) }
    }
}

/// Writes the line of a file, in place of one that is not longer. One write of some twenty bytes: a reader
/// sees all of them or none.
fn write_line(file: &File, wire: &str, claim: &Claim) -> io::Result<()> {
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
fn lock_folder(folder: &Path) -> io::Result<File> {
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
            match Entry::read(&entry.path(), of_name) {
                Ok(Some((Entry { peer: Peer::At(wire), .. }, true))) => {
                    Some((format!("{shown}:{port}"), wire))
                }
                _ => None,
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

    /// The claim of a program that sets no option.
    fn claim_of(visible: SocketAddr) -> Claim {
        Claim { address: visible.ip(), family_only: visible.is_ipv4(), reuses: false }
    }

    /// Takes the name of an address, as such a program does.
    fn take(names: &Names, visible: impl ToString) -> Result<Listening, NameError> {
        let visible = at(&visible.to_string());
        Ok(names.take(visible.port(), &claim_of(visible))?.expect("nobody shares it"))
    }

    /// Takes it for a connection.
    fn take_source(names: &Names, visible: SocketAddr) -> Result<Listening, NameError> {
        names.take_source(visible.port(), &claim_of(visible))
    }

    #[test]
    fn a_name_is_known_while_its_listener_lives() {
        let (folder, names) = names();
        let wire = at("100.64.0.7:18515");
        assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Peer::Nobody);
        let mut any = take(&names, "[::]:7471").unwrap();
        // A lock is that of an open file, so this process sees it as others do.
        assert!(matches!(take(&names, "[::]:7471"), Err(NameError::InUse)));
        assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Peer::Bound);
        any.publish(wire).unwrap();
        assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Peer::At(wire));
        assert_eq!(names.find(at("[::1]:7471")).unwrap(), Peer::At(wire));
        assert_eq!(names.find(at("127.0.0.1:7472")).unwrap(), Peer::Nobody);
        assert_eq!(listening(&folder), [("*:7471".to_owned(), wire)]);
        // Names of one process do not exclude each other here: those who bind them have looked.
        let mut own = take(&names, "127.0.0.1:7471").unwrap();
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
        fs::write(names.path(at("0.0.0.0:5").ip(), 5), "100.64.0.9:5").unwrap();
        assert_eq!(names.find(at("10.0.0.1:5")).unwrap(), Peer::Nobody);
        let mut taken = take(&names, "10.0.0.1:5").unwrap();
        taken.publish(wire).unwrap();
        assert_eq!(names.find(at("10.0.0.1:5")).unwrap(), Peer::At(wire));
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
        assert_eq!(names.find(at("127.0.0.1:7471")).unwrap(), Peer::Nobody);
        let mut of_ipv4 = names.take(7471, &claim("0.0.0.0", true)).unwrap().unwrap();
        of_ipv4.publish(ipv4).unwrap();
        let at_both = ["127.0.0.1:7471", "[::ffff:127.0.0.1]:7471", "[::1]:7471"]
            .map(|text| names.find(at(text)).unwrap());
        assert_eq!(at_both, [ipv4, ipv4, ipv6].map(Peer::At));
        drop(of_ipv6);
        assert_eq!(names.find(at("[::1]:7471")).unwrap(), Peer::Nobody, "IPv4 alone");
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
        for visible in
            ["127.0.0.1:7471", "0.0.0.0:7471", "[::]:7471", "[fd00::1]:7471", "127.0.0.1:7472", "10.0.0.1:1"]
        {
            let visible = at(visible);
            for (mine, theirs) in [(&names, &others), (&others, &names)] {
                let is_free = || {
                    let found = [mine, theirs].map(|names| names.find(visible).unwrap());
                    found == [Peer::Nobody; 2]
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
                        let is_refused = |taken: Result<Listening, NameError>| match taken {
                            Err(NameError::InUse) => true,
                            Err(NameError::Overlaps) => is_any,
                            _ => false,
                        };
                        assert!(is_refused(take(names, visible)), "{visible}");
                        assert!(is_any || is_refused(take_source(names, visible)), "{visible}");
                        assert_eq!(names.find(visible).unwrap(), Peer::Bound);
                    }
                    drop(taken);
                    assert!(is_free(), "{visible}");
                }
            }
        }
        // The port before and the port after are others.
        let _taken = take(&names, at("127.0.0.1:500")).unwrap();
        for port in [499, 501] {
            drop(take(&others, SocketAddr::new(at("127.0.0.1:0").ip(), port)).unwrap());
        }
        drop(take(&others, at("127.0.0.2:500")).unwrap());
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
            let name = if number % 2 == 0 { take_source(&names, visible) } else { take(&names, visible) };
            taken.push(name.unwrap());
        }
        // Other tests have a few open meanwhile.
        assert!(descriptors() < before + 1000, "{} of {before}", descriptors());
        assert!(all.clone().all(|visible| matches!(take_source(&others, visible), Err(NameError::InUse))));
        // From the middle on.
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

    /// A listener of an older version has the lock of its file alone.
    #[test]
    fn a_listener_that_has_its_file_alone_keeps_its_name() {
        let (folder, names) = names();
        let path = names.path(at("10.0.0.1:5").ip(), 5);
        fs::write(&path, "100.64.0.9:5").unwrap();
        let file = options().open(&path).unwrap();
        ports::lock(&file, ports::whole(libc::F_WRLCK)).unwrap();
        assert_eq!(names.find(at("10.0.0.1:5")).unwrap(), Peer::At(at("100.64.0.9:5")));
        assert!(matches!(take(&names, "10.0.0.1:5"), Err(NameError::InUse)));
        assert!(matches!(take_source(&names, at("10.0.0.1:5")), Err(NameError::InUse)));
        assert_eq!(fs::read(&path).unwrap(), b"100.64.0.9:5");
        drop(file);
        // And it finds ours by the lock of the file.
        let mut ours = take(&names, "10.0.0.1:5").unwrap();
        ours.publish(at("100.64.0.7:6")).unwrap();
        assert!(matches!(Entry::read(&path, at("10.0.0.1:5").ip()), Ok(Some((_, true)))));
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
        assert!(matches!(take(&names, "10.0.0.1:5"), Err(NameError::System(_))));
        fs::remove_dir_all(folder).unwrap();
    }

    /// Wildcards and connections of several processes, which have no files.
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
        // As long as one of them is there.
        let [one, two] = ["127.0.0.1:7", "127.0.0.2:7"].map(|text| take_source(&others, at(text)).unwrap());
        drop(one);
        assert!(matches!(take(&names, "0.0.0.0:7"), Err(NameError::Overlaps)));
        drop(two);
        take(&names, "0.0.0.0:7").unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
