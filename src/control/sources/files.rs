//! Reads files with claims: opened here, parsed by `readers::claims::format_detection`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::input_file;
use super::input_file::InputError;
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};
use readers::claims::{format_detection, output_layout};

/// Editors on other systems call this encoding "Unicode".
const UTF_16_MESSAGE: &str = "is UTF-16 text, expected UTF-8 (iconv -f UTF-16 -t UTF-8)";

/// The reports of the files at these paths; for a folder, every recognised file in it. A path
/// that cannot be opened or has an unknown format gives a report with a problem.
pub fn read(paths: &[PathBuf]) -> Vec<SourceReport> {
    let mut all = Vec::new();
    let mut known = BTreeSet::new();
    for path in paths {
        if path.is_dir() {
            all.extend(read_folder(path, &mut known));
        } else if is_new(path, &mut known) {
            all.extend(read_file(path));
        }
    }
    all
}

/// Whether this file was not read before under another name: a source that is given twice
/// counts once.
fn is_new(path: &Path, known: &mut BTreeSet<PathBuf>) -> bool {
    path.canonicalize().map_or(true, |path| known.insert(path))
}

fn read_file(path: &Path) -> Vec<SourceReport> {
    let (kind, message) = match read_text(path) {
        Ok(text) => {
            let reports = read_recognised(path, &text);
            if !reports.is_empty() {
                return reports;
            }
            let what = if text.trim().is_empty() { "is empty" } else { "has an unknown format" };
            let message = format!("{what}, expected {}", format_detection::KNOWN_FORMATS);
            (SourceProblemKind::Unsupported, message)
        }
        Err(unread) => (unread.kind(), unread.message),
    };
    let mut report = SourceReport::new(SourceKind::Unrecognised, path.display().to_string());
    report.push_problem(kind, None, message);
    vec![report]
}

/// Every recognised file of a folder; the others are named in one note.
fn read_folder(path: &Path, known: &mut BTreeSet<PathBuf>) -> Vec<SourceReport> {
    let place = path.display().to_string();
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            let mut report = SourceReport::new(SourceKind::Unrecognised, place);
            let kind = match error.kind() {
                std::io::ErrorKind::PermissionDenied => SourceProblemKind::Denied,
                _ => SourceProblemKind::Missing,
            };
            report.push_problem(kind, None, format!("cannot be listed: {error}"));
            return vec![report];
        }
    };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        file.is_file() && !output_layout::is_clutter(&name)
    });
    files.sort();
    let found = files.len();
    files.retain(|file| is_new(file, known));
    if files.is_empty() && 0 < found {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut others = Vec::new();
    let mut rest = SourceReport::new(SourceKind::Unrecognised, place);
    for file in files {
        let read = match read_text(&file) {
            Ok(text) => read_recognised(&file, &text),
            // Folders also hold images and archives, which are skipped. A file without read
            // permission may be a source, so it is reported.
            Err(unread) if unread.is_reportable() => {
                rest.push_problem(unread.kind(), None, unread.message);
                continue;
            }
            Err(_) => Vec::new(),
        };
        if read.is_empty() {
            others.push(file.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        all.extend(read);
    }
    if all.is_empty() {
        let message =
            format!("holds no known format, expected {}", format_detection::KNOWN_FORMATS);
        rest.push_problem(SourceProblemKind::Missing, None, message);
    } else if others.is_empty() && rest.problems.is_empty() {
        return all;
    }
    if !others.is_empty() {
        rest.notes.push(format!("not read: {}", others.join(", ")));
    }
    all.push(rest);
    all
}

fn read_recognised(path: &Path, text: &str) -> Vec<SourceReport> {
    let base = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut include = |name: &str| {
        let file = base.join(name);
        read_text(&file).map_err(|unread| unread.message)
    };
    let mut all = format_detection::read_text(&path.display().to_string(), text, &mut include);
    for report in all.iter_mut().filter(|report| is_in_force(report.source.kind)) {
        let since = modified_time(path);
        for group in report.groups.iter_mut().filter(|group| group.since.is_none()) {
            group.since.clone_from(&since);
        }
    }
    all
}

/// Whether a file of this kind is itself in force, and not a recorded answer: its claims then
/// hold since its last change.
fn is_in_force(kind: SourceKind) -> bool {
    matches!(
        kind,
        SourceKind::ClaimsFile
            | SourceKind::SlurmTopologyYaml
            | SourceKind::SlurmTopologyConf
            | SourceKind::Cabling
    )
}

/// Time of the last change of a file, RFC 3339 in whole seconds.
fn modified_time(path: &Path) -> Option<String> {
    let changed = jiff::Timestamp::try_from(path.metadata().ok()?.modified().ok()?).ok()?;
    Some(jiff::Timestamp::from_second(changed.as_second()).ok()?.to_string())
}

/// Why a file could not be read as text.
struct SourceFileError {
    cause: SourceFileErrorCause,
    message: String,
}

enum SourceFileErrorCause {
    Io(std::io::ErrorKind),
    /// It is too large, or not a regular file.
    Unsuitable,
    Utf16,
    Encoding,
}

impl SourceFileError {
    fn kind(&self) -> SourceProblemKind {
        match self.cause {
            SourceFileErrorCause::Io(std::io::ErrorKind::NotFound) => SourceProblemKind::Missing,
            SourceFileErrorCause::Io(std::io::ErrorKind::PermissionDenied) => {
                SourceProblemKind::Denied
            }
            SourceFileErrorCause::Io(_) => SourceProblemKind::Unreachable,
            SourceFileErrorCause::Unsuitable => SourceProblemKind::Unsupported,
            SourceFileErrorCause::Utf16 | SourceFileErrorCause::Encoding => {
                SourceProblemKind::Malformed
            }
        }
    }

    /// Whether the file may be a source, so that skipping it is reported.
    fn is_reportable(&self) -> bool {
        match self.cause {
            SourceFileErrorCause::Io(kind) => kind != std::io::ErrorKind::NotFound,
            SourceFileErrorCause::Utf16 => true,
            SourceFileErrorCause::Unsuitable | SourceFileErrorCause::Encoding => false,
        }
    }
}

/// The text of a file, or the reason why it cannot be read.
fn read_text(path: &Path) -> Result<String, SourceFileError> {
    let bytes = input_file::read(path).map_err(|error| {
        let cause = match &error {
            InputError::Io { source, .. } => SourceFileErrorCause::Io(source.kind()),
            _ => SourceFileErrorCause::Unsuitable,
        };
        SourceFileError { cause, message: error.to_string() }
    })?;
    // Some editors write a byte order mark; it is not part of a name.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") => {
            let message = format!("{}: {UTF_16_MESSAGE}", path.display());
            Err(SourceFileError { cause: SourceFileErrorCause::Utf16, message })
        }
        Err(error) => {
            let line = bytes[..error.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
            let message = format!("{}:{line}: not UTF-8 text", path.display());
            Err(SourceFileError { cause: SourceFileErrorCause::Encoding, message })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIMS: &str = "[[domain]]\nname = \"a\"\nnodes = \"n[1-2]\"\n";

    #[test]
    fn a_file_is_recognised_by_content_and_not_by_name() {
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("x.bin");
        std::fs::write(&file, CLAIMS).expect("written");
        let [report] = &read(&[file])[..] else { panic!("one source") };
        assert_eq!(report.source.kind, SourceKind::ClaimsFile);
        assert_eq!(report.groups[0].nodes.len(), 2);
        let since = report.groups[0].since.as_deref().expect("the file has a time");
        assert!(since.ends_with('Z') && since.len() == 20, "{since}");
    }

    #[test]
    fn an_unusable_file_is_a_source_with_a_problem() {
        let place = tempfile::tempdir().expect("a folder");
        let write = |name: &str, bytes: &[u8]| {
            let file = place.path().join(name);
            std::fs::write(&file, bytes).expect("written");
            file
        };
        let kinds = [
            (place.path().join("none"), SourceProblemKind::Missing),
            (write("strange", b"dear diary\n"), SourceProblemKind::Unsupported),
            (write("bytes", b"ok\n\xff\xfe\n"), SourceProblemKind::Malformed),
            (write("bad.toml", b"[[domain]]\nname = 3\n"), SourceProblemKind::Malformed),
        ];
        for (file, kind) in kinds {
            let [report] = &read(std::slice::from_ref(&file))[..] else { panic!("one source") };
            let [problem] = &report.problems[..] else { panic!("{report:?}") };
            assert_eq!(problem.kind, kind, "{problem}");
            let text = format!("{} {problem}", report.source);
            assert!(text.contains(&file.display().to_string()), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_given_twice_is_one_source() {
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("claims.toml");
        std::fs::write(&file, CLAIMS).expect("written");
        let again = place.path().join(".").join("claims.toml");
        let folder = place.path().to_owned();
        assert_eq!(read(&[file.clone(), again, folder.clone()]).len(), 1);
        assert_eq!(read(&[folder.clone(), folder, file]).len(), 1);
    }

    #[test]
    fn a_file_of_a_folder_that_may_be_a_source_is_a_problem_and_not_a_note() {
        let place = tempfile::tempdir().expect("a folder");
        let utf16: Vec<u8> =
            "\u{feff}BlockName=b1".encode_utf16().flat_map(u16::to_le_bytes).collect();
        std::fs::write(place.path().join("claims.toml"), CLAIMS).expect("written");
        std::fs::write(place.path().join("topology.conf"), utf16).expect("written");
        std::fs::write(place.path().join("rack.png"), b"\x89PNG\xff\xff").expect("written");
        let reports = read(&[place.path().to_owned()]);
        let [_, rest] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!(rest.notes, ["not read: rack.png"]);
        let [problem] = &rest.problems[..] else { panic!("{rest:?}") };
        assert_eq!(problem.kind, SourceProblemKind::Malformed);
        assert!(problem.message.contains("topology.conf: is UTF-16"), "{problem}");
    }

    #[test]
    fn recognised_files_of_a_folder_are_read_and_the_others_named() {
        let place = tempfile::tempdir().expect("a folder");
        std::fs::write(place.path().join("claims.toml"), CLAIMS).expect("written");
        std::fs::write(place.path().join("notes.txt"), "dear diary\n").expect("written");
        std::fs::write(place.path().join(".hidden"), CLAIMS).expect("written");
        let reports = read(&[place.path().to_owned()]);
        let [claims, rest] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!(claims.groups.len(), 1);
        assert_eq!(rest.notes, ["not read: notes.txt"]);
        assert!(rest.problems.is_empty());
        let empty = tempfile::tempdir().expect("a folder");
        assert_eq!(
            read(&[empty.path().to_owned()])[0].problems[0].kind,
            SourceProblemKind::Missing
        );
    }
}
