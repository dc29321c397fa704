//! The processes on the `local` wires of this user.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use dp::local;

use super::address::address_of_station;
use super::names;

/// A process on a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The name of the wire.
    pub wire: String,
    /// Its number; 0 if this process cannot see it.
    pub pid: i32,
    /// Its name, as the system has it.
    pub program: String,
    /// Its address on the wire.
    pub address: String,
    /// The addresses at which its programs listen.
    pub listens: Vec<String>,
}

/// The processes on all `local` wires of this user, by wire and address.
///
/// # Errors
/// The system's, if a folder of the wires cannot be read.
pub fn processes() -> io::Result<Vec<Process>> {
    let any = local::default_folder("any").map_err(io::Error::other)?;
    let Some(parent) = any.parent() else { return Ok(Vec::new()) };
    let wires = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut folders = wires.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    let mut found = Vec::new();
    for folder in folders {
        found.extend(on_wire(&folder)?);
    }
    Ok(found)
}

fn on_wire(folder: &Path) -> io::Result<Vec<Process>> {
    let wire = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let listening = names::listening(folder);
    let process = |station: local::Station| {
        let address = address_of_station(station.number);
        let of_process = |(_, at): &&(String, SocketAddr)| at.ip() == address;
        let listens = listening.iter().filter(of_process).map(|(name, _)| name.clone()).collect();
        let program = fs::read_to_string(format!("/proc/{}/comm", station.pid)).unwrap_or_default();
        Process {
            wire: wire.clone(),
            pid: station.pid,
            program: program.trim_end().to_owned(),
            address: address.to_string(),
            listens,
        }
    };
    Ok(local::stations(folder)?.into_iter().map(process).collect())
}
