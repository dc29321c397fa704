//! The target's report on a connection (the section "The words of a report" of TARGET.md).

use iwarp::verbs::{StreamError, WcStatus};

use crate::contract::{MAGIC, MAX_TEXT};

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The connection has not ended.
    Open,
    /// The connection was never established.
    Refused,
    /// The connection ended gracefully, or TCP ended without a Terminate.
    Close,
    /// The connection ended by a Terminate, or by an error that this side detected.
    Stream(StreamError),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Refused => f.write_str("refused"),
            Self::Close => f.write_str("close"),
            Self::Stream(error) => {
                let who = if error.from_peer { "got" } else { "sent" };
                write!(f, "{who}:{:02x}{:02x}{:02x}", error.layer, error.etype, error.code)
            }
        }
    }
}

/// Returns the text of the report, with as many of the words as fit.
pub(super) fn text(end: End, words: &[String]) -> String {
    const MORE: &str = " more";
    let mut text = format!("{MAGIC} report end={end}");
    for (index, word) in words.iter().enumerate() {
        let last = index + 1 == words.len();
        let needed = 1 + word.len() + if last { 0 } else { MORE.len() };
        if text.len() + needed > MAX_TEXT {
            return text + MORE;
        }
        text += " ";
        text += word;
    }
    text
}

/// Returns the number that libibverbs gives to a status.
pub(super) fn status_number(status: WcStatus) -> u32 {
    match status {
        WcStatus::Success => 0,
        WcStatus::LocalLengthError => 1,
        WcStatus::LocalQpOperationError => 2,
        WcStatus::LocalProtectionError => 4,
        WcStatus::WrFlushError => 5,
        WcStatus::RemoteInvalidRequest => 9,
        WcStatus::RemoteAccessError => 10,
        WcStatus::RemoteOperationError => 11,
        WcStatus::MwBindError => 6,
        WcStatus::RetryExceeded => 12,
        WcStatus::RnrRetryExceeded => 13,
        #[allow(unreachable_patterns, reason = "IBV_WC_GENERAL_ERR is for later additions to the verbs")]
        _ => 21,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_never_outgrows_private_data() {
        let words: Vec<String> = (0..40).map(|n| format!("c=R:0:{n}:00000000")).collect();
        for count in 0..40 {
            let text = text(End::Open, &words[..count]);
            assert!(text.len() <= MAX_TEXT, "{count}: {}", text.len());
            assert_eq!(text.ends_with(" more"), !text.contains(&words[count.saturating_sub(1)]) && count > 0);
        }
    }

    #[test]
    fn ends_are_told_with_their_codes() {
        let error = StreamError { layer: 1, etype: 2, code: 0x05, from_peer: true };
        assert_eq!(End::Stream(error).to_string(), "got:010205");
        assert_eq!(End::Stream(StreamError { from_peer: false, ..error }).to_string(), "sent:010205");
    }
}
