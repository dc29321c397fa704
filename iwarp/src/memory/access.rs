//! Who may do what with a registration.

bitflags::bitflags! {
    /// Rights of a registration (`IBV_ACCESS_*`). Reading locally is always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Receives and Read Responses may be placed in it.
        const LOCAL_WRITE = 0x01;
        /// The peer may Write to it.
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
    /// All rights of a peer. A registration with none of them has no name on the wire.
    pub const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

    /// Whether anybody may write.
    pub const fn allows_writing(self) -> bool {
        self.intersects(Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC))
    }
}

/// A protection domain's number, unique in its context. Never on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// A stream's number, unique in its context and never used again. Never on the wire; 0 is no stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

/// On whose behalf registered memory is accessed: a stream, and the protection domain it is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Accessor {
    /// The queue pair's protection domain.
    pub pd: PdId,
    /// The stream.
    pub stream: StreamId,
}

/// Where the tagged offsets of a registration start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// At the virtual address of its first byte, as every verbs program expects.
    #[default]
    VirtualAddress,
    /// At an offset of the consumer's choice.
    Iova(u64),
    /// At 0.
    Zero,
}

/// How memory is registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterOptions {
    /// The protection domain it belongs to.
    pub pd: PdId,
    /// The one stream that may use it remotely (RFC 5041 section 6.2); `None`: every stream of the protection
    /// domain.
    pub stream: Option<StreamId>,
    /// Rights.
    pub access: Access,
    /// Where tagged offsets start.
    pub base: Base,
    /// The consumer's eight bits of the STag.
    pub key: u8,
    /// No peer may invalidate it, also where only one stream may use it (RFC 5042 section 6.4.5).
    pub keep: bool,
}
