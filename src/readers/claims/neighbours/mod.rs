//! Network neighbours as switches and nodes tell them: who is cabled to which
//! port of which switch, by the hardware's own word.
//!
//! `lldp` reads what lldpd of one node saw, `adapters` its own InfiniBand
//! ports; `discover` and `linkinfo` read a whole InfiniBand fabric and hand its
//! cables to `web`, which makes leaves of them.

mod adapters;
mod description;
mod discover;
mod linkinfo;
mod lldp;
mod web;

use super::reading::complain;
use super::reading::fits;
use super::reading::node_of_place;
use model::id::NodeName;
use model::said::ProblemKind;
use model::said::Said;
use model::said::SourceKind;

/// The name of a switch that describes itself like this.
pub fn switch_name(description: &str) -> String {
    description::switch(description)
}

/// Whether a text looks like one.
pub fn recognises(text: &str) -> bool {
    lldp::recognises(text)
        || discover::recognises(text)
        || linkinfo::recognises(text)
        || adapters::recognises(text)
}

/// Reads it. `place` is its name in messages, and the node's where the file lies
/// in `nodes/NODE/`.
pub fn read(place: &str, text: &str) -> Said {
    read_of(node_of_place(place).as_ref(), place, text)
}

/// Reads what one node says of its neighbours, or a whole fabric's word, for
/// which `node` does not matter.
pub fn read_of(node: Option<&NodeName>, place: &str, text: &str) -> Said {
    let mut said = Said::nothing(SourceKind::Neighbours, place);
    if !fits(&mut said, text) {
        return said;
    }
    if discover::recognises(text) {
        discover::read(&mut said, text);
    } else if linkinfo::recognises(text) {
        linkinfo::read(&mut said, text);
    } else if adapters::is_list(text) {
        adapters::read_list(&mut said, text);
    } else if adapters::recognises(text) || lldp::recognises(text) {
        let Some(node) = node else {
            let message = "these are the neighbours of one node, which they do not name; \
                           expected the file under nodes/NODE/";
            complain(&mut said, ProblemKind::Incomplete, place.to_owned(), message);
            return said;
        };
        if lldp::recognises(text) {
            lldp::read(&mut said, node, text);
        } else {
            adapters::read(&mut said, node, text);
        }
    } else {
        let message = "not recognised, expected lldpctl, ibnetdiscover, iblinkinfo or ibstat";
        complain(&mut said, ProblemKind::Unsupported, place.to_owned(), message);
    }
    said
}

#[cfg(test)]
mod tests;
