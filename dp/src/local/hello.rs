//! The messages that two stations exchange on their socket.
//!
//! A station with a frame for another station connects to that station, and sends [`Kind::Hello`] with the
//! memory of both rings. The other station answers [`Kind::Welcome`]. Both messages also carry the memory
//! with the pages of the sender's port, if the port lends frames. Both stations may have connected at the
//! same time. In this case the station whose memory is used answers [`Kind::Crossed`]. A station that does
//! not wait any longer for a hello that it can answer sends [`Kind::Again`]. Later messages have one byte and
//! wake the other side. When one of the processes ends, the other side of the socket notices the end.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};

/// The name and the version number of the protocol. Messages of other versions may have any layout.
const MAGIC: [u8; 8] = *b"uwarp\0l3";

/// Number of bytes of a message that is not a wake-up message.
pub(super) const MESSAGE_BYTES: usize = 48;

/// A wake-up message.
const WAKE: [u8; 1] = [1];

/// The contents of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Offers the sender's rings.
    Hello,
    /// Accepts the rings of the receiver's hello.
    Welcome,
    /// Declines the receiver's rings. The sender uses the rings of its own hello.
    Crossed,
    /// The sender does not wait any longer for a hello that it can answer, because too much time has passed,
    /// or because other connections wait. The receiver has to connect again.
    Again,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) station: u16,
    /// Maximum number of bytes of each ring, in a hello.
    pub(super) ring_bytes: u64,
    /// A random number that identifies the sender's port. A later process at the same station has another
    /// number.
    pub(super) instance: u64,
    /// The number of the sender's latest hello. The first hello has number 1.
    pub(super) serial: u64,
    /// Number of bytes of the memory with the pages of the sender's port, in a hello and a welcome. 0 if the
    /// port lends no frames.
    pub(super) pool_bytes: u64,
}

/// The descriptors that a message carries.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    /// The memory of both rings, in a hello.
    pub(super) rings: Option<OwnedFd>,
    /// The pages of the sender's port, if `pool_bytes` is not 0.
    pub(super) pool: Option<OwnedFd>,
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
        bytes[32..40].copy_from_slice(&self.serial.to_le_bytes());
        bytes[40..].copy_from_slice(&self.pool_bytes.to_le_bytes());
        bytes
    }

    /// Decodes a message. Returns `None` if the bytes are not a message.
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
            pool_bytes: word(40),
        })
    }
}

/// Sends a message with these descriptors, at most two.
pub(super) fn tell(
    socket: impl AsFd,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let bytes = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags).map(drop)
}

/// The result of reading a socket.
#[derive(Debug)]
pub(super) enum Heard {
    /// Nothing has arrived.
    Silence,
    Wake,
    /// A message, with the descriptors that the message carried.
    Message(Message, Descriptors),
    /// Bytes that are not a message.
    Nonsense,
    /// The other side has closed the socket, or reading the socket failed.
    End,
}

/// Reads the next message of a socket. Unexpected descriptors are closed.
pub(super) fn hear(socket: impl AsFd) -> Heard {
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // If the other side has closed its socket without reading all messages of this side, an error hides the
    // messages that the other side sent before. Reading the error with `SO_ERROR` makes these messages
    // readable.
    let _ = socket_error(&socket);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
    let mut fds = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut next = || fds.as_mut().and_then(Iterator::next);
    match received {
        Ok(message) => match &bytes[..message.bytes.min(bytes.len())] {
            [] => Heard::End,
            bytes if *bytes == WAKE => Heard::Wake,
            bytes => Message::decode(bytes).map_or(Heard::Nonsense, |told| {
                let rings = if told.kind == Kind::Hello { next() } else { None };
                let pool = if told.pool_bytes > 0 { next() } else { None };
                Heard::Message(told, Descriptors { rings, pool })
            }),
        },
        Err(Errno::AGAIN | Errno::INTR) => Heard::Silence,
        Err(_) => Heard::End,
    }
}

/// Wakes the other side. Errors are ignored. If the socket is full, the socket already has wake-up messages.
/// If the other side has closed the socket, a later read of the socket shows this.
#[inline]
pub(super) fn wake(socket: impl AsFd) {
    let _ = send(socket, &WAKE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Reads a wake-up message, if any. Returns `false` if another message arrives, if the other side has closed
/// the socket, or if reading the socket fails. Otherwise returns `true`.
///
/// A correct peer sends at most one message for each sleep. The socket stays readable while it has further
/// messages, so a later call reads them.
pub(super) fn take_wake(socket: impl AsFd) -> bool {
    let mut bytes = [0; 2];
    match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
        Ok((1, _)) => bytes[..1] == WAKE,
        Err(Errno::AGAIN | Errno::INTR) => true,
        Ok(_) | Err(_) => false,
    }
}
