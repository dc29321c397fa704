//! The processes of this user on the wires of this host.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use dp::local;
use iwarp_wire::address_of_station;

use super::local_names;
use super::presence::{self, WireProcess, program};

/// The processes of this user: first the processes on `local` wires, and then the processes on other wires of
/// this network namespace. Each part is sorted by wire and address.
///
/// # Errors
/// Returns the system's error if a folder of the wires cannot be read.
pub fn processes() -> io::Result<Vec<WireProcess>> {
    let mut found = on_local_wires()?;
    found.extend(presence::processes());
    Ok(found)
}

fn on_local_wires() -> io::Result<Vec<WireProcess>> {
    let any = super::wire_spec::folder("any").map_err(io::Error::other)?;
    let Some(parent) = any.parent() else { return Ok(Vec::new()) };
    let wires = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut folders = wires.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    // Hidden folders are not wires.
    let is_hidden =
        |folder: &PathBuf| folder.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
    folders.retain(|folder| folder.is_dir() && !is_hidden(folder));
    folders.sort();
    let mut found = Vec::new();
    for folder in folders {
        found.extend(on_wire(&folder)?);
    }
    Ok(found)
}

fn on_wire(folder: &Path) -> io::Result<Vec<WireProcess>> {
    let wire = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let listening = local_names::listening(folder);
    let process = |station: local::Station| {
        let address = address_of_station(station.number);
        let of_process = |(_, at): &&(String, SocketAddr)| at.ip() == address;
        let listens = listening.iter().filter(of_process).map(|(name, _)| name.clone()).collect();
        WireProcess {
            wire: wire.clone(),
            pid: station.pid,
            program: program(station.pid),
            address: address.to_string(),
            listens,
        }
    };
    Ok(local::stations(folder)?.into_iter().map(process).collect())
}
