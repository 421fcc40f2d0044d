//! Where the parts of a scenario stand in its file, so that what makes no sense
//! is named by its line as a mistake of syntax is.
//!
//! Knows places and nothing of what a scenario means.

use std::collections::BTreeMap;

use toml::de::DeTable;
use toml::de::DeValue;

use model::span::LineEnds;

/// Lines by path: `readings`, `noise/sigma`, `fault/0`, `fault/0/share`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(BTreeMap<String, usize>);

impl Lines {
    /// The lines of this text; none where it is no TOML.
    pub(super) fn of(text: &str) -> Self {
        let mut lines = Self::default();
        if let Ok(table) = DeTable::parse(text) {
            lines.table("", table.get_ref(), &LineEnds::of(text));
        }
        lines
    }

    fn table(&mut self, path: &str, table: &DeTable<'_>, ends: &LineEnds) {
        for (key, value) in table {
            let below = join(path, key.get_ref());
            self.0.insert(below.clone(), ends.line(key.span().start));
            self.value(&below, value.get_ref(), ends);
        }
    }

    fn value(&mut self, path: &str, value: &DeValue<'_>, ends: &LineEnds) {
        match value {
            DeValue::Table(table) => self.table(path, table, ends),
            DeValue::Array(items) => {
                for (number, item) in items.iter().enumerate() {
                    let below = join(path, &number.to_string());
                    self.0.insert(below.clone(), ends.line(item.span().start));
                    self.value(&below, item.get_ref(), ends);
                }
            }
            _ => {}
        }
    }

    /// A complaint about a part, after its line. One that begins with a key (`share = 2`,
    /// `noise.sigma: ...`) has the line of that key, where the part has it.
    pub(super) fn say(&self, part: &str, why: &str) -> String {
        self.say_of(part, &key_of(why), why)
    }

    /// The same of a part that is called by a name: `fault 3`.
    pub(super) fn say_named(&self, part: &str, name: &str, why: &str) -> String {
        self.say_of(part, &key_of(why), &format!("{name}: {why}"))
    }

    /// A complaint after the line of this key of a part, or of the part where it lacks the key.
    pub(super) fn say_of(&self, part: &str, key: &str, why: &str) -> String {
        match self.0.get(&join(part, key)).or_else(|| self.0.get(part)) {
            Some(line) => format!("line {line}: {why}"),
            None => why.to_owned(),
        }
    }

    /// The same part is known by another path as well.
    pub(super) fn also(&mut self, part: &str, path: String) {
        if let Some(line) = self.0.get(part) {
            self.0.insert(path, *line);
        }
    }
}

/// The key that a complaint begins with, as a path.
fn key_of(why: &str) -> String {
    let is_key = |c: char| c.is_ascii_lowercase() || matches!(c, '_' | '.');
    why.split(|c| !is_key(c)).next().unwrap_or_default().replace('.', "/")
}

fn join(path: &str, name: &str) -> String {
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
        let lines = Lines::of(text);
        let says = |part: &str, why: &str, told: &str| assert_eq!(lines.say(part, why), told);
        says("", "readings = 0: too few", "line 2: readings = 0: too few");
        says("", "noise.sigma: too much", "line 4: noise.sigma: too much");
        says("noise", "depth: what", "line 3: depth: what");
        says("fault/0", "no GPU `x`", "line 6: no GPU `x`");
        says("fault/1", "share = 2: no", "line 10: share = 2: no");
        says("later/0/fault", "no node `x`", "line 12: no node `x`");
        assert_eq!(lines.say_named("fault/1", "fault 2", "share"), "line 10: fault 2: share");
        // What no file says, as a study adds it.
        says("fault/2", "no node `x`", "no node `x`");
        assert_eq!(Lines::of("= no toml").say("fault/0", "why"), "why");
    }
}
