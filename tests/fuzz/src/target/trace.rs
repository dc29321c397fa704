//! What a run of one input prints.

/// Prints events if `UWARP_FUZZ_TRACE` is set, to debug an input that broke a rule.
pub(super) fn trace(what: std::fmt::Arguments<'_>) {
    static WANTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    if *WANTED.get_or_init(|| std::env::var_os("UWARP_FUZZ_TRACE").is_some()) {
        println!("{what}");
    }
}
