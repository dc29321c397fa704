//! The name server of a process: it answers other hosts that ask who listens at an address.
//!
//! A name is a UDP socket of the kernel at the address that programs see. So the kernel keeps names apart on
//! the whole host, gives them back when their process ends, and refuses questions for names that nobody has.
//! One thread answers for all names of the process. It sleeps while nobody asks.

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

/// Questions that are answered before other names get their turn.
const AT_ONCE: usize = 64;

/// The names of the process, for which one thread answers.
pub(super) struct NameServer {
    waits: OwnedFd,
    names: Mutex<HashMap<u64, Arc<RegisteredName>>>,
    next: AtomicU64,
}

/// A name, and where it leads.
struct RegisteredName {
    socket: UdpSocket,
    wire: OnceLock<SocketAddr>,
}

/// A name that is taken until this is dropped.
pub(crate) struct UdpNameLease {
    server: Arc<NameServer>,
    key: u64,
    name: Arc<RegisteredName>,
}

impl NameServer {
    /// Starts the thread that answers. The caller has blocked the signals of the program.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let waits = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let server = Arc::new(Self { waits, names: Mutex::default(), next: AtomicU64::new(0) });
        let serves = Arc::clone(&server);
        std::thread::Builder::new().name("uwarp-names".into()).spawn(move || serves.serve())?;
        Ok(server)
    }

    fn names(&self) -> MutexGuard<'_, HashMap<u64, Arc<RegisteredName>>> {
        self.names.lock().expect("no holder of this lock panics")
    }

    /// Takes the name of `visible`. It leads nowhere before it is published.
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
                // The program has closed descriptors that are not its own.
                Err(_) => return,
            }
            for event in &ready {
                // With the lock, so that a name that is given up is free from then on.
                if let Some(name) = self.names().get(&event.data.u64()) {
                    name.answer();
                }
            }
        }
    }
}

/// A socket of IPv6 that leaves the port of IPv4 to others.
fn bind_ipv6_only(visible: SocketAddr) -> io::Result<UdpSocket> {
    let flags = net::SocketFlags::CLOEXEC;
    let socket = net::socket_with(net::AddressFamily::INET6, net::SocketType::DGRAM, flags, None)?;
    net::sockopt::set_ipv6_v6only(&socket, true)?;
    net::bind(&socket, &visible)?;
    Ok(socket.into())
}

impl RegisteredName {
    /// Answers those who have asked.
    fn answer(&self) {
        let mut bytes = [0; BYTES + 1];
        for _ in 0..AT_ONCE {
            let Ok((count, from)) = self.socket.recv_from(&mut bytes) else { return };
            let Some(Message { number, content: Content::Question }) = Message::read(&bytes[..count]) else {
                continue;
            };
            let content = self.wire.get().map_or(Content::Bound, |wire| Content::At(*wire));
            // A host that gets no answer asks again.
            let _ = self.socket.send_to(&Message { number, content }.bytes(), from);
        }
    }
}

impl UdpNameLease {
    /// The name leads to `wire` from now on.
    pub(super) fn publish(&self, wire: SocketAddr) {
        // A listener listens once.
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
        // In a child of fork the name server is the parent's, whose thread may have held the lock.
        if !crate::ffi::fork::is_child() {
            self.server.names().remove(&self.key);
            // A name that is not waited for needs no removal.
            let _ = epoll::delete(&self.server.waits, &self.name.socket);
        }
    }
}
