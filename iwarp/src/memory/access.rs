//! The types that describe a registration, such as its access rights, options and errors.

bitflags::bitflags! {
    /// Rights of a registration (`IBV_ACCESS_*`). The library does not add a right silently. Each access
    /// needs these rights:
    ///
    /// | access | rights that the access needs |
    /// |---|---|
    /// | our Send, Write or inline request reads the memory | none |
    /// | a received message, or the response to our Read or atomic, is placed in the memory | [`LOCAL_WRITE`](Self::LOCAL_WRITE) |
    /// | the peer Reads the memory | [`REMOTE_READ`](Self::REMOTE_READ) |
    /// | the peer Writes to the memory | [`REMOTE_WRITE`](Self::REMOTE_WRITE) (a registration with this right also needs `LOCAL_WRITE`) |
    /// | the peer performs an atomic on the memory | [`REMOTE_ATOMIC`](Self::REMOTE_ATOMIC) (a registration with this right also needs `LOCAL_WRITE`); or both `REMOTE_READ` and `REMOTE_WRITE`, unless both endpoints have agreed on [`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics) |
    /// | a window is bound to the memory | [`MW_BIND`](Self::MW_BIND); also `LOCAL_WRITE` if the window has `REMOTE_WRITE` or `REMOTE_ATOMIC` |
    ///
    /// A queue pair may give its peer fewer rights
    /// ([`QueuePair::set_remote_access`](crate::verbs::QueuePair::set_remote_access)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Received messages, and the responses to our Reads and atomics, may be placed in the memory.
        const LOCAL_WRITE = 0x01;
        /// The peer may Write to the memory. A registration with this right also needs
        /// [`LOCAL_WRITE`](Self::LOCAL_WRITE). RFC 5042 section 6.3.5 (SEC-112): the right to write is a
        /// separate flag, and gives no right to read.
        const REMOTE_WRITE = 0x02;
        /// The peer may Read from the memory.
        const REMOTE_READ = 0x04;
        /// The peer may perform atomics on the memory (RFC 7306). A registration with this right also needs
        /// [`LOCAL_WRITE`](Self::LOCAL_WRITE).
        const REMOTE_ATOMIC = 0x08;
        /// Memory windows may be bound to the registration.
        const MW_BIND = 0x10;
    }
}

impl Access {
    /// All rights that a peer can have. To a peer, the STag of a registration without any of these rights is
    /// invalid.
    pub const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

    /// Whether these rights contain a right to write, local or remote.
    pub const fn allows_writing(self) -> bool {
        self.intersects(Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC))
    }
}

/// The number of a protection domain: unique in its context, and never sent on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// The number of a stream, unique in its context and never reused. The number is never sent on the wire, and
/// no stream has the number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

/// The stream that accesses registered memory, and its protection domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Accessor {
    /// The protection domain of the stream's queue pair.
    pub pd: PdId,
    /// The number of the stream.
    pub stream: StreamId,
}

/// Where the tagged offsets of a registration start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// At the virtual address of the registration's first byte, as verbs programs expect.
    #[default]
    VirtualAddress,
    /// At an offset that the consumer chooses.
    Iova(u64),
    /// At tagged offset 0.
    Zero,
}

/// How memory is registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterOptions {
    /// The protection domain of the registration.
    pub pd: PdId,
    /// The one stream whose peer may use the registration. If the field is `None`, the peers of all streams
    /// of the protection domain may use the registration.
    ///
    /// RFC 5041 sections 8.2 and 8.3 (DDP-211, DDP-220): the consumer associates the STag with a domain or a
    /// stream.
    pub stream: Option<StreamId>,
    /// The rights of local requests and of peers. The rights of peers to write and to do atomics need
    /// [`Access::LOCAL_WRITE`].
    pub access: Access,
    /// Where tagged offsets start.
    pub base: Base,
    /// The eight bits of the STag that the consumer chooses.
    pub key: u8,
    /// If `true`, no peer may invalidate the STag, even if only one stream may use the STag (RFC 5042 section
    /// 6.4.5).
    pub keep: bool,
}

/// The two types of memory windows in the verbs API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// A window for all streams that may use its region: all streams of the protection domain, or the one
    /// stream of the region. The consumer may bind the window again, or unbind the window, at any time. No
    /// peer may invalidate the window.
    Type1,
    /// A window for the one stream whose queue pair bound the window. The window can be bound again only when
    /// it is no longer valid: after that queue pair or its peer has invalidated the window, or after the
    /// region has become invalid.
    Type2,
}

/// Why memory could not be registered, registered again, or prepared for fast registration, or why a window
/// could not be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The memory for fast registration has no bytes.
    #[error("memory for fast registration needs at least one byte")]
    Empty,
    /// The table already has its maximum number of registrations.
    #[error("limit reached: max_mr = {max_mr}")]
    Limit {
        /// Maximum number of registrations.
        max_mr: usize,
    },
    /// The options ask for remote write or atomic access without local write access. The verbs API also
    /// refuses these options.
    #[error("remote write and atomic access need local write access")]
    RemoteWithoutLocalWrite,
    /// The options ask for a right to write to the caller's memory, which was registered for reading only.
    #[error("the memory was registered for reading only")]
    ReadOnly,
    /// The rights contain bits that do not stand for any right.
    #[error("the rights contain bits without a meaning")]
    UnknownRights,
    /// The table already has its maximum number of memory windows.
    #[error("limit reached: max_mw = {max_mw}")]
    WindowLimit {
        /// Maximum number of memory windows.
        max_mw: usize,
    },
    /// A memory window is bound to the registration, so the rights of the registration cannot be changed.
    #[error("memory windows are bound to the region: unbind or invalidate them first")]
    Bound,
    /// Some of the caller's memory is not mapped, or lies beyond the end of the file that is mapped there.
    #[error("no memory is mapped at {at:#x}")]
    NotMapped {
        /// The address of a byte that is not mapped or is beyond the end of its file. If the process cannot
        /// read `/proc/self/maps`, `at` is the address of the memory's first byte.
        at: u64,
    },
    /// The mapping of the caller's memory does not allow the access.
    #[error("the memory at {at:#x} may not be read, or not be written as the rights ask")]
    Protected {
        /// The address of the first byte whose mapping does not allow the access. If the process cannot read
        /// `/proc/self/maps`, `at` is the address of the memory's first byte.
        at: u64,
    },
    /// The library cannot determine whether the caller's memory is mapped.
    #[error(
        "the mappings of this process cannot be read (/proc/self/maps), and the kernel is older than Linux 5.14: mount /proc"
    )]
    Unverified,
    /// The system refused to install the signal handler of the fault guard.
    #[error("no handler for faults can be installed: set UserMemory::Trusted to go without")]
    NoGuard,
    /// The caller is a child of the process that made the table.
    #[error("this process was forked from the one that made the context: make a context of its own")]
    Forked,
    /// Peers of another protection domain may write to the same memory, and the table forbids such overlap.
    #[error(
        "{writers} STags of other protection domains let peers write to this memory: deregister them first, \
         or allow it (ContextConfig::strict_overlap)"
    )]
    Overlap {
        /// Number of STags of other protection domains that let peers write to the memory.
        writers: usize,
    },
    /// The tagged offsets would exceed 2^64 - 1.
    #[error("the tagged offsets of the range would wrap")]
    BaseWraps,
}

/// Checks that the rights are known and consistent with each other, and that the memory allows the rights.
pub(super) fn check_rights(access: Access, writable: bool) -> Result<(), RegisterError> {
    if !Access::all().contains(access) {
        return Err(RegisterError::UnknownRights);
    }
    if access.allows_writing() && !access.contains(Access::LOCAL_WRITE) {
        return Err(RegisterError::RemoteWithoutLocalWrite);
    }
    if access.allows_writing() && !writable {
        return Err(RegisterError::ReadOnly);
    }
    Ok(())
}
