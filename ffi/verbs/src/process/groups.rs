//! The multicast groups to which the program has attached queue pairs of type UD. As with the kernel, a queue
//! pair may be attached in each state, and stays attached in RESET. The engine knows the groups of the queue
//! pairs that are open.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};

use tcp_lite::MAX_GROUPS;

use crate::ffi::abi::{Errno, Outcome};

#[derive(Default)]
pub(crate) struct AttachedGroups {
    /// The numbers of the attached queue pairs, by their groups.
    table: Mutex<BTreeMap<IpAddr, BTreeSet<u32>>>,
}

impl AttachedGroups {
    fn table(&self) -> MutexGuard<'_, BTreeMap<IpAddr, BTreeSet<u32>>> {
        self.table.lock().expect("no holder of this lock panics")
    }

    /// Attaches a queue pair. Fails with `ENOMEM` if the process has the maximum number of groups.
    pub(crate) fn attach(&self, group: IpAddr, qp_num: u32) -> Outcome<()> {
        let mut table = self.table();
        if table.len() >= MAX_GROUPS && !table.contains_key(&group) {
            return Err(Errno(libc::ENOMEM));
        }
        table.entry(group).or_default().insert(qp_num);
        Ok(())
    }

    pub(crate) fn detach(&self, group: IpAddr, qp_num: u32) {
        self.retain(|other, other_num| (other, other_num) != (group, qp_num));
    }

    /// Detaches a queue pair that is destroyed from all groups.
    pub(crate) fn forget(&self, qp_num: u32) {
        self.retain(|_, other| other != qp_num);
    }

    fn retain(&self, keeps: impl Fn(IpAddr, u32) -> bool) {
        self.table().retain(|group, numbers| {
            numbers.retain(|number| keeps(*group, *number));
            !numbers.is_empty()
        });
    }

    /// The groups of a queue pair.
    pub(crate) fn of(&self, qp_num: u32) -> Vec<IpAddr> {
        let table = self.table();
        table.iter().filter(|(_, numbers)| numbers.contains(&qp_num)).map(|(group, _)| *group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_counted_once_and_end_with_their_last_member() {
        let attached = AttachedGroups::default();
        let group = |last: usize| IpAddr::from([239, 0, 0, last as u8]);
        for last in 0..MAX_GROUPS {
            attached.attach(group(last), 2).unwrap();
            attached.attach(group(last), 2).unwrap();
        }
        assert_eq!(attached.attach(group(MAX_GROUPS), 2).unwrap_err().0, libc::ENOMEM);
        attached.attach(group(0), 3).unwrap();
        attached.detach(group(0), 2);
        assert_eq!(attached.attach(group(MAX_GROUPS), 2).unwrap_err().0, libc::ENOMEM, "3 is in the group");
        assert_eq!((attached.of(3), attached.of(2).len()), (vec![group(0)], MAX_GROUPS - 1));
        attached.forget(3);
        attached.attach(group(MAX_GROUPS), 4).unwrap();
        attached.forget(2);
        assert_eq!((attached.of(2), attached.of(4)), (vec![], vec![group(MAX_GROUPS)]));
    }
}
