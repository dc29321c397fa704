//! The messages of two iwperfs after the test: costs, and errors found by validation.
//!
//! Each side sends one big-endian message on the control connection: `cost`, 1 byte (1 if interrupted), 3
//! reserved bytes, busy cycles (8), cycles per second (8), bytes placed (8), messages checked (8), and the
//! first error in UTF-8. If there was no error, the text of the error is empty.

use crate::endpoint::Endpoint;
use crate::errors::Error;
use crate::path::Path;
use crate::perftest::exchange::MESSAGE_BYTES;

const MAGIC: &[u8; 4] = b"cost";
const HEADER_BYTES: usize = 40;

/// The final message of one side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FinalReport {
    /// Number of cycles spent on frames since the engine was created.
    pub busy_cycles: u64,
    /// Cycles per second.
    pub hz: u64,
    /// Number of bytes placed into the side's registered memory.
    pub placed_bytes: u64,
    /// Number of messages that validation checked.
    pub messages_checked: u64,
    /// True if a signal has ended this side's run early.
    pub interrupted: bool,
    /// The first error that validation found.
    pub first_error: Option<String>,
}

impl FinalReport {
    /// Makes the final message of this side.
    pub fn of(end: &Endpoint, path: &Path) -> Self {
        let counters = end.driver.counters();
        Self {
            busy_cycles: counters.busy_cycles,
            hz: end.clock.hz(),
            placed_bytes: counters.rx_placed_bytes,
            messages_checked: path.messages_checked,
            interrupted: end.driver.is_concluding(),
            first_error: path.first_error.clone(),
        }
    }

    /// Adds up the messages of two peers that ran at the same time on one machine. Keeps the first error.
    pub fn merged(self, other: Self) -> Self {
        Self {
            busy_cycles: self.busy_cycles + other.busy_cycles,
            hz: self.hz,
            placed_bytes: self.placed_bytes + other.placed_bytes,
            messages_checked: self.messages_checked + other.messages_checked,
            interrupted: self.interrupted || other.interrupted,
            first_error: self.first_error.or(other.first_error),
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let Self { busy_cycles, hz, placed_bytes, messages_checked, interrupted, first_error } = self;
        let mut out = MAGIC.to_vec();
        out.extend([u8::from(*interrupted), 0, 0, 0]);
        for number in [busy_cycles, hz, placed_bytes, messages_checked] {
            out.extend(number.to_be_bytes());
        }
        out.extend(first_error.iter().flat_map(|text| text.bytes()).take(MESSAGE_BYTES - HEADER_BYTES));
        out
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// Returns [`Error::Exchange`] if the message is malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let Some((header, first_error)) =
            bytes.split_at_checked(HEADER_BYTES).filter(|(h, _)| h.starts_with(MAGIC))
        else {
            return Err(Error::Exchange("the closing report is malformed".into()));
        };
        let number = |n: usize| u64::from_be_bytes(std::array::from_fn(|i| header[8 + 8 * n + i]));
        let text: String = String::from_utf8_lossy(first_error).chars().filter(|c| !c.is_control()).collect();
        Ok(Self {
            busy_cycles: number(0),
            hz: number(1),
            placed_bytes: number(2),
            messages_checked: number(3),
            interrupted: header[4] == 1,
            first_error: (!text.is_empty()).then_some(text),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_comes_back_as_it_was() {
        for first_error in [None, Some("message 3 differs at byte 7".to_string())] {
            let extra = FinalReport {
                busy_cycles: 1,
                hz: 2,
                placed_bytes: 3,
                messages_checked: 4,
                interrupted: true,
                first_error,
            };
            assert_eq!(FinalReport::decode(&extra.encode()).unwrap(), extra);
        }
    }

    #[test]
    fn a_long_complaint_still_fits_a_message() {
        let extra = FinalReport { first_error: Some("x".repeat(1000)), ..FinalReport::default() };
        assert_eq!(extra.encode().len(), MESSAGE_BYTES);
    }

    #[test]
    fn anything_else_is_refused() {
        assert!(FinalReport::decode(b"cost").is_err());
        assert!(FinalReport::decode(&[0; 64]).is_err());
    }
}
