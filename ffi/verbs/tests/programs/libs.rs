//! Tests of programs that load `libuwarp.so` in place of libibverbs and librdmacm, from the folder that
//! `uwarp libs` makes. `LD_PRELOAD` is not set.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pair::{Pair, is_installed};
use crate::pairs;
use crate::wire::Wire;

type Test = fn() -> Result<(), String>;

pub(crate) fn all() -> Vec<(&'static str, bool, Test)> {
    vec![
        ("libs_serve_existing_programs", is_installed("rping"), existing),
        ("libs_can_be_linked_with", is_installed("cc"), linked),
    ]
}

fn existing() -> Result<(), String> {
    for pair in pairs::all() {
        if ["rping", "write_bw_rdmacm"].contains(&pair.name.as_str()) && pair.missing().is_empty() {
            pair.run_over(&Wire::new()?.with_libs()?).map_err(|error| format!("{}: {error}", pair.name))?;
        }
    }
    Ok(())
}

/// Compiles a C program with rdma-core's headers. Links the program once with the libraries in the folder,
/// and once with rdma-core's libraries. Both programs need the same library names, and start with both sets
/// of libraries.
fn linked() -> Result<(), String> {
    for with_folder in [true, false] {
        let wire = Wire::new()?.with_libs()?;
        let program = wire.folder().join("hello");
        build(&program, with_folder.then(|| wire.libs()))?;
        needs_rdma_core(&program)?;
        let program = program.display();
        let pair = Pair::of_test("hello", &format!("{program}"), &format!("{program} 127.0.0.1 1 0"));
        pair.shows("hello from uwarp0").run_over(&wire)?;
    }
    Ok(())
}

/// Checks that a program needs only symbols that rdma-core has: without this library, the program starts and
/// finds no device.
fn needs_rdma_core(program: &Path) -> Result<(), String> {
    let run = |command: &mut Command| {
        let output = command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD").output();
        let output = output.map_err(|error| format!("{command:?}: {error}"))?;
        let both = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok::<_, String>(both.concat())
    };
    let needed = run(Command::new("readelf").arg("-d").arg(program))?;
    let needed = needed.lines().filter(|line| line.contains("(NEEDED)"));
    let mut needed: Vec<&str> =
        needed.filter_map(|line| line.split(['[', ']']).nth(1)).filter(|name| *name != "libc.so.6").collect();
    needed.sort_unstable();
    if needed != ["libibverbs.so.1", "librdmacm.so.1"] {
        return Err(format!("{} needs {needed:?}", program.display()));
    }
    // With `LD_BIND_NOW`, each symbol with its version is resolved when the program starts.
    let said = run(Command::new("timeout").args(["20", "env", "LD_BIND_NOW=1"]).arg(program).args([
        "127.0.0.1",
        "1",
        "0",
    ]))?;
    match said.contains("version `") || said.contains("symbol lookup") || said.contains("hello from") {
        true => Err(said),
        false => Ok(()),
    }
}

/// Compiles the program, with the libraries of a folder or of the system.
pub(crate) fn build(program: &Path, libraries: Option<PathBuf>) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/c/hello.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-o"]).arg(program).arg(source);
    if let Some(folder) = libraries {
        compiler.arg("-L").arg(folder);
    }
    let output = compiler.args(["-lrdmacm", "-libverbs"]).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
