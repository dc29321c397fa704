//! The flaws of the small endpoint.

/// A flaw. Each is implemented in one place of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Nothing.
    None,

    /// Takes any key.
    AnyKey,
    /// Takes PD_Length up to 65535.
    AnyLength,
    /// Takes any revision in a Reply.
    AnyRevision,
    /// Clears S in its Replies.
    ForgetsEnhanced,
    /// Swaps the bytes of IRD and ORD.
    SwapsDepths,
    /// Names no kind of RTR.
    NoRtrKind,
    /// Sends an FPDU right behind its Reply, or its Request.
    TalksFirst,
    /// Sets R in its Requests.
    RequestRejects,
    /// Sets a reserved flag in its startup frames.
    ReservedFlag,
    /// Sends its RTR behind its first Send.
    LateRtr,
    /// Sends its RTR twice.
    TwoRtrs,
    /// The RTR is always a Write, even if another kind was agreed on.
    RtrAlwaysWrite,
    /// Continues after a Reply with R.
    TalksAfterReject,
    /// Sends no markers though it was asked to.
    NoMarkers,
    /// Announces a larger IRD and ORD than requested.
    GreedyDepths,

    /// Takes FPDUs with any CRC.
    IgnoresCrc,
    /// The CRCs of sent FPDUs are wrong.
    BadCrc,
    /// Places Writes before their CRC is looked at.
    PlacesBeforeCrc,
    /// The pad of sent FPDUs is not zero.
    BadPad,

    /// Closes instead of sending a Terminate.
    NoTerminate,
    /// Terminates with code 0/0/00 after every error.
    OneCode,
    /// siw's bit order.
    Swapped,
    /// Echoes a header that is not the failing one's.
    WrongEcho,
    /// Echoes ten bytes of a header.
    ShortEcho,
    /// Segment length without the header.
    ShortLength,
    /// Continues after its Terminate.
    NeverStops,
    /// Answers a Terminate by a Terminate.
    AnswersTerminate,
    /// Counts queue 2 from 0.
    MsnFromZero,

    /// Looks at reserved bits.
    ChecksReserved,
    /// Sets a reserved bit of DDP.
    SetsReserved,
    /// Sends have RDMAP version 0.
    VersionZero,
    /// Looks at the STag of empty Writes.
    ChecksEmptyWrites,
    /// Answers Reads of no bytes from the wrong place.
    WrongSink,
    /// Sends everything untagged under MSN 1.
    MsnStands,
    /// Uses queue 3 for its Sends.
    WrongQueue,
    /// Leaves L out at the end of messages of several segments.
    NoLast,
    /// Sets L in every segment.
    AlwaysLast,
    /// Sends have an Invalidate STag.
    StagInSends,
    /// TO and MO of each segment are those of the first segment.
    OffsetStands,
    /// Sends the last of several Writes and Sends first.
    PostsInReverse,
    /// Immediate data is sent in the wrong byte order.
    ImmediateSwapped,
    /// Posts more Reads than the agreed number.
    IgnoresOrd,
    /// Does not wait at a fence.
    IgnoresFence,
    /// Closes before all is sent.
    ClosesEarly,

    /// Answers Reads that came together in the wrong order.
    AnswersInReverse,
    /// FetchAdd carries over field boundaries.
    CarriesOver,
    /// Atomic Responses have identifier 0.
    NoIdentifier,
    /// Atomics need no right.
    AtomicsWithoutRight,
    /// Reads need no right.
    ReadsWithoutRight,
    /// Writes need no right.
    WritesWithoutRight,
    /// Checks bounds only for the first byte.
    NoEnd,
    /// Delivers a message with its first segment.
    DeliversEarly,
    /// A Send uses up two receives.
    TakesTwoReceives,
    /// Writes use up receives.
    DeliversWrites,
    /// Completes a Read when its bytes have arrived.
    CompletesEarly,
    /// Every receive raises a solicited event.
    AlwaysSolicited,
    /// Invalidates nothing.
    NeverInvalidates,
    /// Delivers behind an error.
    DeliversAfterError,

    /// Disappears after two connections.
    Dies,
    /// Says nothing any more after two connections, but TCP still takes them.
    Hangs,
}
