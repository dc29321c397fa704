//! A wire of its own for each test, and the user that owns it.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io};

/// The user `nobody`, as whom programs run if the test runs as root.
const NOBODY: u32 = 65_534;

/// A folder with the rendezvous of a wire, the library, and the output of programs. It is removed in the end.
pub(crate) struct Wire {
    folder: PathBuf,
}

impl Wire {
    pub(crate) fn new() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("uwarp-programs-{}-{number}", std::process::id()));
        let wire = Self { folder };
        wire.set_up().map_err(|error| format!("{}: {error}", wire.folder.display()))?;
        Ok(wire)
    }

    fn set_up(&self) -> io::Result<()> {
        fs::create_dir_all(self.rendezvous())?;
        // Where another user can read it, whatever the folders above the build are.
        fs::copy(library(), self.library())?;
        for (path, mode) in
            [(self.folder.clone(), 0o755), (self.library(), 0o755), (self.rendezvous(), 0o700)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        if is_root() {
            chown(&self.folder, Some(NOBODY), Some(NOBODY))?;
            chown(self.rendezvous(), Some(NOBODY), Some(NOBODY))?;
        }
        Ok(())
    }

    /// Where programs of the test may write.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn rendezvous(&self) -> PathBuf {
        self.folder.join("wires")
    }

    fn library(&self) -> PathBuf {
        self.folder.join("libuwarp.so")
    }

    /// The folder of the one wire in it, which the first process makes.
    pub(crate) fn files(&self) -> PathBuf {
        self.rendezvous().join("default")
    }

    /// A command with the library, as an ordinary user.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = if is_root() {
            let mut command = Command::new("setpriv");
            let user = format!("--reuid={NOBODY}");
            let group = format!("--regid={NOBODY}");
            command.args([&user, &group]);
            command.args([
                "--clear-groups",
                "--inh-caps=-all",
                "--bounding-set=-all",
                "--no-new-privs",
                "--",
            ]);
            command.args(["env", &format!("LD_PRELOAD={}", self.library().display())]);
            command
        } else {
            let mut command = Command::new("env");
            command.arg(format!("LD_PRELOAD={}", self.library().display()));
            command
        };
        command.args(words).current_dir(&self.folder).env("UWARP_DIR", self.rendezvous());
        command.env_remove("UWARP_NET").stdin(Stdio::null());
        command
    }

    /// Starts a program whose output goes to the file `output`.
    pub(crate) fn start(&self, output: &str, words: &[&str]) -> Result<Child, String> {
        let path = self.folder.join(output);
        let file = fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let both = file.try_clone().map_err(|error| error.to_string())?;
        let child = self.command(words).stdout(file).stderr(both).spawn();
        child.map_err(|error| format!("{}: {error}", words.join(" ")))
    }

    /// What a program has printed.
    pub(crate) fn output(&self, output: &str) -> String {
        let bytes = fs::read(self.folder.join(output)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Left behind, it would be in a folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The library that this test was built with.
fn library() -> PathBuf {
    let launcher = PathBuf::from(env!("CARGO_BIN_EXE_uwarp"));
    let folder = launcher.parent().unwrap_or(Path::new("."));
    // As a dependency of tests, cargo leaves it where it builds crates.
    [folder.join("deps/libuwarp.so"), folder.join("libuwarp.so")]
        .into_iter()
        .find(|path| path.is_file())
        .unwrap_or_else(|| folder.join("libuwarp.so"))
}
