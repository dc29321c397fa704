//! A frontend and its driver, which can also break the rules.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, VolatileMemory};

use super::super::device::{FROM_DRIVER, TO_DRIVER};
use super::super::{features, header};
use super::PATIENCE;

/// Number of bytes of the memory, and its addresses in the guest and in the frontend.
pub(super) const MEMORY_BYTES: usize = 8 << 20;
pub(super) const GUEST: u64 = 0x1_0000_0000;
pub(super) const USER: u64 = 0x7f00_0000_0000;

/// Number of entries of each ring.
pub(super) const SIZE: u16 = 64;

/// The offsets of the parts of a ring in the memory of the ring.
const RING_BYTES: usize = 0x10000;
const AVAILABLE: usize = 0x4000;
const USED: usize = 0x8000;
/// The offset of the buffers, with a buffer for each descriptor of both rings.
pub(super) const BUFFERS: usize = 4 * RING_BYTES;
pub(super) const BUFFER_BYTES: usize = 32 << 10;

/// The flags of a descriptor.
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// All features of the port that change how frames pass.
pub(super) const ALL: u64 = features::VERSION_1
    | features::PROTOCOL_FEATURES
    | features::MRG_RXBUF
    | features::CSUM
    | features::GUEST_CSUM
    | features::GUEST_TSO4
    | features::GUEST_TSO6
    | features::GUEST_ECN
    | features::HOST_TSO4
    | features::HOST_TSO6
    | features::HOST_ECN
    | features::INDIRECT_DESC;

/// The numbers of messages of the vhost-user protocol.
pub(super) mod message {
    pub(in super::super) const GET_FEATURES: u32 = 1;
    pub(in super::super) const SET_FEATURES: u32 = 2;
    pub(in super::super) const SET_OWNER: u32 = 3;
    pub(in super::super) const SET_MEM_TABLE: u32 = 5;
    pub(in super::super) const SET_VRING_NUM: u32 = 8;
    pub(in super::super) const SET_VRING_ADDR: u32 = 9;
    pub(in super::super) const SET_VRING_BASE: u32 = 10;
    pub(in super::super) const GET_VRING_BASE: u32 = 11;
    pub(in super::super) const SET_VRING_KICK: u32 = 12;
    pub(in super::super) const SET_VRING_CALL: u32 = 13;
    pub(in super::super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(in super::super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(in super::super) const SET_VRING_ENABLE: u32 = 18;
    pub(in super::super) const RESET_DEVICE: u32 = 34;
    pub(in super::super) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(in super::super) const ADD_MEM_REG: u32 = 37;
    pub(in super::super) const REM_MEM_REG: u32 = 38;
}

/// The protocol features that the driver accepts: REPLY_ACK, RESET_DEVICE and CONFIGURE_MEM_SLOTS.
const PROTOCOL_FEATURES: u64 = 1 << 3 | 1 << 13 | 1 << 15;

const VERSION: u32 = 1;
const NEED_REPLY: u32 = 8;

pub(super) fn memfd(bytes: usize) -> OwnedFd {
    let memfd = memfd_create("driver", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memfd, bytes as u64).unwrap();
    memfd
}

/// The words of a region in a message: its addresses, length and offset in the file.
pub(super) fn region(guest: u64, bytes: u64, user: u64, offset: u64) -> Vec<u8> {
    words(&[guest, bytes, user, offset])
}

pub(super) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A frontend with a driver.
pub(super) struct Driver {
    socket: UnixStream,
    pub(super) memfd: OwnedFd,
    map: MmapRegion,
    /// The eventfds of both rings.
    pub(super) kicks: [OwnedFd; 2],
    pub(super) calls: [OwnedFd; 2],
    features: u64,
    available: [u16; 2],
    used: [u16; 2],
}

impl Driver {
    /// Connects to a port, and accepts the protocol features.
    pub(super) fn connect(path: &Path) -> Self {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let memfd = memfd(MEMORY_BYTES);
        let file = memfd.try_clone().unwrap().into();
        let map = MmapRegion::from_file(FileOffset::new(file, 0), MEMORY_BYTES).unwrap();
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let driver = Self {
            socket,
            memfd,
            map,
            kicks: [event(), event()],
            calls: [event(), event()],
            features: 0,
            available: [0; 2],
            used: [0; 2],
        };
        driver.say(message::SET_OWNER, 0, &[], &[]);
        driver.say(message::GET_FEATURES, 0, &[], &[]);
        driver.answer().unwrap();
        driver.say(message::GET_PROTOCOL_FEATURES, 0, &[], &[]);
        let offered = u64::from_le_bytes(driver.answer().unwrap()[..8].try_into().unwrap());
        assert_eq!(offered & PROTOCOL_FEATURES, PROTOCOL_FEATURES);
        driver.say(message::SET_PROTOCOL_FEATURES, 0, &words(&[PROTOCOL_FEATURES]), &[]);
        driver
    }

    /// Connects, and starts both rings.
    pub(super) fn start(path: &Path, features: u64) -> Self {
        let mut driver = Self::connect(path);
        driver.set_up(features);
        driver
    }

    /// Starts both rings.
    pub(super) fn set_up(&mut self, features: u64) {
        self.set_up_but_enable(features);
        for nr in 0..2 {
            assert!(self.ask(message::SET_VRING_ENABLE, &words(&[nr | 1 << 32]), &[]));
        }
    }

    /// Starts both rings, and leaves them enabled or disabled as they are.
    pub(super) fn set_up_but_enable(&mut self, features: u64) {
        self.features = features;
        assert!(self.ask(message::SET_FEATURES, &words(&[features]), &[]));
        assert!(self.set_memory(&[(region(GUEST, MEMORY_BYTES as u64, USER, 0), self.memfd.as_fd())]));
        for nr in 0..2 {
            self.start_ring(nr);
        }
    }

    pub(super) fn start_ring(&self, nr: u64) {
        let pair = |value: u64| words(&[nr | value << 32]);
        assert!(self.ask(message::SET_VRING_NUM, &pair(SIZE.into()), &[]));
        assert!(self.ask(message::SET_VRING_BASE, &pair(self.used[nr as usize].into()), &[]));
        assert!(self.ask(message::SET_VRING_ADDR, &self.addresses(nr, USER), &[]));
        assert!(self.ask(message::SET_VRING_CALL, &words(&[nr]), &[self.calls[nr as usize].as_fd()]));
        assert!(self.ask(message::SET_VRING_KICK, &words(&[nr]), &[self.kicks[nr as usize].as_fd()]));
    }

    /// The payload of `SET_VRING_ADDR` for a ring in memory at `user`.
    pub(super) fn addresses(&self, nr: u64, user: u64) -> Vec<u8> {
        let start = user + nr * RING_BYTES as u64;
        words(&[nr, start, start + USED as u64, start + AVAILABLE as u64, 0])
    }

    pub(super) fn set_memory(&self, regions: &[(Vec<u8>, BorrowedFd<'_>)]) -> bool {
        let mut payload = words(&[regions.len() as u64]);
        regions.iter().for_each(|(region, _)| payload.extend(region));
        let files: Vec<_> = regions.iter().map(|(_, file)| *file).collect();
        self.ask(message::SET_MEM_TABLE, &payload, &files)
    }

    /// Sends a message and waits for its acknowledgement. Returns whether the port has done what the message
    /// asks for. The port closes the connection after a message that it refuses.
    pub(super) fn ask(&self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> bool {
        self.say(request, NEED_REPLY, payload, files);
        self.answer().is_some_and(|answer| answer == [0; 8])
    }

    /// Sends a message that has an answer of its own.
    pub(super) fn get(&self, request: u32, payload: &[u8]) -> Option<Vec<u8>> {
        self.say(request, 0, payload, &[]);
        self.answer()
    }

    pub(super) fn say(&self, request: u32, flags: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        let fields = [request, VERSION | flags, payload.len() as u32];
        let mut bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        bytes.extend(payload);
        self.write(&bytes, files);
    }

    /// Sends any bytes.
    pub(super) fn write(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = vec![std::mem::MaybeUninit::uninit(); 4096];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let parts = [std::io::IoSlice::new(bytes)];
        // Errors are ignored: the port may have closed the connection.
        let _ = sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL);
    }

    /// The payload of the next answer, or `None` if the connection has ended.
    fn answer(&self) -> Option<Vec<u8>> {
        use std::io::Read;
        let mut fields = [0; 12];
        (&self.socket).read_exact(&mut fields).ok()?;
        let bytes = u32::from_le_bytes(fields[8..].try_into().unwrap());
        let mut payload = vec![0; bytes as usize];
        (&self.socket).read_exact(&mut payload).ok()?;
        Some(payload)
    }

    /// Whether the port has closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        use std::io::Read;
        matches!((&self.socket).read(&mut [0]), Ok(0) | Err(_))
    }

    /// Writes bytes at an offset of the memory.
    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        self.map.get_slice(at, bytes.len()).unwrap().copy_from(bytes);
    }

    pub(super) fn bytes(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.map.get_slice(at, bytes).unwrap().copy_to(&mut out[..]);
        out
    }

    fn load(&self, at: usize) -> u16 {
        let word: &std::sync::atomic::AtomicU16 = self.map.get_atomic_ref(at).unwrap();
        word.load(Ordering::Acquire)
    }

    fn store(&self, at: usize, value: u16) {
        let word: &std::sync::atomic::AtomicU16 = self.map.get_atomic_ref(at).unwrap();
        word.store(value, Ordering::Release);
    }

    fn ring(nr: usize) -> usize {
        nr * RING_BYTES
    }

    /// The offset of the buffer of a descriptor.
    pub(super) fn buffer(queue: usize, nr: u16) -> usize {
        BUFFERS + (queue * usize::from(SIZE) + usize::from(nr)) * BUFFER_BYTES
    }

    /// Writes a descriptor.
    pub(super) fn describe(
        &self,
        queue: usize,
        nr: u16,
        address: u64,
        bytes: u32,
        (flags, next): (u16, u16),
    ) {
        self.put(Self::ring(queue) + 16 * usize::from(nr), &descriptor(address, bytes, (flags, next)));
    }

    /// Makes the chain that begins with `head` available.
    pub(super) fn offer(&mut self, queue: usize, head: u16) {
        let available = Self::ring(queue) + AVAILABLE;
        self.store(available + 4 + 2 * usize::from(self.available[queue] % SIZE), head);
        self.available[queue] = self.available[queue].wrapping_add(1);
        self.store(available + 2, self.available[queue]);
    }

    /// Publishes any index.
    pub(super) fn publish(&self, queue: usize, index: u16) {
        self.store(Self::ring(queue) + AVAILABLE + 2, index);
    }

    /// Sets the flags of the available part.
    pub(super) fn set_flags(&self, queue: usize, flags: u16) {
        self.store(Self::ring(queue) + AVAILABLE, flags);
    }

    /// Asks for a notification at this used index.
    pub(super) fn set_used_event(&self, queue: usize, index: u16) {
        self.store(Self::ring(queue) + AVAILABLE + 4 + 2 * usize::from(SIZE), index);
    }

    /// The flags of the used part.
    pub(super) fn used_flags(&self, queue: usize) -> u16 {
        self.load(Self::ring(queue) + USED)
    }

    /// The index at which the port asks for a notification.
    pub(super) fn available_event(&self, queue: usize) -> u16 {
        self.load(Self::ring(queue) + USED + 4 + 8 * usize::from(SIZE))
    }

    /// The new used entries: the heads of the chains, and the written bytes.
    pub(super) fn take_used(&mut self, queue: usize) -> Vec<(u32, u32)> {
        let used = Self::ring(queue) + USED;
        let mut entries = Vec::new();
        while self.used[queue] != self.load(used + 2) {
            let entry = self.bytes(used + 4 + 8 * usize::from(self.used[queue] % SIZE), 8);
            let field = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
            entries.push((field(0), field(4)));
            self.used[queue] = self.used[queue].wrapping_add(1);
        }
        entries
    }

    pub(super) fn header_bytes(&self) -> usize {
        header::bytes(self.features)
    }

    /// Sends a frame in descriptors of these lengths, of which the last has all further bytes. The first
    /// descriptor is `head`.
    pub(super) fn send(&mut self, head: u16, header: &[u8], frame: &[u8], lengths: &[usize]) {
        let mut bytes = header[..self.header_bytes()].to_vec();
        bytes.extend(frame);
        let mut rest = &bytes[..];
        for (nr, length) in lengths.iter().chain([&usize::MAX]).enumerate() {
            let nr = (head + nr as u16) % SIZE;
            let (part, behind) = rest.split_at(rest.len().min(*length));
            rest = behind;
            self.put(Self::buffer(FROM_DRIVER, nr), part);
            let flags = if rest.is_empty() { (0, 0) } else { (NEXT, (nr + 1) % SIZE) };
            let address = GUEST + Self::buffer(FROM_DRIVER, nr) as u64;
            self.describe(FROM_DRIVER, nr, address, part.len() as u32, flags);
            if rest.is_empty() {
                break;
            }
        }
        self.offer(FROM_DRIVER, head);
    }

    /// Offers a buffer of `bytes` bytes to the device.
    pub(super) fn post(&mut self, nr: u16, bytes: usize) {
        let address = GUEST + Self::buffer(TO_DRIVER, nr) as u64;
        self.describe(TO_DRIVER, nr, address, bytes as u32, (WRITE, 0));
        self.offer(TO_DRIVER, nr);
    }

    /// The frames that have arrived: the header, the bytes, and the number of buffers.
    pub(super) fn arrived(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut frames = Vec::new();
        let mut entries = self.take_used(TO_DRIVER).into_iter();
        while let Some((nr, bytes)) = entries.next() {
            let mut data = self.bytes(Self::buffer(TO_DRIVER, nr as u16), bytes as usize);
            let payload = data.split_off(self.header_bytes());
            let (header, mut frame) = (data, payload);
            let count = if header.len() == 12 { u16::from_le_bytes([header[10], header[11]]) } else { 1 };
            for _ in 1..count {
                let (nr, bytes) = entries.next().expect("all buffers are published together");
                frame.extend(self.bytes(Self::buffer(TO_DRIVER, nr as u16), bytes as usize));
            }
            frames.push((header, frame));
        }
        frames
    }
}

/// The bytes of a descriptor.
pub(super) fn descriptor(address: u64, bytes: u32, (flags, next): (u16, u16)) -> Vec<u8> {
    words(&[address, u64::from(bytes) | u64::from(flags) << 32 | u64::from(next) << 48])
}

/// Number of times that an eventfd was written to since the last call.
pub(super) fn count_of(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(event, &mut count[..]) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}
