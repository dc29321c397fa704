//! The Terminate message (RFC 5040 section 4.8): a control word, and headers of the failing message.
//!
//! A Terminate is sent without the parts that its bits M, D and R declare absent. The parser finds the parts
//! by these bits and ignores bytes after the last part. So the parser also accepts a Terminate of the full
//! length, in which absent parts are filled with zeros. Linux's siw swaps the nibbles of the first byte of
//! the control word, and has M, D and R in the low bits of the third byte. The parser recognizes the layout
//! of siw if it can be distinguished from the layout of the RFC.

use std::fmt;

use arrayvec::ArrayVec;

use crate::ddp::{Header, TaggedHeader, UntaggedHeader};
use crate::rdmap::error::{Inclusion, TerminateError};
use crate::rdmap::opcode::Opcode;
use crate::rdmap::read_request::ReadRequest;

/// Third control byte: the segment length is valid.
const M: u8 = 0x80;
/// Third control byte: the DDP header is present.
const D: u8 = 0x40;
/// Third control byte: the Read Request header is present.
const R: u8 = 0x20;
/// The bits M, D and R at the position that siw uses.
const SIW_BITS: u8 = 0x07;
/// DDP's T bit in the first byte of an echoed header. If the bit is set, the header has 14 bytes, and
/// otherwise 18 bytes.
const TAGGED: u8 = 0x80;

/// The layout of the control word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BitOrder {
    /// The order of RFC 5040 figure 9.
    #[default]
    Standard,
    /// The order of Linux's siw on a little-endian machine.
    Siw,
}

/// A Terminate message, sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// The layer: 0 is RDMA, 1 is DDP, 2 is the LLP. Other values are reserved.
    pub layer: u8,
    /// The error type within the layer, in 4 bits.
    pub etype: u8,
    /// Error code within the type.
    pub code: u8,
    /// Number of bytes of the failing DDP segment, including its header (M bit).
    pub segment_len: Option<u16>,
    /// The received DDP header of the failing segment, 14 or 18 bytes (D bit).
    pub ddp_header: Option<ArrayVec<u8, { Header::MAX_LEN }>>,
    /// The failing Read Request, advanced by the bytes that were answered (R bit).
    pub read_request: Option<ReadRequest>,
    /// The layout of the control word; [`BitOrder::Standard`] in a Terminate to send.
    pub bit_order: BitOrder,
    /// The received control word; `None` in a Terminate to send.
    pub control: Option<[u8; 4]>,
}

/// The error for a payload that is not a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a Terminate of {bytes} bytes is cut short")]
pub struct TerminateParseError {
    /// Number of received bytes.
    pub bytes: usize,
}

impl Terminate {
    /// Number of bytes of the longest Terminate, and of the buffer of queue 2: 4 + 2 + 18 + 28.
    pub const MAX_LEN: usize = 52;

    /// Returns a Terminate for an error that no message of the peer has caused.
    pub fn bare(error: TerminateError) -> Self {
        // RFC 5040 section 4.8 (RDMAP-135): layer, type and code are those of the table of errors.
        let (layer, etype, code) = error.codes();
        Self {
            layer,
            etype,
            code,
            segment_len: None,
            ddp_header: None,
            read_request: None,
            bit_order: BitOrder::Standard,
            control: None,
        }
    }

    /// Returns a Terminate for an error in an incoming segment of `segment_len` bytes, including its header.
    /// `segment_head` has the first bytes of the segment: at least the received DDP header, even if this
    /// header is invalid. `read_request` is the Read Request in the segment, advanced by the bytes that were
    /// answered. [`TerminateError::inclusion`] decides which of these headers the Terminate carries.
    pub fn of_segment(
        error: TerminateError,
        segment_head: &[u8],
        segment_len: usize,
        read_request: Option<ReadRequest>,
    ) -> Self {
        let mut terminate = Self::bare(error);
        let inclusion = error.inclusion(read_request.is_some());
        let header = echoed_header(segment_head);
        if let (Inclusion::DdpHeader | Inclusion::ReadRequestHeader, Some(header)) = (inclusion, header) {
            // RFC 5040 section 4.8 (RDMAP-178): the segment length is present if M is 1. A ULPDU's length has
            // 16 bits.
            terminate.segment_len = Some(u16::try_from(segment_len).unwrap_or(u16::MAX));
            terminate.ddp_header = Some(header.iter().copied().collect());
            if inclusion == Inclusion::ReadRequestHeader {
                terminate.read_request = read_request;
            }
        }
        terminate
    }

    fn control_only(layer: u8, etype: u8, code: u8, bit_order: BitOrder, control: [u8; 4]) -> Self {
        let (segment_len, ddp_header, read_request) = (None, None, None);
        Self { layer, etype, code, segment_len, ddp_header, read_request, bit_order, control: Some(control) }
    }

    /// Returns the error in the other bit order, if no bit of the received control word distinguishes the two
    /// orders and the other order, too, gives a known error. Otherwise returns `None`.
    pub fn other_reading(&self) -> Option<TerminateError> {
        let [first, code, third, _] = self.control?;
        let (high, low) = (first >> 4, first & 0x0F);
        let (layer, etype) = match self.bit_order {
            BitOrder::Standard => (low, high),
            BitOrder::Siw => (high, low),
        };
        let undecided = third & (M | D | R | SIW_BITS) == 0 && high != low;
        undecided.then(|| TerminateError::from_codes(layer, etype, code))?
    }

    /// Interprets the Terminate as the answer to an MPA Request. At this time no RDMAP message can have
    /// failed, so the codes 5 to 7 are those of MPA (RFC 6581 section 8). With siw's swapped nibbles these
    /// codes look like errors of RDMAP.
    pub fn in_startup(mut self) -> Self {
        if let Some([0x02, 5..=7, third, _]) = self.control
            && third & (M | D | R | SIW_BITS) == 0
        {
            (self.layer, self.etype, self.bit_order) = (2, 0, BitOrder::Siw);
        }
        self
    }

    /// Returns the error that the Terminate names, or `None` if its numbers are unknown.
    pub fn error(&self) -> Option<TerminateError> {
        TerminateError::from_codes(self.layer, self.etype, self.code)
    }

    /// Returns the payload on the wire, without the parts that M, D and R declare absent, in the RFC's bit
    /// order.
    ///
    /// RFC 5040 sections 4.2 and 4.8 (RDMAP-114, RDMAP-133): a Terminate has control word, segment length,
    /// DDP header and Read Request header, and no ULP payload.
    pub fn to_bytes(&self) -> ArrayVec<u8, { Terminate::MAX_LEN }> {
        let Self { layer, etype, code, segment_len, ddp_header, read_request, bit_order: _, control: _ } =
            self;
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let parts =
            bit(segment_len.is_some(), M) | bit(ddp_header.is_some(), D) | bit(read_request.is_some(), R);
        // RFC 5040 section 4.8 (RDMAP-134, RDMAP-175): the control word has layer, type, code and the three
        // bits M, D and R. All other bits are 0.
        let mut bytes: ArrayVec<u8, { Terminate::MAX_LEN }> =
            [layer << 4 | etype & 0x0F, *code, parts, 0].into_iter().collect();
        // RFC 5040 section 4.8 (RDMAP-179): the segment length is present if D is set, even if M is not.
        if parts & (M | D) != 0 {
            bytes.extend(segment_len.unwrap_or(0).to_be_bytes());
        }
        // RFC 5040 section 4.8 (RDMAP-182, RDMAP-184): D and R are set if the headers are present.
        bytes.extend(ddp_header.iter().flatten().copied());
        bytes.extend(read_request.iter().flat_map(|r| r.to_bytes()));
        bytes
    }

    /// Parses the payload of a Terminate.
    ///
    /// # Errors
    /// [`TerminateParseError`] if a part is missing that the bits declare present. (A missing Read Request
    /// header is accepted if the DDP header is that of another message, since siw sends such a Terminate.)
    pub fn parse(payload: &[u8]) -> Result<Self, TerminateParseError> {
        let short = TerminateParseError { bytes: payload.len() };
        let (control, mut rest) = payload.split_first_chunk::<4>().ok_or(short)?;
        let TerminateControl { layer, etype, code, parts, bit_order } = TerminateControl::parse(*control);
        let mut terminate = Self::control_only(layer, etype, code, bit_order, *control);
        if parts & (M | D) != 0 {
            let (len, after) = rest.split_first_chunk::<2>().ok_or(short)?;
            terminate.segment_len = (parts & M != 0).then(|| u16::from_be_bytes(*len));
            rest = after;
        }
        if parts & D != 0 {
            let header = echoed_header(rest).ok_or(short)?;
            terminate.ddp_header = Some(header.iter().copied().collect());
            rest = &rest[header.len()..];
        }
        if parts & R != 0 {
            match rest.get(..ReadRequest::LEN) {
                Some(request) => {
                    terminate.read_request = Some(ReadRequest::parse(request).map_err(|_| short)?);
                }
                // siw sets R for every message with a protection error, even if the message is not a Read
                // Request.
                None if rest.is_empty() && terminate.echoes_no_read_request() => {}
                None => return Err(short),
            }
        }
        Ok(terminate)
    }

    /// Whether the Terminate carries the DDP header of a message other than a Read Request.
    fn echoes_no_read_request(&self) -> bool {
        let control = self.ddp_header.as_ref().and_then(|header| header.get(1));
        control.is_some_and(|&control| Opcode::of_byte(control) != Some(Opcode::ReadRequest))
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error() {
            Some(error) if error.codes() == (self.layer, self.etype, self.code) => error.fmt(f),
            known => {
                let text = known.map_or("unknown error", TerminateError::text);
                write!(f, "{text} (layer {}, type {}, code {:#04x})", self.layer, self.etype, self.code)
            }
        }
    }
}

/// The fields of a control word, with M, D and R in the RFC's positions.
struct TerminateControl {
    layer: u8,
    etype: u8,
    code: u8,
    parts: u8,
    bit_order: BitOrder,
}

impl TerminateControl {
    /// If M, D or R is set, its position shows the bit order. Otherwise the numbers decide: the parser
    /// assumes siw's order if only this order gives a known error.
    ///
    /// RFC 5040 section 4.8 (RDMAP-176): in the standard order the 13 reserved bits are ignored.
    fn parse([first, code, third, _]: [u8; 4]) -> Self {
        let (high, low) = (first >> 4, first & 0x0F);
        let known = |layer, etype| TerminateError::from_codes(layer, etype, code).is_some();
        let siw = match (third & (M | D | R), third & !(M | D | R)) {
            (0, 0) => !known(high, low) && known(low, high),
            (0, bits) => bits & !SIW_BITS == 0,
            _ => false,
        };
        if siw {
            let bit = |from: u8, to: u8| if third & from != 0 { to } else { 0 };
            let parts = bit(0x01, M) | bit(0x02, D) | bit(0x04, R);
            Self { layer: low, etype: high, code, parts, bit_order: BitOrder::Siw }
        } else {
            // cxgb4 sends the errors of MPA's startup with type 3 instead of 0.
            let etype = if (high, low) == (2, 3) && (5..=7).contains(&code) { 0 } else { low };
            Self { layer: high, etype, code, parts: third & (M | D | R), bit_order: BitOrder::Standard }
        }
    }
}

/// Returns the DDP header at the front of `bytes`. The T bit decides the length of the header. Version and
/// other fields are not checked. Returns `None` if `bytes` are shorter than the header.
fn echoed_header(bytes: &[u8]) -> Option<&[u8]> {
    let len = if bytes.first()? & TAGGED != 0 { TaggedHeader::LEN } else { UntaggedHeader::LEN };
    bytes.get(..len)
}
