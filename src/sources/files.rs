//! Files that hold claims: opened here, read by `inventory::detect`.

use std::path::Path;
use std::path::PathBuf;

use super::input;
use super::input::InputError;
use crate::inventory::detect;
use crate::inventory::recorded;
use crate::model::said::ProblemKind;
use crate::model::said::Said;
use crate::model::said::SourceKind;

/// What the files of these paths say; of a folder, every file in it that is
/// recognised. A path that cannot be opened, or is nothing that is known, is a
/// source with a problem.
pub fn read(paths: &[PathBuf]) -> Vec<Said> {
    paths.iter().flat_map(|path| if path.is_dir() { folder(path) } else { file(path) }).collect()
}

fn file(path: &Path) -> Vec<Said> {
    let (kind, message) = match text(path) {
        Ok(text) => {
            let said = recognised(path, &text);
            if !said.is_empty() {
                return said;
            }
            let message = format!("is nothing that is known, expected {}", detect::KNOWN);
            (ProblemKind::Unsupported, message)
        }
        Err(trouble) => trouble,
    };
    let mut said = Said::nothing(SourceKind::Unrecognised, path.display().to_string());
    said.trouble(kind, None, message);
    vec![said]
}

/// Everything in a folder that is recognised; the rest is named once.
fn folder(path: &Path) -> Vec<Said> {
    let place = path.display().to_string();
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            let mut said = Said::nothing(SourceKind::Unrecognised, place);
            said.trouble(ProblemKind::Missing, None, format!("cannot be listed: {error}"));
            return vec![said];
        }
    };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        file.is_file() && !recorded::is_clutter(&name)
    });
    files.sort();
    let mut all = Vec::new();
    let mut others = Vec::new();
    for file in files {
        let read = text(&file).map(|text| recognised(&file, &text)).unwrap_or_default();
        if read.is_empty() {
            others.push(file.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        all.extend(read);
    }
    let mut rest = Said::nothing(SourceKind::Unrecognised, place);
    if all.is_empty() {
        let message = format!("holds nothing that is known, expected {}", detect::KNOWN);
        rest.trouble(ProblemKind::Missing, None, message);
    } else if others.is_empty() {
        return all;
    }
    if !others.is_empty() {
        rest.notes.push(format!("not read: {}", others.join(", ")));
    }
    all.push(rest);
    all
}

fn recognised(path: &Path, text: &str) -> Vec<Said> {
    let base = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut include = |name: &str| {
        let file = base.join(name);
        self::text(&file).map_err(|(_, message)| message)
    };
    let mut all = detect::read(&path.display().to_string(), text, &mut include);
    for said in all.iter_mut().filter(|said| is_kept(said.source.kind)) {
        let since = changed(path);
        for group in said.groups.iter_mut().filter(|group| group.since.is_none()) {
            group.since.clone_from(&since);
        }
    }
    all
}

/// Whether a file of this kind is what is in force, and no record of an answer:
/// then it has said so since it was last changed.
fn is_kept(kind: SourceKind) -> bool {
    matches!(
        kind,
        SourceKind::ClaimsFile
            | SourceKind::SlurmTopologyYaml
            | SourceKind::SlurmTopologyConf
            | SourceKind::Cabling
    )
}

/// When a file was last changed, RFC 3339 in whole seconds.
fn changed(path: &Path) -> Option<String> {
    let changed = jiff::Timestamp::try_from(path.metadata().ok()?.modified().ok()?).ok()?;
    Some(jiff::Timestamp::from_second(changed.as_second()).ok()?.to_string())
}

/// The text of a file, or why there is none.
fn text(path: &Path) -> Result<String, (ProblemKind, String)> {
    let bytes = input::read(path).map_err(|error| {
        let kind = match &error {
            InputError::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => ProblemKind::Missing,
                std::io::ErrorKind::PermissionDenied => ProblemKind::Denied,
                _ => ProblemKind::Unreachable,
            },
            _ => ProblemKind::Unsupported,
        };
        (kind, error.to_string())
    })?;
    // Byte order marks are what some editors leave; they are no part of a name.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => {
            let line = bytes[..error.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
            Err((ProblemKind::Malformed, format!("{}:{line}: not UTF-8 text", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIMS: &str = "[[domain]]\nname = \"a\"\nnodes = \"n[1-2]\"\n";

    #[test]
    fn a_file_is_read_as_what_it_is_whatever_its_name() {
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("x.bin");
        std::fs::write(&file, CLAIMS).expect("written");
        let [said] = &read(&[file])[..] else { panic!("one source") };
        assert_eq!(said.source.kind, SourceKind::ClaimsFile);
        assert_eq!(said.groups[0].nodes.len(), 2);
        let since = said.groups[0].since.as_deref().expect("the file has a time");
        assert!(since.ends_with('Z') && since.len() == 20, "{since}");
    }

    #[test]
    fn a_file_that_cannot_be_used_is_a_source_with_a_problem() {
        let place = tempfile::tempdir().expect("a folder");
        let write = |name: &str, bytes: &[u8]| {
            let file = place.path().join(name);
            std::fs::write(&file, bytes).expect("written");
            file
        };
        let kinds = [
            (place.path().join("none"), ProblemKind::Missing),
            (write("strange", b"dear diary\n"), ProblemKind::Unsupported),
            (write("bytes", b"ok\n\xff\xfe\n"), ProblemKind::Malformed),
            (write("bad.toml", b"[[domain]]\nname = 3\n"), ProblemKind::Malformed),
        ];
        for (file, kind) in kinds {
            let [said] = &read(std::slice::from_ref(&file))[..] else { panic!("one source") };
            let [problem] = &said.problems[..] else { panic!("{said:?}") };
            assert_eq!(problem.kind, kind, "{problem}");
            let told = format!("{} {problem}", said.source);
            assert!(told.contains(&file.display().to_string()), "{told}");
        }
    }

    #[test]
    fn of_a_folder_what_is_recognised_is_read_and_the_rest_is_named() {
        let place = tempfile::tempdir().expect("a folder");
        std::fs::write(place.path().join("claims.toml"), CLAIMS).expect("written");
        std::fs::write(place.path().join("notes.txt"), "dear diary\n").expect("written");
        std::fs::write(place.path().join(".hidden"), CLAIMS).expect("written");
        let said = read(&[place.path().to_owned()]);
        let [claims, rest] = &said[..] else { panic!("{said:?}") };
        assert_eq!(claims.groups.len(), 1);
        assert_eq!(rest.notes, ["not read: notes.txt"]);
        assert!(rest.problems.is_empty());
        let empty = tempfile::tempdir().expect("a folder");
        assert_eq!(read(&[empty.path().to_owned()])[0].problems[0].kind, ProblemKind::Missing);
    }
}
