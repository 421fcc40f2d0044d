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
    paths
        .iter()
        .flat_map(|path| if path.is_dir() { folder(path) } else { vec![file(path)] })
        .collect()
}

fn file(path: &Path) -> Said {
    match text(path) {
        Ok(text) => recognised(path, &text).unwrap_or_else(|| {
            let mut said = Said::nothing(SourceKind::Stored, path.display().to_string());
            let message = format!("is nothing that is known, expected {}", detect::KNOWN);
            said.trouble(ProblemKind::Unsupported, None, message);
            said
        }),
        Err((kind, message)) => {
            let mut said = Said::nothing(SourceKind::Stored, path.display().to_string());
            said.trouble(kind, None, message);
            said
        }
    }
}

/// Everything in a folder that is recognised; the rest is named once.
fn folder(path: &Path) -> Vec<Said> {
    let place = path.display().to_string();
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            let mut said = Said::nothing(SourceKind::Stored, place);
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
        let read = text(&file).ok().and_then(|text| recognised(&file, &text));
        match read {
            Some(said) => all.push(said),
            None => {
                others.push(file.file_name().unwrap_or_default().to_string_lossy().into_owned())
            }
        }
    }
    let mut rest = Said::nothing(SourceKind::Stored, place);
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

fn recognised(path: &Path, text: &str) -> Option<Said> {
    let base = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut include = |name: &str| {
        let file = base.join(name);
        self::text(&file).map_err(|(_, message)| message)
    };
    detect::read(&path.display().to_string(), text, &mut include)
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
