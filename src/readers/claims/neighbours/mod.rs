//! Network neighbours as switches and nodes tell them: who is cabled to which
//! port of which switch, by the hardware's own word.
//!
//! `lldp` reads what lldpd of one node saw, `adapters` its own InfiniBand
//! ports; `discover` and `linkinfo` read a whole InfiniBand fabric and hand its
//! cables to `web`, which makes leaves of them.

mod ib_fabric;
mod iblinkinfo;
mod ibnetdiscover;
mod ibstat;
mod lldp;
mod node_description;

use super::reader_util::{check_text_size, node_from_path, push_problem};
use model::id::NodeName;
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};

/// The name of a switch that describes itself like this.
pub fn switch_name(description: &str) -> String {
    node_description::parse_switch_name(description)
}

/// Whether a text looks like one.
pub fn recognises(text: &str) -> bool {
    lldp::recognises(text)
        || ibnetdiscover::recognises(text)
        || iblinkinfo::recognises(text)
        || ibstat::recognises(text)
}

/// Reads it. `place` is its name in messages, and the node's where the file lies
/// in `nodes/NODE/`.
pub fn read(place: &str, text: &str) -> SourceReport {
    read_for_node(node_from_path(place).as_ref(), place, text)
}

/// Reads what one node says of its neighbours, or a whole fabric's word, for
/// which `node` does not matter.
pub fn read_for_node(node: Option<&NodeName>, place: &str, text: &str) -> SourceReport {
    let mut said = SourceReport::new(SourceKind::Neighbours, place);
    if !check_text_size(&mut said, text) {
        return said;
    }
    if ibnetdiscover::recognises(text) {
        ibnetdiscover::read(&mut said, text);
    } else if iblinkinfo::recognises(text) {
        iblinkinfo::read(&mut said, text);
    } else if ibstat::is_host_list(text) {
        ibstat::read_host_list(&mut said, text);
    } else if ibstat::recognises(text) || lldp::recognises(text) {
        let Some(node) = node else {
            let message = "these are the neighbours of one node, which they do not name; \
                           expected the file under nodes/NODE/";
            push_problem(&mut said, SourceProblemKind::Incomplete, place.to_owned(), message);
            return said;
        };
        if lldp::recognises(text) {
            lldp::read(&mut said, node, text);
        } else {
            ibstat::read(&mut said, node, text);
        }
    } else {
        let message = "not recognised, expected lldpctl, ibnetdiscover, iblinkinfo or ibstat";
        push_problem(&mut said, SourceProblemKind::Unsupported, place.to_owned(), message);
    }
    said
}

#[cfg(test)]
mod tests;
