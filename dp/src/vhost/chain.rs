//! The buffers of a descriptor chain.

use arrayvec::ArrayVec;

use super::memory::{GuestMemory, Piece};
use super::ring::{DESCRIPTOR_BYTES, Descriptor, Ring};

/// Maximum number of descriptors of a chain, and of pieces of a frame. Linux uses at most 19 descriptors for
/// a superframe, and DPDK uses one descriptor for each of its buffers, which usually have 2 KiB.
pub(super) const MAX_PIECES: usize = 128;

/// The pieces of one frame.
pub(super) type Pieces = ArrayVec<Piece, MAX_PIECES>;

/// The chain cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Who writes to the buffers of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    Driver,
    Device,
}

/// A table of descriptors.
#[derive(Clone, Copy)]
enum Table {
    /// The table of the ring.
    Ring,
    /// A table in a buffer, with this number of descriptors.
    Indirect(Piece, u16),
}

/// Appends the buffers of the chain that begins with descriptor `head` to `pieces`. Returns the number of
/// bytes of the chain. `hint` is the region of the last buffer.
///
/// # Errors
/// [`Malformed`] if a buffer is not in the memory or has the wrong direction, if a descriptor does not exist,
/// or if the chain has too many descriptors. In this case `pieces` has a part of the chain.
#[inline]
pub(super) fn walk(
    ring: &Ring,
    memory: &GuestMemory,
    (head, writer): (u16, Writer),
    hint: &mut usize,
    pieces: &mut Pieces,
) -> Result<usize, Malformed> {
    let (mut table, mut nr, mut bytes) = (Table::Ring, head, 0);
    // The number of steps ends each cycle.
    for _ in 0..MAX_PIECES {
        let descriptor = match table {
            Table::Ring => ring.descriptor(nr),
            Table::Indirect(table, count) => indirect(memory, table, count, nr),
        };
        let descriptor = descriptor.ok_or(Malformed)?;
        if descriptor.is_indirect() {
            // A table in a buffer has no further tables, and ends its chain (virtio 1.2 section 2.7.5.3.1).
            if !matches!(table, Table::Ring) || descriptor.has_next() {
                return Err(Malformed);
            }
            table = table_at(memory, &descriptor, hint).ok_or(Malformed)?;
            nr = 0;
            continue;
        }
        if descriptor.is_writable() != (writer == Writer::Device) {
            return Err(Malformed);
        }
        bytes += descriptor.bytes as usize;
        add(memory, &descriptor, hint, pieces)?;
        if !descriptor.has_next() {
            return Ok(bytes);
        }
        nr = descriptor.next;
    }
    Err(Malformed)
}

/// Appends the buffer of a descriptor, which may be in several adjacent regions.
#[inline]
fn add(
    memory: &GuestMemory,
    descriptor: &Descriptor,
    hint: &mut usize,
    pieces: &mut Pieces,
) -> Result<(), Malformed> {
    let (mut address, mut left) = (descriptor.address, descriptor.bytes as usize);
    while left > 0 {
        let piece = memory.find(address, left, hint).ok_or(Malformed)?;
        pieces.try_push(piece).map_err(|_| Malformed)?;
        left -= piece.bytes;
        address = address.checked_add(piece.bytes as u64).ok_or(Malformed)?;
    }
    Ok(())
}

/// The table to which a descriptor refers. `None` if the table is not in one region, or has no or too many
/// descriptors.
fn table_at(memory: &GuestMemory, descriptor: &Descriptor, hint: &mut usize) -> Option<Table> {
    let bytes = descriptor.bytes as usize;
    let count = u16::try_from(bytes / DESCRIPTOR_BYTES).ok().filter(|count| *count > 0)?;
    let piece = memory.find(descriptor.address, bytes, hint)?;
    let is_whole = piece.bytes == bytes && bytes.is_multiple_of(DESCRIPTOR_BYTES);
    is_whole.then_some(Table::Indirect(piece, count))
}

fn indirect(memory: &GuestMemory, table: Piece, count: u16, nr: u16) -> Option<Descriptor> {
    let mut words = [[0; 8]; 2];
    let out = words.as_flattened_mut();
    let copied = memory.copy_out(table, DESCRIPTOR_BYTES * usize::from(nr), out);
    let [address, rest] = words.map(u64::from_le_bytes);
    (nr < count && copied == DESCRIPTOR_BYTES).then(|| Descriptor::from_words(address, rest))
}
