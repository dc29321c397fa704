//! Receiving: buffers of TCP into ULPDUs, in order and out of order (sections 4.3, 6, appendix A.3).
use std::ops::ControlFlow;
use dp::Mbuf;
use super::MpaError;

/// Slots for held buffers and records, shared by all connections of an engine.
pub struct HeldSlab {}
impl HeldSlab {
    /// Room for `buffers` held buffers and `records` FPDUs placed early.
    pub fn new(buffers: usize, records: usize) -> Self { let _ = (buffers, records); todo!() }
}

/// Buffers of one connection held in the order of the stream.
pub struct HeldList {}

/// A view of a ULPDU where it lies in received buffers.
#[derive(Clone, Copy)]
pub struct Ulpdu<'a> { octets: &'a [u8] }
impl<'a> Ulpdu<'a> {
    /// Octets of the ULPDU.
    pub fn len(&self) -> usize { todo!() }
    /// Whether it has none.
    pub fn is_empty(&self) -> bool { todo!() }
    /// Copies `out.len()` octets from `offset` on; returns how many there were.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize { let _ = (offset, out); todo!() }
    /// The octets from `offset` on, `len` of them, run by run.
    pub fn runs(&self, offset: usize, len: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> { let _ = (offset, len); std::iter::once(self.octets) }
}

/// A ULPDU whose turn it is.
pub enum Arrival<'a> {
    /// Not seen before.
    Whole(Ulpdu<'a>),
    /// Placed early: `header` is its first octets, 18 or all if it has fewer.
    Placed {
        /// The first octets.
        header: &'a [u8],
        /// Octets of the ULPDU.
        ulpdu_len: usize,
    },
}

/// Takes ULPDUs.
pub trait UlpduSink {
    /// Offers a ULPDU ahead of its turn. `true`: placed, it comes again as [`Arrival::Placed`]. `false`: held, it comes as [`Arrival::Whole`].
    fn place_early(&mut self, ulpdu: &Ulpdu<'_>) -> bool;
    /// The next ULPDU in the sender's order. `Break` ends reception.
    fn arrive(&mut self, arrival: Arrival<'_>) -> ControlFlow<()>;
}

/// What a call brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Octets for `tcp_lite::Stack::release`.
    pub released: usize,
}

/// The receive direction of a connection.
pub struct Deframer {}
impl Deframer {
    /// Position 0 is at stream offset `start`.
    pub fn new(start: u64, markers: bool, crc: bool) -> Self { let _ = (start, markers, crc); todo!() }
    /// A buffer from TCP.
    ///
    /// # Errors
    /// Codes 2, 3, 5.
    pub fn receive(&mut self, offset: u64, buf: Mbuf, frontier: u64, slab: &mut HeldSlab, sink: &mut impl UlpduSink) -> Result<Progress, MpaError> {
        let _ = (offset, buf, frontier, slab, sink); todo!()
    }
    /// Whether FIN at the frontier cuts nothing.
    pub fn at_boundary(&self) -> bool { todo!() }
    /// Gives back what is held; returns octets to release.
    pub fn clear(&mut self, slab: &mut HeldSlab) -> usize { let _ = slab; todo!() }
}
