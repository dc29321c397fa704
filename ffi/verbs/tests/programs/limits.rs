//! Programs that run out of descriptors or memory: the call fails with an error, and the library prints a
//! line. After the start of the engine, the line is printed only if `UWARP_LOG` is set.

use crate::c;
use crate::pair::is_installed;
use crate::wire::Wire;

type Test = fn() -> Result<(), String>;

pub(crate) fn all() -> Vec<(&'static str, bool, Test)> {
    vec![
        ("without_descriptors_calls_say_so", is_installed("cc"), descriptors),
        ("without_memory_the_start_says_so", is_installed("ibv_devinfo"), memory),
    ]
}

fn descriptors() -> Result<(), String> {
    let wire = Wire::new()?;
    let text = c::run_over("descriptors", &wire)?;
    // The lines are about the start, an address, and a channel.
    for says in
        ["no descriptors for the engine", "an address cannot be taken", "raise the limit of the process"]
    {
        let of_line = |line: &str| line.starts_with("uwarp: ") && line.contains(says);
        if !text.lines().any(|line| of_line(line) && line.contains("Too many open files")) {
            return Err(format!("no line says '{says}':\n{text}"));
        }
    }
    Ok(())
}

/// Raises the memory limit from a value with which only the program starts to a value with which the engine
/// also starts. If the limit is too low for the engine, a call of the program fails, and no signal ends the
/// program.
fn memory() -> Result<(), String> {
    let (mut refused, mut started) = (0, 0);
    for megabytes in (60..=240).step_by(20) {
        let wire = Wire::new()?;
        let line = format!("ulimit -c 0; ulimit -v {}; exec timeout 60 ibv_devinfo", megabytes << 10);
        let output = wire.command(0, &["sh", "-c", &line]).output().map_err(|error| error.to_string())?;
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let [out, err] = text;
        let is_refused = err.starts_with("uwarp: no memory for the engine (Cannot allocate memory")
            && err.contains("Failed to open device")
            && output.status.code() == Some(1);
        let is_started = out.contains("PORT_ACTIVE") && output.status.success();
        match (is_refused, is_started) {
            (true, false) if started == 0 => refused += 1,
            (false, true) => started += 1,
            _ => return Err(format!("{megabytes} MiB: {}\n{out}{err}", output.status)),
        }
    }
    // Some programs must be refused, and some must start.
    if refused > 0 && started > 0 { Ok(()) } else { Err(format!("{refused} refused, {started} started")) }
}
