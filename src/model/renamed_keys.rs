//! Keys of TOML files that have another name now. The old name is still read, with a warning.

use toml::de::DeTable;

use crate::text_error::TextError;

/// A key of a table that has another name now.
#[derive(Clone, Copy, Debug)]
pub struct RenamedKey {
    /// The tables that lead to the key, from the outside. Empty: the top level.
    pub tables: &'static [&'static str],
    /// The name that is still read.
    pub old: &'static str,
    /// The name in use.
    pub new: &'static str,
}

/// The byte offset of a key in the table that these names lead to.
pub fn find_key(document: &DeTable<'_>, tables: &[&str], key: &str) -> Option<usize> {
    let mut table = document;
    for name in tables {
        table = table.get(*name)?.get_ref().as_table()?;
    }
    Some(table.get_key_value(key)?.0.span().start)
}

/// A warning for each old key in a file, in file order. Empty for text that is not TOML.
pub fn find_renamed_keys(file: &str, text: &str, renamed: &[RenamedKey]) -> Vec<TextError> {
    let Ok(document) = DeTable::parse(text) else { return Vec::new() };
    let mut found: Vec<(usize, String)> = Vec::new();
    for key in renamed {
        if let Some(at) = find_key(document.get_ref(), key.tables, key.old) {
            let message = format!("{:?} is the old name of {:?}; rename it", key.old, key.new);
            found.push((at, message));
        }
    }
    found.sort();
    found.into_iter().map(|(at, message)| TextError::new(file, text, at, message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_is_reported_in_its_own_table_only() {
        const KEYS: &[RenamedKey] = &[
            RenamedKey { tables: &[], old: "otherwise", new: "fallback" },
            RenamedKey { tables: &["otherwise"], old: "together", new: "on_all_nodes" },
        ];
        let text = "together = 1\n[otherwise]\ntogether = true\n[x]\ntogether = true\n";
        let warnings: Vec<String> =
            find_renamed_keys("p.toml", text, KEYS).iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings,
            [
                "p.toml:2:2: \"otherwise\" is the old name of \"fallback\"; rename it",
                "p.toml:3:1: \"together\" is the old name of \"on_all_nodes\"; rename it",
            ]
        );
        assert!(find_renamed_keys("p.toml", "= no TOML", KEYS).is_empty());
    }
}
