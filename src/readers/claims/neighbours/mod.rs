//! Network neighbours as switches and nodes report them: the cable between each node and its
//! switch port, detected by the hardware.
//!
//! `lldp` reads the neighbours of lldpd on one node, `ibstat` its own InfiniBand ports;
//! `ibnetdiscover` and `iblinkinfo` read a whole InfiniBand fabric and pass its cables to
//! `ib_fabric`, which derives the leaves.

mod ib_fabric;
mod iblinkinfo;
mod ibnetdiscover;
mod ibstat;
mod lldp;
mod node_description;

use super::reader_util::{check_text_size, node_from_path, push_problem};
use model::id::NodeName;
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};

/// The name of a switch with this description.
pub fn switch_name(description: &str) -> String {
    node_description::parse_switch_name(description)
}

/// Whether a text lists neighbours.
pub fn recognises(text: &str) -> bool {
    lldp::recognises(text)
        || ibnetdiscover::recognises(text)
        || iblinkinfo::recognises(text)
        || ibstat::recognises(text)
}

/// Parses neighbours. `place` is their name in messages; a path `nodes/NODE/` in it names the
/// node.
pub fn read(place: &str, text: &str) -> SourceReport {
    read_for_node(node_from_path(place).as_ref(), place, text)
}

/// Parses the neighbours of one node, or of a whole fabric, for which `node` is ignored.
pub fn read_for_node(node: Option<&NodeName>, place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::Neighbours, place);
    if !check_text_size(&mut report, text) {
        return report;
    }
    if ibnetdiscover::recognises(text) {
        ibnetdiscover::read(&mut report, text);
    } else if iblinkinfo::recognises(text) {
        iblinkinfo::read(&mut report, text);
    } else if ibstat::is_host_list(text) {
        ibstat::read_host_list(&mut report, text);
    } else if ibstat::recognises(text) || lldp::recognises(text) {
        let Some(node) = node else {
            let message = "neighbours of one node, without its name; expected the file under \
                           nodes/NODE/";
            push_problem(&mut report, SourceProblemKind::Incomplete, place.to_owned(), message);
            return report;
        };
        if lldp::recognises(text) {
            lldp::read(&mut report, node, text);
        } else {
            ibstat::read(&mut report, node, text);
        }
    } else {
        let message = "not recognised, expected lldpctl, ibnetdiscover, iblinkinfo or ibstat";
        push_problem(&mut report, SourceProblemKind::Unsupported, place.to_owned(), message);
    }
    report
}

#[cfg(test)]
mod tests;
