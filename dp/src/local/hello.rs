//! The messages of two stations on their socket.
//!
//! The one that has a frame for the other connects, and sends [`Kind::Hello`] with the memory of both rings.
//! The other answers [`Kind::Welcome`], or [`Kind::Crossed`] if both have connected at the same time and its
//! own memory is the one to use. A station that cannot hear the one that connects to it answers
//! [`Kind::Again`]. Later messages have one byte and wake the other side. The socket ends with either
//! process.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};

/// The name and the version of the protocol. Another version has another number: no layout of it is known.
const MAGIC: [u8; 8] = *b"uwarp\0l2";

/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 40;

/// The message that wakes.
const WAKE: [u8; 1] = [1];

/// The contents of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// These are our rings.
    Hello,
    /// We use your rings.
    Welcome,
    /// We use our own rings, of which our hello tells you.
    Crossed,
    /// We do not wait for your hello any longer, as others wait for its place: connect once more.
    Again,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// The station of the sender.
    pub(super) station: u16,
    /// Bytes of each ring of a hello.
    pub(super) ring_bytes: u64,
    /// A random number of the sender's port: another process at the same station has another one.
    pub(super) instance: u64,
    /// The number of the sender's latest hello, counted from 1.
    pub(super) serial: u64,
}

impl Message {
    fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let kind: u16 = match self.kind {
            Kind::Hello => 1,
            Kind::Welcome => 2,
            Kind::Crossed => 3,
            Kind::Again => 4,
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&kind.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.station.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.ring_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.instance.to_le_bytes());
        bytes[32..].copy_from_slice(&self.serial.to_le_bytes());
        bytes
    }

    /// The message in these bytes, if it is one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        if bytes[..8] != MAGIC || bytes[12..16] != [0; 4] {
            return None;
        }
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let kind = match half(8) {
            1 => Kind::Hello,
            2 => Kind::Welcome,
            3 => Kind::Crossed,
            4 => Kind::Again,
            _ => return None,
        };
        let station = half(10);
        (station != 0).then_some(Self {
            kind,
            station,
            ring_bytes: word(16),
            instance: word(24),
            serial: word(32),
        })
    }
}

/// Sends a message, with a descriptor if there is one.
pub(super) fn tell(socket: impl AsFd, message: &Message, memory: Option<&OwnedFd>) -> Result<(), Errno> {
    let bytes = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = memory.map(|fd| [fd.as_fd()]);
    if let Some(fds) = &fds {
        // The buffer has space for one.
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags).map(drop)
}

/// A result of reading a socket.
#[derive(Debug)]
pub(super) enum Heard {
    /// Nothing, so far.
    Silence,
    /// A message that wakes.
    Wake,
    /// A message, with the descriptor that came with it.
    Message(Message, Option<OwnedFd>),
    /// Something else.
    Nonsense,
    /// The other side is gone.
    End,
}

/// Takes the next message of a socket. Descriptors that nobody asked for are closed.
pub(super) fn hear(socket: impl AsFd) -> Heard {
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // The other side has closed its socket, and has not read all that we sent: then this error hides what it
    // sent before, until somebody asks for the error.
    let _ = socket_error(&socket);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
    let memory = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    match received {
        Ok(message) => match &bytes[..message.bytes.min(bytes.len())] {
            [] => Heard::End,
            bytes if *bytes == WAKE => Heard::Wake,
            bytes => Message::decode(bytes).map_or(Heard::Nonsense, |told| Heard::Message(told, memory)),
        },
        Err(Errno::AGAIN | Errno::INTR) => Heard::Silence,
        Err(_) => Heard::End,
    }
}

/// Wakes the other side. If the socket is full, it has messages to wake to; if the socket has ended, that is
/// found when it is read.
#[inline]
pub(super) fn wake(socket: impl AsFd) {
    let _ = send(socket, &WAKE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Takes the messages that woke us, some at most. `false`: something else came, or the other side is gone.
pub(super) fn take_wakes(socket: impl AsFd) -> bool {
    /// One waits for each sleep. More come only from a peer that wakes us for nothing.
    const MOST: usize = 16;
    let socket = socket.as_fd();
    let mut bytes = [0; 2];
    for _ in 0..MOST {
        match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((1, _)) if bytes[..1] == WAKE => {}
            Ok(_) => return false,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
    }
    true
}
