//! A list of named tests that share namespaces, devices or a machine. The tests run one at a time, and are
//! skipped with a reason if the machine lacks something.
//!
//! The standard test runner cannot skip a test for a reason that is found at run time. It also runs tests in
//! parallel, which does not work for polling programs on two cores. A suite prints and counts in the format
//! of the standard runner, so that scripts can parse the output of both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libtest_mimic::{Arguments, Trial};

use super::Result;
use super::nic::{newer_qemu_missing, nic_image_missing};

/// A requirement of a suite.
#[derive(Clone, Copy, Debug)]
pub enum Prerequisite {
    /// Network namespaces, which need root.
    Namespaces,
    /// Tap devices.
    Tun,
    /// A program on the search path.
    Program(&'static str),
    /// The image of siw's machine.
    SiwImage,
    /// The image of the machines with emulated NICs.
    NicImage,
    /// A QEMU that emulates `igb`, and a `vmxnet3` that cuts segments.
    NewerQemu,
    /// The headers to build iwprobe's target over libibverbs.
    VerbsTarget,
    /// A build with the DPDK backend.
    Dpdk,
}

/// Returns the first missing requirement in words, or `None` if all requirements are met.
pub fn missing(needs: &[Prerequisite]) -> Option<String> {
    needs.iter().find_map(|need| match need {
        Prerequisite::Namespaces if !rustix::process::geteuid().is_root() => {
            Some("network namespaces need root".to_owned())
        }
        Prerequisite::Namespaces => {
            super::Namespace::new().err().map(|error| format!("no network namespaces: {error}"))
        }
        Prerequisite::Tun => {
            (!Path::new("/dev/net/tun").exists()).then(|| "no tap devices (/dev/net/tun)".to_owned())
        }
        Prerequisite::Program(name) => (!on_path(name)).then(|| format!("{name} is not installed")),
        Prerequisite::SiwImage => image_missing("siw-peer", "siw's machine"),
        Prerequisite::NicImage => nic_image_missing(),
        Prerequisite::NewerQemu => newer_qemu_missing(),
        Prerequisite::VerbsTarget => super::programs::verbs_target_missing(),
        Prerequisite::Dpdk => {
            (!cfg!(feature = "dpdk")).then(|| "built without the feature `dpdk`".to_owned())
        }
    })
}

/// Returns the folder with the images of `tests/LAB`: the value of the variable `LAB_CACHE` (for example
/// `NIC_LAB_CACHE`), or a folder in the user's cache.
pub(super) fn cache_folder(lab: &str) -> Option<PathBuf> {
    let variable = format!("{}_CACHE", lab.to_uppercase().replace('-', "_"));
    let cache = || {
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        base.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
    };
    std::env::var_os(variable).map(PathBuf::from).or_else(|| cache().map(|base| base.join(lab)))
}

/// Returns the reason why no machine of `tests/LAB` can be started (its image is not built); `None` if
/// machines can be started.
pub(super) fn image_missing(lab: &str, what: &str) -> Option<String> {
    let is_there = |cache: PathBuf| ["vmlinux", "initramfs.cpio"].iter().all(|f| cache.join(f).exists());
    let built = cache_folder(lab).is_some_and(is_there);
    (!built).then(|| format!("{what} is not built: run tests/{lab}/build-image"))
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// The name of the running test, as `SUITE-TEST`. A suite runs one test at a time.
static CURRENT: Mutex<String> = Mutex::new(String::new());

/// Returns the name of the running test, for files that the test leaves.
pub(super) fn current() -> String {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Named tests, run in the order in which they were added.
pub struct Suite {
    name: &'static str,
    skip: Option<String>,
    trials: Vec<Trial>,
    /// Reasons why tests with further requirements are skipped, and the number of tests for each reason.
    without: BTreeMap<String, usize>,
}

impl Suite {
    /// Creates an empty suite, which is skipped unless all requirements are met.
    pub fn new(name: &'static str, needs: &[Prerequisite]) -> Self {
        Self { name, skip: missing(needs), trials: Vec::new(), without: BTreeMap::new() }
    }

    /// Adds a test.
    pub fn add(&mut self, name: impl Into<String>, test: impl FnOnce() -> Result<()> + Send + 'static) {
        self.add_with(&[], name, test);
    }

    /// Adds a test with further requirements.
    pub fn add_with(
        &mut self,
        needs: &[Prerequisite],
        name: impl Into<String>,
        test: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        let lacks = if self.skip.is_none() { missing(needs) } else { None };
        let name = name.into();
        let full = format!("{}-{name}", self.name);
        let trial = Trial::test(name, move || {
            *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = full;
            Ok(test()?)
        });
        self.trials.push(trial.with_ignored_flag(self.skip.is_some() || lacks.is_some()));
        if let Some(reason) = lacks {
            *self.without.entry(reason).or_default() += 1;
        }
    }

    /// Runs the tests that libtest's arguments select, and prints the results. Returns `true` if no test
    /// failed.
    pub fn run(mut self, arguments: &[String]) -> bool {
        let program = self.name.to_owned();
        let mut arguments = Arguments::from_iter([&program].into_iter().chain(arguments));
        // The tests run on the main thread, one after the other: see the documentation of the module.
        arguments.test_threads = Some(1);
        if let Some(reason) = self.skip.take() {
            self.without.insert(reason, self.trials.len());
        }
        for (reason, tests) in &self.without {
            println!("skipped: {} ({tests} tests): {reason}", self.name);
            // With `--ignored`, the runner would run all skipped tests.
            arguments.ignored = false;
            arguments.include_ignored = false;
        }
        !libtest_mimic::run(&arguments, self.trials).has_failed()
    }
}
