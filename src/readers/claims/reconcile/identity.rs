//! Names of fabrics: ClusterUUIDs, cliques, and plain names for domains.

use std::collections::BTreeMap;

use crate::claims::reader_util::is_zero_uuid;
use model::source_report::FabricReport;

/// The CliqueId of GPUs in an unpartitioned fabric; separate racks share it.
pub(super) const DEFAULT_CLIQUE: &str = "32766";

/// Digits of each part of a UUID.
const UUID_PARTS: [usize; 5] = [8, 4, 4, 4, 12];
/// Its length, dashes included.
const UUID_LENGTH: usize = 36;

/// Longer names are truncated: they become folders and columns.
const MAX_NAME_LENGTH: usize = 120;

fn is_uuid(text: &[u8]) -> bool {
    let mut parts = text.split(|byte| *byte == b'-');
    let fits = |length: &usize| {
        parts.next().is_some_and(|p| p.len() == *length && p.iter().all(u8::is_ascii_hexdigit))
    };
    text.len() == UUID_LENGTH && UUID_PARTS.iter().all(fits)
}

/// The UUID in a name, if any.
pub(super) fn find_uuid(name: &str) -> Option<&str> {
    let bytes = name.as_bytes();
    let start = bytes.windows(UUID_LENGTH).position(is_uuid)?;
    name.get(start..start + UUID_LENGTH)
}

/// ClusterUUID and CliqueId of a name that is a clique.
pub(super) fn parse_clique(name: &str) -> Option<(&str, &str)> {
    let (uuid, id) = name.rsplit_once('.')?;
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    (is_id && is_uuid(uuid.as_bytes())).then_some((uuid, id))
}

/// The clique in this report, if it is a usable one.
pub(super) fn usable_clique(fabric: &FabricReport) -> Option<String> {
    let uuid =
        fabric.cluster_uuid.as_deref().filter(|uuid| !uuid.is_empty() && !is_zero_uuid(uuid))?;
    let id = fabric.clique_id.as_deref().filter(|id| !id.is_empty())?;
    is_attached(fabric).then(|| format!("{}.{id}", uuid.to_lowercase()))
}

/// Whether a GPU is attached to its fabric; true if its state is not reported.
pub(super) fn is_attached(fabric: &FabricReport) -> bool {
    fabric.state.as_deref().is_none_or(|state| state.eq_ignore_ascii_case("completed"))
}

/// Assigns unique names that are safe as folders and columns.
#[derive(Default)]
pub(super) struct PlainNames {
    /// Each with the next number to append: many names may become equal.
    taken: BTreeMap<String, u32>,
}

impl PlainNames {
    /// The name reduced to letters, digits, `.`, `_` and `-`, with a number appended if it is
    /// taken. A clique is kept unchanged.
    pub(super) fn assign(&mut self, name: &str) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let text: String = name.chars().map(|c| if plain(c) { c } else { '-' }).collect();
        let text = text.trim_start_matches(['.', '-']).trim_end_matches('-');
        let text: String = text.chars().take(MAX_NAME_LENGTH).collect();
        let text = if text.is_empty() { "unnamed".to_owned() } else { text };
        let mut chosen = text.clone();
        while self.taken.contains_key(&chosen) {
            let number = self.taken.entry(text.clone()).or_insert(2);
            chosen = format!("{text}-{number}");
            *number += 1;
        }
        self.taken.insert(chosen.clone(), 2);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31";

    #[test]
    fn cliques_are_distinguished_from_other_names() {
        let name = format!("{UUID}.32766");
        assert_eq!(parse_clique(&name), Some((UUID, "32766")));
        for other in ["block.1", UUID, "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.", "a.b"] {
            assert_eq!(parse_clique(other), None, "{other}");
        }
        assert_eq!(find_uuid(&format!("block-{UUID}-2")), Some(UUID));
        assert_eq!(find_uuid("block-é7b968a6d"), None);
        assert!(is_zero_uuid("00000000-0000-0000-0000-000000000000") && !is_zero_uuid(UUID));
    }

    #[test]
    fn incomplete_or_zero_identities_are_not_cliques() {
        let fabric = |uuid: &str, id: &str, state: Option<&str>| FabricReport {
            cluster_uuid: Some(uuid.to_owned()),
            clique_id: Some(id.to_owned()),
            state: state.map(str::to_owned),
            ..FabricReport::default()
        };
        assert_eq!(usable_clique(&fabric(UUID, "1", Some("Completed"))), Some(format!("{UUID}.1")));
        assert_eq!(usable_clique(&fabric(UUID, "1", Some("in progress"))), None);
        assert_eq!(usable_clique(&fabric("00000000-0000-0000-0000-000000000000", "1", None)), None);
        assert_eq!(usable_clique(&fabric(UUID, "", None)), None);
    }

    #[test]
    fn plain_names_are_unique() {
        let mut names = PlainNames::default();
        let clique = format!("{UUID}.32766");
        assert_eq!(names.assign(&clique), clique);
        assert_eq!(names.assign("rack 7/left"), "rack-7-left");
        assert_eq!(names.assign("rack:7:left"), "rack-7-left-2");
        assert_eq!(names.assign("../é"), "unnamed");
        assert_eq!(names.assign(&"x".repeat(500)).len(), MAX_NAME_LENGTH);
    }
}
