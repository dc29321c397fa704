//! The figures that people ask for first, each beside its peers, as bars in the terminal and on one page
//! (`scripts/run`).
//!
//! The figures are rows of `compare`, which are measured once here, in short runs. So they are for a first
//! impression. The figures that may be quoted are those of `scripts/compare`.
//!
//! | file | what |
//! |---|---|
//! | `quantities` | what is shown, and from which rows |
//! | `picture` | the bars, in the terminal and on the page |

mod picture;
mod quantities;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use benches::machine::MachineInfo;
use benches::plot::Page;
use clap::Parser;
use testing::lab::{LabError, Namespace, Result};

use crate::compare;
use crate::compare::options::{CompareOptions, OVERVIEW};
use crate::compare::session::Session;
use picture::Picture;
use quantities::{GROUPS, Group};

/// Measures what people ask first, each figure beside its peers, and shows the figures as bars. `scripts/run`
/// builds the programs that it needs
#[derive(Clone, Debug, Parser)]
#[command(name = "overview", version)]
pub(crate) struct OverviewOptions {
    /// Also write the bars into this folder, as index.html.
    #[arg(long, value_name = "DIR")]
    pub(crate) page: Option<PathBuf>,
    /// Run without hugepages.
    #[arg(long)]
    pub(crate) no_huge: bool,
}

pub(crate) fn run(options: &OverviewOptions) -> ExitCode {
    match show(options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("measure overview: {failed} figures could not be measured");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("measure overview: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and shows all groups. Returns the number of figures that could not be measured.
fn show(options: &OverviewOptions) -> Result<usize> {
    let (machine, started) = (MachineInfo::here(), Instant::now());
    println!("{machine}");
    let mut page = Page::new("uwarp beside its peers");
    page.paragraph(&machine.to_string());
    page.paragraph("Each figure is from one short run. scripts/compare measures figures that may be quoted.");
    let has_hosts = Namespace::new();
    let mut failed = 0;
    let mut runs = [0; 2];
    for group in GROUPS {
        println!("\n{}", group.heading);
        if let (true, Err(error)) = (group.needs_hosts, &has_hosts) {
            println!("  skipped: this needs root, for network namespaces ({})", first_line(error));
            continue;
        }
        page.heading(group.heading);
        let (pictures, of_group) = measured(group, options.no_huge)?;
        runs = [runs[0] + of_group[0], runs[1] + of_group[1]];
        for picture in pictures {
            failed += picture.failures.len();
            print!("{}", picture.text());
            picture.draw(&mut page);
        }
    }
    if let [lost @ 1..=u32::MAX, all] = runs {
        let lost = format!(
            "In {lost} of {all} runs, a program lost its processor to other work, so its figure is too low."
        );
        println!("\n{lost}");
        page.paragraph(&lost);
    }
    println!("\n{} figures failed; measured in {} s", failed, started.elapsed().as_secs());
    if let Some(folder) = &options.page {
        let wrong = |error| testing::lab_error!("{}: {error}", folder.display());
        page.write(folder).map_err(wrong)?;
        println!("as a page: {}", folder.join("index.html").display());
    }
    Ok(failed)
}

fn first_line(error: &LabError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Measures the rows of a group. Also returns the number of runs whose programs lost their processors, and
/// the number of all runs.
fn measured(group: &Group, no_huge: bool) -> Result<(Vec<Picture>, [u32; 2])> {
    let only = group.quantities.iter().flat_map(|quantity| quantity.peers.iter().map(|peer| peer.row));
    let options = CompareOptions {
        quick: true,
        only: only.collect(),
        json: None,
        plots: None,
        valkey: None,
        keep: None,
        no_huge,
    };
    let mut session = Session::new(options)?;
    session.pace = OVERVIEW;
    let tally = compare::measured(&session);
    let pictures = group.quantities.iter().map(|quantity| Picture::new(quantity, &tally)).collect();
    Ok((pictures, session.runs.get().counted()))
}
