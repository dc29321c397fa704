//! rping under valgrind: checks that valgrind reports no memory error and no definitely lost memory.

use std::time::Duration;

use crate::pair::Running;
use crate::wire::Wire;

const LIMIT: Duration = Duration::from_secs(120);

/// Options with which valgrind reports errors and leaked memory.
const VALGRIND: &str =
    "valgrind --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite";

/// Texts by which the test recognizes errors in valgrind's reports. A report that contains one of these texts
/// counts as an error, unless the report is about [`NEW_DESCRIPTOR`].
const KINDS: [&str; 5] =
    ["Invalid ", "Conditional jump", "Use of uninitialised", "Syscall param", "definitely lost in"];

/// A function of rustix for system calls that return new descriptors. This function compares a register with
/// -1. Valgrind does not notice that the kernel has set this register, so reports about the function are
/// ignored.
const NEW_DESCRIPTOR: &str = "ret_owned_fd";

pub(crate) fn rping_has_no_errors() -> Result<(), String> {
    let wire = Wire::new()?;
    let start = |end: &str, words: &str| Running::start(&wire, end, &format!("{VALGRIND} {words}"));
    let mut server = start("server", "rping -s -a 127.0.0.1 -V -C 5")?;
    server.wait_to_listen(&wire)?;
    let mut client = start("client", "rping -c -a 127.0.0.1 -V -C 5")?;
    for (end, program) in [("client", &mut client), ("server", &mut server)] {
        let status = program.wait(LIMIT)?;
        let output = wire.output(end);
        if !status.success() || !output.contains("ERROR SUMMARY") {
            return Err(format!("the {end} ended with {status}: {output}"));
        }
        if let Some(report) = errors(&output).into_iter().next() {
            return Err(format!("an error of the {end}: {report}"));
        }
    }
    Ok(())
}

/// Returns the error reports (paragraphs) in valgrind's output, without the reports about new descriptors.
fn errors(output: &str) -> Vec<String> {
    let text = |line: &str| line.split_once("== ").map_or(String::new(), |(_, text)| text.trim().to_owned());
    let lines: Vec<String> = output.lines().filter(|line| line.starts_with("==")).map(text).collect();
    let is_error = |report: &str| KINDS.iter().any(|kind| report.contains(kind));
    lines
        .split(String::is_empty)
        .map(|lines| lines.join("\n"))
        .filter(|report| is_error(report) && !report.contains(NEW_DESCRIPTOR))
        .collect()
}
