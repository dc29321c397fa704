//! The catalogue of attacks: for each resource of RFC 5042 section 2.2, the messages that attack the
//! resource, and the Terminate that answers each message.

use iwarp::rdmap::TerminateError;

use super::ulpdu::{self, read_request, untagged};

/// The part of the failing message that the Terminate contains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Echo {
    Nothing,
    Header,
    ReadRequest,
}

/// The resource at which an attack aims (sections 2.2.1 to 2.2.8).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Resource {
    StreamContext,
    DataBuffers,
    /// The translation tables of the RFC. This implementation has no page tables, so these attacks aim at the
    /// table of STags.
    TranslationTables,
    ProtectionDomain,
    StagNamespace,
    CompletionQueue,
    AsyncEvents,
    ReadRequests,
}

impl Resource {
    pub(crate) const ALL: [Self; 8] = [
        Self::StreamContext,
        Self::DataBuffers,
        Self::TranslationTables,
        Self::ProtectionDomain,
        Self::StagNamespace,
        Self::CompletionQueue,
        Self::AsyncEvents,
        Self::ReadRequests,
    ];
}

/// What is wrong with the message of an attack (section 2.1). Each `AttackMethod` has at least one attack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AttackMethod {
    /// `Stag` to `Domain`: the message names memory by an STag. The message is tagged, is a Read Request, or
    /// is a Send that invalidates the STag.
    Stag,
    Rights,
    Bounds,
    Wrap,
    Domain,
    /// For `Queue` to `Length`, the message is untagged.
    Queue,
    Number,
    Offset,
    Length,
    /// The error does not depend on the buffer that the message names. For example, a version is wrong.
    Form,
}

impl AttackMethod {
    pub(crate) const ALL: [Self; 10] = [
        Self::Stag,
        Self::Rights,
        Self::Bounds,
        Self::Wrap,
        Self::Domain,
        Self::Queue,
        Self::Number,
        Self::Offset,
        Self::Length,
        Self::Form,
    ];
}

/// The STag and the tagged offset of memory. The peer knows both values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Name {
    pub(crate) stag: u32,
    pub(crate) to: u64,
}

/// The memory whose STags the peer knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Names {
    /// Memory that is exposed to the peer for reading and writing.
    pub(crate) mine: Name,
    /// Memory that is exposed only to another peer.
    pub(crate) others: Name,
    /// Memory that is exposed to the peer only for writing.
    pub(crate) unreadable: Name,
}

/// A message that the engine must refuse. The refusal ends the stream on which the message was sent.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) on: Resource,
    pub(crate) by: AttackMethod,
    pub(crate) error: TerminateError,
    pub(crate) echo: Echo,
    /// Valid messages that are sent before `ulpdu`.
    pub(crate) before: Vec<Vec<u8>>,
    pub(crate) ulpdu: Vec<u8>,
}

/// The name of an attack, the resource at which the attack aims, and what is wrong with its message.
struct Target {
    name: &'static str,
    on: Resource,
    by: AttackMethod,
}

impl Target {
    /// Returns the attack that sends `ulpdu`, after which the stream has to end with `error`.
    fn ends(self, error: TerminateError, echo: Echo, ulpdu: Vec<u8>) -> Attack {
        let Self { name, on, by } = self;
        Attack { name, on, by, error, echo, before: Vec::new(), ulpdu }
    }
}

/// Returns a tagged segment with `len` bytes of payload.
pub(crate) fn tagged(control: [u8; 2], stag: u32, to: u64, len: usize) -> Vec<u8> {
    ulpdu::tagged(control, stag, to, &vec![7; len])
}

/// Returns a Read Request for `size` bytes of `source`.
pub(crate) fn read(source: Name, size: u32) -> Vec<u8> {
    read_request(1, (9, 0), size, (source.stag, source.to))
}

/// Returns all attacks, for a stream whose peer knows `names` and that has one receive request of 64 bytes.
pub(crate) fn catalogue(names: &Names) -> Vec<Attack> {
    use AttackMethod::{Bounds, Domain, Form, Length, Number, Offset, Queue, Rights, Stag, Wrap};
    use Echo::{Header, Nothing, ReadRequest};
    use Resource::{
        AsyncEvents, CompletionQueue, DataBuffers, ProtectionDomain, ReadRequests, StagNamespace,
        StreamContext, TranslationTables,
    };
    use TerminateError as E;
    const WRITE: [u8; 2] = [0xc1, 0x40];
    const SEND: [u8; 2] = [0x41, 0x43];
    let Names { mine, others, unreadable } = *names;
    let unknown = Name { stag: mine.stag ^ 0x5a5a_5a00, ..mine };
    let end = Name { to: mine.to.wrapping_add(4095), ..mine };
    let top = Name { to: u64::MAX - 1, ..mine };
    let write = |name: Name, len| tagged(WRITE, name.stag, name.to, len);
    let send = |place, payload: &[u8]| untagged(SEND, 0, place, payload);
    let case = |name, on, by| Target { name, on, by };
    vec![
        case("a CRC that is wrong", StreamContext, Form).ends(E::MpaCrc, Nothing, write(mine, 4)),
        case("Write, unknown STag", StagNamespace, Stag).ends(E::DdpInvalidStag, Header, write(unknown, 4)),
        case("Write beyond the end", DataBuffers, Bounds).ends(E::DdpBounds, Header, write(end, 2)),
        case("Write to another's STag", ProtectionDomain, Domain).ends(
            E::DdpNotAssociated,
            Header,
            write(others, 4),
        ),
        case("Write that wraps", TranslationTables, Wrap).ends(E::DdpToWrap, Header, write(top, 4)),
        case("tagged DDP version", StreamContext, Form).ends(
            E::DdpTaggedVersion,
            Header,
            tagged([0xc2, 0x40], mine.stag, mine.to, 4),
        ),
        case("queue 9", StreamContext, Queue).ends(E::DdpInvalidQn, Header, send([9, 1, 0], b"")),
        Attack {
            before: vec![send([0, 1, 0], b"takes the buffer")],
            ..case("second Send for one buffer", CompletionQueue, Number).ends(
                E::DdpNoBuffer,
                Header,
                send([0, 2, 0], b"x"),
            )
        },
        case("message number 0", StreamContext, Number).ends(E::DdpMsnRange, Header, send([0, 0, 0], b"x")),
        case("offset behind the buffer", DataBuffers, Offset).ends(
            E::DdpInvalidMo,
            Header,
            send([0, 1, 65], b"x"),
        ),
        case("too long a Send", DataBuffers, Length).ends(E::DdpTooLong, Header, send([0, 1, 0], &[1; 65])),
        case("untagged DDP version", StreamContext, Form).ends(
            E::DdpUntaggedVersion,
            Header,
            untagged([0x42, 0x43], 0, [0, 1, 0], b"x"),
        ),
        case("Read, unknown STag", StagNamespace, Stag).ends(
            E::ReadInvalidStag,
            ReadRequest,
            read(unknown, 4),
        ),
        case("Read beyond the end", DataBuffers, Bounds).ends(E::ReadBounds, ReadRequest, read(end, 2)),
        case("Read of what is not readable", DataBuffers, Rights).ends(
            E::ReadAccessRights,
            ReadRequest,
            read(unreadable, 4),
        ),
        case("Read of another's STag", ProtectionDomain, Domain).ends(
            E::ReadNotAssociated,
            ReadRequest,
            read(others, 4),
        ),
        case("Read that wraps", TranslationTables, Wrap).ends(E::ReadToWrap, ReadRequest, read(top, 4)),
        case("invalidates another's STag", StagNamespace, Stag).ends(
            E::CannotInvalidate,
            Header,
            untagged([0x41, 0x44], others.stag, [0, 1, 0], b""),
        ),
        case("RDMAP version", StreamContext, Form).ends(
            E::RdmapVersion,
            Header,
            untagged([0x41, 0x83], 0, [0, 1, 0], b"x"),
        ),
        case("Send in the queue of Reads", ReadRequests, Queue).ends(
            E::UnexpectedOpcode,
            Header,
            send([1, 1, 0], &[0; 28]),
        ),
        case("a Read Response nobody waits for", AsyncEvents, Form).ends(
            E::UnexpectedOpcode,
            Header,
            tagged([0xc1, 0x42], mine.stag, mine.to, 4),
        ),
        case("a short Read Request", ReadRequests, Length).ends(
            E::OperationUnspecified,
            Header,
            untagged([0x41, 0x41], 0, [1, 1, 0], &[0; 27]),
        ),
    ]
}
