//! The desk of a process: it answers other hosts that ask who listens at an address.
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

/// The names of the process, and the thread that answers for them.
pub(super) struct Desk {
    waits: OwnedFd,
    names: Mutex<HashMap<u64, Arc<Entry>>>,
    next: AtomicU64,
}

/// A name, and where it leads.
struct Entry {
    socket: UdpSocket,
    wire: OnceLock<SocketAddr>,
}

/// A name that is taken until this is dropped.
pub(crate) struct Sign {
    desk: Arc<Desk>,
    key: u64,
    name: Arc<Entry>,
}

impl Desk {
    /// Opens the desk. The caller has blocked the signals of the program.
    pub(super) fn open() -> io::Result<Arc<Self>> {
        let waits = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let desk = Arc::new(Self { waits, names: Mutex::default(), next: AtomicU64::new(0) });
        let serves = Arc::clone(&desk);
        std::thread::Builder::new().name("uwarp-names".into()).spawn(move || serves.serve())?;
        Ok(desk)
    }

    fn names(&self) -> MutexGuard<'_, HashMap<u64, Arc<Entry>>> {
        self.names.lock().expect("no holder of this lock panics")
    }

    /// Takes the name of `visible`. It leads nowhere before it is published.
    pub(super) fn take(self: &Arc<Self>, visible: SocketAddr, family_only: bool) -> io::Result<Sign> {
        let socket = match family_only && visible.is_ipv6() {
            true => bind_ipv6_only(visible)?,
            false => UdpSocket::bind(visible)?,
        };
        socket.set_nonblocking(true)?;
        let name = Arc::new(Entry { socket, wire: OnceLock::new() });
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let sign = Sign { desk: Arc::clone(self), key, name: Arc::clone(&name) };
        self.names().insert(key, name);
        epoll::add(&self.waits, &sign.name.socket, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        Ok(sign)
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

impl Entry {
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

impl Sign {
    /// The name leads to `wire` from now on.
    pub(super) fn publish(&self, wire: SocketAddr) {
        // A listener listens once.
        let _ = self.name.wire.set(wire);
    }
}

#[cfg(test)]
impl Sign {
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.name.socket.local_addr()
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        // In a child of fork the desk is the parent's, whose thread may have held the lock.
        if !crate::ffi::fork::is_child() {
            self.desk.names().remove(&self.key);
            // A name that is not waited for needs no removal.
            let _ = epoll::delete(&self.desk.waits, &self.name.socket);
        }
    }
}
