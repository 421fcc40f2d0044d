//! Keys of earlier versions: each is reported with its place and its replacement.

use toml::de::DeTable;

use crate::config::ConfigMistake;
use engine::policy::action_policy::removed::REMOVED;
use model::renamed_keys::find_key;

/// The first such key of a file.
pub(crate) fn first(text: &str) -> Option<ConfigMistake> {
    let file = DeTable::parse(text).ok()?;
    let removed = REMOVED.iter().filter_map(|it| {
        let at = find_key(file.get_ref(), &["policy"], it.key)?;
        Some((at, format!("[policy] {}: removed: {}", it.key, it.instead)))
    });
    removed.min()
}
