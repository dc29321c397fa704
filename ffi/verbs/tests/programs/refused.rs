//! Tests of mistakes in the settings. For each mistake, the library or the launcher prints one line on stderr
//! that tells the user what to do, and the program fails. Also tests that the environment has precedence over
//! settings files, and that refused calls print a line if `UWARP_LOG` is set.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::c;
use crate::interface::{Interfaces, Privileges};
use crate::pair::is_installed;
use crate::wire::{Wire, is_root};

type Test = fn() -> Result<(), String>;

pub(crate) fn all(has_interfaces: bool) -> Vec<(&'static str, bool, Test)> {
    let has_programs = is_installed("ibv_devinfo");
    vec![
        ("refused_settings", has_programs, settings),
        ("refused_dpdk_devices", has_programs, devices),
        ("refused_files", has_programs, files),
        ("refused_folders", has_programs && is_root(), folders),
        ("refused_interfaces", has_programs && has_interfaces, interfaces),
        ("refused_by_the_launcher", true, launcher),
        ("the_environment_goes_before_the_file", has_programs, precedence),
        ("refusals_are_told_to_those_who_ask", is_installed("cc"), log),
    ]
}

/// Runs a program with a setting, and checks that it fails with one line that contains `says`.
fn refuses(wire: &Wire, variable: &str, value: &str, says: &str) -> Result<(), String> {
    let mut command = wire.command(0, &["timeout", "10", "ibv_devinfo"]);
    one_line(command.env(variable, value), says).map_err(|error| format!("{variable}={value}: {error}"))
}

fn one_line(command: &mut Command, says: &str) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("uwarp: ")).collect();
    match lines[..] {
        [line] if line.contains(says) && !output.status.success() => Ok(()),
        _ => Err(format!("no line with '{says}', but {} and:\n{text}", output.status)),
    }
}

fn settings() -> Result<(), String> {
    let wire = Wire::new()?;
    for (variable, value, says) in [
        ("UWARP_NET", "eth0", "there is no kind 'eth0': use one of local[:name], packet:IF"),
        ("UWARP_NET", "packet", "needs an interface, like packet:eth0"),
        ("UWARP_NET", "tap:uwarp0", "add addr=10.0.0.2/24"),
        ("UWARP_NET", "packet:nothere", "there is no interface nothere here"),
        ("UWARP_NET", "packet:lo,addr=10.0.0.2", "like 10.0.0.2/24"),
        ("UWARP_NET", "packet:lo,addr=10.0.0.2/24,color=red", "use addr, gw, mac, mtu, crc"),
        ("UWARP_NET", "local:a/b", "use letters, digits"),
        ("UWARP_NET", "memif:/s,role=both,addr=10.0.0.2/24", "use server or client"),
        ("UWARP_NET", "vhost", "needs a socket"),
        ("UWARP_NET", "local,loss=5", "loss=5 is no probability: use 0 to 1, like 0.01, or 0% to 100%"),
        ("UWARP_NET", "local,delay=1", "delay=1 is no time: use us, ms or s"),
        ("UWARP_ADDR", "10.0.0.2", "like 10.0.0.2/24"),
        ("UWARP_ADDR", "10.0.0.2/24", "a local wire chooses its addresses: leave it out"),
        ("UWARP_DIR", "wires", "UWARP_DIR=wires: use an absolute path"),
        ("UWARP_DEV", "a/b", "UWARP_DEV=a/b: use at most 63 letters"),
        ("UWARP_PCAP", "/nowhere/file", "UWARP_PCAP=/nowhere/file: name a file that can be written"),
        ("UWARP_PRETEND", "roce", "UWARP_PRETEND=roce: use ib"),
        ("UWARP_FILES", "some", "UWARP_FILES=some: use auto, mount, interpose or none"),
        ("UWARP_THREAD", "fast", "UWARP_THREAD=fast: use spin, doze or caller"),
        ("UWARP_CPU", "x", "UWARP_CPU=x: use the number of a CPU"),
        ("UWARP_CPU", "1023", "UWARP_CPU=1023: use the number of a CPU"),
        ("UWARP_CONF", "/nowhere/file", "/nowhere/file cannot be read"),
    ] {
        refuses(&wire, variable, value, says)?;
    }
    refuses(&wire, "UWARP_NET", "packet:lo,addr=10.0.0.2/24", "use one with an Ethernet address")
}

fn devices() -> Result<(), String> {
    let wire = Wire::new()?;
    for spec in ["tap:t", "xdp:lo", "vhost:/nowhere/s", "virtio:/nowhere/s", "memif:/nowhere/s"] {
        #[cfg(feature = "dpdk")]
        let says = match spec {
            "tap:t" | "xdp:lo" if !is_root() => continue,
            "tap:t" => "needs CAP_NET_ADMIN: run as root",
            "xdp:lo" => "CAP_NET_ADMIN and CAP_BPF: run as root",
            "vhost:/nowhere/s" => "name a socket in a folder that can be written",
            "virtio:/nowhere/s" => "start the program on vhost: with this socket first",
            _ => "name a socket in a folder that both ends can write",
        };
        #[cfg(not(feature = "dpdk"))]
        let says = "this library was built without DPDK: build it with --features dpdk, or use local";
        refuses(&wire, "UWARP_NET", &format!("{spec},addr=10.0.0.2/24"), says)?;
    }
    Ok(())
}

/// Checks that a refused call prints a line if `UWARP_LOG` is set, and otherwise prints nothing.
fn log() -> Result<(), String> {
    for (value, is_told) in [("1", true), ("", false)] {
        let text = c::run_over("posts", &Wire::new()?.with("UWARP_LOG", value))?;
        if text.contains("uwarp: refused: ") != is_told || (!is_told && text.contains("uwarp: ")) {
            return Err(format!("UWARP_LOG={value}: {text}"));
        }
    }
    Ok(())
}

/// Writes a file that every user can read.
fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn files() -> Result<(), String> {
    let wire = Wire::new()?;
    let path = wire.folder().join("uwarp.toml");
    let name = path.display().to_string();
    for (text, says) in [
        ("net = 1", ":1: net needs a text in quotes"),
        ("# a wire\nmet = \"local\"", ":2: there is no key 'met': use net, addr"),
        ("\nnet = \"eth0\"", ":2: UWARP_NET=eth0: there is no kind 'eth0'"),
        ("\nnet = \"tap:uwarp0\"", ":2: UWARP_NET=tap:uwarp0: this kind needs an address"),
        ("net = \"packet:lo\"\naddr = \"10.0.0.2\"", ":2: UWARP_NET=packet:lo: addr=10.0.0.2 is no address"),
        ("thread = \"fast\"", ":1: thread = \"fast\": use spin, doze or caller"),
        ("thread = \"caller\"\ncpu = 0", ":2: cpu = \"0\": leave it out"),
        ("dir = \"x\"", ":1: dir = \"x\": use an absolute path"),
        ("net = \"local", ":1: "),
    ] {
        write(&path, text)?;
        let mut command = wire.command(0, &["timeout", "10", "ibv_devinfo"]);
        command.env_remove("UWARP_DIR").env("UWARP_CONF", &path);
        one_line(&mut command, &format!("uwarp: {name}{says}"))
            .map_err(|error| format!("{text}: {error}"))?;
    }
    Ok(())
}

/// Returns the name of the device that `ibv_devinfo` shows with a settings file and variables.
fn device(wire: &Wire, variables: &[(&str, &str)]) -> Result<String, String> {
    let mut command = wire.command(0, &["timeout", "10", "ibv_devinfo"]);
    let output = command.envs(variables.iter().copied()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = text.lines().find_map(|line| line.strip_prefix("hca_id:\t")).map(str::to_owned);
    name.ok_or_else(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

fn precedence() -> Result<(), String> {
    let wire = Wire::new()?;
    let config = wire.folder().join("config");
    let folder = config.join("uwarp");
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    write(&folder.join("uwarp.toml"), "dev = \"of_user\"\nnet = \"local:job7\"")?;
    let (home, named) = (config.display().to_string(), wire.folder().join("named.toml"));
    write(&named, "dev = \"named\"")?;
    let named = named.display().to_string();
    // The address in a file belongs to the wire in the file. The address is not used for a wire that the
    // environment names.
    let far = wire.folder().join("far.toml");
    write(&far, "dev = \"far\"\nnet = \"packet:eth7\"\naddr = \"10.0.0.2/24\"")?;
    let far = far.display().to_string();
    for (variables, wanted) in [
        (&[][..], "uwarp0"),
        (&[("XDG_CONFIG_HOME", home.as_str())][..], "of_user"),
        (&[("XDG_CONFIG_HOME", &home), ("UWARP_CONF", &named)], "named"),
        (&[("XDG_CONFIG_HOME", &home), ("UWARP_DEV", "set")], "set"),
        (&[("XDG_CONFIG_HOME", &home), ("UWARP_DEV", "")], "of_user"),
        (&[("UWARP_CONF", &far), ("UWARP_NET", "local")], "far"),
    ] {
        let found = device(&wire, variables)?;
        if found != wanted {
            return Err(format!("{variables:?}: the device is {found}, not {wanted}"));
        }
    }
    if !wire.files().with_file_name("job7").is_dir() {
        return Err("the wire of the file was not used".into());
    }
    Ok(())
}

fn folders() -> Result<(), String> {
    let wire = Wire::new()?;
    let folder = wire.folder().join("others");
    for (owner, mode, says) in [(0, 0o755, "belongs to user 0"), (65_534, 0o755, "mode 755")] {
        let _ = fs::remove_dir_all(&folder);
        let inner = folder.join("default");
        fs::create_dir_all(&inner).map_err(|error| error.to_string())?;
        for path in [&folder, &inner] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| error.to_string())?;
            chown(path, Some(owner), Some(owner)).map_err(|error| error.to_string())?;
        }
        refuses(&wire, "UWARP_DIR", &folder.display().to_string(), says)?;
    }
    Ok(())
}

fn interfaces() -> Result<(), String> {
    let wire = Wire::between(Interfaces::new()?)?;
    for (spec, says) in [
        ("packet:nothere,addr=10.77.0.9/24", "nothere"),
        ("packet:va,addr=10.77.0.1/24", "10.77.0.1"),
        ("packet:va,addr=10.77.0.9/24,mtu=9000", "1500"),
    ] {
        refuses(&wire, "UWARP_NET", spec, says)?;
    }
    let mut without = Interfaces::new()?;
    without.privileges = Privileges::None;
    refuses(&Wire::between(without)?, "UWARP_NET", "packet:va,addr=10.77.0.9/24", "CAP_NET_RAW")
}

fn launcher() -> Result<(), String> {
    // This wire has a folder with the library and the launcher. A build of only the tests does not make such
    // a folder.
    let wire = Wire::new()?;
    let launcher = wire.launcher()?;
    for (arguments, says) in [
        ("run --net eth0 -- true", "there is no kind 'eth0'"),
        ("run --net tap:uwarp0 -- true", "add addr="),
        ("run --addr 10.0.0.2 -- true", "like 10.0.0.2/24"),
        ("run --addr 10.0.0.2/24 -- true", "a local wire chooses its addresses"),
        ("run --lib /nowhere/lib.so -- true", "name the library with --lib"),
        ("run -- /nowhere/program", "/nowhere/program cannot be run"),
        ("env --net vhost", "needs a socket"),
        ("env --files mount", "only `uwarp run` can mount"),
        ("libs /proc/nowhere", "/proc/nowhere: "),
    ] {
        let mut command = Command::new(&launcher);
        one_line(command.args(arguments.split(' ')), says)
            .map_err(|error| format!("{arguments}: {error}"))?;
    }
    Ok(())
}
