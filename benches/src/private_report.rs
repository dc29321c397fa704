//! What two iwperfs tell each other after the test: the cost, and what validation found.
//!
//! One message each on the control connection, big-endian: `cost`, 4 reserved, busy cycles (8), cycles a second (8),
//! octets placed (8), messages checked (8), then the complaint in UTF-8, empty when there is none.

use crate::endpoint::Endpoint;
use crate::errors::Error;
use crate::path::Path;
use crate::perftest::exchange::MESSAGE_OCTETS;

const MAGIC: &[u8; 4] = b"cost";
const HEADER_OCTETS: usize = 40;

/// One end's account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// Cycles spent on frames since the engine was made.
    pub busy_cycles: u64,
    /// Cycles a second.
    pub hz: u64,
    /// Octets placed into its registered memory.
    pub placed_octets: u64,
    /// Messages that validation looked at.
    pub messages_checked: u64,
    /// What it found first.
    pub complaint: Option<String>,
}

impl Extra {
    /// This end's.
    pub fn of(end: &Endpoint, path: &Path) -> Self {
        let counters = end.driver.counters();
        Self {
            busy_cycles: counters.busy_cycles,
            hz: end.clock.hz(),
            placed_octets: counters.rx_placed_octets,
            messages_checked: path.messages_checked,
            complaint: path.complaint.clone(),
        }
    }

    /// Of two peers at the same time, on one machine.
    pub fn merged(self, other: Self) -> Self {
        Self {
            busy_cycles: self.busy_cycles + other.busy_cycles,
            hz: self.hz,
            placed_octets: self.placed_octets + other.placed_octets,
            messages_checked: self.messages_checked + other.messages_checked,
            complaint: self.complaint.or(other.complaint),
        }
    }

    /// As octets.
    pub fn encode(&self) -> Vec<u8> {
        let Self { busy_cycles, hz, placed_octets, messages_checked, complaint } = self;
        let mut out = MAGIC.to_vec();
        out.extend([0; 4]);
        for number in [busy_cycles, hz, placed_octets, messages_checked] {
            out.extend(number.to_be_bytes());
        }
        out.extend(complaint.iter().flat_map(|text| text.bytes()).take(MESSAGE_OCTETS - HEADER_OCTETS));
        out
    }

    /// From octets.
    ///
    /// # Errors
    /// [`Error::Exchange`].
    pub fn decode(octets: &[u8]) -> Result<Self, Error> {
        let Some((header, complaint)) =
            octets.split_at_checked(HEADER_OCTETS).filter(|(h, _)| h.starts_with(MAGIC))
        else {
            return Err(Error::Exchange("the closing report is none".into()));
        };
        let number = |n: usize| u64::from_be_bytes(std::array::from_fn(|i| header[8 + 8 * n + i]));
        let text: String = String::from_utf8_lossy(complaint).chars().filter(|c| !c.is_control()).collect();
        Ok(Self {
            busy_cycles: number(0),
            hz: number(1),
            placed_octets: number(2),
            messages_checked: number(3),
            complaint: (!text.is_empty()).then_some(text),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_comes_back_as_it_was() {
        for complaint in [None, Some("message 3 differs at octet 7".to_string())] {
            let extra = Extra { busy_cycles: 1, hz: 2, placed_octets: 3, messages_checked: 4, complaint };
            assert_eq!(Extra::decode(&extra.encode()).unwrap(), extra);
        }
    }

    #[test]
    fn a_long_complaint_still_fits_a_message() {
        let extra = Extra { complaint: Some("x".repeat(1000)), ..Extra::default() };
        assert_eq!(extra.encode().len(), MESSAGE_OCTETS);
    }

    #[test]
    fn anything_else_is_refused() {
        assert!(Extra::decode(b"cost").is_err());
        assert!(Extra::decode(&[0; 64]).is_err());
    }
}
