//! Frames to multicast groups: each other station of the wire gets a copy.
//!
//! The stations are those whose sockets are in the folder of the wire. A station does not tell which groups
//! it needs, so its stack drops frames to other groups. Only datagrams are sent to groups, since the messages
//! to routers (IGMP, MLD) would have no reader.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::claim;
use crate::Mbuf;

/// Maximum number of stations that get a copy of a frame.
const MAX_STATIONS: usize = 1024;

/// The time after a change of the folder during which another change may have the same time: the folder's
/// times have the resolution of the kernel's tick.
const SETTLES_AFTER: Duration = Duration::from_millis(100);

const ETHERTYPE_AT: usize = 12;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const IPV4_PROTOCOL_AT: usize = 23;
const IPV6_NEXT_HEADER_AT: usize = 20;
const UDP: u8 = 17;

/// Whether a frame is a UDP datagram to a multicast group. The frame has no VLAN tag.
pub(super) fn is_datagram(frame: &Mbuf) -> bool {
    let mut start = [0; IPV4_PROTOCOL_AT + 1];
    if frame.copy_to(0, &mut start) < start.len() || start[0] & 1 == 0 {
        return false;
    }
    match [start[ETHERTYPE_AT], start[ETHERTYPE_AT + 1]] {
        ETHERTYPE_IPV4 => start[IPV4_PROTOCOL_AT] == UDP,
        ETHERTYPE_IPV6 => start[IPV6_NEXT_HEADER_AT] == UDP,
        _ => false,
    }
}

/// The other stations of a wire, as they were when the folder was read.
#[derive(Debug, Default)]
pub(super) struct Stations {
    numbers: Vec<u16>,
    /// The time of the last change of the folder before it was read. `None` if the folder has to be read.
    changed: Option<SystemTime>,
}

impl Stations {
    /// Reads the folder, unless it has not changed since the last call.
    pub(super) fn refresh(&mut self, folder: &Path, own: u16) {
        let changed = std::fs::metadata(folder).and_then(|folder| folder.modified()).ok();
        if changed.is_some() && changed == self.changed {
            return;
        }
        let is_settled = |changed: &SystemTime| {
            SystemTime::now().duration_since(*changed).is_ok_and(|age| age >= SETTLES_AFTER)
        };
        self.changed = changed.filter(is_settled);
        self.numbers.clear();
        // If the folder cannot be read, the frame is lost, and the next frame reads the folder again.
        let _ = claim::each_named(folder, |station| {
            if station != own && self.numbers.len() < MAX_STATIONS {
                self.numbers.push(station);
            }
        });
    }

    pub(super) fn get(&self, at: usize) -> Option<u16> {
        self.numbers.get(at).copied()
    }

    /// Removes a station that does not exist, although its socket is in the folder.
    pub(super) fn remove(&mut self, at: usize) {
        self.numbers.swap_remove(at);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};

    use testkit::folder::Folder;

    use super::*;

    /// Makes a file for a station, and sets the time of the folder's last change to `time` again.
    fn add(folder: &Path, station: u16, time: SystemTime) {
        File::create(folder.join(format!("{station}.sock"))).unwrap();
        File::open(folder).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    }

    fn found(stations: &mut Stations, folder: &Path) -> Vec<u16> {
        stations.refresh(folder, 1);
        let mut numbers = stations.numbers.clone();
        numbers.sort_unstable();
        numbers
    }

    /// Two changes may have the same time, but only if both are recent.
    #[test]
    fn a_folder_is_read_again_if_it_may_have_changed() {
        let scratch = Folder::new("dp-local-group");
        let mut stations = Stations::default();
        let now = SystemTime::now();
        // A time that stays recent, however long the test takes.
        let recent = now + Duration::from_secs(3600);
        for station in [1, 2] {
            add(&scratch, station, recent);
        }
        assert_eq!(found(&mut stations, &scratch), [2]);
        add(&scratch, 3, recent);
        assert_eq!(found(&mut stations, &scratch), [2, 3]);
        let earlier = now - Duration::from_secs(60);
        add(&scratch, 4, earlier);
        assert_eq!(found(&mut stations, &scratch), [2, 3, 4]);
        add(&scratch, 5, earlier);
        assert_eq!(found(&mut stations, &scratch), [2, 3, 4], "nothing has changed since then");
        add(&scratch, 6, earlier + Duration::from_secs(1));
        assert_eq!(found(&mut stations, &scratch), [2, 3, 4, 5, 6]);
    }
}
