//! Access rights of a registration, and the identity of an accessor.

bitflags::bitflags! {
    /// Rights of a registration (`IBV_ACCESS_*`). Local reads are always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Receives and Read Responses may be placed in it.
        const LOCAL_WRITE = 0x01;
        /// The peer may Write to it.
        /// RFC 5042 section 6.3.5 (SEC-112): this is a flag of its own, and gives no right to read.
        const REMOTE_WRITE = 0x02;
        /// The peer may Read from it.
        const REMOTE_READ = 0x04;
        /// The peer may perform atomics on it (RFC 7306).
        const REMOTE_ATOMIC = 0x08;
        /// Memory windows may be bound to it.
        const MW_BIND = 0x10;
    }
}

impl Access {
    /// All rights of a peer. A registration with none of them is an invalid STag to every peer.
    pub const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

    /// Whether they contain a right to write, local or remote.
    pub const fn allows_writing(self) -> bool {
        self.intersects(Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC))
    }
}

/// The number of a protection domain, unique in its context. Never on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// The number of a stream, unique in its context and never reused. Never on the wire; 0 is no stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

/// The stream that accesses registered memory, and its protection domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Accessor {
    /// The protection domain of its queue pair.
    pub pd: PdId,
    /// The stream.
    pub stream: StreamId,
}

/// Where the tagged offsets of a registration start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// At the virtual address of its first byte, as verbs programs expect.
    #[default]
    VirtualAddress,
    /// At an offset that the consumer chooses.
    Iova(u64),
    /// At 0.
    Zero,
}

/// How memory is registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterOptions {
    /// The protection domain it belongs to.
    pub pd: PdId,
    /// The one stream whose peer may use it; `None`: every stream of the protection domain.
    ///
    /// RFC 5041 sections 8.2 and 8.3 (DDP-211, DDP-220): the consumer associates the STag with a domain or a
    /// stream.
    pub stream: Option<StreamId>,
    /// Rights.
    pub access: Access,
    /// Where tagged offsets start.
    pub base: Base,
    /// The eight bits of the STag that the consumer chooses.
    pub key: u8,
    /// No peer may invalidate it, even if only one stream may use it (RFC 5042 section 6.4.5).
    pub keep: bool,
}
