//! Hosts, GPUs and ranks of an output, each entered into its facts once.
//!
//! Known entries are kept in sets: searching a list for every line takes quadratic time, and a
//! forged output can have any number of lines. The parsers read the lines.

use std::collections::{HashMap, HashSet};

use model::tool_facts::{ToolDevice, ToolFacts, ToolRank};

/// The fields that identify a GPU.
type DeviceKey = (u32, [Option<String>; 4]);

/// The fields that identify a rank.
type RankKey = (u32, u32, Option<u32>, String, [Option<String>; 2]);

/// The entries that the facts of one output already hold.
#[derive(Debug, Default)]
pub(super) struct FactsBuilder {
    hosts: HashSet<String>,
    devices: HashSet<DeviceKey>,
    ranks: HashSet<RankKey>,
    /// The index of the first rank of each number in the facts.
    first: HashMap<u32, usize>,
}

impl FactsBuilder {
    /// A builder that knows the hosts already in these facts.
    pub(super) fn from_hosts(facts: &ToolFacts) -> Self {
        Self { hosts: facts.hosts.iter().cloned().collect(), ..Self::default() }
    }

    /// Adds a host once.
    pub(super) fn add_host(&mut self, facts: &mut ToolFacts, host: &str) {
        if !host.is_empty() && !self.hosts.contains(host) {
            self.hosts.insert(host.to_owned());
            facts.hosts.push(host.to_owned());
        }
    }

    /// Adds a GPU once, and its host.
    pub(super) fn add_device(&mut self, facts: &mut ToolFacts, device: ToolDevice) {
        if let Some(host) = &device.host {
            self.add_host(facts, host);
        }
        let ToolDevice { index, name, bus_id, uuid, host, .. } = &device;
        let words = [name, bus_id, uuid, host].map(Clone::clone);
        if self.devices.insert((*index, words)) {
            facts.devices.push(device);
        }
    }

    /// Adds a rank once; returns whether it is new.
    pub(super) fn add_rank(&mut self, facts: &mut ToolFacts, rank: &ToolRank) -> bool {
        let ToolRank { rank: number, host, device, name, bus_id, group } = rank;
        let words = [name, bus_id].map(Clone::clone);
        let is_new = self.ranks.insert((*number, *device, *group, host.clone(), words));
        if is_new {
            self.first.entry(*number).or_insert(facts.ranks.len());
            facts.ranks.push(rank.clone());
        }
        is_new
    }

    /// The first rank with this number.
    pub(super) fn first_rank<'f>(&self, facts: &'f ToolFacts, number: u32) -> Option<&'f ToolRank> {
        facts.ranks.get(*self.first.get(&number)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_entered_once_and_the_first_of_a_number_is_found() {
        let (mut roster, mut facts) = (FactsBuilder::default(), ToolFacts::default());
        let rank =
            |rank, host: &str| ToolRank { rank, host: host.to_owned(), ..ToolRank::default() };
        let device =
            |host: &str| ToolDevice { host: Some(host.to_owned()), ..ToolDevice::default() };
        for (number, host) in [(3, "a"), (3, "a"), (3, "b"), (4, "b")] {
            roster.add_device(&mut facts, device(host));
            roster.add_rank(&mut facts, &rank(number, host));
        }
        roster.add_host(&mut facts, "");
        assert_eq!(facts.hosts, ["a", "b"]);
        assert_eq!(facts.devices, [device("a"), device("b")]);
        assert_eq!(facts.ranks, [rank(3, "a"), rank(3, "b"), rank(4, "b")]);
        assert_eq!(roster.first_rank(&facts, 3), Some(&rank(3, "a")));
        assert_eq!(roster.first_rank(&facts, 5), None);
    }
}
