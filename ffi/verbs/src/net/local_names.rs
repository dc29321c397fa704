//! The name service of a `local` wire: finds the process that listens at an address that programs see.
//!
//! Processes on one host share the host's addresses. A *name* is an address and port. A process holds a name
//! by a lock that needs no descriptor of its own ([`name_locks`](super::name_locks)). A bound name also has a
//! file `listen/PORT@ADDRESS`, into which a listener writes its address on the wire. A listener locks its
//! file until it stops listening. If no process holds the name of a file, the file is stale, and the next
//! process that reserves the name uses the file.
//!
//! A file has one line. The line begins with the address on the wire, or with `-` while the process does not
//! listen. The word `only` follows if a wildcard claims only its own family, and the word `reuse` follows if
//! the claim reuses the address ([`Claim`]). Names whose claims overlap (a wildcard and an address) have
//! different files. So a process that reserves a name first checks the other files of the port, with the
//! folder locked.
//!
//! The names of the port space of datagrams have locks and a folder of their own (`listen-udp`), which the
//! first process that reserves such a name makes.

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

use super::address::Lookup;
use super::claim::Claim;
use super::name_locks::{self, NameError, NameLock, NameLocks};

/// The names of one wire.
pub(crate) struct LocalNames {
    wire: Arc<WireFolder>,
    /// The folder `listen` or `listen-udp` of the wire.
    folder: PathBuf,
    /// The text in front of the names of locks: it is empty or [`OF_DATAGRAMS`].
    prefix: &'static str,
    locks: Arc<NameLocks>,
    /// The results of earlier lookups.
    found: Mutex<HashMap<SocketAddr, IpAddr>>,
}

/// The texts in a file name that stand for all addresses of a family.
const ANY_IPV4: &str = "any4";
const ANY_IPV6: &str = "any6";
/// The words in the line of a file: `-` means that there is no address on the wire yet, and the other two are
/// the options of a claim.
const NOWHERE: &str = "-";
const ONLY: &str = "only";
const REUSE: &str = "reuse";

/// The folders of the files, and the prefix of the names of locks in the port space of datagrams.
const LISTEN: &str = "listen";
const LISTEN_UDP: &str = "listen-udp";
const OF_DATAGRAMS: &str = "udp ";

/// Maximum number of remembered lookups.
const MAX_FOUND: usize = 1024;

/// A name that this process holds until the value is dropped.
pub(crate) struct LocalNameLease {
    /// The path of the name's file. `None` for the name of a connection, which has no file.
    path: Option<PathBuf>,
    claim: Claim,
    /// The locked file. `None` until the name is published.
    file: Option<OwnFd>,
    /// The lock that this connection shares with all connections of the port whose claims have the same
    /// family and options. From this lock, a process that reserves a wildcard learns that the port has
    /// connections.
    _shared: Option<NameLock>,
    /// The lock of the name, which is released last.
    held: NameLock,
}

impl LocalNames {
    /// Makes the name service of the wire in `folder`.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let wire = Arc::new(WireFolder::open(folder)?);
        let folder = wire.path().join(LISTEN);
        make(&folder)?;
        let locks = NameLocks::open(wire.path())?;
        Ok(Self { wire, folder, prefix: "", locks, found: Mutex::default() })
    }

    /// Makes the name service of the same wire for the port space of datagrams.
    pub(super) fn of_datagrams(&self) -> Self {
        Self {
            wire: Arc::clone(&self.wire),
            folder: self.wire.path().join(LISTEN_UDP),
            prefix: OF_DATAGRAMS,
            locks: Arc::clone(&self.locks),
            found: Mutex::default(),
        }
    }

    /// The name of the lock for an address.
    fn lock_of(&self, address: IpAddr) -> String {
        format!("{}{}", self.prefix, host(address))
    }

    /// The name of the lock that all connections with a claim like this one share.
    fn shared_lock_of(&self, claim: &Claim) -> String {
        format!("{}{}", self.prefix, sharing(claim))
    }

    /// Locks the folder of the files, so that no other process reserves names until the returned file is
    /// closed. Makes the folder if no process has made it yet.
    fn lock_folder(&self) -> io::Result<File> {
        if !self.prefix.is_empty() {
            make(&self.folder)?;
        }
        lock_folder(&self.folder)
    }

    /// The entries of the folder. There are none if no process has made the folder yet.
    fn files(&self) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
        match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.prefix.is_empty() => {
                Ok(None.into_iter().flatten())
            }
            entries => Ok(Some(entries?).into_iter().flatten()),
        }
    }

    fn path(&self, address: IpAddr, port: u16) -> PathBuf {
        self.folder.join(format!("{port}@{}", host(address)))
    }

    /// Reserves a name. Lookups find no listener until the name is published. Returns `None` if another
    /// holder has the name, no process listens there, and all claims reuse the address.
    pub(super) fn take(&self, port: u16, claim: &Claim) -> Result<Option<LocalNameLease>, NameError> {
        let _alone = self.lock_folder()?;
        let others = self.of_others(port)?;
        for other in &others {
            other.allows(claim)?;
        }
        let host = self.lock_of(claim.address);
        if claim.address.is_unspecified() {
            for source in sources() {
                if !(source.reuses && claim.reuses)
                    && claim.check(&source).is_err()
                    && self.locks.is_of_others(&self.shared_lock_of(&source), port)?
                {
                    return Err(NameError::Overlaps);
                }
            }
        }
        // If all claims reuse the address, the new claim shares the name with its holder and takes no lock.
        let is_shared = claim.reuses
            && (self.locks.is_ours(&host, port)
                || others.iter().any(|other| other.claim.address == claim.address));
        if is_shared {
            return Ok(None);
        }
        let held = self.locks.take(&host, port)?;
        let path = self.path(claim.address, port);
        // The file may be stale because its process was killed. The new line replaces the address of that
        // process.
        let file = options().create(true).truncate(false).open(&path)?;
        let taken = LocalNameLease { path: Some(path), claim: *claim, file: None, _shared: None, held };
        write_line(&file, NOWHERE, claim)?;
        Ok(Some(taken))
    }

    /// Reserves a name for the source of a connection. No process looks up such a name.
    pub(super) fn take_source(&self, port: u16, claim: &Claim) -> Result<LocalNameLease, NameError> {
        let _alone = self.lock_folder()?;
        for address in [claim.address, Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()] {
            let is_ours = self.locks.is_ours(&self.lock_of(address), port);
            if let Some(other) = if is_ours { None } else { self.entry(address, port)? } {
                other.allows(claim)?;
            }
        }
        let held = self.locks.take(&self.lock_of(claim.address), port)?;
        // This call removes a stale file that a killed process may have left.
        match fs::remove_file(self.path(claim.address, port)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let shared = Some(self.locks.share(&self.shared_lock_of(claim), port)?);
        Ok(LocalNameLease { path: None, claim: *claim, file: None, _shared: shared, held })
    }

    /// The names that other processes hold at a port, except the names of connections.
    fn of_others(&self, port: u16) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let prefix = format!("{port}@");
        for entry in self.files()? {
            let name = entry?.file_name();
            let address = name.to_str().and_then(|name| address_of(name.strip_prefix(&prefix)?));
            if let Some(address) = address
                && !self.locks.is_ours(&self.lock_of(address), port)
            {
                entries.extend(self.entry(address, port)?);
            }
        }
        Ok(entries)
    }

    /// The entry of a name, or `None` if no process holds the name.
    fn entry(&self, address: IpAddr, port: u16) -> io::Result<Option<Entry>> {
        let mut claim = Claim { address, family_only: false, reuses: false };
        match Entry::read(&self.path(address, port), address)? {
            Some((entry, true)) => return Ok(Some(entry)),
            Some((entry, false)) => claim = entry.claim,
            None => {}
        }
        // Only a listener's file is locked, and a connection has no file. So the lock of the name itself
        // shows whether a process holds the name.
        let is_taken = self.locks.is_taken(&self.lock_of(address), port)?;
        Ok(is_taken.then_some(Entry { claim, peer: Lookup::Bound }))
    }

    /// Finds the listener at `visible`, which may also be bound to a wildcard that includes the address.
    ///
    /// # Errors
    /// Returns the system's error if the answer cannot be determined.
    pub(super) fn find(&self, visible: SocketAddr) -> io::Result<Lookup> {
        let address = visible.ip().to_canonical();
        let mut places = vec![address];
        if address.is_ipv4() {
            places.push(Ipv4Addr::UNSPECIFIED.into());
        }
        places.push(Ipv6Addr::UNSPECIFIED.into());
        let mut peer = Lookup::NotFound;
        for place in places {
            let Some(entry) = self.entry(place, visible.port())? else { continue };
            if !(entry.claim.family_only && place.is_ipv6() && address.is_ipv4()) {
                peer = entry.peer;
                break;
            }
        }
        if let Lookup::At(wire) = peer {
            let mut found = self.found.lock().expect("no holder of this lock panics");
            if found.len() == MAX_FOUND {
                found.clear();
            }
            found.insert(visible, wire.ip());
        }
        Ok(peer)
    }

    /// Whether the process that the last [`find`](Self::find) found at `visible` still exists. Returns `None`
    /// if [`find`](Self::find) has found no process there.
    ///
    /// # Errors
    /// Returns the system's error if the answer cannot be determined.
    pub(super) fn lives(&self, visible: SocketAddr) -> io::Result<Option<bool>> {
        let found = self.found.lock().expect("no holder of this lock panics").get(&visible).copied();
        let Some(address) = found else { return Ok(None) };
        let stations = local::stations(self.wire.path())?;
        Ok(Some(stations.iter().any(|station| address_of_station(station.number) == address)))
    }

    /// Whether the folder has a file for `address`. Such a file means that a program has bound `address`, or
    /// that a program was killed while it had bound `address`.
    ///
    /// # Errors
    /// Returns the system's error if the answer cannot be determined.
    pub(super) fn knows(&self, address: IpAddr) -> io::Result<bool> {
        let suffix = format!("@{}", address.to_canonical());
        for entry in self.files()? {
            if entry?.file_name().to_string_lossy().ends_with(&suffix) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Makes a folder, unless it exists.
fn make(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The text of an address in a name. The IPv4 wildcard and the IPv6 wildcard have different texts.
fn host(address: IpAddr) -> String {
    match address.to_canonical() {
        address if !address.is_unspecified() => address.to_string(),
        IpAddr::V4(_) => ANY_IPV4.to_owned(),
        IpAddr::V6(_) => ANY_IPV6.to_owned(),
    }
}

/// The address in a file name.
fn address_of(text: &str) -> Option<IpAddr> {
    match text {
        ANY_IPV4 => Some(Ipv4Addr::UNSPECIFIED.into()),
        ANY_IPV6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        address => address.parse().ok(),
    }
}

/// The possible claims of connections. Each claim has an arbitrary address of its family, since a wildcard
/// includes all addresses.
fn sources() -> impl Iterator<Item = Claim> {
    [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].into_iter().flat_map(|address: IpAddr| {
        (0..4).map(move |bits| Claim { address, family_only: bits & 1 != 0, reuses: bits & 2 != 0 })
    })
}

/// Returns the name of a lock. At each port, all connections whose claims have the family and the options of
/// `claim` share this lock.
fn sharing(claim: &Claim) -> String {
    let family = if claim.address.is_ipv4() { 4 } else { 6 };
    let words = [(ONLY, claim.family_only), (REUSE, claim.reuses)]
        .map(|(word, is_so)| if is_so { word } else { NOWHERE });
    format!("sources{family} {} {}", words[0], words[1])
}

/// The options for opening the file of a name.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

impl LocalNameLease {
    /// Publishes the address on the wire: from now on lookups of the name return this address. The name is
    /// not shared any more.
    pub(super) fn publish(&mut self, wire: SocketAddr) -> Result<(), NameError> {
        let path = self.path.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        loop {
            let file = options().create(true).truncate(false).open(path)?;
            // A process with an older version of this library may hold the file.
            name_locks::lock(&file, name_locks::whole(libc::F_WRLCK))?;
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

impl Drop for LocalNameLease {
    fn drop(&mut self) {
        // In a forked child, the file belongs to the parent.
        if self.held.is_ours()
            && let Some(path) = &self.path
        {
            // Errors are ignored: the next process that reserves the name uses the file, since the lock ends
            // with this process.
            let _ = fs::remove_file(path);
        }
    }
}

/// A name that a process holds.
struct Entry {
    claim: Claim,
    /// The listener at the name, or `Bound` if the holder does not listen.
    peer: Lookup,
}

impl Entry {
    /// Reads a file. Returns the entry, and whether a process listens at the name, or `None` if the file does
    /// not exist.
    fn read(path: &Path, address: IpAddr) -> io::Result<Option<(Self, bool)>> {
        let mut file = match options().write(false).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let is_locked = name_locks::is_locked(&file, name_locks::whole(libc::F_WRLCK))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut words = text.split_whitespace();
        // A new file has no line yet.
        let peer = words.next().and_then(|wire| wire.parse().ok()).map_or(Lookup::Bound, Lookup::At);
        let mut claim = Claim { address, family_only: false, reuses: false };
        for word in words {
            claim.family_only |= word == ONLY;
            claim.reuses |= word == REUSE;
        }
        Ok(Some((Self { claim, peer }, is_locked)))
    }

    /// Fails if this process may not have `claim` while another process has the claim of this entry.
    fn allows(&self, claim: &Claim) -> Result<(), NameError> {
        if self.claim.reuses && claim.reuses { Ok(()) } else { Ok(claim.check(&self.claim)?) }
    }
}

/// Writes the line of a file over the old line. One write writes the whole line, so a reader never sees only
/// a part of the line. If the old line was longer, its rest is then cut off.
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

/// Locks the folder, so that no other process reserves names until the returned file is closed.
fn lock_folder(folder: &Path) -> io::Result<File> {
    let file = File::open(folder)?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            locked => return locked.map(|()| file).map_err(Into::into),
        }
    }
}

/// Whether the file at `path` is `file`.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// The published names of the wire in `folder`. Each entry has the name as programs see it, and the
/// listener's address on the wire. A name in the port space of datagrams ends with `/udp`.
pub(super) fn listening(folder: &Path) -> Vec<(String, SocketAddr)> {
    let spaces = [(LISTEN, ""), (LISTEN_UDP, "/udp")];
    let entries = spaces.into_iter().flat_map(|(names, suffix)| {
        let entries = fs::read_dir(folder.join(names)).into_iter().flatten().flatten();
        entries.map(move |entry| (entry, suffix))
    });
    let mut found: Vec<_> = entries
        .filter_map(|(entry, suffix)| {
            let name = entry.file_name().into_string().ok()?;
            let (port, address) = name.split_once('@')?;
            let of_name = address_of(address)?;
            let shown = if of_name.is_unspecified() { "*" } else { address };
            match Entry::read(&entry.path(), of_name) {
                Ok(Some((Entry { peer: Lookup::At(wire), .. }, true))) => {
                    Some((format!("{shown}:{port}{suffix}"), wire))
                }
                _ => None,
            }
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests;
