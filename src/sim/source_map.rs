//! Line numbers of a scenario's parts, so that semantic errors name their line like syntax errors.
//!
//! This module does not interpret the scenario.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use model::text_error::LineIndex;

/// Lines by path: `readings`, `noise/sigma`, `fault/0`, `fault/0/share`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScenarioSourceMap(BTreeMap<String, usize>);

impl ScenarioSourceMap {
    /// The lines of this text; empty if it is not valid TOML.
    pub(super) fn from_toml(text: &str) -> Self {
        let mut lines = Self::default();
        if let Ok(table) = DeTable::parse(text) {
            lines.add_table("", table.get_ref(), &LineIndex::new(text));
        }
        lines
    }

    fn add_table(&mut self, path: &str, table: &DeTable<'_>, ends: &LineIndex) {
        for (key, value) in table {
            let below = join_path(path, key.get_ref());
            self.0.insert(below.clone(), ends.line_at(key.span().start));
            self.add_value(&below, value.get_ref(), ends);
        }
    }

    fn add_value(&mut self, path: &str, value: &DeValue<'_>, ends: &LineIndex) {
        match value {
            DeValue::Table(table) => self.add_table(path, table, ends),
            DeValue::Array(items) => {
                for (number, item) in items.iter().enumerate() {
                    let below = join_path(path, &number.to_string());
                    self.0.insert(below.clone(), ends.line_at(item.span().start));
                    self.add_value(&below, item.get_ref(), ends);
                }
            }
            _ => {}
        }
    }

    /// Prefixes an error about a part with its line. An error that starts with a key (`share = 2`,
    /// `noise.sigma: ...`) gets the line of that key, if the part has it.
    pub(super) fn error_at(&self, part: &str, why: &str) -> String {
        self.error_at_key(part, &leading_key(why), why)
    }

    /// Like [`Self::error_at`], for a part with a name: `fault 3`.
    pub(super) fn error_at_named(&self, part: &str, name: &str, why: &str) -> String {
        self.error_at_key(part, &leading_key(why), &format!("{name}: {why}"))
    }

    /// Prefixes an error with the line of this key in a part, or with the line of the part if it
    /// lacks the key.
    pub(super) fn error_at_key(&self, part: &str, key: &str, why: &str) -> String {
        match self.0.get(&join_path(part, key)).or_else(|| self.0.get(part)) {
            Some(line) => format!("line {line}: {why}"),
            None => why.to_owned(),
        }
    }

    /// Registers another path for a part.
    pub(super) fn add_alias(&mut self, part: &str, path: String) {
        if let Some(line) = self.0.get(part) {
            self.0.insert(path, *line);
        }
    }
}

/// The key at the start of an error, as a path.
fn leading_key(why: &str) -> String {
    let is_key = |c: char| c.is_ascii_lowercase() || matches!(c, '_' | '.');
    why.split(|c| !is_key(c)).next().unwrap_or_default().replace('.', "/")
}

fn join_path(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_has_the_line_of_its_key_or_of_its_part() {
        let text = "title = \"t\"\nreadings = 0\n[noise]\nsigma = 2\n\n[[fault]]\nkind = \"a\"\n\
                    [[fault]]\nkind = \"b\"\nshare = 2\n[[later]]\nfault = { kind = \"c\" }\n";
        let lines = ScenarioSourceMap::from_toml(text);
        let gives =
            |part: &str, why: &str, expected: &str| assert_eq!(lines.error_at(part, why), expected);
        gives("", "readings = 0: too few", "line 2: readings = 0: too few");
        gives("", "noise.sigma: too much", "line 4: noise.sigma: too much");
        gives("noise", "depth: what", "line 3: depth: what");
        gives("fault/0", "no GPU `x`", "line 6: no GPU `x`");
        gives("fault/1", "share = 2: no", "line 10: share = 2: no");
        gives("later/0/fault", "no node `x`", "line 12: no node `x`");
        assert_eq!(lines.error_at_named("fault/1", "fault 2", "share"), "line 10: fault 2: share");
        // A part that is in no file, as a study adds it.
        gives("fault/2", "no node `x`", "no node `x`");
        assert_eq!(ScenarioSourceMap::from_toml("= no toml").error_at("fault/0", "why"), "why");
    }
}
