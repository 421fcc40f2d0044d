//! The log of a real scheduler, composed of updates as they were sent, and of changes between
//! readings.

use std::collections::BTreeMap;

use super::model::{By, DRAIN, Entry, Fields, Order, What};

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) entries: Vec<Entry>,
    nodes: BTreeMap<String, Fields>,
    /// The last update of each node, and its sender.
    sent: BTreeMap<String, (u32, Order)>,
}

impl Log {
    /// A log that begins with these nodes.
    pub(crate) fn of(begin: BTreeMap<String, Fields>) -> Self {
        Self { entries: Vec::new(), nodes: begin, sent: BTreeMap::new() }
    }

    /// The gate sent this update, with this length of its journal.
    pub(crate) fn record_sent(
        &mut self,
        command: u32,
        nodes: Vec<String>,
        order: Order,
        journal: u64,
        evidence: bool,
    ) {
        for node in &nodes {
            self.sent.insert(node.clone(), (command, order.clone()));
        }
        let what = What::Sent { nodes, order, journal, evidence };
        self.entries.push(Entry { by: By::Gate(command), what });
    }

    /// The gate received this answer.
    pub(crate) fn read(&mut self, command: u32, nodes: BTreeMap<String, Fields>) {
        self.seen(None, &nodes);
        if !nodes.is_empty() {
            self.entries.push(Entry { by: By::Gate(command), what: What::Read(nodes) });
        }
    }

    /// Nodes as they are now. The author of a change is the known one: the gate, if its last
    /// update explains the change, by default unknown.
    pub(crate) fn seen(&mut self, by: Option<By>, nodes: &BTreeMap<String, Fields>) {
        for (name, now) in nodes {
            let was = self.nodes.insert(name.clone(), now.clone()).unwrap_or_default();
            if was == *now {
                continue;
            }
            let by = by.unwrap_or_else(|| match self.sent.get(name) {
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
