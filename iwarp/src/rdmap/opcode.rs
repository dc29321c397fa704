//! The RDMAP control byte, and the buffer model and queue of each opcode (RFC 5040 sections 4.1 to 4.3).
//!
//! DDP carries the control byte as the first byte of RsvdULP. In an untagged segment the Invalidate STag
//! follows the control byte. Opcodes 8 to 11 are defined in RFC 7306. A stream that has not enabled one of
//! these opcodes treats it as unknown.

use crate::ddp::{DdpError, Header, TaggedHeader, UntaggedHeader};
use crate::memory::Stag;
use crate::rdmap::error::TerminateError;

/// The bits of the RDMAP version in the control byte.
const VERSION_MASK: u8 = 0xC0;
/// The value of the version bits for RDMAP version 1.
const VERSION: u8 = 0x40;
/// The bits of the opcode in the control byte. The two bits between version and opcode are reserved.
const OPCODE_MASK: u8 = 0x0F;

bitflags::bitflags! {
    /// The message types of RFC 7306 that a stream supports.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Extensions: u8 {
        /// Immediate Data, with and without Solicited Event.
        const IMMEDIATE = 0x01;
        /// Atomic Request and Atomic Response, with FetchAdd and CmpSwap. This extension opens queue 3.
        const ATOMICS = 0x02;
        /// The atomic operation Swap of draft-ietf-storm-rdmap-ext (the draft of RFC 7306). RFC 7306 reserves
        /// its code.
        const SWAP = 0x04;
    }
}

/// The type of a message.
///
/// RFC 5040 section 4.1 (RDMAP-090): each type has its assigned value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0x0,
    /// RDMA Read Request.
    ReadRequest = 0x1,
    /// RDMA Read Response.
    ReadResponse = 0x2,
    /// Send.
    Send = 0x3,
    /// Send with Invalidate.
    SendInvalidate = 0x4,
    /// Send with Solicited Event.
    SendSolicited = 0x5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 0x6,
    /// Terminate.
    Terminate = 0x7,
    /// Immediate Data (RFC 7306).
    Immediate = 0x8,
    /// Immediate Data with Solicited Event (RFC 7306).
    ImmediateSolicited = 0x9,
    /// Atomic Request (RFC 7306).
    AtomicRequest = 0xA,
    /// Atomic Response (RFC 7306).
    AtomicResponse = 0xB,
}

/// An untagged queue of RDMAP (RFC 5040 and RFC 7306). `crate::stream` defines queue 4, which streams with
/// InfiniBand's semantics also use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Queue {
    /// The queue for Sends and Immediate Data, whose buffers are the receive requests that the user posts.
    Send = 0,
    /// The queue for Read Requests and Atomic Requests. The queue has IRD buffers for Read Requests and, if
    /// atomics are enabled, IRD further buffers for Atomic Requests.
    ReadRequest = 1,
    /// The queue for the Terminate, with one buffer of 52 bytes, which is posted when the stream begins.
    Terminate = 2,
    /// The queue for Atomic Responses (RFC 7306).
    AtomicResponse = 3,
}

impl Opcode {
    /// All opcodes, in the order of their values.
    pub const ALL: [Opcode; 12] = [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::SendSolicited,
        Opcode::SendSolicitedInvalidate,
        Opcode::Terminate,
        Opcode::Immediate,
        Opcode::ImmediateSolicited,
        Opcode::AtomicRequest,
        Opcode::AtomicResponse,
    ];

    /// Returns the opcode of a control byte of any version, or `None` for the unknown opcodes 12 to 15.
    ///
    /// RFC 5040 section 4.1 (RDMAP-095): the reserved bits are ignored.
    pub fn of_byte(control: u8) -> Option<Self> {
        Self::ALL.get(usize::from(control & OPCODE_MASK)).copied()
    }

    /// Checks the header of a segment: RDMAP version, opcode, buffer model and queue, in this order.
    ///
    /// RFC 5040 section 7.2 (RDMAP-333, RDMAP-334, RDMAP-338, RDMAP-339): version and opcode must be valid in
    /// every message.
    ///
    /// # Errors
    /// [`TerminateError::RdmapVersion`] if the version is not 1, and otherwise
    /// [`TerminateError::UnexpectedOpcode`].
    pub fn check(header: &Header, extensions: Extensions) -> Result<Self, TerminateError> {
        let control = header.control_byte();
        // RFC 5044 section C.1 (MPA-297): the peer's RDMAP version must be the version that this endpoint
        // sends.
        if control & VERSION_MASK != VERSION {
            // RFC 7306 sections 4.1 and 8.2 (EXT-009, EXT-151): the four messages of RFC 7306 have RDMAP
            // version 1, and any other version is refused.
            return Err(TerminateError::RdmapVersion);
        }
        let opcode = Self::of_byte(control).ok_or(TerminateError::UnexpectedOpcode)?;
        // RFC 7306 section 8.2 (EXT-150): an opcode is valid only on its own queue, only in its own buffer
        // model, and only if the stream has enabled it.
        let fits = match header {
            Header::Tagged(_) => opcode.is_tagged(),
            Header::Untagged(h) => opcode.queue().is_some_and(|queue| queue.number() == h.qn),
        };
        if fits && opcode.is_understood(extensions) {
            Ok(opcode)
        } else {
            Err(TerminateError::UnexpectedOpcode)
        }
    }

    /// Whether a stream with these extensions accepts the opcode.
    pub const fn is_understood(self, extensions: Extensions) -> bool {
        match self {
            Opcode::Immediate | Opcode::ImmediateSolicited => extensions.contains(Extensions::IMMEDIATE),
            Opcode::AtomicRequest | Opcode::AtomicResponse => extensions.contains(Extensions::ATOMICS),
            _ => true,
        }
    }

    /// Returns the control byte.
    ///
    /// RFC 5040 section 4.1 (RDMAP-085, RDMAP-092, RDMAP-094): the control byte has version 1 in the two
    /// highest bits, then two reserved bits that are 0, and the opcode in the four lowest bits.
    pub const fn control_byte(self) -> u8 {
        // RFC 7306 section 4.1 (EXT-009, EXT-022, EXT-169): every message has version 1, reserved bits that
        // are 0, and its opcode of figure 2.
        VERSION | self as u8
    }

    /// Whether the segments of this message are tagged.
    ///
    /// RFC 5040 section 4.1 (RDMAP-088, RDMAP-089): the opcode alone decides.
    pub const fn is_tagged(self) -> bool {
        self.queue().is_none()
    }

    /// Returns the queue of an untagged opcode, or `None` for a tagged opcode.
    pub const fn queue(self) -> Option<Queue> {
        match self {
            // RFC 5040 sections 4.1, 5.1 and 5.2.2 (RDMAP-091, RDMAP-196, RDMAP-225): these messages are
            // tagged.
            Opcode::Write | Opcode::ReadResponse => None,
            // RFC 5040 section 5.2.1 (RDMAP-207, RDMAP-212): Read Requests are untagged and go to queue 1.
            // RFC 7306 sections 5.2 and 5.2.1 (EXT-082, EXT-087, EXT-186): Atomic Requests, too, are untagged
            // and go to queue 1.
            Opcode::ReadRequest | Opcode::AtomicRequest => Some(Queue::ReadRequest),
            // RFC 5040 section 5.4 (RDMAP-253, RDMAP-254): Terminate is untagged and goes to queue 2.
            Opcode::Terminate => Some(Queue::Terminate),
            // RFC 7306 sections 5 and 5.2.2 (EXT-096, EXT-097, EXT-175): Atomic Responses are untagged and go
            // to queue 3.
            Opcode::AtomicResponse => Some(Queue::AtomicResponse),
            // RFC 5040 section 5.3 (RDMAP-234, RDMAP-243): Sends are untagged and go to queue 0.
            // RFC 7306 section 6.3 (EXT-120, EXT-124): Immediate Data, too, is untagged and goes to queue 0.
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate
            | Opcode::Immediate
            | Opcode::ImmediateSolicited => Some(Queue::Send),
        }
    }

    /// Whether the opcode is one of the four Sends.
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Opcode::Send | Opcode::SendInvalidate | Opcode::SendSolicited | Opcode::SendSolicitedInvalidate
        )
    }

    /// Whether the opcode is Immediate Data, with or without Solicited Event.
    pub const fn is_immediate(self) -> bool {
        matches!(self, Opcode::Immediate | Opcode::ImmediateSolicited)
    }

    /// Whether the delivery of this message raises an event on a queue that is armed for solicited
    /// completions.
    pub const fn is_solicited(self) -> bool {
        matches!(self, Opcode::SendSolicited | Opcode::SendSolicitedInvalidate | Opcode::ImmediateSolicited)
    }

    /// Whether the message carries an STag to invalidate.
    pub const fn invalidates(self) -> bool {
        matches!(self, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate)
    }

    /// Returns the opcode of the Send with these properties.
    pub const fn send(solicited: bool, invalidates: bool) -> Self {
        match (solicited, invalidates) {
            (false, false) => Opcode::Send,
            (false, true) => Opcode::SendInvalidate,
            (true, false) => Opcode::SendSolicited,
            (true, true) => Opcode::SendSolicitedInvalidate,
        }
    }

    /// Returns the opcode of Immediate Data, with or without Solicited Event.
    pub const fn immediate(solicited: bool) -> Self {
        if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate }
    }

    /// Returns the header of a tagged segment of this message.
    pub const fn tagged_header(self, stag: Stag, to: u64, last: bool) -> TaggedHeader {
        // RFC 5040 section 4.1 (RDMAP-084): RsvdULP is the control byte.
        TaggedHeader { last, rsvd_ulp: self.control_byte(), stag, to }
    }

    /// Returns the header of an untagged segment of this message. Only the invalidating opcodes use
    /// `invalidate`; the header of any other message has an Invalidate STag of 0.
    ///
    /// # Panics
    /// Panics if the opcode is tagged.
    pub fn untagged_header(self, invalidate: Stag, msn: u32, mo: u32, last: bool) -> UntaggedHeader {
        let queue = self.queue().expect("an untagged opcode has a queue");
        // RFC 5040 sections 4.1 and 5.3 (RDMAP-087, RDMAP-098, RDMAP-247, RDMAP-248): the invalidating Sends
        // carry the STag to invalidate, and all other untagged messages carry 0. (`crate::stream` writes
        // these bytes itself, since they are a limit in a Send with InfiniBand's semantics.)
        let [a, b, c, d] = if self.invalidates() { invalidate.0.to_be_bytes() } else { [0; 4] };
        // RFC 5040 section 4.1 (RDMAP-084): the control byte is the first byte of RsvdULP.
        // RFC 7306 section 4.1 (EXT-169): the Invalidate STag of the four messages of RFC 7306 is 0.
        UntaggedHeader { last, rsvd_ulp: [self.control_byte(), a, b, c, d], qn: queue.number(), msn, mo }
    }
}

impl Queue {
    /// Number of these queues.
    pub const COUNT: usize = 4;

    /// Returns the queue with number `qn`, if this queue is open on a stream with these extensions.
    ///
    /// RFC 5041 section 7.1 (DDP-164): QN is valid for the stream.
    ///
    /// # Errors
    /// [`DdpError::InvalidQn`] if the queue is not open.
    pub const fn open(qn: u32, extensions: Extensions) -> Result<Self, DdpError> {
        match qn {
            0 => Ok(Queue::Send),
            1 => Ok(Queue::ReadRequest),
            2 => Ok(Queue::Terminate),
            3 if extensions.contains(Extensions::ATOMICS) => Ok(Queue::AtomicResponse),
            _ => Err(DdpError::InvalidQn),
        }
    }

    /// The number of the queue in the QN field of DDP, 0 to 3.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The queue number as an index, which is less than [`Queue::COUNT`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Returns the Invalidate STag of an untagged header. The bytes are an STag only if [`Opcode::invalidates`]
/// returns `true`.
pub fn invalidate_stag(header: &UntaggedHeader) -> Stag {
    let [_, a, b, c, d] = header.rsvd_ulp;
    Stag(u32::from_be_bytes([a, b, c, d]))
}
