//! `uwarp run --check`: what a program would find. The check runs in a process that is started like the
//! program, and makes the calls of a program.

use std::ffi::CStr;
use std::fs;
use std::net::Ipv6Addr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use clap::Args;
use rustix::fs::{Access, access};

use crate::output;
use crate::program::{self, Kind};

/// The arguments by which `uwarp run --check` starts the check.
#[derive(Args)]
pub(crate) struct Options {
    /// A device of the host
    #[arg(long = "hides")]
    hidden: Vec<String>,
    /// The program
    program: Option<String>,
}

/// The folder of the devices.
const CLASS: &str = "/sys/class/infiniband";

/// The devices of the host, which programs do not find.
pub(crate) fn devices_of_host() -> Vec<String> {
    let mut names = Vec::new();
    // These are system calls, so the result does not depend on the libraries of this process.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let folder = rustix::fs::open(CLASS, flags, rustix::fs::Mode::empty());
    for entry in folder.and_then(rustix::fs::Dir::new).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort_unstable();
    names
}

/// The lines of the check, and whether a program finds all that it should.
struct Report {
    text: String,
    is_complete: bool,
}

impl Report {
    fn line(&mut self, label: &str, says: impl std::fmt::Display) {
        self.text += &format!("{label:<9} {says}\n");
    }

    /// Adds a line about something that a program does not find.
    fn missing(&mut self, label: &str, says: impl std::fmt::Display) {
        self.line(label, format_args!("MISSING: {says}"));
        self.is_complete = false;
    }
}

/// Prints what a program finds.
pub(crate) fn print(options: &Options) -> Result<(), String> {
    let mut report = Report { text: String::new(), is_complete: true };
    let wire = uwarp::net::wire_spec(None, None)?;
    match uwarp::check::find() {
        Err(line) => {
            report.line("wire", wire);
            report.missing("device", line);
        }
        Ok(found) => {
            report.line("library", format_args!("{} in {}", found.version, found.library));
            if let Some(other) = &found.other {
                report.missing(
                    "dlopen",
                    format_args!("programs that open libibverbs.so.1 themselves load {other}"),
                );
            }
            report.line("wire", wire);
            let kind = if found.is_infiniband { "InfiniBand" } else { "iWARP" };
            let state = if found.is_active { "active" } else { "down" };
            report.line("device", format_args!("{} ({kind}), port 1 is {state}", found.device));
            for (index, row) in found.gids.iter().enumerate() {
                let kind = if row.is_roce_v2 { "RoCE v2" } else { "IB/RoCE v1" };
                let interface = interface_name(row.interface);
                report.line("GID", format_args!("{index}: {} ({kind}, {interface})", row.gid));
            }
            add_files(&mut report, &found);
        }
    }
    if !options.hidden.is_empty() {
        let names = options.hidden.join(", ");
        match has_files() {
            true => report.line("hidden", format_args!("{names}, of the host")),
            false => report.line("visible", format_args!("{names}, of the host")),
        }
    }
    if let Some(name) = &options.program {
        add_program(&mut report, name);
    }
    add_limits(&mut report);
    output::print(&report.text)?;
    if report.is_complete {
        Ok(())
    } else {
        Err("a program does not find all that it needs: see MISSING".into())
    }
}

/// The name of a network interface.
fn interface_name(index: u32) -> String {
    let mut name: [libc::c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
    // SAFETY: the array has the size that the function needs.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return "no interface".into();
    }
    // SAFETY: the function has written a C string.
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()
}

/// Whether programs should find the files.
fn has_files() -> bool {
    uwarp::files::are_shown()
}

fn add_files(report: &mut Report, found: &uwarp::check::Found) {
    if !has_files() {
        report.line("files", "none (UWARP_FILES=none)");
        return;
    }
    let device = format!("{CLASS}/{}", found.device);
    let has_node = |path: &String| fs::metadata(path).is_ok_and(|node| node.file_type().is_char_device());
    let lists = |name: &str| {
        let entries = fs::read_dir(CLASS).map(|entries| entries.flatten().map(|entry| entry.file_name()));
        entries.is_ok_and(|mut names| names.all(|other| other == name))
    };
    let is_gid = |(index, row): (usize, &uwarp::check::Gid)| {
        let text = fs::read_to_string(format!("{device}/ports/1/gids/{index}")).unwrap_or_default();
        text.trim().parse::<Ipv6Addr>() == Ok(row.gid)
    };
    let problem = if !Path::new(&device).is_dir() || !lists(&found.device) {
        Some(format!("{device} (UWARP_LOG=1 says why)"))
    } else if !found.gids.iter().enumerate().all(is_gid) {
        Some(format!("{device}/ports/1/gids differs from the library's GIDs"))
    } else {
        uwarp::files::nodes().into_iter().find(|path| !has_node(path))
    };
    match problem {
        Some(path) => report.missing("files", path),
        // This is a system call of its own, so only a mount has the file.
        None if access(&*device, Access::EXISTS).is_ok() => {
            report.line("files", format_args!("{device} and /dev/infiniband, mounted"));
        }
        None => report.line("files", format_args!("{device} and /dev/infiniband, by calls of libc")),
    }
}

/// Adds what the file of a program says.
fn add_program(report: &mut Report, name: &str) {
    let Some(path) = program::find(name) else {
        return report.missing("program", format_args!("{name} is not found, or cannot be run"));
    };
    let shown = path.display();
    if program::is_privileged(&path) {
        return report
            .missing("program", format_args!("{shown} has more privileges than you: it ignores LD_PRELOAD"));
    }
    match program::kind(&path) {
        Err(error) => report.line("program", format_args!("{shown} cannot be read: {error}")),
        Ok(Kind::Dynamic) => report.line("program", format_args!("{shown} loads the library")),
        Ok(Kind::Script) => {
            report.line("program", format_args!("{shown} is a script: its interpreter counts"))
        }
        Ok(Kind::DynamicGo) => report.line(
            "program",
            format_args!("{shown} loads the library, but Go reads files by system calls: see --files mount"),
        ),
        Ok(Kind::Static) => {
            report.missing("program", format_args!("{shown} is static: it ignores LD_PRELOAD"))
        }
        Ok(Kind::Foreign) => report.missing("program", format_args!("{shown} is of another architecture")),
    }
}

/// Adds what no program finds, and what is impossible here.
fn add_limits(report: &mut Report) {
    report.line("never", "static programs, setuid programs and Go programs without cgo find nothing");
    if has_files() && access(CLASS, Access::EXISTS).is_err() {
        report.line(
            "no files",
            "for programs that make system calls themselves (Go), and for glob(3) and fts(3)",
        );
    }
    let own = std::env::current_exe().ok();
    let mut mount = own.map(|own| {
        let mut command = Command::new(own);
        command.args(["run", "--files", "mount", "--", "true"]);
        command
    });
    let output = mount.as_mut().and_then(|command| command.output().ok());
    match output {
        Some(output) if ExitStatus::success(&output.status) => {
            report.line("mount", "--files mount works here")
        }
        Some(output) => {
            let says = String::from_utf8_lossy(&output.stderr).trim().replace("uwarp: ", "");
            report.line("mount", format_args!("--files mount does not work here: {says}"));
        }
        None => {}
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let filter = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    if filter.is_some_and(|mode| mode != "0") {
        report.line("seccomp", "a filter refuses some system calls here");
    }
}
