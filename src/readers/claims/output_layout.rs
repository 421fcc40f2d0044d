//! Assigns a recorded output to its node or domain by its path.
//!
//! Pure: file names in, scopes out. `record::outputs` walks the folder.

use std::collections::BTreeSet;

use model::id::{DomainName, NodeName};
use model::parse_output::ParseOutput;
use model::tool_recording::RecordingScope;

/// Name of the claims file next to recorded outputs.
pub const CLAIMS_FILE: &str = "claims.toml";

/// The role of a file in a recorded folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedFile {
    /// The claims file.
    Claims,
    /// An output, with its node, its domain or its pair of nodes.
    Output(RecordingScope),
    /// A file to ignore: hidden, or an editor's backup.
    Ignored,
    /// A file outside the layout, which is reported to the user.
    Misplaced,
}

/// The role of the file at this path within the folder.
pub fn classify_path(path: &[&str]) -> RecordedFile {
    if path.iter().any(|name| is_clutter(name)) {
        return RecordedFile::Ignored;
    }
    match path {
        [name] if *name == CLAIMS_FILE => RecordedFile::Claims,
        ["nodes", node, _] => RecordedFile::Output(RecordingScope::Node(NodeName::from(*node))),
        ["domains", domain, _] => {
            RecordedFile::Output(RecordingScope::Domain(DomainName::from(*domain)))
        }
        // The first of the two ran the command.
        ["pairs", a, b, _] if a != b => {
            RecordedFile::Output(RecordingScope::Pair(NodeName::from(*a), NodeName::from(*b)))
        }
        _ => RecordedFile::Misplaced,
    }
}

/// Whether a file is hidden or an editor's backup.
pub fn is_clutter(name: &str) -> bool {
    name.starts_with('.')
        || name.ends_with('~')
        || (name.starts_with('#') && name.ends_with('#'))
        || [".swp", ".swo", ".bak", ".orig", ".tmp"].iter().any(|end| name.ends_with(end))
}

/// The scope of an output without a folder: the one host it names, a domain named after the file
/// if it names several, else a node named after the file. `taken` holds names already assigned to
/// other files; two files that name the same host are two readings.
pub fn standalone_scope(
    stem: &str,
    parsed: &ParseOutput,
    taken: &mut BTreeSet<String>,
) -> RecordingScope {
    let facts = &parsed.facts;
    let named_hosts = facts.hosts.iter().chain(facts.ranks.iter().map(|rank| &rank.host));
    let mut hosts: Vec<&str> = Vec::new();
    for host in named_hosts.map(String::as_str).filter(|host| is_host_name(host)) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    match hosts.as_slice() {
        [host] => RecordingScope::Node(NodeName::from(*host)),
        [] => RecordingScope::Node(NodeName::from(unique_name(stem, taken))),
        _ => RecordingScope::Domain(DomainName::from(unique_name(stem, taken))),
    }
}

/// Whether a printed host is a valid name; templates such as `{host}` are not.
fn is_host_name(host: &str) -> bool {
    host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

fn unique_name(stem: &str, taken: &mut BTreeSet<String>) -> String {
    let stem = if stem.is_empty() { "output" } else { stem };
    let mut name = stem.to_owned();
    let mut count = 1;
    while !taken.insert(name.clone()) {
        count += 1;
        name = format!("{stem}-{count}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::tool_facts::ToolRank;

    #[test]
    fn the_folder_names_the_node_or_the_domain() {
        assert_eq!(classify_path(&["claims.toml"]), RecordedFile::Claims);
        assert_eq!(
            classify_path(&["nodes", "n1", "a.txt"]),
            RecordedFile::Output(RecordingScope::Node("n1".into()))
        );
        assert_eq!(
            classify_path(&["domains", "b", "x"]),
            RecordedFile::Output(RecordingScope::Domain("b".into()))
        );
        let pair = RecordingScope::Pair("n1".into(), "n2".into());
        assert_eq!(classify_path(&["pairs", "n1", "n2", "a.json"]), RecordedFile::Output(pair));
        assert_eq!(classify_path(&["pairs", "n1", "n1", "a.json"]), RecordedFile::Misplaced);
        assert_eq!(classify_path(&["pairs", "n1", "a.json"]), RecordedFile::Misplaced);
        assert_eq!(classify_path(&["nodes", "n1", "deep", "a.txt"]), RecordedFile::Misplaced);
        assert_eq!(classify_path(&["nodes", "stray.txt"]), RecordedFile::Misplaced);
        for clutter in [".hidden", "a.txt~", "#a#", ".a.swp", "a.bak"] {
            assert_eq!(
                classify_path(&["nodes", "n1", clutter]),
                RecordedFile::Ignored,
                "{clutter}"
            );
        }
        assert_eq!(classify_path(&[".git", "nodes", "x"]), RecordedFile::Ignored);
    }

    fn naming(hosts: &[&str]) -> ParseOutput {
        let mut parsed = ParseOutput::default();
        for host in hosts {
            let host = (*host).to_owned();
            parsed.facts.ranks.push(ToolRank { host, ..ToolRank::default() });
        }
        parsed
    }

    #[test]
    fn a_single_file_belongs_to_the_host_it_names() {
        let mut taken = BTreeSet::new();
        let mut scope = |stem, hosts: &[&str]| standalone_scope(stem, &naming(hosts), &mut taken);
        assert_eq!(scope("f", &["n7", "n7"]), RecordingScope::Node("n7".into()));
        assert_eq!(scope("f", &["n7", "n8"]), RecordingScope::Domain("f".into()));
        assert_eq!(scope("g", &[]), RecordingScope::Node("g".into()));
        assert_eq!(scope("g", &[]), RecordingScope::Node("g-2".into()));
        assert_eq!(scope("h", &["{hostname}"]), RecordingScope::Node("h".into()));
    }
}
