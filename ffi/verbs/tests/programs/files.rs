//! The files in which programs look for a device. Programs find them by the calls of libc that the library
//! replaces, or in a mount namespace that the launcher makes. Also tests that programs find all other files
//! as without the library, and that devices of the host are hidden.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::built;
use crate::c;
use crate::interface::Interfaces;
use crate::pair::is_installed;
use crate::wire::{Wire, is_root};

type Test = fn() -> Result<(), String>;

pub(crate) fn all(has_interfaces: bool) -> Vec<(&'static str, bool, Test)> {
    let can_mount = is_root() && is_installed("unshare");
    vec![
        ("files_agree_with_verbs", true, agree),
        ("hosts_files_agree_with_verbs", has_interfaces, agree_between_hosts),
        ("files_of_a_pretended_device", true, pretended),
        ("files_of_others_are_untouched", true, || c::run("foreign")),
        ("files_are_found_by_commands", true, commands),
        ("files_are_found_by_python", is_installed("python3"), python),
        ("files_are_found_by_the_c_library_of_c_plus_plus", is_installed("g++"), c_plus_plus),
        ("files_need_a_folder", true, no_folder),
        ("files_hide_devices_of_the_host", can_mount, hidden),
        ("files_are_mounted", can_mount, mounted_as_root),
        ("files_are_mounted_for_a_user", has_user_namespaces(), mounted),
        ("files_are_not_mounted_without_namespaces", has_user_namespaces(), not_mounted),
        ("files_are_not_for_privileged_programs", is_root() && is_installed("cc"), privileged),
        ("check_says_what_is_found", true, check),
        ("check_says_what_is_not_found", is_installed("cc"), check_missing),
        ("exports_are_those_of_the_list", is_installed("nm"), exports),
    ]
}

/// Whether an ordinary user may make a mount namespace.
fn has_user_namespaces() -> bool {
    let made = || {
        let wire = Wire::new().ok()?;
        wire.command(0, &["unshare", "-Urm", "true"]).status().ok().filter(|status| status.success())
    };
    made().is_some()
}

/// Returns standard output and standard error of a command, and its exit status.
fn both(command: &mut Command) -> Result<(String, Option<i32>), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((text.concat(), output.status.code()))
}

/// Returns the output of a command, which has to succeed.
fn said(command: &mut Command) -> Result<String, String> {
    match both(command)? {
        (text, Some(0)) => Ok(text),
        (text, status) => Err(format!("{command:?} ended with {status:?}: {text}")),
    }
}

/// Checks the output of a shell command that runs with the library.
fn shows(wire: &Wire, line: &str, wanted: &str) -> Result<(), String> {
    let text = said(&mut wire.command(0, &["timeout", "60", "sh", "-c", line]))?;
    if text == wanted { Ok(()) } else { Err(format!("{line}: {text:?}, not {wanted:?}")) }
}

fn agree() -> Result<(), String> {
    let wire = Wire::new()?;
    c::run_over("files", &wire)?;
    // The same folder serves the next process, also if a part of it has been removed.
    let trees = || -> Result<Vec<_>, String> {
        let entries = fs::read_dir(wire.rendezvous().join(".files")).map_err(|error| error.to_string())?;
        Ok(entries.flatten().map(|entry| entry.path()).collect())
    };
    let [tree] = &trees()?[..] else { return Err(format!("one tree, not {:?}", trees()?)) };
    for path in ["complete", "sys/class/infiniband/uwarp0"] {
        fs::remove_file(tree.join(path)).map_err(|error| format!("{path}: {error}"))?;
    }
    c::run_over("files", &wire)?;
    let found = trees()?;
    if found.len() != 1 {
        return Err(format!("one tree, not {found:?}"));
    }
    let others = fs::metadata(tree).map_err(|error| error.to_string())?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&others.permissions());
    if mode & 0o077 == 0 { Ok(()) } else { Err(format!("others may enter the tree: {mode:o}")) }
}

/// Checks the files on a wire between hosts. The GID is an IPv6 address, and the port has an interface.
fn agree_between_hosts() -> Result<(), String> {
    c::run_over("files", &Wire::between(Interfaces::hosts()?)?).map(drop)
}

/// Checks the files of another kind of device, with another name.
fn pretended() -> Result<(), String> {
    let wire = Wire::new()?.with("UWARP_PRETEND", "ib");
    shows(&wire, "cat /sys/class/infiniband/uwarp0/node_type", "1: CA\n")?;
    let wire = Wire::new()?.with("UWARP_DEV", "mlx5_0");
    shows(
        &wire,
        "ls /sys/class/infiniband; cat /sys/class/infiniband_verbs/uverbs0/ibdev",
        "mlx5_0\nmlx5_0\n",
    )
}

/// Shell commands, with their output.
const COMMANDS: [(&str, &str); 15] = [
    ("ls /sys/class/infiniband", "uwarp0\n"),
    ("ls /sys/class/infiniband_verbs", "abi_version\nuverbs0\n"),
    ("ls /dev/infiniband", "rdma_cm\nuverbs0\n"),
    ("ls -ld /dev/infiniband/uverbs0 | cut -c 1-10", "crw-rw-rw-\n"),
    ("stat -c '%t:%T %F' /dev/infiniband/uverbs0", "e7:c0 character special file\n"),
    ("cat /sys/class/infiniband/uwarp0/ports/1/state", "4: ACTIVE\n"),
    ("read kind < /sys/class/infiniband/uwarp0/node_type; echo $kind", "4: RNIC\n"),
    ("readlink -f /sys/class/infiniband/uwarp0/device", "/sys/devices/virtual/uwarp/uwarp0\n"),
    ("realpath /sys/class/infiniband/uwarp0/../..", "/sys/devices/virtual/uwarp/uwarp0\n"),
    ("cat $(realpath /sys/class/infiniband/uwarp0/../..)/numa_node | grep -c -e '^-1$' -e '^0$'", "1\n"),
    ("cd /sys/class/infiniband/uwarp0 && cat node_type", "4: RNIC\n"),
    (
        "for at in /sys/class/infiniband/*/ports/*; do echo $at; done",
        "/sys/class/infiniband/uwarp0/ports/1\n",
    ),
    ("test -c /dev/infiniband/uverbs0 -a -w /dev/infiniband/rdma_cm && echo > /dev/infiniband/uverbs0", ""),
    (
        "find /sys/class/infiniband/uwarp0/ports/1/gid_attrs/ -type f -name 0 | sort",
        "/sys/class/infiniband/uwarp0/ports/1/gid_attrs/ndevs/0\n\
         /sys/class/infiniband/uwarp0/ports/1/gid_attrs/types/0\n",
    ),
    // Before the device is opened, the part of the GID that the process chooses is 0.
    ("cut -d : -f 7,8 /sys/class/infiniband/uwarp0/ports/1/gids/0", "6440:0000\n"),
];

fn commands() -> Result<(), String> {
    for wire in [Wire::new()?, Wire::new()?.with_launcher()] {
        for (line, wanted) in COMMANDS {
            shows(&wire, line, wanted)?;
        }
    }
    // Without the files, programs find those of the host.
    let without = Wire::new()?.with("UWARP_FILES", "none");
    let line = "test -e /sys/class/infiniband/uwarp0 || test -e /sys/devices/virtual/uwarp || echo none";
    shows(&without, line, "none\n")
}

fn python() -> Result<(), String> {
    let wire = Wire::new()?;
    let program = "\
import glob, os, pathlib, stat
folder = '/sys/class/infiniband'
print(os.listdir(folder), [entry.name for entry in os.scandir(folder)], glob.glob(folder + '/*/ports/*/gids/0'))
print(os.path.realpath(folder + '/uwarp0'), os.readlink(folder + '/uwarp0'), os.path.exists(folder + '/none'))
print(open(folder + '/uwarp0/node_type').read(), pathlib.Path(folder, 'uwarp0/fw_ver').read_text() != '')
node = os.stat('/dev/infiniband/uverbs0')
print(stat.S_ISCHR(node.st_mode), os.major(node.st_rdev), os.minor(node.st_rdev))
os.close(os.open('/dev/infiniband/uverbs0', os.O_RDWR))
print(sorted(name for _, names, _ in os.walk(folder + '/uwarp0/ports') for name in names)[:2])
";
    let text = said(&mut wire.command(0, &["timeout", "60", "python3", "-c", program]))?;
    let device = "/sys/class/infiniband/uwarp0";
    let wanted = format!(
        "['uwarp0'] ['uwarp0'] ['{device}/ports/1/gids/0']\n\
         /sys/devices/virtual/uwarp/uwarp0/infiniband/uwarp0 \
         ../../devices/virtual/uwarp/uwarp0/infiniband/uwarp0 False\n\
         4: RNIC\n True\nTrue 231 192\n['1', 'counters']\n"
    );
    if text == wanted { Ok(()) } else { Err(format!("{text}\nnot\n{wanted}")) }
}

fn c_plus_plus() -> Result<(), String> {
    let wire = Wire::new()?;
    let program = wire.folder().join("files");
    let source = format!("{}/tests/programs/c/files.cpp", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("g++");
    said(compiler.args(["-std=c++17", "-Wall", "-Werror", "-o"]).arg(&program).arg(source))?;
    let wanted = "uwarp0 4: RNIC /sys/devices/virtual/uwarp/uwarp0/infiniband/uwarp0 101 1\n";
    shows(&wire, &program.display().to_string(), wanted)
}

/// If other users can replace the folder of the wires, the files are in another folder. If there is no folder
/// for the files, programs find the files of the host, and a line says so.
fn no_folder() -> Result<(), String> {
    let wire = Wire::new()?;
    let open = wire.folder().join("open");
    fs::create_dir(&open).map_err(|error| error.to_string())?;
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(&open, mode(0o777)).map_err(|error| error.to_string())?;
    let words = ["timeout", "60", "ls", "/sys/class/infiniband"];
    let text = said(wire.command(0, &words).env("UWARP_DIR", &open))?;
    if text != "uwarp0\n" {
        return Err(format!("in another folder: {text}"));
    }
    if !is_root() {
        return Ok(());
    }
    // The user may not write to any folder that may have the files: a namespace has a `/tmp` of root.
    let library = wire.folder().join("libuwarp.so").display().to_string();
    let hidden = wire.folder().join("tmp");
    let line = format!(
        "mkdir {hidden} && cp {library} {hidden} && mount --bind {hidden} /tmp && chmod 755 /tmp && \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups \
         env LD_PRELOAD=/tmp/libuwarp.so UWARP_DIR=/tmp/wires UWARP_LOG=1 ls /sys/class/infiniband",
        hidden = hidden.display()
    );
    let (text, _) = both(Command::new("unshare").args(["-m", "timeout", "60", "sh", "-ec", &line]))?;
    match text.contains("no place for the files") && !text.contains("uwarp0") {
        true => Ok(()),
        false => Err(format!("without a folder: {text}")),
    }
}

/// A program with more privileges than its user loads the library if the library is in place of libibverbs.
/// The program then finds the files of the host, and not those in a folder of the user.
fn privileged() -> Result<(), String> {
    let wire = Wire::new()?.with_libs()?;
    let (source, plain, setuid) =
        (wire.folder().join("finds.c"), wire.folder().join("plain"), wire.folder().join("setuid"));
    let text = "#include <fcntl.h>\n#include <infiniband/verbs.h>\nint main(void)\n{\n\
                if (!ibv_node_type_str(IBV_NODE_CA))\nreturn 1;\n\
                return open(\"/sys/class/infiniband/uwarp0/node_type\", O_RDONLY) < 0 ? 3 : 0;\n}\n";
    fs::write(&source, text).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    let search = format!("-Wl,-rpath,{}", wire.libs().display());
    said(compiler.arg(&source).args(["-Wall", "-Werror", "-libverbs", &search, "-o"]).arg(&plain))?;
    fs::copy(&plain, &setuid).map_err(|error| error.to_string())?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    fs::set_permissions(&setuid, mode).map_err(|error| error.to_string())?;
    for (program, wanted) in [(plain, 0), (setuid, 3)] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program);
        let (text, status) = both(command.env("UWARP_DIR", wire.rendezvous()).env_remove("LD_LIBRARY_PATH"))?;
        if status != Some(wanted) {
            return Err(format!("{}: {status:?}: {text}", program.display()));
        }
    }
    Ok(())
}

/// A script for the root of a mount namespace: gives the host a device.
const WITH_DEVICE: &str = "\
set -e
new=$(mktemp -d)
mount -t tmpfs none $new
for class in /sys/class/*; do mkdir -p $new/${class##*/}; mount --rbind $class $new/${class##*/}; done
mkdir -p $new/infiniband $new/infiniband_verbs
mountpoint -q $new/infiniband || { mkdir $new/infiniband/mlx5_0; echo 1.0 > $new/infiniband/mlx5_0/fw_ver; }
mount --rbind $new /sys/class
umount -l $new
rmdir $new
exec \"$@\"
";

/// Returns a command that runs in a namespace whose host has a device.
fn beside_device(command: &Command) -> Command {
    let mut whole = Command::new("unshare");
    whole.args(["-m", "sh", "-c", WITH_DEVICE, "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => whole.env(name, value),
            None => whole.env_remove(name),
        };
    }
    whole.current_dir(command.get_current_dir().unwrap_or(std::path::Path::new("/")));
    whole
}

fn hidden() -> Result<(), String> {
    for (files, wanted) in [("auto", "uwarp0\n"), ("interpose", "uwarp0\n"), ("none", "mlx5_0\n")] {
        let wire = Wire::new()?.with("UWARP_FILES", files);
        let text = said(&mut beside_device(&wire.command(0, &["ls", "/sys/class/infiniband"])))?;
        if text != wanted {
            return Err(format!("UWARP_FILES={files}: {text}"));
        }
    }
    // The launcher says which devices are hidden.
    let wire = Wire::new()?;
    let launcher = wire.launcher()?.display().to_string();
    for (files, line) in
        [("auto", "hidden    mlx5_0, of the host"), ("none", "visible   mlx5_0, of the host")]
    {
        let words = [launcher.as_str(), "run", "--files", files, "--check"];
        let text = said(&mut beside_device(&wire.command(0, &words)))?;
        if !text.lines().any(|found| found == line) {
            return Err(format!("--files {files}: {text}"));
        }
    }
    // In a mount namespace of the launcher, a program finds only our device by its own system calls.
    let program = by_itself(&wire, &[])?;
    let words = [
        &launcher,
        "run",
        "--files",
        "mount",
        "--",
        &program,
        "/sys/class/infiniband",
        "/dev/infiniband/uverbs0",
    ];
    let text = said(beside_device(&Wire::command(&wire, 0, &words)).env_remove("LD_PRELOAD"))?;
    if text == "uwarp0\nnode\n" { Ok(()) } else { Err(text) }
}

/// Compiles the program that makes system calls itself.
fn by_itself(wire: &Wire, options: &[&str]) -> Result<String, String> {
    let program = wire.folder().join("by_itself");
    let source = format!("{}/tests/programs/c/by_itself.c", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    said(compiler.args(options).args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source))?;
    Ok(program.display().to_string())
}

/// Checks what programs find in a mount namespace. `command` makes a command of words.
fn find_mounted(wire: &Wire, command: &dyn Fn(&[&str]) -> Command) -> Result<(), String> {
    let launcher = wire.launcher()?.display().to_string();
    let run = |files: &str, words: &[&str]| {
        let words = [&[launcher.as_str(), "run", "--files", files, "--"], words].concat();
        said(&mut command(&words))
    };
    // A static program does not load the library.
    for options in [&[][..], &["-static"]] {
        let program = by_itself(wire, options)?;
        let words = [program.as_str(), "/sys/class/infiniband", "/dev/infiniband/uverbs0"];
        let (with, without) = (run("mount", &words)?, run("interpose", &words)?);
        if with != "uwarp0\nnode\n" || without.contains("uwarp0") {
            return Err(format!("{options:?}: mounted: {with:?}, interposed: {without:?}"));
        }
        let text = run("mount", &[program.as_str(), "/sys/class", "/dev/null"])?;
        let classes: BTreeSet<&str> = text.lines().collect();
        if ["infiniband", "infiniband_verbs", "net", "node"].iter().any(|name| !classes.contains(name)) {
            return Err(format!("/sys/class has {classes:?}"));
        }
    }
    for (line, wanted) in COMMANDS {
        let text = run("mount", &["sh", "-c", line])?;
        if text != wanted {
            return Err(format!("{line}: {text:?}, not {wanted:?}"));
        }
    }
    // The rest of the namespace is that of the host.
    for line in [
        "id -u",
        "cat /sys/class/net/lo/address",
        "realpath /sys/class/net/lo",
        "ls /dev | sort | grep -v infiniband",
    ] {
        let (with, without) = (run("mount", &["sh", "-c", line])?, run("none", &["sh", "-c", line])?);
        if with != without {
            return Err(format!("{line}: {with:?}, not {without:?}"));
        }
    }
    run(
        "mount",
        &[
            "sh",
            "-c",
            "echo > /dev/null && echo > /dev/shm/$$ && rm /dev/shm/$$ && head -c 1 /dev/urandom > /dev/zero",
        ],
    )?;
    if is_installed("ibv_devinfo") {
        let text = run("mount", &["timeout", "60", "ibv_devinfo"])?;
        if !text.contains("PORT_ACTIVE") {
            return Err(text);
        }
    }
    let text = said(&mut command(&[&launcher, "run", "--files", "mount", "--check"]))?;
    let is_told = text.lines().any(|line| line.starts_with("files ") && line.ends_with(", mounted"));
    if is_told { Ok(()) } else { Err(text) }
}

fn mounted() -> Result<(), String> {
    let wire = Wire::new()?;
    find_mounted(&wire, &|words| {
        let mut command = wire.command(0, words);
        command.env_remove("LD_PRELOAD");
        command
    })
}

/// Where no namespace can be made, as in most containers, the launcher refuses to mount the files, and says
/// so. Programs find the files by the calls of libc.
fn not_mounted() -> Result<(), String> {
    let wire = Wire::new()?;
    let launcher = wire.launcher()?.display().to_string();
    // A user namespace without the right to make another one.
    let within = "echo 0 > /proc/sys/user/max_user_namespaces && \
                  exec setpriv --inh-caps=-all --bounding-set=-all -- \"$@\"";
    let run = |words: &[&str]| {
        let words = [&["unshare", "-Ur", "sh", "-c", within, "sh", &launcher, "run"], words].concat();
        both(wire.command(0, &words).env_remove("LD_PRELOAD"))
    };
    let (text, status) = run(&["--files", "mount", "--", "true"])?;
    let is_refused = status == Some(1)
        && text.lines().count() == 1
        && text.contains("there can be no mount namespace here")
        && text.contains("use --files interpose");
    if !is_refused {
        return Err(format!("mounted: {status:?}: {text}"));
    }
    let (text, status) = run(&["--", "ls", "/sys/class/infiniband"])?;
    if text != "uwarp0\n" || status != Some(0) {
        return Err(format!("by calls: {status:?}: {text}"));
    }
    let (text, status) = run(&["--check"])?;
    match status == Some(0)
        && text.contains("\nmount     --files mount does not work here: there can be no mount")
    {
        true => Ok(()),
        false => Err(format!("{status:?}: {text}")),
    }
}

/// Root needs no user namespace. The mounts are not visible outside.
fn mounted_as_root() -> Result<(), String> {
    let wire = Wire::new()?;
    let wires = std::env::temp_dir().join(format!("uwarp-files-{}", std::process::id()));
    let mounts = || fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string());
    let before = mounts()?;
    let found = find_mounted(&wire, &|words| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("UWARP_DIR", &wires).env_remove("LD_LIBRARY_PATH");
        command
    });
    // Errors are ignored: the folder is in a folder for temporary files.
    let _ = fs::remove_dir_all(&wires);
    found?;
    let after = mounts()?;
    let of_launcher = |text: &str| text.lines().filter(|line| line.starts_with("uwarp ")).count();
    if of_launcher(&before) == of_launcher(&after) { Ok(()) } else { Err(after) }
}

/// Returns the output of `uwarp run --check`, and its exit status.
fn checked(wire: &Wire, words: &[&str]) -> Result<(String, Option<i32>), String> {
    let launcher = wire.launcher()?.display().to_string();
    let words = [&["timeout", "60", launcher.as_str(), "run", "--check"], words].concat();
    both(wire.command(0, &words).env_remove("LD_PRELOAD"))
}

fn check() -> Result<(), String> {
    let wire = Wire::new()?;
    let library = wire.folder().join("libuwarp.so");
    for words in [&[][..], &["sh"], &["--net", "local:job7", "--", "sh", "-c", "exit 3"]] {
        let (text, status) = checked(&wire, words)?;
        let net = if words.len() > 1 { "local:job7" } else { "local" };
        for line in [
            format!("library   {} in {}", env!("CARGO_PKG_VERSION"), library.display()),
            format!("wire      {net}"),
            "device    uwarp0 (iWARP), port 1 is active".to_owned(),
            "files     /sys/class/infiniband/uwarp0 and /dev/infiniband, by calls of libc".to_owned(),
            "never     static programs".to_owned(),
            "mount     --files mount ".to_owned(),
        ] {
            if !text.lines().any(|found| found.starts_with(&line)) {
                return Err(format!("{words:?}: no '{line}':\n{text}"));
            }
        }
        if !text.lines().any(|line| line.starts_with("GID ") && line.contains(": ::ffff:100.64.")) {
            return Err(format!("{words:?}: no GID: {text}"));
        }
        if status != Some(0)
            || text.contains("MISSING")
            || text.contains(" loads the library") == words.is_empty()
        {
            return Err(format!("{words:?}: {status:?}: {text}"));
        }
    }
    // Without the links, only programs that open libibverbs themselves find another library.
    let open = wire.folder().join("open");
    fs::create_dir(&open).map_err(|error| error.to_string())?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&open, mode).map_err(|error| error.to_string())?;
    let launcher = wire.launcher()?.display().to_string();
    let mut command = wire.command(0, &["timeout", "60", &launcher, "run", "--check"]);
    let (text, status) = both(command.env_remove("LD_PRELOAD").env("UWARP_DIR", &open))?;
    let is_told = text.lines().any(|line| line.starts_with("dlopen    MISSING: "));
    if !is_told
        || status != Some(1)
        || text.matches("MISSING").count() != 2
        || !text.contains("device    uwarp0")
    {
        return Err(format!("without links: {status:?}: {text}"));
    }
    let (text, status) = checked(&wire, &["--files", "none"])?;
    match status == Some(0) && text.contains("files     none (UWARP_FILES=none)\n") {
        true => Ok(()),
        false => Err(format!("without files: {status:?}: {text}")),
    }
}

fn check_missing() -> Result<(), String> {
    let wire = Wire::new()?;
    let program = by_itself(&wire, &["-static"])?;
    let setuid = wire.folder().join("setuid");
    fs::copy("/bin/true", &setuid).map_err(|error| error.to_string())?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    fs::set_permissions(&setuid, mode).map_err(|error| error.to_string())?;
    let setuid = setuid.display().to_string();
    let mut cases = vec![
        (vec![program.as_str()], "is static: it ignores LD_PRELOAD"),
        (vec!["/nowhere/program"], "/nowhere/program is not found"),
        (vec!["--net", "packet:nowhere"], "the device cannot be opened"),
    ];
    if is_root() {
        // The file belongs to root, and the program runs as another user.
        cases.push((vec![setuid.as_str()], "has more privileges than you: it ignores LD_PRELOAD"));
    }
    for (words, says) in cases {
        let (text, status) = checked(&wire, &words)?;
        if status != Some(1) || !text.lines().any(|line| line.contains("MISSING: ") && line.contains(says)) {
            return Err(format!("{words:?}: {status:?}: {text}"));
        }
    }
    Ok(())
}

/// Checks that the library exports libc's calls of the list in `build.rs`, and no other name without a
/// version.
fn exports() -> Result<(), String> {
    let build = fs::read_to_string(format!("{}/build.rs", env!("CARGO_MANIFEST_DIR")))
        .map_err(|error| error.to_string())?;
    let (_, list) = build.split_once("const CALLS_OF_LIBC: &[&str] = &[").ok_or("build.rs has no list")?;
    let (list, _) = list.split_once("];").ok_or("the list has no end")?;
    let listed: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    let text = said(Command::new("nm").args(["-D", "--defined-only"]).arg(built::library()))?;
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    let exported: BTreeSet<&str> =
        names.filter(|name| !name.contains('@') && !name.starts_with("uw_")).collect();
    if listed.len() < 40 || exported != listed {
        let [missing, more] = [&listed - &exported, &exported - &listed];
        return Err(format!("not exported: {missing:?}, exported too: {more:?}"));
    }
    Ok(())
}
