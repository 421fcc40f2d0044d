//! Lists a folder of recorded outputs: its files and their scopes.
//!
//! Reads names only, no contents. Files outside the layout are listed as misplaced.

use std::fs;
use std::path::{Path, PathBuf};

use model::id::{DomainName, NodeName};
use model::tool_recording::RecordingScope;
use readers::claims::output_layout;
use readers::claims::output_layout::RecordedFile;

/// The contents of such a folder.
#[derive(Debug, Default)]
pub struct RecordedOutputFolder {
    /// The claims file, if any.
    pub claims: Option<PathBuf>,
    /// The outputs, in order of name.
    pub files: Vec<(PathBuf, RecordingScope)>,
    /// Files and folders outside the layout.
    pub misplaced: Vec<PathBuf>,
    /// Nodes and domains whose folder holds no output.
    pub empty: Vec<RecordingScope>,
    /// Folders that could not be listed, with the error.
    pub unlisted: Vec<(PathBuf, std::io::Error)>,
}

/// Lists a folder of the layout `nodes/NODE/FILE`, `domains/DOMAIN/FILE`,
/// `pairs/NODE/NODE/FILE`.
pub fn list_outputs(root: &Path) -> RecordedOutputFolder {
    let mut outputs = RecordedOutputFolder::default();
    for (path, name, is_folder) in read_entries(root, &mut outputs) {
        if is_folder && (name == "nodes" || name == "domains") {
            for (path, part, is_folder) in read_entries(&path, &mut outputs) {
                if is_folder && !output_layout::is_clutter(&part) {
                    list_part_files(&path, &[&name, &part], &mut outputs);
                } else {
                    add_file(path, &[&name, &part], &mut outputs);
                }
            }
        } else if is_folder && name == "pairs" {
            for (path, first, is_folder) in read_entries(&path, &mut outputs) {
                if is_folder && !output_layout::is_clutter(&first) {
                    list_pairs(&path, &first, &mut outputs);
                } else {
                    add_file(path, &[&name, &first], &mut outputs);
                }
            }
        } else {
            add_file(path, &[&name], &mut outputs);
        }
    }
    outputs
}

/// The pairs whose command ran on one node.
fn list_pairs(path: &Path, first: &str, outputs: &mut RecordedOutputFolder) {
    for (path, second, is_folder) in read_entries(path, outputs) {
        if is_folder && !output_layout::is_clutter(&second) {
            list_part_files(&path, &["pairs", first, &second], outputs);
        } else {
            add_file(path, &["pairs", first, &second], outputs);
        }
    }
}

/// The files of one node, domain or pair.
fn list_part_files(path: &Path, part: &[&str], outputs: &mut RecordedOutputFolder) {
    let before = outputs.files.len();
    for (path, name, is_folder) in read_entries(path, outputs) {
        if is_folder && !output_layout::is_clutter(&name) {
            outputs.misplaced.push(path);
        } else {
            let inside: Vec<&str> = part.iter().copied().chain([name.as_str()]).collect();
            add_file(path, &inside, outputs);
        }
    }
    if outputs.files.len() == before {
        outputs.empty.extend(match part {
            ["nodes", node] => Some(RecordingScope::Node(NodeName::from(*node))),
            ["domains", domain] => Some(RecordingScope::Domain(DomainName::from(*domain))),
            ["pairs", a, b] => Some(RecordingScope::Pair(NodeName::from(*a), NodeName::from(*b))),
            _ => None,
        });
    }
}

fn add_file(path: PathBuf, inside: &[&str], outputs: &mut RecordedOutputFolder) {
    match output_layout::classify_path(inside) {
        RecordedFile::Claims => outputs.claims = Some(path),
        RecordedFile::Output(scope) => outputs.files.push((path, scope)),
        RecordedFile::Misplaced => outputs.misplaced.push(path),
        RecordedFile::Ignored => {}
    }
}

/// The entries of a folder in order of name: path, name, whether a folder.
fn read_entries(path: &Path, outputs: &mut RecordedOutputFolder) -> Vec<(PathBuf, String, bool)> {
    let mut found = Vec::new();
    let listed = fs::read_dir(path).and_then(|entries| {
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            // Follows links: outputs may be links to an archive.
            let is_folder = path.is_dir();
            found.push((path, entry.file_name().to_string_lossy().into_owned(), is_folder));
        }
        Ok(())
    });
    if let Err(error) = listed {
        outputs.unlisted.push((path.to_owned(), error));
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_outside_the_layout_are_listed() {
        let dir = tempfile::tempdir().expect("a folder");
        let put = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("has one")).expect("made");
            fs::write(path, "x").expect("written");
        };
        for name in [
            "claims.toml",
            "README",
            "nodes/n2/a.txt",
            "nodes/n1/b.txt",
            "nodes/n1/a.txt",
            "nodes/n1/a.txt~",
            "nodes/n1/.hidden",
            "nodes/n1/deep/c.txt",
            "nodes/stray.txt",
            "domains/d1/x.json",
            "pairs/n1/n2/tcp.json",
            "pairs/n1/stray.json",
        ] {
            put(name);
        }
        fs::create_dir_all(dir.path().join("nodes/n3")).expect("made");
        fs::create_dir_all(dir.path().join("pairs/n2/n1")).expect("made");
        let outputs = list_outputs(dir.path());
        let shown =
            |path: &Path| path.strip_prefix(dir.path()).expect("inside").display().to_string();
        let files: Vec<String> = outputs.files.iter().map(|(p, _)| shown(p)).collect();
        assert_eq!(
            files,
            [
                "domains/d1/x.json",
                "nodes/n1/a.txt",
                "nodes/n1/b.txt",
                "nodes/n2/a.txt",
                "pairs/n1/n2/tcp.json"
            ]
        );
        assert_eq!(outputs.files[3].1, RecordingScope::Node("n2".into()));
        let misplaced: Vec<String> = outputs.misplaced.iter().map(|p| shown(p)).collect();
        assert_eq!(
            misplaced,
            ["README", "nodes/n1/deep", "nodes/stray.txt", "pairs/n1/stray.json"]
        );
        let pair = |a: &str, b: &str| RecordingScope::Pair(a.into(), b.into());
        assert_eq!(outputs.files[4].1, pair("n1", "n2"));
        assert_eq!(outputs.empty, [RecordingScope::Node("n3".into()), pair("n2", "n1")]);
        assert!(outputs.claims.is_some());
    }
}
