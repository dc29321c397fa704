//! Runs libFuzzer on the target that the environment variable `UWARP_FUZZ_TARGET` names. `scripts/fuzz`
//! builds and runs this program.
#![no_main]

use std::sync::OnceLock;

use fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

fn target() -> Target {
    let name = std::env::var("UWARP_FUZZ_TARGET").expect("UWARP_FUZZ_TARGET names a target");
    fuzz::named(&name).unwrap_or_else(|| panic!("no target {name}"))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    (TARGET.get_or_init(target).run)(bytes);
});
