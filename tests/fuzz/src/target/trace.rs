//! Prints what happens during the run of one input.

use testkit::packet::parse;

/// Displays a frame as text.
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(tcp) = parse(self.0) else { return write!(f, "{:02x?}", self.0) };
        let (seq, ack, flags, window) = (tcp.seq, tcp.ack, tcp.flags, tcp.window);
        write!(f, "seq {seq} +{} ack {ack} flags {flags:02x} window {window}", tcp.len())?;
        tcp.options(self.0).try_for_each(|(kind, value)| write!(f, " {kind}:{value:02x?}"))
    }
}

/// Prints events if `UWARP_FUZZ_TRACE` is set, to debug an input that broke a rule.
pub(super) fn trace(what: std::fmt::Arguments<'_>) {
    static WANTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    if *WANTED.get_or_init(|| std::env::var_os("UWARP_FUZZ_TRACE").is_some()) {
        println!("{what}");
    }
}
