//! What the tests that cross crates share: network namespaces, processes in them, Linux's siw in a virtual
//! machine, `iwperf`'s command line, the bytes that streams carry, and the simulator ([`sim`]).
//!
//! Nothing here is part of the library, and nothing here touches the host's own network: every device lives
//! in a namespace that is made for one test and goes with it.
#![forbid(unsafe_code)]

/// A test for each scenario by name, and one that finds a scenario without. `$judge` takes a name and panics
/// when the scenario of it fails; `$all` are the scenarios there are.
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
#[cfg(test)]
mod layout;
pub mod mutation;
pub mod pattern;
pub mod placement;
pub mod port_device;
pub mod reach;
pub mod scenes;
pub mod sections;
pub mod sim;
pub mod stream;
pub mod target;
pub mod witness;
