//! Checks the recorded bindings, from which documentation is built without DPDK.

use std::ffi::CStr;

#[test]
fn the_recorded_bindings_are_those_of_their_release() {
    // SAFETY: `rte_version` may be called at any time.
    let version = unsafe { dpdk_sys::rte_version() };
    // SAFETY: DPDK has returned a C string, which is never changed or freed.
    let version = unsafe { CStr::from_ptr(version) }.to_string_lossy();
    if !version.starts_with("DPDK 22.11.") {
        println!("{version}: not the release of the record");
        return;
    }
    let made = concat!(env!("OUT_DIR"), "/bindings.rs");
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/build/bindings-22.11.txt");
    let [now, before] = [made, recorded].map(|path| std::fs::read_to_string(path).unwrap());
    assert!(now == before, "the bindings differ from the record: cp {made} {recorded}");
}
