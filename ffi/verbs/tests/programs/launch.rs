//! Tests how programs find the library by `uwarp run` and `uwarp env`, even if the programs open libibverbs
//! themselves. Also tests what the launcher does if its output cannot be written.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::pair::is_installed;
use crate::pairs;
use crate::wire::Wire;

type Test = fn() -> Result<(), String>;

pub(crate) fn all() -> Vec<(&'static str, bool, Test)> {
    let has_compiler = is_installed("cc");
    vec![
        ("run_serves_programs_that_open_libibverbs", has_compiler, opened_by_run),
        ("libs_serve_programs_that_open_libibverbs", has_compiler, opened_in_libs),
        ("another_libibverbs_is_told", has_compiler, another_is_told),
        ("links_are_used_again_and_mended", true, links),
        ("links_need_a_folder_that_nobody_can_replace", has_compiler, no_links),
        ("run_serves_rsockets", is_installed("rstream"), rsockets),
        ("output_that_cannot_be_written_is_an_error", true, full_output),
        ("a_reader_that_goes_is_no_error", true, closed_output),
    ]
}

/// The names that programs open.
const NAMES: [&str; 4] = ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"];

/// Compiles `c/opens.c` in the folder of a wire, and returns the path of the program.
fn opens(wire: &Wire) -> Result<String, String> {
    let program = wire.folder().join("opens");
    let source = format!("{}/tests/programs/c/opens.c", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .args([&source, "-ldl"]);
    said(&mut compiler)?;
    Ok(program.display().to_string())
}

fn output(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|error| format!("{command:?}: {error}"))
}

/// Returns standard output and standard error of a command. The command has to succeed.
fn said(command: &mut Command) -> Result<String, String> {
    let output = output(command)?;
    let both = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    match output.status.success() {
        true => Ok(both.concat()),
        false => Err(format!("{command:?}: {}\n{}", output.status, both.concat())),
    }
}

/// Returns the names in several orders, since the result may depend on the name that is opened first.
fn orders() -> impl Iterator<Item = Vec<&'static str>> {
    (0..NAMES.len()).map(|at| [&NAMES[at..], &NAMES[..at]].concat())
}

fn opened_by_run() -> Result<(), String> {
    let wire = Wire::new()?.with_launcher();
    let program = opens(&wire)?;
    for names in orders() {
        let words = [&["timeout", "60", &program], &names[..]].concat();
        let text = said(&mut wire.command(0, &words))?;
        if text != "one library\n" {
            return Err(format!("{names:?}: {text}"));
        }
    }
    // No other user can enter the folder, and the program's earlier search path is kept.
    let mut shell =
        wire.command(0, &["sh", "-c", "stat -c %a ${LD_LIBRARY_PATH%%:*}; echo $LD_LIBRARY_PATH"]);
    let text = said(shell.env("LD_LIBRARY_PATH", "/nowhere/a:/nowhere/b"))?;
    let kept = text.trim_end().ends_with(":/nowhere/a:/nowhere/b");
    if !kept || !text.starts_with("700\n") || text.matches("/.links/").count() != 1 {
        return Err(text);
    }
    // A launcher that another launcher has started does not change the search path.
    let launcher = wire.launcher()?.display().to_string();
    let text = said(&mut wire.command(0, &[&launcher, "run", "sh", "-c", "echo $LD_LIBRARY_PATH"]))?;
    if text.contains(':') { Err(text) } else { Ok(()) }
}

/// Runs the program with only `LD_LIBRARY_PATH`, and then also with the library preloaded. Both variables
/// lead to the same file.
fn opened_in_libs() -> Result<(), String> {
    for preloads in [false, true] {
        let mut wire = Wire::new()?;
        let libs = wire.libs();
        let launcher = wire.launcher()?;
        said(Command::new(&launcher).arg("libs").arg(&libs))?;
        let program = opens(&wire)?;
        if !preloads {
            wire = wire.with_libs()?;
        }
        for names in orders() {
            let words = [&["timeout", "60", &program], &names[..]].concat();
            let text = said(wire.command(0, &words).env("LD_LIBRARY_PATH", &libs))?;
            if text != "one library\n" {
                return Err(format!("{names:?}, preloaded: {preloads}: {text}"));
            }
        }
    }
    // With `--copy` the library in the folder is another file.
    let wire = Wire::new()?;
    let inode = |path: PathBuf| {
        let found = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok::<_, String>(std::os::unix::fs::MetadataExt::ino(&found))
    };
    let (launcher, libs) = (wire.launcher()?, wire.libs());
    for (options, is_same) in [(&[][..], true), (&["--copy"], false), (&[], true)] {
        said(Command::new(&launcher).arg("libs").arg(&libs).args(options))?;
        let own = inode(wire.folder().join("libuwarp.so"))?;
        for name in ["libuwarp.so", "libibverbs.so.1", "librdmacm.so.1"] {
            if (inode(libs.join(name))? == own) != is_same {
                return Err(format!("{name} with {options:?}"));
            }
        }
    }
    Ok(())
}

/// With only `LD_PRELOAD`, the program opens rdma-core's library by its name, and finds no device. Our
/// library detects rdma-core's library, and prints a warning if `UWARP_LOG` is set.
fn another_is_told() -> Result<(), String> {
    let wire = Wire::new()?;
    let program = opens(&wire)?;
    let words = ["timeout", "60", &program, "--other", "libibverbs.so.1"];
    let text = said(&mut wire.command(0, &words))?;
    let is_told = text.lines().count() == 1 && text.contains("libibverbs.so") && text.contains("`uwarp run`");
    let silent = said(wire.command(0, &words).env_remove("UWARP_LOG"))?;
    match is_told && silent.is_empty() {
        true => Ok(()),
        false => Err(format!("told: {text}\nwithout UWARP_LOG: {silent}")),
    }
}

/// Returns the folders of links that launchers have made for a wire.
fn links_of(wire: &Wire) -> Result<Vec<PathBuf>, String> {
    let folder = wire.rendezvous().join(".links");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn links() -> Result<(), String> {
    let wire = Wire::new()?.with_launcher();
    for _ in 0..3 {
        said(&mut wire.command(0, &["true"]))?;
    }
    let folders = links_of(&wire)?;
    let [folder] = &folders[..] else { return Err(format!("one folder, not {folders:?}")) };
    let library = wire.folder().join("libuwarp.so");
    let check = || {
        let mut names: Vec<_> = fs::read_dir(folder)
            .map_err(|error| error.to_string())?
            .flatten()
            .map(|entry| (entry.file_name(), fs::read_link(entry.path()).ok()))
            .collect();
        names.sort();
        let mut wanted = NAMES.map(|name| (name.into(), Some(library.clone())));
        wanted.sort();
        if names == wanted { Ok(()) } else { Err(format!("{names:?}")) }
    };
    check()?;
    // The launcher replaces a link to another file, and a file that is not a link.
    let own = |name: &str| folder.join(name);
    for name in ["libibverbs.so.1", "librdmacm.so"] {
        fs::remove_file(own(name)).map_err(|error| error.to_string())?;
    }
    symlink("/nowhere", own("libibverbs.so.1")).map_err(|error| error.to_string())?;
    fs::write(own("librdmacm.so"), "").map_err(|error| error.to_string())?;
    said(&mut wire.command(0, &["true"]))?;
    check()?;
    // `uwarp env` also makes the links and prints their folder, except in the format for an image's
    // Containerfile.
    fs::remove_dir_all(folder).map_err(|error| error.to_string())?;
    let launcher = wire.launcher()?.display().to_string();
    for (format, has_links) in [("shell", true), ("github", true), ("containerfile", false)] {
        let text = said(&mut wire.command(0, &[&launcher, "env", "--format", format]))?;
        if text.contains(&folder.display().to_string()) != has_links || !text.contains("LD_PRELOAD") {
            return Err(format!("{format}: {text}"));
        }
    }
    check()
}

/// A user who can replace the folder of the links could make programs load any library. If another user can
/// do this, the program runs without links, and the launcher reports this.
fn no_links() -> Result<(), String> {
    let wire = Wire::new()?.with_launcher();
    let open = wire.folder().join("open");
    fs::create_dir(&open).map_err(|error| error.to_string())?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o2777);
    fs::set_permissions(&open, mode).map_err(|error| error.to_string())?;
    let run = |words: &[&str]| said(wire.command(0, words).env("UWARP_DIR", &open));
    let text = run(&["sh", "-c", "echo \"<$LD_LIBRARY_PATH>\"; ibv_devinfo | grep hca_id"])?;
    let wanted = format!("others may rename what is in {} (mode 2777): run chmod +t on it", open.display());
    match text.contains("<>\n") && text.contains(&wanted) && text.contains("uwarp0") {
        true => Ok(()),
        false => Err(text),
    }
}

/// Runs programs on rsockets. Such programs need the code of rdma-core's librdmacm, although the name of this
/// library is a link to our library.
fn rsockets() -> Result<(), String> {
    for pair in pairs::all() {
        if ["rstream", "rcopy"].contains(&pair.name.as_str()) && pair.missing().is_empty() {
            pair.run_over(&Wire::new()?.with_launcher())
                .map_err(|error| format!("{}: {error}", pair.name))?;
        }
    }
    Ok(())
}

/// Returns commands of the launcher that print something. `folder` is for the command that makes a folder.
fn commands(folder: &Path) -> Vec<Vec<String>> {
    let libs = folder.display().to_string();
    let lines =
        ["env", "ls", "status", "status --json", "status --watch", "completions bash", "--help", "--version"];
    let mut all: Vec<Vec<String>> =
        lines.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect();
    all.push(vec!["libs".into(), "--copy".into(), libs]);
    all.push(vec!["run".into(), "--help".into()]);
    all.push(vec!["run".into(), "--check".into()]);
    all
}

/// Returns a command that starts the launcher with these arguments.
fn launcher(wire: &Wire, words: &[String]) -> Result<Command, String> {
    let launcher = wire.launcher()?.display().to_string();
    let words: Vec<&str> = [&launcher].into_iter().chain(words).map(String::as_str).collect();
    Ok(wire.command(0, &words))
}

fn full_output() -> Result<(), String> {
    let wire = Wire::new()?;
    for words in commands(&wire.libs()) {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").map_err(|error| error.to_string())?;
        let output = output(launcher(&wire, &words)?.stdout(full))?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_line = told.lines().count() == 1
            && told.starts_with("uwarp: standard output cannot be written: ")
            && told.contains("No space left");
        if output.status.code() != Some(1) || !is_line {
            return Err(format!("{words:?}: {}: {told}", output.status));
        }
    }
    Ok(())
}

fn closed_output() -> Result<(), String> {
    let wire = Wire::new()?;
    for words in commands(&wire.libs()) {
        let (reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
        drop(reader);
        let output = output(launcher(&wire, &words)?.stdout(Stdio::from(writer)))?;
        if !output.status.success() || !output.stderr.is_empty() {
            return Err(format!("{words:?}: {output:?}"));
        }
    }
    Ok(())
}
