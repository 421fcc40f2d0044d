//! Names: a type is named once in the workspace, files and functions are named by the terms of
//! the field.

use std::collections::BTreeMap;
use std::fs;

use super::{files, name};

/// Names that a trait of a library requires (`type Value` of serde's `Visitor`).
const ASSOCIATED: &[&str] = &["Item", "Value"];

/// Names of functions that state nothing about their object.
const VAGUE: &[&str] = &[
    "acted", "again", "heard", "kept", "of", "one", "said", "shown", "taken", "tell", "then",
    "told", "words",
];

/// Private vocabulary in former file names.
const HOUSEHOLD: &[&str] = &[
    "abreast",
    "afterwards",
    "aside",
    "beside",
    "desk",
    "hall",
    "hand",
    "house",
    "mouth",
    "otherwise",
    "seat",
    "shelf",
    "stranger",
    "together",
    "veil",
    "weather",
];

/// The name that a line defines after one of these keywords.
fn defined<'l>(line: &'l str, keywords: &[&str]) -> Option<&'l str> {
    let mut words = line.split_whitespace();
    loop {
        let word = words.next()?;
        if keywords.contains(&word) {
            let name = words.next()?;
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            return Some(&name[..end]);
        }
        let is_modifier = ["async", "const", "unsafe", "extern", "\"C\""].contains(&word);
        if !is_modifier && !word.starts_with("pub") && word != "super)" {
            return None;
        }
    }
}

#[test]
fn every_type_has_a_name_of_its_own() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in files("src", "rs") {
        let text = fs::read_to_string(&path).expect("a readable source");
        for (at, line) in text.lines().enumerate() {
            let Some(found) = defined(line, &["enum", "struct", "trait", "type", "union"]) else {
                continue;
            };
            // Empty where a macro gives the name.
            if !found.is_empty() && !ASSOCIATED.contains(&found) {
                let place = format!("{}:{}", name(&path), at + 1);
                places.entry(found.to_owned()).or_default().push(place);
            }
        }
    }
    assert!(1_000 < places.len(), "types are found no longer");
    let twice: Vec<_> = places.iter().filter(|(_, places)| 1 < places.len()).collect();
    assert!(twice.is_empty(), "types with one name: {twice:#?}");
}

#[test]
fn functions_name_their_object() {
    let mut wrong = Vec::new();
    for path in files("src", "rs") {
        let text = fs::read_to_string(&path).expect("a readable source");
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        if name(&path).contains("tests") {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            if defined(line, &["fn"]).is_some_and(|found| VAGUE.contains(&found)) {
                wrong.push(format!("{}:{}: {}", name(&path), at + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "name the object, or `new` and `from_x`:\n{}", wrong.join("\n"));
}

#[test]
fn files_are_named_by_terms_of_the_field() {
    let wrong: Vec<String> = files("src", "rs")
        .iter()
        .filter(|path| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            HOUSEHOLD.iter().any(|word| stem.split('_').any(|part| part == *word))
        })
        .map(|path| name(path))
        .collect();
    assert!(wrong.is_empty(), "household words in names of files: {wrong:?}");
}

/// Nouns of the field that end like a gerund.
const NOUNS: &[&str] = &["accounting", "cabling", "finding", "recording", "testing", "timing"];

/// Files shorter than this belong into the file that uses them, unless they are a term of their
/// own.
const SHORT_FILE: usize = 60;
/// How many such files there are: lower this number, do not raise it.
const MOST_SHORT_FILES: usize = 37;

#[test]
fn files_are_named_by_nouns() {
    let is_gerund = |path: &&std::path::PathBuf| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let last = stem.trim_end_matches("_tests").rsplit('_').next().unwrap_or_default();
        last.ends_with("ing") && !NOUNS.contains(&last)
    };
    let wrong: Vec<String> =
        files("src", "rs").iter().filter(is_gerund).map(|path| name(path)).collect();
    assert!(wrong.is_empty(), "a file is a noun of the field: {wrong:?}");
}

#[test]
fn the_number_of_short_files_does_not_grow() {
    let roots = ["lib.rs", "main.rs", "mod.rs"];
    let is_short = |path: &&std::path::PathBuf| {
        let text = fs::read_to_string(path).expect("a readable source");
        !path.file_name().is_some_and(|file| roots.iter().any(|root| file == *root))
            && text.lines().count() < SHORT_FILE
    };
    let short: Vec<String> =
        files("src", "rs").iter().filter(is_short).map(|path| name(path)).collect();
    assert!(short.len() <= MOST_SHORT_FILES, "{} short files: {short:#?}", short.len());
}
