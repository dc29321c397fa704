//! The flaws of the small endpoint.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,

    /// Accepts any key in a startup frame.
    AnyKey,
    /// Accepts a PD_Length of up to 65535.
    AnyLength,
    /// Accepts any revision in a startup frame.
    AnyRevision,
    /// Clears flag S in its Replies.
    ForgetsEnhanced,
    /// Swaps the bytes of IRD and ORD.
    SwapsDepths,
    /// Offers no kind of RTR.
    NoRtrKind,
    /// Sends an FPDU immediately after its Reply or Request.
    TalksFirst,
    /// Sets flag R in its Requests.
    RequestRejects,
    /// Sets a reserved flag in its startup frames.
    ReservedFlag,
    /// Sends its RTR after its first Send.
    LateRtr,
    /// Sends its RTR twice.
    TwoRtrs,
    /// Always sends a Write as RTR, even if both sides agreed on another kind.
    RtrAlwaysWrite,
    /// Continues after a Reply with flag R.
    TalksAfterReject,
    /// Sends no markers although the probe asked for them.
    NoMarkers,
    /// Announces a larger IRD and ORD than the probe requested.
    GreedyDepths,

    /// Accepts FPDUs with any CRC.
    IgnoresCrc,
    /// Sends FPDUs with a wrong CRC.
    BadCrc,
    /// Places the bytes of a Write before it checks the CRC.
    PlacesBeforeCrc,
    /// Sends FPDUs whose pad is not zero.
    BadPad,

    /// Closes instead of sending a Terminate.
    NoTerminate,
    /// Terminates with code 0/0/00 after every error.
    OneCode,
    /// Sends Terminates in siw's bit order.
    Swapped,
    /// Echoes a header that differs from the header with the error.
    WrongEcho,
    /// Echoes only ten bytes of a header.
    ShortEcho,
    /// Reports a segment length without the header.
    ShortLength,
    /// Continues after its Terminate.
    NeverStops,
    /// Answers a Terminate with a Terminate.
    AnswersTerminate,
    /// Begins with MSN 0 on queue 2.
    MsnFromZero,

    /// Refuses segments with reserved bits set.
    ChecksReserved,
    /// Sets a reserved bit of DDP.
    SetsReserved,
    /// Sends Sends with RDMAP version 0.
    VersionZero,
    /// Checks the STag of empty Writes.
    ChecksEmptyWrites,
    /// Answers Reads of no bytes with a wrong sink.
    WrongSink,
    /// Sends all untagged messages with MSN 1.
    MsnStands,
    /// Uses queue 3 for its Sends.
    WrongQueue,
    /// Does not set flag L at the end of messages of several segments.
    NoLast,
    /// Sets flag L in every segment.
    AlwaysLast,
    /// Sends Sends with an Invalidate STag.
    StagInSends,
    /// Repeats the TO or MO of a message's first segment in all its segments.
    OffsetStands,
    /// Sends several Writes and Sends in reverse order.
    PostsInReverse,
    /// Sends immediate data in the wrong byte order.
    ImmediateSwapped,
    /// Posts more Reads than the agreed ORD.
    IgnoresOrd,
    /// Does not wait at a fence.
    IgnoresFence,
    /// Closes before it has sent all posted messages.
    ClosesEarly,

    /// Answers Reads that arrived together in reverse order.
    AnswersInReverse,
    /// Carries over field boundaries in a FetchAdd.
    CarriesOver,
    /// Sends Atomic Responses with identifier 0.
    NoIdentifier,
    /// Executes atomics on regions that do not allow atomics.
    AtomicsWithoutRight,
    /// Serves Reads of regions that do not allow Reads.
    ReadsWithoutRight,
    /// Places Writes into regions that do not allow Writes.
    WritesWithoutRight,
    /// Checks only whether the first byte is within the bounds.
    NoEnd,
    /// Delivers a message when its first segment has arrived.
    DeliversEarly,
    /// Consumes two receives for a Send.
    TakesTwoReceives,
    /// Consumes a receive for a Write.
    DeliversWrites,
    /// Completes a Read when all its bytes have arrived, even without flag L.
    CompletesEarly,
    /// Raises a solicited event for every receive.
    AlwaysSolicited,
    /// Never invalidates an STag.
    NeverInvalidates,
    /// Delivers messages that follow an error.
    DeliversAfterError,

    /// Ends after two connections.
    Dies,
    /// Sends nothing after two connections, but TCP still accepts connections.
    Hangs,
}
