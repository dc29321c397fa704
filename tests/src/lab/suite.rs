//! A list of named tests that share namespaces, devices or a machine: run one at a time, and skipped with a
//! reason if the machine lacks something.
//!
//! The standard test runner cannot skip tests with a reason, and runs them in parallel, which polling
//! programs on two cores do not allow. A suite prints and counts in the same format, so that scripts can
//! parse both.

use std::collections::BTreeMap;
use std::path::Path;

use libtest_mimic::{Arguments, Trial};

use super::Result;
use super::siw::image_missing;

/// A requirement of a suite.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Network namespaces, which need root.
    Namespaces,
    /// Tap devices.
    Tun,
    /// A program on the search path.
    Program(&'static str),
    /// The image of siw's machine.
    SiwImage,
    /// The headers to build iwprobe's target over libibverbs.
    VerbsTarget,
    /// The DPDK backend, compiled in.
    Dpdk,
}

/// The first requirement that is missing, in words; `None` if all are met.
pub fn missing(needs: &[Need]) -> Option<String> {
    needs.iter().find_map(|need| match need {
        Need::Namespaces if !rustix::process::geteuid().is_root() => {
            Some("network namespaces need root".to_owned())
        }
        Need::Namespaces => {
            super::Namespace::new().err().map(|error| format!("no network namespaces: {error}"))
        }
        Need::Tun => {
            (!Path::new("/dev/net/tun").exists()).then(|| "no tap devices (/dev/net/tun)".to_owned())
        }
        Need::Program(name) => (!on_path(name)).then(|| format!("{name} is not installed")),
        Need::SiwImage => image_missing(),
        Need::VerbsTarget => super::programs::verbs_target_missing(),
        Need::Dpdk => (!cfg!(feature = "dpdk")).then(|| "built without the feature `dpdk`".to_owned()),
    })
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// Named tests, run in the order in which they were added.
pub struct Suite {
    name: &'static str,
    skip: Option<String>,
    trials: Vec<Trial>,
    /// Reasons why tests with further requirements are skipped, and their numbers.
    without: BTreeMap<String, usize>,
}

impl Suite {
    /// An empty suite that is skipped unless all requirements are met.
    pub fn new(name: &'static str, needs: &[Need]) -> Self {
        Self { name, skip: missing(needs), trials: Vec::new(), without: BTreeMap::new() }
    }

    /// Adds a test.
    pub fn add(&mut self, name: impl Into<String>, test: impl FnOnce() -> Result<()> + Send + 'static) {
        self.add_with(&[], name, test);
    }

    /// Adds a test with further requirements.
    pub fn add_with(
        &mut self,
        needs: &[Need],
        name: impl Into<String>,
        test: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        let lacks = if self.skip.is_none() { missing(needs) } else { None };
        let trial = Trial::test(name, move || Ok(test()?));
        self.trials.push(trial.with_ignored_flag(self.skip.is_some() || lacks.is_some()));
        if let Some(reason) = lacks {
            *self.without.entry(reason).or_default() += 1;
        }
    }

    /// Runs the tests that libtest's arguments select, and prints the results. Returns whether none failed.
    pub fn run(mut self, arguments: &[String]) -> bool {
        let program = self.name.to_owned();
        let mut arguments = Arguments::from_iter([&program].into_iter().chain(arguments));
        // On the main thread, one after the other: see the module's documentation.
        arguments.test_threads = Some(1);
        if let Some(reason) = self.skip.take() {
            self.without.insert(reason, self.trials.len());
        }
        for (reason, tests) in &self.without {
            println!("skipped: {} ({tests} tests): {reason}", self.name);
            // Otherwise `--ignored` would run them all.
            arguments.ignored = false;
            arguments.include_ignored = false;
        }
        !libtest_mimic::run(&arguments, self.trials).has_failed()
    }
}
