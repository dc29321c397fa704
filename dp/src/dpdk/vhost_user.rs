//! The socket between a `net_virtio_user` device and its vhost-user backend. The backend is usually another
//! process.
//!
//! The driver waits for each answer of the backend without a timeout. So a stopped backend (SIGSTOP, a
//! debugger) would also stop the process that opens or closes the device. Therefore this module sets a
//! timeout for reads from the socket. Before the device is closed, this module sends a request to the
//! backend, and checks whether the backend still answers.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::descriptors::{self, inode};
use super::vdev;

/// Timeout for an answer. A second is long enough, since the backend answers on a dedicated thread.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The message `VHOST_USER_GET_FEATURES` of version 1, without payload. The message is allowed at any time,
/// and changes nothing.
const GET_FEATURES: [u32; 3] = [1, 1, 0];

/// Number of bytes of the answer: a header that is as long as the request, and the features.
const FEATURES_BYTES: usize = 12 + 8;

/// The socket to the backend of a device.
#[derive(Clone, Debug)]
pub(super) struct VhostUserBackend {
    path: PathBuf,
    socket: DriverSocket,
}

/// How this module finds the driver's socket, which DPDK's API does not return.
#[derive(Clone, Debug)]
enum DriverSocket {
    /// The device listens, and has a new socket for each backend that connects. The local name of the socket
    /// is the path.
    Listens,
    /// The device connects once, when it is probed. `before` has the inodes of the files that this process
    /// had open before.
    Probed { before: BTreeSet<u64> },
    /// The device has connected. The number is the inode of the device's socket.
    Connected(u64),
    /// The device has connected, but this module has found no new socket with the name of the path.
    Unknown,
}

impl VhostUserBackend {
    /// Returns the backend of a device that is about to be probed, if the device has one.
    pub(super) fn of(spec: &str) -> Option<Self> {
        let (path, listens) = vdev::vhost_user_backend(spec)?;
        let socket = if listens {
            DriverSocket::Listens
        } else {
            DriverSocket::Probed { before: sockets().filter_map(|socket| inode(&socket)).collect() }
        };
        Some(Self { path: PathBuf::from(path), socket })
    }

    /// Finds the socket of a device that was probed.
    pub(super) fn probed(&mut self) {
        let DriverSocket::Probed { before } = &self.socket else { return };
        let found = sockets().filter_map(|socket| {
            let inode = inode(&socket).filter(|inode| !before.contains(inode))?;
            Some((self.compare(&socket.peer_addr().ok()?)?, inode))
        });
        self.socket = found.max().map_or(DriverSocket::Unknown, |(_, inode)| DriverSocket::Connected(inode));
    }

    /// Sets a timeout for the driver's reads from its socket.
    pub(super) fn bound_waits(&self) {
        if let Some(socket) = self.socket() {
            // Errors are ignored: without a timeout the driver waits as before.
            let _ = socket.set_read_timeout(Some(ANSWER_TIMEOUT));
        }
    }

    /// Returns whether the device can be closed. The result is `false` if the backend does not answer: the
    /// backend may use the device's memory whenever it runs again. In this case the function also shuts the
    /// socket down, so that the backend stops using the device.
    pub(super) fn lets_go(&self) -> bool {
        let Some(mut socket) = self.socket() else { return true };
        if socket.set_read_timeout(Some(ANSWER_TIMEOUT)).is_err() {
            return true;
        }
        let request: Vec<u8> = GET_FEATURES.iter().flat_map(|field| field.to_ne_bytes()).collect();
        let mut answer = [0; FEATURES_BYTES];
        let answered = socket.write_all(&request).and_then(|()| socket.read_exact(&mut answer));
        let silent = matches!(&answered, Err(error) if error.kind() == ErrorKind::WouldBlock);
        if silent {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        !silent
    }

    /// Returns a duplicate of the driver's socket, if a backend is connected.
    fn socket(&self) -> Option<UnixStream> {
        sockets().find(|socket| match &self.socket {
            DriverSocket::Listens => {
                let is_named = socket.local_addr().is_ok_and(|name| name.as_pathname() == Some(&self.path));
                is_named && socket.peer_addr().is_ok()
            }
            DriverSocket::Connected(number) => inode(socket) == Some(*number),
            DriverSocket::Probed { .. } | DriverSocket::Unknown => false,
        })
    }

    /// Returns how well the name of the backend's socket matches the path, or `None` if the name does not
    /// match. The name may be relative to another directory, or may be a path in a container.
    fn compare(&self, name: &SocketAddr) -> Option<Match> {
        let name = name.as_pathname()?;
        let file = |path: &Path| path.file_name().map(OsStr::to_owned);
        if name == self.path {
            Some(Match::Path)
        } else {
            (file(name) == file(&self.path)).then_some(Match::File)
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    File,
    Path,
}

/// Returns duplicates of all file descriptors of this process. Some of the file descriptors may not be
/// sockets.
fn sockets() -> impl Iterator<Item = UnixStream> {
    descriptors::all().map(UnixStream::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn listener(name: &str) -> (UnixListener, String) {
        let path = std::env::temp_dir().join(format!("dp-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        (UnixListener::bind(&path).unwrap(), path.display().to_string())
    }

    /// Makes the backend of a device that connects when it is probed. Also returns the driver's socket.
    fn connect(path: &str) -> (VhostUserBackend, UnixStream) {
        let mut device = VhostUserBackend::of(&format!("net_virtio_user0,path={path}")).unwrap();
        assert!(device.lets_go(), "it is not connected yet");
        let driver = UnixStream::connect(path).unwrap();
        device.probed();
        (device, driver)
    }

    fn answer(backend: &mut UnixStream) {
        let mut request = [0; 12];
        backend.read_exact(&mut request).unwrap();
        assert_eq!(request.map(u32::from), [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        backend.write_all(&[0; FEATURES_BYTES]).unwrap();
    }

    #[test]
    fn a_backend_that_answers_or_is_gone_lets_go_and_one_that_is_silent_does_not() {
        let (listener, path) = listener("backend");
        let (device, driver) = connect(&path);
        let mut backend = listener.accept().unwrap().0;
        let thread = std::thread::spawn(move || {
            answer(&mut backend);
            backend
        });
        assert!(device.lets_go());
        let backend = thread.join().unwrap();
        assert_eq!(driver.read_timeout().unwrap(), Some(ANSWER_TIMEOUT));
        assert!(!device.lets_go());
        drop((backend, driver));
        assert!(device.lets_go(), "it is not connected any more");
        let (device, driver) = connect(&path);
        drop(listener.accept().unwrap());
        assert!(device.lets_go());
        drop(driver);
        std::fs::remove_file(path).unwrap();
    }

    /// A request on the socket of another device would disturb that device and its backend.
    #[test]
    fn a_device_without_a_backend_leaves_the_sockets_of_others_alone() {
        let folders = ["one", "other"].map(|name| {
            let folder = std::env::temp_dir().join(format!("dp-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            folder
        });
        let paths = folders.each_ref().map(|folder| folder.join("wire.sock").display().to_string());
        let listeners = paths.each_ref().map(|path| UnixListener::bind(path).unwrap());
        let (gone, driver) = connect(&paths[0]);
        drop(driver);
        let listens = VhostUserBackend::of(&format!("net_virtio_user1,path={},server=1", paths[0])).unwrap();

        // One device connects and one device listens, and the socket files of the two devices have the same
        // name.
        let (_other, connected) = connect(&paths[1]);
        let (accepted, _) = listeners[1].accept().unwrap();
        for device in [gone, listens] {
            device.bound_waits();
            assert!(device.lets_go());
        }
        for socket in [&connected, &accepted] {
            socket.set_nonblocking(true).unwrap();
            assert_eq!(socket.read_timeout().unwrap(), None);
            assert_eq!((&*socket).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        for folder in folders {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn a_device_that_listens_knows_its_backend_by_its_own_name() {
        let (listener, path) = listener("listens");
        let device = VhostUserBackend::of(&format!("net_virtio_user0,path={path},server=1")).unwrap();
        let backend = UnixStream::connect(&path).unwrap();
        assert!(device.lets_go(), "it is not accepted yet");
        let driver = listener.accept().unwrap().0;
        device.bound_waits();
        assert_eq!(driver.read_timeout().unwrap(), Some(ANSWER_TIMEOUT));
        assert_eq!(backend.read_timeout().unwrap(), None);
        std::fs::remove_file(path).unwrap();
    }
}
