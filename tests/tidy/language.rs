//! Language: sources and documents use the terms of the field.

use std::fs;
use std::path::PathBuf;

use super::{files, name, root};

/// Words, or the beginnings of words, that no source and no document has.
const WORDS: &[&str] =
    &["acquit", "anybod", "convict", "guilty", "innocent", "nobod", "somebod", "whoever"];

/// Phrases that no source and no document has.
const PHRASES: &[&str] = &["second look", "bad day", "of ours"];

/// Names of variables, fields and functions that say nothing about the value.
const VAGUE_NAMES: &[&str] = &["heard", "mouth", "said", "says", "told"];

/// Files with a stored name, or a key of seeded chance: a new one would change stored data or
/// published numbers.
const STORED: &[(&str, &str)] = &[
    ("src/control/store/history/queries.rs", "guilty"),
    ("src/control/store/history/retention.rs", "guilty"),
    ("src/control/store/history/schema.rs", "guilty"),
    ("src/study/world.rs", "guilty"),
];

fn written_by_hand() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = ["src", "tests", "benches"]
        .iter()
        .flat_map(|folder| files(folder, "rs"))
        .filter(|path| name(path) != "tests/tidy/language.rs")
        .collect();
    found.extend(["docs", "ci"].iter().flat_map(|folder| files(folder, "md")));
    found.extend(["probes", "thresholds", "examples"].iter().flat_map(|it| files(it, "toml")));
    found.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|it| root().join(it)));
    found
}

/// The lines of a file that have one of these words; an identifier has the words between its
/// underscores.
fn lines_with(path: &PathBuf, is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let text = fs::read_to_string(path).expect("a readable file");
    let wrong = text.lines().enumerate().filter(|(_, line)| is_wrong(&line.to_lowercase()));
    wrong.map(|(at, line)| format!("{}:{}: {}", name(path), at + 1, line.trim())).collect()
}

#[test]
fn sources_and_documents_use_the_terms_of_the_field() {
    let all = written_by_hand();
    assert!(1_000 < all.len(), "the files are found no longer");
    let mut wrong = Vec::new();
    for path in &all {
        let stored = STORED.iter().filter(|(file, _)| *file == name(path));
        let stored: Vec<&str> = stored.map(|(_, word)| *word).collect();
        wrong.extend(lines_with(path, |line| {
            let mut words = line.split(|c: char| !c.is_alphabetic());
            let is_listed =
                |word: &str| WORDS.iter().any(|it| word.starts_with(it)) && !stored.contains(&word);
            words.any(is_listed) || PHRASES.iter().any(|phrase| line.contains(phrase))
        }));
    }
    assert!(wrong.is_empty(), "name the node, the process or the user:\n{}", wrong.join("\n"));
}

/// The identifiers of a line: what is left without strings and comments.
fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or(line);
    let outside = code.split('"').step_by(2);
    outside.flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_'))
}

#[test]
fn values_are_named_by_what_they_are() {
    let mut wrong = Vec::new();
    for path in ["src", "tests", "benches"].iter().flat_map(|folder| files(folder, "rs")) {
        wrong.extend(lines_with(&path, |line| {
            // A line of a string that goes on has no code.
            let is_code =
                !line.trim_start().starts_with('|') && line.contains([';', '{', '(', ',', '=']);
            is_code && identifiers(line).any(|it| VAGUE_NAMES.contains(&it))
        }));
    }
    assert!(wrong.is_empty(), "name the value:\n{}", wrong.join("\n"));
}
