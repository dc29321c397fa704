//! A process that breaks the rules of a wire, for tests. The process can send and write any bytes.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{RecvFlags, SendFlags, connect, recv, send};

use super::claim;
use super::hello::{self, Kind, Message};
use super::memory::{self, SharedMemory};
use super::peer::memory_bytes;

/// The descriptor that a hello carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The hello carries no descriptor.
    Nothing,
    /// Memory for rings of the size that the hello names.
    Memory,
    /// Memory for rings of another size.
    OtherMemory,
    /// Memory whose size is not fixed, so that it may shrink.
    Unsealed,
    /// A socket.
    Socket,
}

/// A peer that breaks the rules of a wire.
#[derive(Debug)]
pub struct Hostile {
    socket: OwnedFd,
    memory: Option<SharedMemory>,
}

impl Hostile {
    /// Connects to a station. Returns `None` if the connection fails, for example because the station does
    /// not exist.
    pub fn dial(folder: &Path, station: u16) -> Option<Self> {
        let socket = claim::socket().ok()?;
        connect(&socket, &claim::address(folder, station).ok()?).ok()?;
        Some(Self { socket, memory: None })
    }

    /// Sends `bytes`, which need not be a message.
    pub fn say(&self, bytes: &[u8]) {
        // Errors are ignored: the other side may have closed the socket.
        let _ = send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Sends a hello of `station` with these numbers and this descriptor.
    pub fn hello(&mut self, station: u16, ring_bytes: u64, (instance, serial): (u64, u64), offer: Offer) {
        let bytes = memory_bytes(ring_bytes);
        let descriptor = match offer {
            Offer::Nothing => None,
            Offer::Memory => bytes.and_then(|bytes| memory::create(bytes, std::iter::once(0..bytes)).ok()),
            Offer::OtherMemory => memory::create(1 << 16, []).ok(),
            Offer::Unsealed => memfd_create("uwarp-local", MemfdFlags::CLOEXEC).ok().inspect(|memfd| {
                let _ = ftruncate(memfd, bytes.unwrap_or(0) as u64);
            }),
            Offer::Socket => claim::socket().ok(),
        };
        let message = Message { kind: Kind::Hello, station, ring_bytes, instance, serial, pool_bytes: 0 };
        let descriptors: ArrayVec<_, 1> = descriptor.iter().map(|fd| fd.as_fd()).collect();
        let _ = hello::tell(&self.socket, &message, &descriptors);
        if let (Offer::Memory, Some(memfd), Some(bytes)) = (offer, &descriptor, bytes) {
            self.memory = SharedMemory::map(memfd, bytes).ok();
        }
    }

    /// Stores word `nr` (modulo the size) in the memory of the latest hello, if that hello had memory. Words
    /// 0 to 127 are the positions and marks of both rings. The data of the rings begin at word 512.
    pub fn store(&self, nr: usize, value: u64) {
        if let Some(memory) = &self.memory {
            memory.word(nr % (memory.len() / 8) * 8).store(value, Ordering::Release);
        }
    }

    /// Loads word `nr`, with the numbers of [`store`](Self::store). Returns 0 if there is no memory.
    pub fn load(&self, nr: usize) -> u64 {
        let load = |memory: &SharedMemory| memory.word(nr % (memory.len() / 8) * 8).load(Ordering::Acquire);
        self.memory.as_ref().map_or(0, load)
    }

    /// Reads the bytes that the other side has sent. Returns whether the other side has closed the socket.
    pub fn is_refused(&self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}
