//! Atomic operations (RFC 7306 section 5): what is done to the 64-bit word.

/// What an Atomic Request asks for. All values are numbers, whatever the byte order of either machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Adds, field by field (RFC 7306 section 5.1.1).
    FetchAdd {
        /// What is added.
        add: u64,
        /// A set bit is the highest of a field: its carry is dropped. 0: one field of 64 bits.
        mask: u64,
    },
    /// Replaces where the word compares equal (RFC 7306 section 5.1.2).
    CmpSwap {
        /// What the word is compared with.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// What replaces it.
        swap: u64,
        /// The bits that are replaced.
        swap_mask: u64,
    },
    /// Replaces unconditionally: the draft's, without a place in RFC 7306.
    Swap {
        /// What replaces it.
        swap: u64,
    },
}
