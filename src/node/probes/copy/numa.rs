//! NUMA placement of host memory near a GPU: finds the NUMA node of its PCI slot, and pins the
//! thread there while memory is allocated.
//!
//! Linux allocates memory on the node of the allocating thread. If the system does not report the
//! node, or does not permit pinning, memory is allocated anywhere.

use std::path::Path;
use std::{fs, io};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs next to a GPU.
#[derive(Clone, Debug)]
pub(crate) struct NumaCpus {
    pub(crate) node: u32,
    cpus: Vec<usize>,
}

/// The CPUs near the GPU at this PCI address, from files below `root/sys`.
pub(crate) fn find_numa_cpus(root: &Path, bus_id: &str) -> Option<NumaCpus> {
    let read = |path: String| fs::read_to_string(root.join("sys").join(path)).ok();
    // A negative number means that the firmware reports no node.
    let node: u32 = read(format!("bus/pci/devices/{bus_id}/numa_node"))?.trim().parse().ok()?;
    let cpus = parse_cpu_list(&read(format!("devices/system/node/node{node}/cpulist"))?)?;
    // A node of GPU memory has no CPUs.
    (!cpus.is_empty()).then_some(NumaCpus { node, cpus })
}

/// Parses a list such as `0-3,8`.
fn parse_cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // The kernel's CPU mask ends there; ignore the rest.
        numbers.extend((first..=last).take_while(|cpu| *cpu < CpuSet::MAX_CPU));
    }
    Some(numbers)
}

/// Keeps this thread near a GPU until it is dropped.
#[derive(Debug)]
pub(crate) struct NumaPin {
    before: CpuSet,
}

impl NumaCpus {
    /// Pins this thread there.
    pub(crate) fn pin_thread(&self) -> io::Result<NumaPin> {
        let before = sched_getaffinity(None)?;
        let mut wanted = CpuSet::new();
        for cpu in self.cpus.iter().filter(|cpu| before.is_set(**cpu)) {
            wanted.set(*cpu);
        }
        sched_setaffinity(None, &wanted)?;
        Ok(NumaPin { before })
    }
}

impl Drop for NumaPin {
    fn drop(&mut self) {
        // The previous mask was allowed before; if it no longer is, the thread stays pinned.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(node: &str, cpus: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join("sys").join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("bus/pci/devices/0000:3b:00.0/numa_node", &format!("{node}\n"));
        write("devices/system/node/node1/cpulist", &format!("{cpus}\n"));
        root
    }

    #[test]
    fn the_pci_slot_gives_the_node_and_the_node_its_cpus() {
        let root = tree("1", "4-6,12");
        let found = find_numa_cpus(root.path(), "0000:3b:00.0").expect("a node");
        assert_eq!((found.node, found.cpus), (1, vec![4, 5, 6, 12]));
    }

    #[test]
    fn unknown_or_invalid_numa_data_gives_no_cpus() {
        assert!(find_numa_cpus(tree("-1", "0-3").path(), "0000:3b:00.0").is_none());
        assert!(find_numa_cpus(tree("1", "").path(), "0000:3b:00.0").is_none());
        assert!(find_numa_cpus(tree("1", "a-b").path(), "0000:3b:00.0").is_none());
        assert!(find_numa_cpus(tree("1", "0-3").path(), "0000:5e:00.0").is_none());
        assert!(find_numa_cpus(tree("7", "0-3").path(), "0000:3b:00.0").is_none());
    }

    #[test]
    fn a_list_far_beyond_any_machine_ends() {
        let cpus = parse_cpu_list("0-18446744073709551614").expect("a list");
        assert_eq!(cpus.len(), CpuSet::MAX_CPU);
    }

    #[test]
    fn dropping_the_pin_restores_the_cpu_mask() {
        // Runs in a separate thread, so that the pinning ends with it.
        let (before, there, after) = std::thread::spawn(|| {
            let before = sched_getaffinity(None).expect("known");
            let first = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).expect("one");
            let near = NumaCpus { node: 0, cpus: vec![first] };
            let moved = near.pin_thread().expect("moved");
            let there = sched_getaffinity(None).expect("known").count();
            drop(moved);
            (before.count(), there, sched_getaffinity(None).expect("known").count())
        })
        .join()
        .expect("it ends");
        assert_eq!((there, after), (1, before));
        let nowhere = NumaCpus { node: 0, cpus: Vec::new() };
        assert!(nowhere.pin_thread().is_err());
    }
}
