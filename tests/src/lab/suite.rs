//! A list of named tests that share a laboratory: one at a time, skipped with a reason where the machine
//! lacks something.
//!
//! The test runner of the standard library knows no skipping and runs tests side by side; pollers on two
//! cores cannot. A suite prints and counts like it, so that scripts read both alike.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use super::Result;
use super::siw::image_missing;

/// What a suite needs of the machine.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Network namespaces, and so root.
    Namespaces,
    /// Tap devices.
    Tun,
    /// A program on the search path.
    Program(&'static str),
    /// siw's machine, built.
    SiwImage,
    /// What iwprobe's target over libibverbs is built with.
    VerbsTarget,
    /// The DPDK backend, compiled in.
    Dpdk,
}

/// The first thing that is missing, in words; `None` when nothing is.
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
    /// Why some are skipped that need more than the suite, and how many.
    without: BTreeMap<String, usize>,
}

impl Suite {
    /// An empty suite that is skipped unless the machine has what it needs.
    pub fn new(name: &'static str, needs: &[Need]) -> Self {
        Self { name, skip: missing(needs), trials: Vec::new(), without: BTreeMap::new() }
    }

    /// Adds a test.
    pub fn add(&mut self, name: impl Into<String>, test: impl FnOnce() -> Result<()> + Send + 'static) {
        self.add_with(&[], name, test);
    }

    /// Adds a test that needs more of the machine than the suite does.
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

    /// Runs what the command line selects (libtest's options) and says how it went.
    pub fn run(mut self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        // On the main thread, one after the other: see the module's description.
        arguments.test_threads = Some(1);
        if let Some(reason) = self.skip.take() {
            self.without.insert(reason, self.trials.len());
        }
        for (reason, tests) in &self.without {
            println!("skipped: {} ({tests} tests): {reason}", self.name);
            // `--ignored` would run them all the same.
            arguments.ignored = false;
            arguments.include_ignored = false;
        }
        libtest_mimic::run(&arguments, self.trials).exit_code()
    }
}
