//! Parses the last line of a program's output.

use serde::de::DeserializeOwned;
use testing::lab::Result;
use testing::lab_error;

/// Parses the last line of `text`, which has to be JSON.
///
/// # Errors
/// Fails if the line is not JSON or has other fields. The error has the whole output.
pub(crate) fn last_line<T: DeserializeOwned>(text: &str) -> Result<T> {
    let line = text.lines().next_back().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| lab_error!("{error} in: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_what_counts() {
        assert_eq!(last_line::<(u32, f64)>("ready\n[640, 0.5]\n").unwrap(), (640, 0.5));
        assert!(last_line::<u32>("ready\n").unwrap_err().to_string().contains("ready"));
    }
}
