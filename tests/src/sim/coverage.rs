//! Counts each fault of the wire and each event of the protocols, by name. A simulator that never injects a
//! fault finds nothing, so the ordinary test fails if a name never occurs.

use std::fmt;

macro_rules! occurrences {
    ($($(#[$about:meta])* $name:ident $text:literal,)*) => {
        /// A fault or a protocol event that can occur in a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Occurrence {
            $($(#[$about])* #[doc = $text] $name,)*
        }

        /// All faults and events, with their descriptions.
        pub const OCCURRENCES: &[(Occurrence, &str)] = &[$((Occurrence::$name, $text),)*];
    };
}

occurrences! {
    LostAtRandom "wire: lost by chance",
    LostInBurst "wire: lost in a burst",
    LostBySelection "wire: selected segment lost",
    LostInBlackout "wire: lost in a blackout",
    LostLinkDown "wire: lost while the link was down",
    LostAtFullQueue "wire: lost at a full queue",
    TooBigReported "wire: too big for the MTU, reported to the sender",
    TooBigSilent "wire: too big for the MTU, dropped silently",
    Delayed "wire: delayed",
    Duplicated "wire: duplicated",
    CorruptedWrongChecksum "wire: corrupted, wrong checksum",
    CorruptedCorrectChecksum "wire: corrupted, correct checksum",
    Split "wire: segment split",
    JoinedByMiddlebox "wire: segments joined by a middlebox",
    JoinedByPort "wire: segments joined by the port (LRO)",
    Marked "wire: congestion marked",
    Reneged "wire: bytes reneged on after a SACK",
    ForgedReset "wire: forged RST in the window",
    ForgedSyn "wire: forged SYN",
    ForgedData "wire: forged data with a wrong acknowledgement",
    ForgedOld "wire: forged data with an old timestamp",
    ForgedTooBig "wire: forged Packet Too Big",
    ForgedUnreachable "wire: forged Destination Unreachable",
    PortStuck "host: the port accepted no frames",
    NoBuffers "host: no buffer free",
    HostStopped "host: stopped",
    LostAtStopped "host: frame lost while stopped, as its receive queue was full",
    LostWithoutBuffer "host: frame lost, as no buffer was free",
    Timeout "tcp: retransmission timeout",
    TailProbe "tcp: tail loss probe",
    Recovery "tcp: fast recovery",
    RetransmissionLost "tcp: retransmission found lost",
    Reordering "tcp: reordering seen",
    TimeoutUndoneByTimestamp "tcp: timeout undone with timestamps (Eifel)",
    TimeoutUndoneWithoutTimestamp "tcp: timeout undone without timestamps (F-RTO, D-SACK)",
    RecoveryUndone "tcp: fast recovery undone",
    DsackReceived "tcp: D-SACK received",
    DsackSent "tcp: D-SACK sent",
    ThreeBlocks "tcp: three SACK blocks sent",
    FourBlocks "tcp: four SACK blocks sent",
    ZeroWindow "tcp: window closed",
    WindowProbe "tcp: closed window probed",
    CutByPersist "tcp: segment cut by the persist timer",
    CutByEmss "tcp: segment cut for a smaller EMSS",
    CookieSent "tcp: SYN cookie sent",
    CookieAccepted "tcp: SYN cookie accepted",
    ChallengeAck "tcp: challenge ACK",
    OldTimestamp "tcp: dropped for an old timestamp (PAWS)",
    BadChecksum "tcp: dropped for its checksum",
    WindowReducedByMarks "tcp: window reduced for congestion marks",
    SynRetransmitted "tcp: SYN or SYN-ACK retransmitted",
    FinRetransmitted "tcp: FIN retransmitted",
    Reset "tcp: RST sent",
    SimultaneousOpen "tcp: simultaneous open",
    SimultaneousClose "tcp: simultaneous close",
    TimeWaitReused "tcp: ports reused out of TIME-WAIT",
    WithoutSack "tcp: connection without SACK",
    WithoutTimestamps "tcp: connection without timestamps",
    SmoltcpPeer "tcp: connection with smoltcp",
    PlacedEarly "iwarp: FPDU placed before a hole was filled",
    Markers "iwarp: connection with markers",
    WithoutCrc "iwarp: connection without CRC",
    HandedOver "tcp: frame of a connection that another engine has",
    ReceiverNotReady "iwarp: message that waits for a receive",
    TerminateSent "iwarp: Terminate sent",
    TerminateReceived "iwarp: Terminate received",
    CrcError "iwarp: wrong CRC under a correct checksum",
    AccessError "iwarp: remote access refused",
    Aborted "iwarp: aborted",
    ClosedEarly "iwarp: closed with work outstanding",
    DepthReached "iwarp: limit of outstanding Reads reached",
}

const COUNT: usize = OCCURRENCES.len();

/// The number of times that each fault and event occurred in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Coverage([u64; COUNT]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; COUNT])
    }
}

impl fmt::Debug for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = OCCURRENCES.iter().filter(|(occurrence, _)| self.times(*occurrence) > 0);
        f.debug_map().entries(seen.map(|(occurrence, text)| (text, self.times(*occurrence)))).finish()
    }
}

impl Coverage {
    /// Counts this fault or event `times` times.
    pub fn count(&mut self, occurrence: Occurrence, times: u64) {
        self.0[occurrence as usize] += times;
    }

    /// Counts this fault or event once if `it` is `true`, and does nothing otherwise.
    pub fn count_if(&mut self, occurrence: Occurrence, it: bool) {
        self.count(occurrence, u64::from(it));
    }

    /// Returns the number of times that this fault or event occurred.
    pub fn times(&self, occurrence: Occurrence) -> u64 {
        self.0[occurrence as usize]
    }

    /// Adds the counts of `other`.
    pub fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, times)| *own += times);
    }
}

/// For each fault and event, the number of times that it occurred in many runs, and the number of runs in
/// which it occurred.
#[derive(Clone, Debug, Default)]
pub struct OccurrenceTotals {
    runs: u64,
    times: Coverage,
    runs_with: Coverage,
}

impl OccurrenceTotals {
    /// Adds the counts of a run.
    pub fn add(&mut self, run: &Coverage) {
        self.runs += 1;
        self.times.join(run);
        self.runs_with.join(&Coverage(run.0.map(|times| u64::from(times > 0))));
    }

    /// Adds the counts of other runs.
    pub fn join(&mut self, other: &Self) {
        self.runs += other.runs;
        self.times.join(&other.times);
        self.runs_with.join(&other.runs_with);
    }

    /// Returns the descriptions of the faults and events that never occurred.
    pub fn missing(&self) -> Vec<&'static str> {
        OCCURRENCES
            .iter()
            .filter(|(occurrence, _)| self.times.times(*occurrence) == 0)
            .map(|(_, text)| *text)
            .collect()
    }
}

impl fmt::Display for OccurrenceTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<52} {:>9} {:>12} {:>14}", "what", "runs", "times", "per 1000 runs")?;
        for (occurrence, text) in OCCURRENCES {
            let (runs, times) = (self.runs_with.times(*occurrence), self.times.times(*occurrence));
            let share = times as f64 * 1000.0 / self.runs.max(1) as f64;
            writeln!(f, "{text:<52} {runs:>9} {times:>12} {share:>14.1}")?;
        }
        write!(f, "{:<52} {:>9}", "all runs", self.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_times_are_counted_apart_and_what_is_missing_is_named() {
        let (mut run, mut all) = (Coverage::default(), OccurrenceTotals::default());
        run.count(Occurrence::Split, 3);
        run.count_if(Occurrence::JoinedByMiddlebox, false);
        all.add(&run);
        all.add(&Coverage::default());
        let mut both = OccurrenceTotals::default();
        both.join(&all);
        assert_eq!(
            (both.runs, both.times.times(Occurrence::Split), both.runs_with.times(Occurrence::Split)),
            (2, 3, 1)
        );
        assert_eq!(both.missing().len(), COUNT - 1);
        assert!(both.missing().contains(&"wire: segments joined by a middlebox"));
    }
}
