//! Which node or domain a recorded output belongs to, told by where it lies.
//!
//! Pure: names of files in, places out. `record::outputs` walks the folder.

use std::collections::BTreeSet;

use model::id::DomainName;
use model::id::NodeName;
use model::parsed::Parsed;
use model::recording::Scope;

/// The name of the claims next to recorded outputs.
pub const CLAIMS: &str = "claims.toml";

/// What a file of a recorded folder is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The claims.
    Claims,
    /// An output, with the node, the domain or the pair of nodes it belongs to.
    Output(Scope),
    /// Nothing to read: a hidden file, an editor's backup.
    Ignored,
    /// Not in the layout; people are told.
    Misplaced,
}

/// What the file at this path inside the folder is.
pub fn place(path: &[&str]) -> Place {
    if path.iter().any(|name| is_clutter(name)) {
        return Place::Ignored;
    }
    match path {
        [name] if *name == CLAIMS => Place::Claims,
        ["nodes", node, _] => Place::Output(Scope::Node(NodeName::from(*node))),
        ["domains", domain, _] => Place::Output(Scope::Domain(DomainName::from(*domain))),
        // The first of the two ran the command.
        ["pairs", a, b, _] if a != b => {
            Place::Output(Scope::Pair(NodeName::from(*a), NodeName::from(*b)))
        }
        _ => Place::Misplaced,
    }
}

/// Hidden files, and what editors leave behind.
pub fn is_clutter(name: &str) -> bool {
    name.starts_with('.')
        || name.ends_with('~')
        || (name.starts_with('#') && name.ends_with('#'))
        || [".swp", ".swo", ".bak", ".orig", ".tmp"].iter().any(|end| name.ends_with(end))
}

/// Where an output without a folder belongs: to the one host it names, to a
/// domain called like the file where it names several, else to a node called
/// like the file. Names given out before are in `taken` and are not reused
/// for another file; two files that name the same host are two readings.
pub fn stand_alone(stem: &str, parsed: &Parsed, taken: &mut BTreeSet<String>) -> Scope {
    let facts = &parsed.facts;
    let said = facts.hosts.iter().chain(facts.ranks.iter().map(|rank| &rank.host));
    let mut hosts: Vec<&str> = Vec::new();
    for host in said.map(String::as_str).filter(|host| is_name(host)) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    match hosts.as_slice() {
        [host] => Scope::Node(NodeName::from(*host)),
        [] => Scope::Node(NodeName::from(unique(stem, taken))),
        _ => Scope::Domain(DomainName::from(unique(stem, taken))),
    }
}

/// Whether a printed host can be a name; templates such as `{host}` cannot.
fn is_name(host: &str) -> bool {
    host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

fn unique(stem: &str, taken: &mut BTreeSet<String>) -> String {
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
    use model::facts::Rank;

    #[test]
    fn the_folder_names_the_node_or_the_domain() {
        assert_eq!(place(&["claims.toml"]), Place::Claims);
        assert_eq!(place(&["nodes", "n1", "a.txt"]), Place::Output(Scope::Node("n1".into())));
        assert_eq!(place(&["domains", "b", "x"]), Place::Output(Scope::Domain("b".into())));
        let pair = Scope::Pair("n1".into(), "n2".into());
        assert_eq!(place(&["pairs", "n1", "n2", "a.json"]), Place::Output(pair));
        assert_eq!(place(&["pairs", "n1", "n1", "a.json"]), Place::Misplaced);
        assert_eq!(place(&["pairs", "n1", "a.json"]), Place::Misplaced);
        assert_eq!(place(&["nodes", "n1", "deep", "a.txt"]), Place::Misplaced);
        assert_eq!(place(&["nodes", "stray.txt"]), Place::Misplaced);
        for clutter in [".hidden", "a.txt~", "#a#", ".a.swp", "a.bak"] {
            assert_eq!(place(&["nodes", "n1", clutter]), Place::Ignored, "{clutter}");
        }
        assert_eq!(place(&[".git", "nodes", "x"]), Place::Ignored);
    }

    fn naming(hosts: &[&str]) -> Parsed {
        let mut parsed = Parsed::default();
        for host in hosts {
            let host = (*host).to_owned();
            parsed.facts.ranks.push(Rank { host, ..Rank::default() });
        }
        parsed
    }

    #[test]
    fn a_single_file_belongs_to_the_host_it_names() {
        let mut taken = BTreeSet::new();
        let mut scope = |stem, hosts: &[&str]| stand_alone(stem, &naming(hosts), &mut taken);
        assert_eq!(scope("f", &["n7", "n7"]), Scope::Node("n7".into()));
        assert_eq!(scope("f", &["n7", "n8"]), Scope::Domain("f".into()));
        assert_eq!(scope("g", &[]), Scope::Node("g".into()));
        assert_eq!(scope("g", &[]), Scope::Node("g-2".into()));
        assert_eq!(scope("h", &["{hostname}"]), Scope::Node("h".into()));
    }
}
