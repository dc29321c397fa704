//! Programs of others that need large packages or minutes. `scripts/test verbs_others` installs what they
//! need, and runs their tests. Each program has a file in this folder, and each test has a row in
//! `docs/programs.md`.

mod ceph;
mod crates;
mod dapl;
mod ends;
mod gloo;
mod go;
mod mooncake;
mod mpi4py;
mod mpich;
mod newer_ucx;
mod nixl;
mod oshmem;
mod pypi;
mod tgt;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::pair::is_installed;

/// Where a program comes from.
#[derive(Clone, Copy)]
pub(crate) enum From {
    /// Packages of Debian, the first of which names the version: see the group `others` of `scripts/install`.
    Debian(&'static [&'static str]),
    /// A package of PyPI, and its version.
    PyPi(&'static str, &'static str),
    /// A crate, and its version.
    Crate(&'static str, &'static str),
}

/// A test of a program.
#[derive(Clone, Copy)]
pub(crate) struct Other {
    /// The name of the test, without `others_`.
    pub(crate) test: &'static str,
    pub(crate) program: &'static str,
    pub(crate) from: From,
    /// How the test runs the program.
    pub(crate) how: &'static str,
    pub(crate) checks: &'static str,
    pub(crate) run: fn() -> Result<(), String>,
}

/// All tests of this folder.
pub(crate) fn all() -> Vec<Other> {
    let lists: [&[Other]; 13] = [
        &ceph::ALL,
        &crates::ALL,
        &dapl::ALL,
        &gloo::ALL,
        &go::ALL,
        &mooncake::ALL,
        &mpi4py::ALL,
        &mpich::ALL,
        &newer_ucx::ALL,
        &nixl::ALL,
        &oshmem::ALL,
        &pypi::ALL,
        &tgt::ALL,
    ];
    lists.concat()
}

impl Other {
    pub(crate) fn name(&self) -> String {
        format!("others_{}", self.test)
    }

    /// What has to be installed before the test can run, or an empty text.
    pub(crate) fn missing(&self) -> String {
        match self.from {
            From::Debian(packages) => {
                let is_missing = |package: &&&str| version(package).is_empty();
                let missing: Vec<&str> = packages.iter().filter(is_missing).copied().collect();
                if missing.is_empty() {
                    String::new()
                } else {
                    format!("apt-get install {}", missing.join(" "))
                }
            }
            From::PyPi(..) if !is_installed("pip3") => "apt-get install python3-venv python3-pip".to_owned(),
            From::PyPi(..) | From::Crate(..) => String::new(),
        }
    }

    /// The name and the version of what the program is in.
    pub(crate) fn package(&self) -> String {
        match self.from {
            From::Debian(packages) => {
                let version = version(packages[0]);
                format!("{} ({})", packages[0], if version.is_empty() { "-" } else { &version })
            }
            From::PyPi(name, version) => format!("PyPI's {name} {version}"),
            From::Crate(name, version) => format!("crate {name} {version}"),
        }
    }
}

/// The installed version of a package of Debian, or an empty text.
pub(crate) fn version(package: &str) -> String {
    let mut query = Command::new("dpkg-query");
    let output = query.args(["-W", "-f", "${db:Status-Status} ${Version}", package]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.strip_prefix("installed ").unwrap_or_default().to_owned()
}

/// The Python of a virtual environment with these packages of PyPI, each with its version (`name==1.0`). pip
/// installs them when the environment is made, which may take minutes. The interpreter is Debian's, since
/// programs of every user can run it.
pub(crate) fn python(environment: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let folder = folder(environment)?;
    let python = folder.join("bin/python3");
    let done = folder.join("installed");
    let wanted = packages.join(" ");
    if std::fs::read_to_string(&done).is_ok_and(|present| present == wanted) {
        return Ok(python);
    }
    let _ = std::fs::remove_dir_all(&folder);
    succeed(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&folder))?;
    succeed(
        Command::new(&python).args(["-m", "pip", "install", "-q", "--only-binary=:all:"]).args(packages),
    )?;
    std::fs::write(&done, wanted).map_err(|error| format!("{}: {error}", done.display()))?;
    Ok(python)
}

/// The folder with the packages of a virtual environment, whose Python is `python`.
pub(crate) fn site_packages(python: &Path) -> Result<PathBuf, String> {
    const SCRIPT: &str = "import sysconfig; print(sysconfig.get_path('platlib'))";
    succeed(Command::new(python).args(["-c", SCRIPT])).map(|line| PathBuf::from(line.trim()))
}

/// A folder for the builds of one program, beside cargo's builds. The folder stays for the next run.
pub(crate) fn folder(name: &str) -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_BIN_EXE_uwarp")).parent().and_then(Path::parent);
    let folder = target.ok_or("the launcher has no folder")?.join("others").join(name);
    let parent = folder.parent().ok_or("the folder has no parent")?;
    std::fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    Ok(folder)
}

/// Runs a command to its end, and returns its output or an error with its output.
pub(crate) fn succeed(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let both = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if output.status.success() {
        Ok(both.concat())
    } else {
        Err(format!("{command:?}: {}\n{}", output.status, both.concat()))
    }
}

/// Waits until `is_there` returns true, at most a minute.
pub(crate) fn wait_for(what: &str, mut is_there: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let begun = Instant::now();
    while !is_there()? {
        if begun.elapsed() > Duration::from_secs(60) {
            return Err(format!("not within a minute: {what}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
