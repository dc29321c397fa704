//! What happened in runs: each fault of the wire and each event of the protocols has a name, and is counted.
//! A simulator that never does what it says finds nothing: the ordinary test fails when a name never occurs.

use std::fmt;

macro_rules! sights {
    ($($(#[$about:meta])* $name:ident $text:literal,)*) => {
        /// Something that can happen in a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sight {
            $($(#[$about])* #[doc = $text] $name,)*
        }

        /// All of them, with their words.
        pub const SIGHTS: &[(Sight, &str)] = &[$((Sight::$name, $text),)*];
    };
}

sights! {
    LostByChance "wire: lost by chance",
    LostInBurst "wire: lost in a burst",
    LostByName "wire: lost by name",
    LostInBlackout "wire: lost in a blackout",
    LostWithoutCarrier "wire: lost without carrier",
    LostForRoom "wire: lost at a full queue",
    TooBigTold "wire: too big for the MTU, the sender is told",
    TooBigUntold "wire: too big for the MTU, nobody is told",
    HeldBack "wire: held back",
    Doubled "wire: doubled",
    DamagedSeen "wire: damaged, the checksum shows it",
    DamagedUnseen "wire: damaged, the checksum is good",
    Cut "wire: segment cut",
    Joined "wire: segments joined on the way",
    JoinedByPort "wire: segments joined by the port",
    Marked "wire: congestion marked",
    TakenBack "wire: acknowledged selectively, then taken back",
    ForgedReset "wire: forged RST in the window",
    ForgedSyn "wire: forged SYN",
    ForgedData "wire: forged data with a wrong acknowledgement",
    ForgedOld "wire: forged data with an old timestamp",
    ForgedTooBig "wire: forged Packet Too Big",
    ForgedUnreachable "wire: forged Destination Unreachable",
    PortStuck "host: the port took nothing",
    NoBuffers "host: no buffer free",
    HostStopped "host: stopped",
    LostAtStopped "host: frame lost, as too many waited while it was stopped",
    LostForBuffers "host: frame lost for want of a buffer",
    Timeout "tcp: retransmission timeout",
    TailProbe "tcp: tail loss probe",
    Recovery "tcp: fast recovery",
    RepairLost "tcp: retransmission found lost",
    Reordering "tcp: reordering seen",
    TimeoutUndoneByTime "tcp: timeout taken back, with timestamps (Eifel)",
    TimeoutUndoneByOrder "tcp: timeout taken back, without (F-RTO, D-SACK)",
    RecoveryUndone "tcp: fast recovery taken back",
    DuplicateHeard "tcp: D-SACK received",
    DuplicateTold "tcp: D-SACK sent",
    ThreeBlocks "tcp: three SACK blocks sent",
    FourBlocks "tcp: four SACK blocks sent",
    ZeroWindow "tcp: window closed",
    WindowProbe "tcp: closed window probed",
    CutByPersist "tcp: segment cut by the persist timer",
    CutByEmss "tcp: segment cut for a smaller EMSS",
    CookieSent "tcp: SYN cookie sent",
    CookieTaken "tcp: SYN cookie taken",
    Challenge "tcp: challenge ACK",
    OldTimestamp "tcp: dropped for an old timestamp (PAWS)",
    BadChecksum "tcp: dropped for its checksum",
    MarksHeard "tcp: window reduced for congestion marks",
    SynAgain "tcp: SYN or SYN-ACK sent again",
    FinAgain "tcp: FIN sent again",
    Reset "tcp: RST sent",
    SimultaneousOpen "tcp: simultaneous open",
    SimultaneousClose "tcp: simultaneous close",
    TimeWaitReused "tcp: ports used again out of TIME-WAIT",
    WithoutSack "tcp: connection without SACK",
    WithoutTimestamps "tcp: connection without timestamps",
    StockPeer "tcp: connection with smoltcp",
    PlacedEarly "iwarp: FPDU placed in front of a hole's end",
    Markers "iwarp: connection with markers",
    WithoutCrc "iwarp: connection without CRC",
    TerminateSent "iwarp: Terminate sent",
    TerminateHeard "iwarp: Terminate received",
    CrcError "iwarp: wrong CRC under a good checksum",
    AccessError "iwarp: remote access refused",
    Aborted "iwarp: aborted",
    ClosedEarly "iwarp: closed with work outstanding",
    DepthReached "iwarp: as many Reads outstanding as may be",
}

const COUNT: usize = SIGHTS.len();

/// How often each thing happened in a run.
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
    /// It happened so often.
    pub fn saw(&mut self, sight: Sight, times: u64) {
        self.0[sight as usize] += times;
    }

    /// It happened where `it` is so.
    pub fn saw_if(&mut self, sight: Sight, it: bool) {
        self.saw(sight, u64::from(it));
    }

    /// How often it happened.
    pub fn times(&self, sight: Sight) -> u64 {
        self.0[sight as usize]
    }

    /// Adds what another has seen.
    pub fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, times)| *own += times);
    }
}

/// How often each thing happened in many runs, and in how many of them.
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

    /// What never happened.
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
        assert!(both.missing().contains(&"wire: segments joined on the way"));
    }
}
