//! What a wire does on purpose to the frames that this endpoint sends: the keys `loss`, `delay`, `jitter` and
//! `seed`.

use std::fmt;

/// The loss and the delay of the frames that this endpoint sends. The default loses and delays none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Probability that a frame is lost, in parts per million.
    pub loss_ppm: u32,
    /// Number of microseconds by which each frame is delayed.
    pub delay_us: u32,
    /// Maximum number of microseconds by which the delay of a frame is longer at random.
    pub jitter_us: u32,
    /// Seed of the random losses and delays. `None`: a random seed for each opened wire.
    pub seed: Option<u64>,
}

/// Maximum delay and maximum jitter.
const MAX_US: u32 = 10_000_000;

const PROBABILITY: &str = "probability: use 0 to 1, like 0.01, or 0% to 100%, with steps of a millionth";
const TIME: &str = "time: use us, ms or s and at most 10s, like 500us, 1ms or 0.1s";

impl Impairment {
    /// Sets a key. If the value is invalid, returns what the valid values are. Returns `None` for a key of
    /// another kind.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), &'static str>> {
        match key {
            "loss" => Some(parse_ppm(value).map(|ppm| self.loss_ppm = ppm).ok_or(PROBABILITY)),
            "delay" => Some(parse_us(value).map(|us| self.delay_us = us).ok_or(TIME)),
            "jitter" => Some(parse_us(value).map(|us| self.jitter_us = us).ok_or(TIME)),
            "seed" => Some(value.parse().map(|seed| self.seed = Some(seed)).map_err(|_| "number")),
            _ => None,
        }
    }

    /// Whether frames are lost or delayed.
    pub fn is_some(&self) -> bool {
        self.loss_ppm != 0 || self.delay_us != 0 || self.jitter_us != 0
    }

    /// Returns the seed. If chance decides about frames and there is no seed, chooses a random seed first.
    /// Returns `None` if chance decides nothing.
    pub fn choose_seed(&mut self) -> Option<u64> {
        if self.loss_ppm == 0 && self.jitter_us == 0 {
            return None;
        }
        // A short number is easier to repeat. A system that gives no random number gives the seed 0.
        Some(*self.seed.get_or_insert_with(|| getrandom::u32().unwrap_or_default().into()))
    }
}

/// Parses a probability like `0.01` or `1%` into parts per million.
fn parse_ppm(value: &str) -> Option<u32> {
    let ppm = match value.strip_suffix('%') {
        Some(percent) => parse_decimal(percent, 4),
        None => parse_decimal(value, 6),
    };
    ppm.filter(|&ppm| ppm <= 1_000_000)
}

/// Parses a time like `500us`, `1ms` or `0.1s` into microseconds.
fn parse_us(value: &str) -> Option<u32> {
    // `us` and `ms` also end in `s`, so these suffixes are tried first.
    let units = [("us", 0), ("ms", 3), ("s", 6)];
    let (number, digits) =
        units.iter().find_map(|(unit, digits)| Some((value.strip_suffix(unit)?, *digits)))?;
    parse_decimal(number, digits).filter(|&us| us <= MAX_US)
}

/// Parses a decimal number with at most `digits` digits after the point. Returns the number times the power
/// of ten with the exponent `digits`.
fn parse_decimal(text: &str, digits: usize) -> Option<u32> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (text, ""),
    };
    if whole.is_empty() || fraction.len() > digits {
        return None;
    }
    let zeros = std::iter::repeat_n(b'0', digits - fraction.len());
    whole.bytes().chain(fraction.bytes()).chain(zeros).try_fold(0_u32, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Writes the keys as a part of a specification, each with a comma in front.
impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss_ppm, delay_us, jitter_us, seed } = *self;
        if loss_ppm != 0 {
            let text = format!("{}.{:06}", loss_ppm / 1_000_000, loss_ppm % 1_000_000);
            write!(f, ",loss={}", text.trim_end_matches('0').trim_end_matches('.'))?;
        }
        for (key, us) in [("delay", delay_us), ("jitter", jitter_us)] {
            match us {
                0 => {}
                us if us.is_multiple_of(1_000_000) => write!(f, ",{key}={}s", us / 1_000_000)?,
                us if us.is_multiple_of(1000) => write!(f, ",{key}={}ms", us / 1000)?,
                us => write!(f, ",{key}={us}us")?,
            }
        }
        match seed {
            Some(seed) => write!(f, ",seed={seed}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_and_times_are_exact() {
        for (text, ppm) in [
            ("0", Some(0)),
            ("1", Some(1_000_000)),
            ("1.000000", Some(1_000_000)),
            ("0.01", Some(10_000)),
            ("1%", Some(10_000)),
            ("0.5%", Some(5_000)),
            ("100%", Some(1_000_000)),
            ("0.000001", Some(1)),
            ("0.0001%", Some(1)),
            ("1.000001", None),
            ("100.0001%", None),
            ("0.0000001", None),
            ("5000000000", None),
        ] {
            assert_eq!(parse_ppm(text), ppm, "{text}");
        }
        for text in ["", "%", ".5", "1.", "-0", "+1", "1e-3", "0,1", "0.1.1", "x", "1 %"] {
            assert_eq!(parse_ppm(text), None, "{text}");
        }
        for (text, us) in [
            ("500us", Some(500)),
            ("1ms", Some(1000)),
            ("1.5ms", Some(1500)),
            ("0.1s", Some(100_000)),
            ("10s", Some(10_000_000)),
            ("0us", Some(0)),
            ("10.000001s", None),
            ("0.5us", None),
            ("1.0001ms", None),
            ("5000000000us", None),
            ("1", None),
            ("us", None),
            ("1m", None),
            ("1ns", None),
        ] {
            assert_eq!(parse_us(text), us, "{text}");
        }
    }

    #[test]
    fn only_chance_needs_a_seed() {
        let delay = Impairment { delay_us: 1, ..Impairment::default() };
        let mut delay_only = delay;
        assert_eq!((delay_only.choose_seed(), delay_only), (None, delay));
        for random in [Impairment { loss_ppm: 1, ..delay }, Impairment { jitter_us: 1, ..delay }] {
            let mut chosen = random;
            let seed = chosen.choose_seed();
            assert!(seed.is_some());
            assert_eq!((chosen.choose_seed(), chosen), (seed, Impairment { seed, ..random }));
            let mut given = Impairment { seed: Some(7), ..random };
            assert_eq!(given.choose_seed(), Some(7));
        }
        let seeds: Vec<Option<u64>> =
            (0..20).map(|_| Impairment { loss_ppm: 1, ..delay }.choose_seed()).collect();
        assert!(seeds.iter().any(|seed| *seed != seeds[0]), "each wire has another seed");
        assert!(!Impairment::default().is_some() && delay.is_some());
    }
}
