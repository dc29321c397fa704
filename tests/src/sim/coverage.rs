//! Counts each fault of the wire and each event of the protocols, by name. A simulator that never injects a
//! fault finds nothing, so the ordinary test fails when a name never occurs.

use std::fmt;

macro_rules! sights {
    ($($(#[$about:meta])* $name:ident $text:literal,)*) => {
        /// A fault or a protocol event that can occur in a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sight {
            $($(#[$about])* #[doc = $text] $name,)*
        }

        /// All of them, with their descriptions.
        pub const SIGHTS: &[(Sight, &str)] = &[$((Sight::$name, $text),)*];
    };
}

sights! {
    LostByChance "wire: lost by chance",
    LostInBurst "wire: lost in a burst",
    LostByName "wire: selected segment lost",
    LostInBlackout "wire: lost in a blackout",
    LostWithoutCarrier "wire: lost while the link was down",
    LostForRoom "wire: lost at a full queue",
    TooBigTold "wire: too big for the MTU, reported to the sender",
    TooBigUntold "wire: too big for the MTU, dropped silently",
    HeldBack "wire: delayed",
    Doubled "wire: duplicated",
    DamagedSeen "wire: corrupted, wrong checksum",
    DamagedUnseen "wire: corrupted, correct checksum",
    Cut "wire: segment split",
    Joined "wire: segments joined by a middlebox",
    JoinedByPort "wire: segments joined by the port (LRO)",
    Marked "wire: congestion marked",
    TakenBack "wire: bytes reneged on after a SACK",
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
    LostForBuffers "host: frame lost, as no buffer was free",
    Timeout "tcp: retransmission timeout",
    TailProbe "tcp: tail loss probe",
    Recovery "tcp: fast recovery",
    RepairLost "tcp: retransmission found lost",
    Reordering "tcp: reordering seen",
    TimeoutUndoneByTime "tcp: timeout undone with timestamps (Eifel)",
    TimeoutUndoneByOrder "tcp: timeout undone without timestamps (F-RTO, D-SACK)",
    RecoveryUndone "tcp: fast recovery undone",
    DuplicateHeard "tcp: D-SACK received",
    DuplicateTold "tcp: D-SACK sent",
    ThreeBlocks "tcp: three SACK blocks sent",
    FourBlocks "tcp: four SACK blocks sent",
    ZeroWindow "tcp: window closed",
    WindowProbe "tcp: closed window probed",
    CutByPersist "tcp: segment cut by the persist timer",
    CutByEmss "tcp: segment cut for a smaller EMSS",
    CookieSent "tcp: SYN cookie sent",
    CookieTaken "tcp: SYN cookie accepted",
    Challenge "tcp: challenge ACK",
    OldTimestamp "tcp: dropped for an old timestamp (PAWS)",
    BadChecksum "tcp: dropped for its checksum",
    MarksHeard "tcp: window reduced for congestion marks",
    SynAgain "tcp: SYN or SYN-ACK retransmitted",
    FinAgain "tcp: FIN retransmitted",
    Reset "tcp: RST sent",
    SimultaneousOpen "tcp: simultaneous open",
    SimultaneousClose "tcp: simultaneous close",
    TimeWaitReused "tcp: ports reused out of TIME-WAIT",
    WithoutSack "tcp: connection without SACK",
    WithoutTimestamps "tcp: connection without timestamps",
    StockPeer "tcp: connection with smoltcp",
    PlacedEarly "iwarp: FPDU placed before a hole was filled",
    Markers "iwarp: connection with markers",
    WithoutCrc "iwarp: connection without CRC",
    TerminateSent "iwarp: Terminate sent",
    TerminateHeard "iwarp: Terminate received",
    CrcError "iwarp: wrong CRC under a correct checksum",
    AccessError "iwarp: remote access refused",
    Aborted "iwarp: aborted",
    ClosedEarly "iwarp: closed with work outstanding",
    DepthReached "iwarp: limit of outstanding Reads reached",
}

const COUNT: usize = SIGHTS.len();

/// How often each occurred in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Coverage([u64; COUNT]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; COUNT])
    }
}

impl fmt::Debug for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = SIGHTS.iter().filter(|(sight, _)| self.times(*sight) > 0);
        f.debug_map().entries(seen.map(|(sight, text)| (text, self.times(*sight)))).finish()
    }
}

impl Coverage {
    /// Counts `times` occurrences.
    pub fn saw(&mut self, sight: Sight, times: u64) {
        self.0[sight as usize] += times;
    }

    /// Counts one occurrence if `it` is true.
    pub fn saw_if(&mut self, sight: Sight, it: bool) {
        self.saw(sight, u64::from(it));
    }

    /// How often it occurred.
    pub fn times(&self, sight: Sight) -> u64 {
        self.0[sight as usize]
    }

    /// Adds the counts of another.
    pub fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, times)| *own += times);
    }
}

/// How often each occurred in many runs, and in how many of them.
#[derive(Clone, Debug, Default)]
pub struct Sightings {
    runs: u64,
    times: Coverage,
    runs_with: Coverage,
}

impl Sightings {
    /// Adds a run.
    pub fn add(&mut self, run: &Coverage) {
        self.runs += 1;
        self.times.join(run);
        self.runs_with.join(&Coverage(run.0.map(|times| u64::from(times > 0))));
    }

    /// Adds other runs.
    pub fn join(&mut self, other: &Self) {
        self.runs += other.runs;
        self.times.join(&other.times);
        self.runs_with.join(&other.runs_with);
    }

    /// Descriptions of those that never occurred.
    pub fn missing(&self) -> Vec<&'static str> {
        SIGHTS.iter().filter(|(sight, _)| self.times.times(*sight) == 0).map(|(_, text)| *text).collect()
    }
}

impl fmt::Display for Sightings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<52} {:>9} {:>12} {:>14}", "what", "runs", "times", "per 1000 runs")?;
        for (sight, text) in SIGHTS {
            let (runs, times) = (self.runs_with.times(*sight), self.times.times(*sight));
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
        let (mut run, mut all) = (Coverage::default(), Sightings::default());
        run.saw(Sight::Cut, 3);
        run.saw_if(Sight::Joined, false);
        all.add(&run);
        all.add(&Coverage::default());
        let mut both = Sightings::default();
        both.join(&all);
        assert_eq!((both.runs, both.times.times(Sight::Cut), both.runs_with.times(Sight::Cut)), (2, 3, 1));
        assert_eq!(both.missing().len(), COUNT - 1);
        assert!(both.missing().contains(&"wire: segments joined by a middlebox"));
    }
}
