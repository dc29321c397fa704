//! `--log`: the events of the stack (`tracing`), on standard error.

use crate::errors::Error;

/// The environment variable that is used without the option, as in most Rust programs.
#[cfg(feature = "tracing")]
const VARIABLE: &str = "RUST_LOG";

/// Shows the events that a filter selects until the process ends. The filter is `option`, or otherwise the
/// variable `RUST_LOG`. Without a filter, no events are shown.
///
/// # Errors
/// Returns [`Error::Usage`] if the text is not a filter, or if the process already shows events.
#[cfg(feature = "tracing")]
pub fn start(option: Option<&str>) -> Result<(), Error> {
    use std::io::IsTerminal;
    use tracing_subscriber::filter::{EnvFilter, LevelFilter};
    use tracing_subscriber::fmt;

    let is_ours = |target: &str| {
        let name = target.split("::").next();
        name.is_some_and(|name| ["dp", "tcp_lite", "iwarp"].contains(&name))
    };

    let variable = std::env::var(VARIABLE).ok().filter(|filter| !filter.is_empty());
    let (origin, filter) = match (option, &variable) {
        (Some(filter), _) => ("--log", filter),
        (None, Some(filter)) => (VARIABLE, filter.as_str()),
        (None, None) => return Ok(()),
    };
    let refused = |why: String| {
        let remedy =
            "give a level (error, warn, info, debug, trace) or CRATE=LEVEL,.. of dp, tcp_lite and iwarp";
        Error::Usage(format!("{origin} {filter}: {why}: {remedy}"))
    };
    // A filter may be the name of any target, so a misspelt level would select no events.
    let is_known = |word: &str| word.contains('=') || word.parse::<LevelFilter>().is_ok() || is_ours(word);
    if let Some(word) = option.and_then(|filter| filter.split(',').find(|word| !is_known(word))) {
        return Err(refused(format!("no level and no crate ({word})")));
    }
    let filter = EnvFilter::builder().parse(filter).map_err(|error| refused(error.to_string()))?;
    let terminal = std::io::stderr().is_terminal();
    let subscriber = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal);
    subscriber.try_init().map_err(|error| Error::Usage(format!("{origin}: {error}")))
}

/// Refuses the option, if the option is given, since this build emits no events.
///
/// # Errors
/// Returns [`Error::Usage`] with the command that builds a program with events.
#[cfg(not(feature = "tracing"))]
pub fn start(option: Option<&str>) -> Result<(), Error> {
    let build = "cargo build --release -p benches --features tracing";
    let refused = || Error::Usage(format!("--log: this iwperf was built without events: {build}"));
    option.map_or(Ok(()), |_| Err(refused()))
}

/// Whether events are shown.
pub fn is_on() -> bool {
    #[cfg(feature = "tracing")]
    return tracing_subscriber::filter::LevelFilter::current() > tracing_subscriber::filter::LevelFilter::OFF;
    #[cfg(not(feature = "tracing"))]
    false
}
