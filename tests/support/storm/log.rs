//! The log of a real scheduler as it is put together: what was told as it was
//! told, and what changed by comparing what was seen.

use std::collections::BTreeMap;

use super::model::{By, DRAIN, Entry, Fields, Order, What};

/// The log so far.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) entries: Vec<Entry>,
    nodes: BTreeMap<String, Fields>,
    /// What was told last of each node, and by whom.
    told: BTreeMap<String, (u32, Order)>,
}

impl Log {
    /// One that begins with these nodes.
    pub(crate) fn of(begin: BTreeMap<String, Fields>) -> Self {
        Self { entries: Vec::new(), nodes: begin, told: BTreeMap::new() }
    }

    /// The gate told this, with so much in its journal.
    pub(crate) fn told(
        &mut self,
        command: u32,
        nodes: Vec<String>,
        order: Order,
        journal: u64,
        evidence: bool,
    ) {
        for node in &nodes {
            self.told.insert(node.clone(), (command, order.clone()));
        }
        let what = What::Told { nodes, order, journal, evidence };
        self.entries.push(Entry { by: By::Gate(command), what });
    }

    /// The gate was answered this.
    pub(crate) fn read(&mut self, command: u32, nodes: BTreeMap<String, Fields>) {
        self.seen(None, &nodes);
        if !nodes.is_empty() {
            self.entries.push(Entry { by: By::Gate(command), what: What::Read(nodes) });
        }
    }

    /// Nodes as they are now. What is not as it was is by whoever is known to have
    /// done it: the gate, where its last order makes it so, else nobody.
    pub(crate) fn seen(&mut self, by: Option<By>, nodes: &BTreeMap<String, Fields>) {
        for (name, now) in nodes {
            let was = self.nodes.insert(name.clone(), now.clone()).unwrap_or_default();
            if was == *now {
                continue;
            }
            let by = by.unwrap_or_else(|| match self.told.get(name) {
                Some((gate, order)) if order.on(&was).get(DRAIN) == now.get(DRAIN) => {
                    By::Gate(*gate)
                }
                _ => By::Fate,
            });
            let what = What::Became { node: name.clone(), now: now.clone() };
            self.entries.push(Entry { by, what });
        }
    }
}
