//! A wire of its own for each test, and the user that owns it.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io};

use crate::interface::{ADDRESSES, Interfaces};

/// The user `nobody`, as whom programs run if the test runs as root.
const NOBODY: u32 = 65_534;

/// A folder with the rendezvous of a wire, the library, and the output of programs. It is removed in the end.
pub(crate) struct Wire {
    folder: PathBuf,
    /// The interfaces, of a wire that is not `local`.
    interfaces: Option<Interfaces>,
}

impl Wire {
    /// A `local` wire.
    pub(crate) fn new() -> Result<Self, String> {
        Self::make(None)
    }

    /// A wire between two interfaces.
    pub(crate) fn between_interfaces() -> Result<Self, String> {
        Self::make(Some(Interfaces::new()?))
    }

    fn make(interfaces: Option<Interfaces>) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("uwarp-programs-{}-{number}", std::process::id()));
        let wire = Self { folder, interfaces };
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

    /// The address of the server, for its client, where that is not one of the host.
    pub(crate) fn server_address(&self) -> Option<&'static str> {
        self.interfaces.as_ref().map(|_| ADDRESSES[0])
    }

    /// A command with the library, as an ordinary user: without any capability on a `local` wire, and with
    /// that of raw sockets alone on an interface.
    fn command(&self, end: usize, words: &[&str]) -> Command {
        let mut before = Vec::new();
        let mut net = None;
        let mut capabilities = "--inh-caps=-all --bounding-set=-all";
        if let Some(interfaces) = &self.interfaces {
            let (words, wire) = interfaces.end(end);
            before.extend(words);
            net = Some(wire);
            capabilities =
                "--inh-caps=-all,+net_raw --ambient-caps=-all,+net_raw --bounding-set=-all,+net_raw";
        }
        if is_root() {
            let user = format!(
                "setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {capabilities} --no-new-privs --"
            );
            before.extend(user.split(' ').map(str::to_owned));
        }
        before.extend(["env".to_owned(), format!("LD_PRELOAD={}", self.library().display())]);
        let mut command = Command::new(&before[0]);
        command.args(&before[1..]).args(words);
        command.current_dir(&self.folder).env("UWARP_DIR", self.rendezvous());
        command.env_remove("UWARP_NET").env("UWARP_LOG", "1").stdin(Stdio::null());
        if let Some(net) = net {
            command.env("UWARP_NET", net);
        }
        command
    }

    /// Starts a program whose output goes to the file `output`.
    pub(crate) fn start(&self, output: &str, words: &[&str]) -> Result<Child, String> {
        let path = self.folder.join(output);
        let file = fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let both = file.try_clone().map_err(|error| error.to_string())?;
        let end = usize::from(output != "server");
        // A group of its own: programs have children, which end with them.
        let child = self.command(end, words).stdout(file).stderr(both).process_group(0).spawn();
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
