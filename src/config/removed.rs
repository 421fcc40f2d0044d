//! Keys of earlier versions: each is reported with its place and its replacement.

use toml::de::DeTable;

use crate::config::ConfigMistake;
use engine::policy::action_policy::removed::REMOVED;

/// The first such key of a file.
pub(crate) fn first(text: &str) -> Option<ConfigMistake> {
    let file = DeTable::parse(text).ok()?;
    let (_, policy) = file.get_ref().get_key_value("policy")?;
    let policy = policy.get_ref().as_table()?;
    let removed = REMOVED.iter().filter_map(|it| {
        let (key, _) = policy.get_key_value(it.key)?;
        Some((key.span().start, format!("[policy] {}: removed: {}", it.key, it.instead)))
    });
    removed.min()
}
