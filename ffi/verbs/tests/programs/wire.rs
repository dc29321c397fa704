//! The wire of a test, and the user that owns the wire. Each test has its own wire.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io};

use serde_json::Value;

use crate::built;
use crate::interface::{Interfaces, Privileges};
use crate::loopback;

/// The user `nobody`. If the test runs as root, programs run as this user, unless their wire needs all
/// privileges of the test.
const NOBODY: u32 = 65_534;

/// A folder with the folders of wires, the launcher, the library, and the output of programs. The folder is
/// removed when the value is dropped.
pub(crate) struct Wire {
    folder: PathBuf,
    /// The two ends of a wire that is not `local`.
    interfaces: Option<Interfaces>,
    /// An additional environment variable for the programs.
    variable: Option<(&'static str, &'static str)>,
    found_by: FoundBy,
}

/// How programs find the library.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FoundBy {
    /// By `LD_PRELOAD`.
    Preload,
    /// By `LD_LIBRARY_PATH` with the folder that `uwarp libs` makes.
    Libs,
    /// By `uwarp run`.
    Launcher,
}

impl Wire {
    /// Makes a `local` wire.
    pub(crate) fn new() -> Result<Self, String> {
        Self::make(None)
    }

    /// Makes a wire between two interfaces or devices.
    pub(crate) fn between(ends: Interfaces) -> Result<Self, String> {
        Self::make(Some(ends))
    }

    /// Sets a variable in the environment of the programs.
    pub(crate) fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.variable = Some((name, value));
        self
    }

    /// Makes programs find the library in a folder that `uwarp libs` makes.
    pub(crate) fn with_libs(mut self) -> Result<Self, String> {
        let output = Command::new(self.launcher()?).arg("libs").arg(self.libs()).output();
        let output = output.map_err(|error| error.to_string())?;
        let wanted = format!("export LD_LIBRARY_PATH='{}'\n", self.libs().display());
        if output.stdout != wanted.as_bytes() {
            return Err(format!("uwarp libs: {output:?}"));
        }
        // The library outside the folder is removed, to show that the folder needs no file outside.
        fs::remove_file(self.library()).map_err(|error| error.to_string())?;
        self.found_by = FoundBy::Libs;
        Ok(self)
    }

    /// Starts programs by `uwarp run`.
    pub(crate) fn with_launcher(mut self) -> Self {
        self.found_by = FoundBy::Launcher;
        self
    }

    /// Returns the path of the folder that `uwarp libs` makes.
    pub(crate) fn libs(&self) -> PathBuf {
        self.folder.join("libs")
    }

    fn make(interfaces: Option<Interfaces>) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("uwarp-programs-{}-{number}", std::process::id()));
        let wire = Self { folder, interfaces, variable: None, found_by: FoundBy::Preload };
        wire.set_up().map_err(|error| format!("{}: {error}", wire.folder.display()))?;
        Ok(wire)
    }

    fn set_up(&self) -> io::Result<()> {
        fs::create_dir_all(self.rendezvous())?;
        fs::hard_link(built::library(), self.library())?;
        fs::hard_link(built::launcher(), self.folder.join("uwarp"))?;
        for (path, mode) in
            [(self.folder.clone(), 0o755), (self.library(), 0o755), (self.rendezvous(), 0o700)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        // A program refuses a wire whose folder belongs to another user.
        if is_root() && self.privileges() != Privileges::All {
            chown(&self.folder, Some(NOBODY), Some(NOBODY))?;
            chown(self.rendezvous(), Some(NOBODY), Some(NOBODY))?;
        }
        Ok(())
    }

    fn privileges(&self) -> Privileges {
        self.interfaces.as_ref().map_or(Privileges::None, |interfaces| interfaces.privileges)
    }

    /// Returns the folder in which the test's programs may write.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of the wires.
    pub(crate) fn rendezvous(&self) -> PathBuf {
        self.folder.join("wires")
    }

    fn library(&self) -> PathBuf {
        self.folder.join("libuwarp.so")
    }

    /// Returns the path of the launcher in the wire's folder, which other users can also read.
    pub(crate) fn launcher(&self) -> Result<PathBuf, String> {
        Ok(self.folder.join("uwarp"))
    }

    /// Returns the output of `uwarp status` with these options.
    pub(crate) fn status(&self, options: &[&str]) -> Result<String, String> {
        let launcher = self.launcher()?.display().to_string();
        let words = [&["timeout", "30", &launcher, "status"], options].concat();
        let output = self.command(0, &words).output().map_err(|error| error.to_string())?;
        let both = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        match output.status.success() {
            true => Ok(both.concat()),
            false => Err(format!("{words:?}: {}\n{}", output.status, both.concat())),
        }
    }

    /// Returns the programs on the wire, as `uwarp status --json` shows them.
    pub(crate) fn processes(&self) -> Result<Vec<Value>, String> {
        let text = self.status(&["--json"])?;
        let value: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        value["processes"].as_array().cloned().ok_or(text)
    }

    /// Returns the folder of the wire `default`, which the first process on the wire makes.
    pub(crate) fn files(&self) -> PathBuf {
        self.rendezvous().join("default")
    }

    /// Sets the link of an end down, on a wire between interfaces.
    pub(crate) fn take_link(&self, end: usize) -> Result<(), String> {
        self.interfaces.as_ref().ok_or("a wire in memory has no link")?.take_link(end)
    }

    /// Removes the interface of an end, on a wire between interfaces.
    pub(crate) fn remove_link(&self, end: usize) -> Result<(), String> {
        self.interfaces.as_ref().ok_or("a wire in memory has no link")?.remove_link(end)
    }

    /// Whether the ends of the wire are on different interfaces or devices.
    pub(crate) fn has_interfaces(&self) -> bool {
        self.interfaces.is_some()
    }

    /// Returns the command of a pair. Unless the wire is `local`, the command has the server's address in
    /// place of the loopback address.
    pub(crate) fn at_server(&self, command: &str) -> String {
        self.interfaces.as_ref().map_or_else(|| command.to_owned(), |ends| ends.at_server(command))
    }

    /// Returns a command that runs a program with the library at end `end`. The program has the privileges
    /// that the wire needs. On a `local` wire the program runs as an ordinary user without capabilities.
    pub(crate) fn command(&self, end: usize, words: &[&str]) -> Command {
        let mut before = Vec::new();
        let mut net = None;
        if let Some(interfaces) = &self.interfaces {
            let (words, wire) = interfaces.end(end);
            before.extend(words);
            net = Some(wire);
        } else {
            before.extend(loopback::words());
        }
        let capabilities = match self.privileges() {
            Privileges::None => Some("--inh-caps=-all --bounding-set=-all"),
            Privileges::RawSockets => {
                Some("--inh-caps=-all,+net_raw --ambient-caps=-all,+net_raw --bounding-set=-all,+net_raw")
            }
            Privileges::All => None,
        };
        if let Some(capabilities) = capabilities.filter(|_| is_root()) {
            let user = format!(
                "setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {capabilities} --no-new-privs --"
            );
            before.extend(user.split(' ').map(str::to_owned));
        }
        before.extend(match self.found_by {
            FoundBy::Preload => vec!["env".to_owned(), format!("LD_PRELOAD={}", self.library().display())],
            FoundBy::Libs => vec!["env".to_owned(), format!("LD_LIBRARY_PATH={}", self.libs().display())],
            // The library is in the launcher's folder.
            FoundBy::Launcher => ["uwarp", "run", "--"]
                .map(|word| word.replace("uwarp", &format!("{}/uwarp", self.folder.display())))
                .into(),
        });
        let mut command = Command::new(&before[0]);
        command.args(&before[1..]).args(words);
        command.current_dir(&self.folder).env("UWARP_DIR", self.rendezvous());
        // cargo sets `LD_LIBRARY_PATH` for tests.
        command.env_remove("LD_LIBRARY_PATH");
        command.env_remove("UWARP_NET").env("UWARP_LOG", "1").stdin(Stdio::null());
        if let Some(net) = net {
            command.env("UWARP_NET", net);
        }
        command.envs(self.variable);
        command
    }

    /// Starts a program whose output goes to the file `output`.
    pub(crate) fn start(&self, output: &str, words: &[&str]) -> Result<Child, String> {
        let path = self.folder.join(output);
        let file = fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let both = file.try_clone().map_err(|error| error.to_string())?;
        let end = usize::from(output != "server");
        // The program has its own process group, so that its children can be killed with it.
        let child = self.command(end, words).stdout(file).stderr(both).process_group(0).spawn();
        child.map_err(|error| format!("{}: {error}", words.join(" ")))
    }

    /// Returns the output of a program so far.
    pub(crate) fn output(&self, output: &str) -> String {
        let bytes = fs::read(self.folder.join(output)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Errors are ignored: the folder is in a folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
