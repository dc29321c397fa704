//! The name server of a process: answers questions of other hosts about the listener at an address.
//!
//! A name is a UDP socket of the kernel at the address that programs see. The kernel binds only one such
//! socket to an address and port, so only one process of the host can hold a name. The kernel releases the
//! name when the process ends, and refuses questions about names that no process holds. One thread answers
//! the questions about all names of the process, and sleeps until a question arrives.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net;

use super::message::{BYTES, Content, Message};

/// Maximum number of questions about one name that the thread answers before it answers questions about other
/// names.
const AT_ONCE: usize = 64;

/// The names of the process, and the thread that answers questions about these names.
pub(super) struct NameServer {
    waits: OwnedFd,
    names: Mutex<HashMap<u64, Arc<RegisteredName>>>,
    next: AtomicU64,
}

/// A name, and the address on the wire that is published under it.
struct RegisteredName {
    socket: UdpSocket,
    wire: OnceLock<SocketAddr>,
}

/// A name that this process holds until the value is dropped.
pub(crate) struct UdpNameLease {
    server: Arc<NameServer>,
    key: u64,
    name: Arc<RegisteredName>,
}

impl NameServer {
    /// Starts the thread that answers questions. The caller has blocked the signals of the program.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let waits = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let server = Arc::new(Self { waits, names: Mutex::default(), next: AtomicU64::new(0) });
        let serves = Arc::clone(&server);
        dp::thread::start("uwarp-names".into(), move || serves.serve())?;
        Ok(server)
    }

    fn names(&self) -> MutexGuard<'_, HashMap<u64, Arc<RegisteredName>>> {
        self.names.lock().expect("no holder of this lock panics")
    }

    /// Reserves the name of `visible`. The answer to questions is `Bound` until the name is published.
    pub(super) fn take(self: &Arc<Self>, visible: SocketAddr, family_only: bool) -> io::Result<UdpNameLease> {
        let socket = match family_only && visible.is_ipv6() {
            true => bind_ipv6_only(visible)?,
            false => UdpSocket::bind(visible)?,
        };
        socket.set_nonblocking(true)?;
        let name = Arc::new(RegisteredName { socket, wire: OnceLock::new() });
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let lease = UdpNameLease { server: Arc::clone(self), key, name: Arc::clone(&name) };
        self.names().insert(key, name);
        epoll::add(&self.waits, &lease.name.socket, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        Ok(lease)
    }

    fn serve(&self) {
        let mut ready = Vec::with_capacity(16);
        loop {
            ready.clear();
            match epoll::wait(&self.waits, rustix::buffer::spare_capacity(&mut ready), None) {
                Ok(_) | Err(Errno::INTR) => {}
                // This error means that the program has closed descriptors of this library.
                Err(_) => return,
            }
            for event in &ready {
                // The table stays locked during the answer, so that this thread never uses the socket of a
                // released name.
                if let Some(name) = self.names().get(&event.data.u64()) {
                    name.answer();
                }
            }
        }
    }
}

/// Binds an IPv6 socket that does not also use the IPv4 port with the same number.
fn bind_ipv6_only(visible: SocketAddr) -> io::Result<UdpSocket> {
    let flags = net::SocketFlags::CLOEXEC;
    let socket = net::socket_with(net::AddressFamily::INET6, net::SocketType::DGRAM, flags, None)?;
    net::sockopt::set_ipv6_v6only(&socket, true)?;
    net::bind(&socket, &visible)?;
    Ok(socket.into())
}

impl RegisteredName {
    /// Answers questions that have arrived, but at most [`AT_ONCE`] of them.
    fn answer(&self) {
        let mut bytes = [0; BYTES + 1];
        for _ in 0..AT_ONCE {
            let Ok((count, from)) = self.socket.recv_from(&mut bytes) else { return };
            let Some(Message { number, content: Content::Question }) = Message::read(&bytes[..count]) else {
                continue;
            };
            let content = self.wire.get().map_or(Content::Bound, |wire| Content::At(*wire));
            // Errors are ignored: a host that receives no answer asks again.
            let _ = self.socket.send_to(&Message { number, content }.bytes(), from);
        }
    }
}

impl UdpNameLease {
    pub(super) fn publish(&self, wire: SocketAddr) {
        // A later call has no effect: a listener publishes its name only once.
        let _ = self.name.wire.set(wire);
    }
}

#[cfg(test)]
impl UdpNameLease {
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.name.socket.local_addr()
    }
}

impl Drop for UdpNameLease {
    fn drop(&mut self) {
        // In a forked child the name server belongs to the parent, and a thread of the parent may have held
        // the lock.
        if !crate::ffi::fork::is_child() {
            self.server.names().remove(&self.key);
            // Errors are ignored: an error means that the socket is not in the epoll set.
            let _ = epoll::delete(&self.server.waits, &self.name.socket);
        }
    }
}
