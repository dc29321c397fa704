//! The settings of the library: variables of the environment, and a file with the same keys.
//!
//! `UWARP_NET=local:job7` corresponds to `net = "local:job7"` in the file `uwarp.toml`. If `$UWARP_CONF` is
//! set, it names the file, which must be readable. Otherwise the file is `$XDG_CONFIG_HOME/uwarp/uwarp.toml`
//! (without the variable, `$HOME/.config/uwarp/uwarp.toml`). If that file does not exist or the user may not
//! read it, the file is `/etc/uwarp.toml`. A variable that is set and not empty overrides the file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs, io};

use toml::de::{DeTable, DeValue};

use crate::ffi::exhaustion::is_exhaustion;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Net,
    Addr,
    Dir,
    Dev,
    Pcap,
    Log,
    Pretend,
    Thread,
    Cpu,
    Files,
}

const KEYS: [Key; 10] = [
    Key::Net,
    Key::Addr,
    Key::Dir,
    Key::Dev,
    Key::Pcap,
    Key::Log,
    Key::Pretend,
    Key::Thread,
    Key::Cpu,
    Key::Files,
];

/// A value, and where it was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) text: String,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Environment(Key),
    File { path: PathBuf, line: usize, key: Key },
}

impl Setting {
    /// One line that names the setting and its value, with `remedy`: what the user can do.
    pub(crate) fn refused(&self, remedy: impl fmt::Display) -> String {
        let text = &self.text;
        match &self.place {
            Place::Environment(key) => format!("{}={text}: {remedy}", key.variable()),
            Place::File { key, .. } => format!("{}{} = \"{text}\": {remedy}", self.origin(), key.name()),
        }
    }

    /// A prefix for errors about the value: the file and the line in which the value is set. The prefix is
    /// empty if an environment variable sets the value.
    pub(crate) fn origin(&self) -> String {
        match &self.place {
            Place::Environment(_) => String::new(),
            Place::File { path, line, .. } => format!("{}:{line}: ", path.display()),
        }
    }
}

impl Key {
    /// The name of the key in the file.
    fn name(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Addr => "addr",
            Self::Dir => "dir",
            Self::Dev => "dev",
            Self::Pcap => "pcap",
            Self::Log => "log",
            Self::Pretend => "pretend",
            Self::Thread => "thread",
            Self::Cpu => "cpu",
            Self::Files => "files",
        }
    }

    /// The name of the environment variable.
    fn variable(self) -> &'static str {
        match self {
            Self::Net => "UWARP_NET",
            Self::Addr => "UWARP_ADDR",
            Self::Dir => "UWARP_DIR",
            Self::Dev => "UWARP_DEV",
            Self::Pcap => "UWARP_PCAP",
            Self::Log => "UWARP_LOG",
            Self::Pretend => "UWARP_PRETEND",
            Self::Thread => "UWARP_THREAD",
            Self::Cpu => "UWARP_CPU",
            Self::Files => "UWARP_FILES",
        }
    }
}

/// The value of a key, or `None` if the key is not set.
///
/// # Errors
/// Returns one line that describes the mistake in the variable or in the file.
pub(crate) fn get(key: Key) -> Result<Option<Setting>, String> {
    match env::var(key.variable()) {
        Ok(text) if !text.is_empty() => Ok(Some(Setting { text, place: Place::Environment(key) })),
        Err(env::VarError::NotUnicode(_)) => Err(format!("{} is no UTF-8 text", key.variable())),
        _ => Ok(in_file()?.iter().find(|(known, _)| *known == key).map(|(_, setting)| setting.clone())),
    }
}

/// The text of a value, or `None` if the key is not set, or after an error (which another call reports).
pub(crate) fn text(key: Key) -> Option<String> {
    get(key).ok().flatten().map(|setting| setting.text)
}

type Settings = Vec<(Key, Setting)>;

/// The settings in the file. The file is read once. If the process had run out of a resource, the next call
/// reads the file again.
fn in_file() -> Result<&'static Settings, String> {
    static FILE: OnceLock<Result<Settings, String>> = OnceLock::new();
    if FILE.get().is_none() {
        match read() {
            Err(ReadError { line, is_transient: true }) => return Err(line),
            // Another thread may have read the file as well.
            settings => drop(FILE.set(settings.map_err(|error| error.line))),
        }
    }
    FILE.get()
        .map_or_else(|| Ok(const { &Settings::new() }), |settings| settings.as_ref().map_err(Clone::clone))
}

/// The reason why the settings of the file are not available.
struct ReadError {
    line: String,
    /// True if the process has run out of a resource. In this case the next call reads the file again.
    is_transient: bool,
}

impl From<String> for ReadError {
    fn from(line: String) -> Self {
        Self { line, is_transient: false }
    }
}

fn read() -> Result<Settings, ReadError> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let named = env::var_os("UWARP_CONF").filter(|path| !path.is_empty()).map(PathBuf::from);
    let of_user = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let candidates = match &named {
        Some(path) => vec![path.clone()],
        None => of_user
            .map(|folder| folder.join("uwarp/uwarp.toml"))
            .into_iter()
            .chain([PathBuf::from("/etc/uwarp.toml")])
            .collect(),
    };
    for path in candidates {
        match fs::read_to_string(&path) {
            Ok(text) => return Ok(parse(&path, &text)?),
            Err(error) if named.is_none() && is_absent(&error) => {}
            Err(error) => {
                let is_transient = is_exhaustion(&error);
                return Err(ReadError {
                    line: format!("{} cannot be read: {error}", path.display()),
                    is_transient,
                });
            }
        }
    }
    Ok(Settings::new())
}

/// Whether the file does not exist for this user. A file that this user may not read counts as absent.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
    )
}

fn parse(path: &Path, text: &str) -> Result<Settings, String> {
    let line_at = |byte: usize| text.bytes().take(byte).filter(|byte| *byte == b'\n').count() + 1;
    let wrong = |byte: usize, says: &str| format!("{}:{}: {says}", path.display(), line_at(byte));
    let table = DeTable::parse(text).map_err(|error| {
        let says = error.message().lines().next().unwrap_or("no TOML").to_owned();
        wrong(error.span().map_or(0, |span| span.start), &says)
    })?;
    let mut settings = Settings::new();
    for (name, value) in table.get_ref() {
        let at = name.span().start;
        let Some(key) = KEYS.into_iter().find(|key| key.name() == name.get_ref().as_ref()) else {
            let known = KEYS.map(Key::name).join(", ");
            return Err(wrong(at, &format!("there is no key '{}': use {known}", name.get_ref())));
        };
        let text = match (key, value.get_ref()) {
            (_, DeValue::String(text)) => text.to_string(),
            (Key::Cpu, DeValue::Integer(number)) if number.radix() == 10 => number.as_str().to_owned(),
            (Key::Log, DeValue::Boolean(is_on)) => {
                if *is_on {
                    "1".into()
                } else {
                    String::new()
                }
            }
            _ => {
                let example = match key {
                    Key::Cpu => "a number, like cpu = 1",
                    Key::Log => "true or false",
                    _ => "a text in quotes",
                };
                return Err(wrong(at, &format!("{} needs {example}", key.name())));
            }
        };
        if !text.is_empty() {
            let place = Place::File { path: path.to_owned(), line: line_at(at), key };
            settings.push((key, Setting { text, place }));
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Settings, String> {
        parse(Path::new("/etc/uwarp.toml"), text)
    }

    #[test]
    fn each_key_is_read_with_its_line() {
        let text = "# wires\nnet = \"packet:eth0\"\naddr = '10.0.0.2/24'\ndir = \"/d\"\ndev = \"u1\"\n\
                    pcap = \"/p\"\nlog = true\npretend = \"ib\"\nthread = \"spin\"\ncpu = 3\nfiles = \"none\"\n";
        let settings = parsed(text).unwrap();
        let mut found: Vec<(&str, &str)> =
            settings.iter().map(|(key, setting)| (key.name(), setting.text.as_str())).collect();
        found.sort_unstable();
        let mut wanted = vec![
            ("net", "packet:eth0"),
            ("addr", "10.0.0.2/24"),
            ("dir", "/d"),
            ("dev", "u1"),
            ("pcap", "/p"),
            ("log", "1"),
            ("pretend", "ib"),
            ("thread", "spin"),
            ("cpu", "3"),
            ("files", "none"),
        ];
        wanted.sort_unstable();
        assert_eq!(found, wanted);
        let (_, thread) = settings.iter().find(|(key, _)| *key == Key::Thread).unwrap();
        assert_eq!(thread.refused("use doze"), "/etc/uwarp.toml:9: thread = \"spin\": use doze");
        assert!(parsed("log = false\nnet = \"\"").unwrap().is_empty());
    }

    #[test]
    fn each_mistake_is_one_line_with_the_file_and_the_line() {
        for (text, says) in [
            (
                "net = \"local\"\nnte = 1",
                "/etc/uwarp.toml:2: there is no key 'nte': use net, addr, dir, dev,",
            ),
            ("\n\nnet = 3", "/etc/uwarp.toml:3: net needs a text in quotes"),
            ("cpu = 0x1", "/etc/uwarp.toml:1: cpu needs a number, like cpu = 1"),
            ("log = 1", "/etc/uwarp.toml:1: log needs true or false"),
            ("net = local", "/etc/uwarp.toml:1: "),
            ("cpu = 1\nnet = \"local", "/etc/uwarp.toml:2: "),
            ("cpu = 1\ncpu = 2", "/etc/uwarp.toml:2: "),
            ("[net]\nkind = \"local\"", "/etc/uwarp.toml:1: net needs a text in quotes"),
        ] {
            let line = parsed(text).unwrap_err();
            assert!(line.starts_with(says) && !line.contains('\n') && line.len() > says.len() - 1, "{line}");
        }
    }
}
