//! Code for tests of several crates, such as network namespaces and virtual machines ([`lab`]), `iwperf`'s
//! command line, streams and their contents, the simulator ([`sim`]), attacks ([`attack`]) and measurements.
//! It also has checks of the repository itself, for example of the requirements ([`conformance`]) and of the
//! sources ([`layout`]).
//!
//! This crate is not part of the library. It does not change the host's own network: the devices are in
//! namespaces that are created for a test or a suite and are removed after the test or the suite.
#![forbid(unsafe_code)]

/// Defines a test for each scenario by its name, and a test that finds scenarios without a test. `$judge`
/// gets the name of a scenario, and panics if the scenario fails. `$all` has all scenarios.
#[macro_export]
macro_rules! scenario_tests {
    ($judge:path, $all:expr; $($test:ident $name:literal)*) => {
        $(#[test]
        fn $test() {
            $judge($name);
        })*

        #[test]
        fn every_scenario_is_run() {
            let names: Vec<_> = $all.iter().map(|scenario| scenario.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

pub mod attack;
pub mod bridge;
pub mod conformance;
pub mod contract;
pub mod device;
pub mod iwperf;
pub mod lab;
pub mod layout;
pub mod mutation;
pub mod nic_guide;
pub mod pattern;
pub mod placement;
pub mod port_device;
pub mod reach;
pub mod scenes;
pub mod sections;
pub mod sim;
pub mod stream;
pub mod structure;
pub mod target;
pub mod witness;

pub use benches::lines::end_when_output_is_lost;
