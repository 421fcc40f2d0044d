//! Redaction of private data in a bundle: names of other nodes, addresses, users, home folders,
//! GPUs of partners.
//!
//! Tokens are replaced, the same token by the same stand-in everywhere. [`NOT_CAUGHT`] lists the
//! limits of this, and each such bundle repeats it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{BundleCase, named_nodes};
use model::id::{DomainName, NodeName};
use model::tool_recording::ToolRecording;

/// The limits of redaction, for the operator who checks a bundle before sending it.
pub const NOT_CAUGHT: &str = "Replaced: the names of other nodes that the run knows, \
     addresses, MAC \
addresses, users in home folders, in USER= and in user@host, the DNS suffix of known nodes, and UUIDs of GPUs \
of other nodes. Not replaced: names of domains, racks, leaves, rails, switches and jobs; this node's own name, \
serial numbers and GUIDs; cluster UUIDs; nodes that the run does not know by name; and whatever \
is encoded.";

/// Path prefixes that are followed by a user name.
const HOME_PREFIXES: [&str; 3] = ["/home/", "/Users/", "/export/home/"];
/// Environment variables that contain a user name.
const USER_VARIABLES: [&str; 4] = ["USER=", "LOGNAME=", "SUDO_USER=", "SLURM_JOB_USER="];

#[derive(Debug)]
pub(super) struct Redactor {
    /// Names and other names of nodes, with their stand-ins.
    names: BTreeMap<String, String>,
    /// The node that keeps its name.
    node: String,
    /// The prefixes of host lists of nodes.
    stems: BTreeSet<String>,
    /// UUIDs of this node's GPUs, which stay.
    own: BTreeSet<String>,
    /// Addresses and similar tokens, numbered in order of appearance.
    replaced: RefCell<BTreeMap<String, String>>,
    /// Names of nodes that stay, because documents use the same term.
    kept_words: Vec<String>,
}

impl Redactor {
    pub(super) fn new(case: &BundleCase) -> Self {
        let mut names = BTreeMap::new();
        let own_name = case.node.to_string();
        let others: Vec<NodeName> =
            named_nodes(case).into_iter().filter(|it| *it != case.node).collect();
        for (number, node) in (1..).zip(&others) {
            names.insert(node.to_string(), format!("partner-{number}"));
        }
        let nodes = &case.run.claims.nodes;
        for (node, aliases) in nodes.iter().map(|(node, it)| (node, &it.aliases)) {
            let to = names.get(node.as_str()).cloned();
            for alias in aliases {
                names
                    .entry(alias.clone())
                    .or_insert_with(|| to.clone().unwrap_or(own_name.clone()));
            }
        }
        // The number of nodes whose workers ran under each name.
        let mut nodes_at: BTreeMap<&str, BTreeSet<&NodeName>> = BTreeMap::new();
        for it in &case.machines {
            nodes_at.entry(it.environment.hostname.as_str()).or_default().insert(&it.node);
        }
        for machine in &case.machines {
            let hostname = &machine.environment.hostname;
            // In a simulation all workers run on one machine, whose name does not belong to a node.
            let to = match names.get(machine.node.as_str()) {
                Some(partner) => partner.clone(),
                None => own_name.clone(),
            };
            let shared = nodes_at.get(hostname.as_str()).is_some_and(|nodes| 1 < nodes.len());
            let to = if shared { "host".to_owned() } else { to };
            if !hostname.is_empty() {
                names.entry(hostname.clone()).or_insert(to);
            }
        }
        names.remove(&own_name);
        let stem = |name: &str| name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        let stems = others.iter().map(|it| stem(it.as_str())).filter(|it| !it.is_empty()).collect();
        let lines = case.machines.iter().filter(|it| it.node == case.node);
        let lines = lines.flat_map(|it| &it.environment.gpus);
        let mut own: BTreeSet<String> = lines
            .filter_map(|line| line.split(',').nth(1))
            .map(|it| it.trim().to_owned())
            .collect();
        let facts = case.facts.iter().flat_map(|it| it.gpus.iter().flatten());
        own.extend(facts.filter_map(|it| it.uuid.clone()));
        for it in case.recordings.iter().filter(|it| it.nodes == [case.node.clone()]) {
            own.extend(it.parsed.facts.fabric.iter().filter_map(|gpu| gpu.uuid.clone()));
            own.extend(it.parsed.facts.devices.iter().filter_map(|gpu| gpu.uuid.clone()));
        }
        let (met, left) = (RefCell::default(), Vec::new());
        let mut veil = Self { names, node: own_name, stems, own, replaced: met, kept_words: left };
        veil.keep_common_words(case);
        veil
    }

    /// Keeps a node's name that documents also use as a keyword (`gpu`, `pass`): with a stand-in
    /// there, the document could not be parsed. No such keyword has a digit.
    fn keep_common_words(&mut self, case: &BundleCase) {
        let is_word = |name: &&String| !name.bytes().any(|byte| byte.is_ascii_digit());
        let words: Vec<String> = self.names.keys().filter(is_word).cloned().collect();
        if !words.is_empty() && !self.can_redact(case) {
            let all = std::mem::take(&mut self.names);
            for word in words {
                let one = all.get_key_value(&word).map(|(from, to)| (from.clone(), to.clone()));
                self.names = one.into_iter().collect();
                if !self.can_redact(case) {
                    self.kept_words.push(word);
                }
            }
            self.names = all;
            self.names.retain(|name, _| !self.kept_words.contains(name));
        }
        // The second pass numbers tokens in display order.
        self.replaced = RefCell::default();
    }

    /// Whether all texts of a case can be replaced.
    fn can_redact(&self, case: &BundleCase) -> bool {
        let run = &case.run;
        let of = |it: &ToolRecording| {
            self.try_redact_value(&it.nodes).is_some() && self.try_redact_value(&it.scope).is_some()
        };
        self.try_redact_value(&run.info).is_some()
            && self.try_redact_value(&run.claims).is_some()
            && self.try_redact_value(&run.verdicts).is_some()
            && case.trends.iter().all(|it| self.try_redact_value(it).is_some())
            && case.results.iter().all(|it| self.try_redact_value(it).is_some())
            && case.facts.iter().all(|it| self.try_redact_value(it).is_some())
            && case.recordings.iter().all(of)
    }

    /// Replaces all displayed texts of a case.
    pub(super) fn redact_case(&self, case: &mut BundleCase) {
        case.run.info = self.redact_value(&case.run.info);
        case.run.claims = self.redact_value(&case.run.claims);
        // The only keys that are names; other keys are fields, even if a node has the same name.
        let nodes = std::mem::take(&mut case.run.claims.nodes).into_iter();
        case.run.claims.nodes = nodes.map(|(node, it)| (self.redact_node(node), it)).collect();
        case.run.verdicts = self.redact_value(&case.run.verdicts);
        for cell in &mut case.run.cells {
            for node in [&mut cell.src_node, &mut cell.dst_node].into_iter().flatten() {
                *node = self.redact_node(node.clone());
            }
            // A domain of one node has the node's name.
            if let Some(domain) = &mut cell.domain {
                *domain = DomainName::from(self.redact_text(domain.as_str()));
            }
            cell.rail = cell.rail.as_ref().map(|it| self.redact_text(it));
        }
        case.machines.retain(|it| it.node == case.node);
        for machine in &mut case.machines {
            machine.environment.interfaces.clear();
        }
        case.trends = case.trends.iter().map(|it| self.redact_value(it)).collect();
        for result in &mut case.results {
            *result = self.redact_value(result);
        }
        for recording in &mut case.recordings {
            recording.file = self.redact_text(&recording.file);
            recording.nodes = self.redact_value(&recording.nodes);
            recording.scope = self.redact_value(&recording.scope);
        }
        case.facts = case.facts.as_ref().map(|it| self.redact_value(it));
        case.missing = case.missing.iter().map(|it| self.redact_text(it)).collect();
        case.missing.extend(self.kept_words.iter().map(|name| {
            format!(
                "the name of the node {name} is not replaced, because these documents use it \
                 as a keyword"
            )
        }));
    }

    fn redact_node(&self, node: NodeName) -> NodeName {
        self.names.get(node.as_str()).map_or(node, |to| NodeName::from(to.as_str()))
    }

    /// A value with all its texts replaced.
    fn redact_value<T: Serialize + DeserializeOwned>(&self, value: &T) -> T {
        self.try_redact_value(value).expect("only texts have changed, and none of a closed list")
    }

    /// [`Self::redact_value`]; `None` if the result cannot be parsed.
    fn try_redact_value<T: Serialize + DeserializeOwned>(&self, value: &T) -> Option<T> {
        let mut json = serde_json::to_value(value).expect("values of the model are plain data");
        self.redact_json(&mut json);
        serde_json::from_value(json).ok()
    }

    fn redact_json(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.redact_text(text),
            Value::Array(items) => items.iter_mut().for_each(|it| self.redact_json(it)),
            Value::Object(fields) => fields.values_mut().for_each(|it| self.redact_json(it)),
            _ => {}
        }
    }

    pub(super) fn redact_text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            if let Some((from, to, length)) = split_user(rest, &out) {
                out.push_str(from);
                out.push_str(to);
                rest = &rest[length..];
                continue;
            }
            let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            if end == 0 {
                let first = rest.chars().next().map_or(1, char::len_utf8);
                out.push_str(&rest[..first]);
                rest = &rest[first..];
                continue;
            }
            let (word, behind) = rest.split_at(end);
            if behind.starts_with('[') && self.stems.contains(word) {
                let close = behind.find(']').filter(|at| {
                    behind[1..*at].chars().all(|c| c.is_ascii_digit() || ",-".contains(c))
                });
                if let Some(close) = close {
                    out.push_str("nodes[...]");
                    rest = &behind[close + 1..];
                    continue;
                }
            }
            // A user in front of a host: the token is followed by an at sign.
            if behind.starts_with('@') && behind[1..].starts_with(|c: char| is_word(c)) {
                out.push_str("user");
            } else {
                self.redact_word(word, &mut out);
            }
            rest = behind;
        }
        out
    }

    /// One token: letters, digits and the characters of names and addresses.
    fn redact_word(&self, word: &str, out: &mut String) {
        // Punctuation at the end of a sentence belongs to no name.
        let core = word.trim_end_matches(['.', ':', '-']);
        let tail = &word[core.len()..];
        if let Some(to) = self.names.get(core) {
            out.push_str(to);
        } else if is_address(core) {
            out.push_str(&self.placeholder("address", core));
        } else if core.starts_with("GPU-") && core.len() == 40 && !self.own.contains(core) {
            out.push_str(&self.placeholder("GPU-of-a-partner", core));
        } else if core.contains(':') {
            // A GPU of a node, a host and its port, ...
            for (at, part) in core.split(':').enumerate() {
                if 0 < at {
                    out.push(':');
                }
                self.redact_word(part, out);
            }
        } else if let Some((head, _)) = core.split_once('.') {
            match self.names.get(head) {
                Some(to) => out.push_str(to),
                // The node's own name, followed by a DNS domain.
                None if head == self.node => out.push_str(head),
                None => out.push_str(core),
            }
        } else {
            out.push_str(core);
        }
        out.push_str(tail);
    }

    fn placeholder(&self, what: &str, text: &str) -> String {
        let mut met = self.replaced.borrow_mut();
        let key = text.to_ascii_lowercase();
        // A fleet's outputs repeat the same few names.
        if let Some(known) = met.get(&key) {
            return known.clone();
        }
        let next = 1 + met.values().filter(|it| it.starts_with(what)).count();
        met.entry(key).or_insert(format!("{what}-{next}")).clone()
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':')
}

/// A user at the beginning of `rest`: the text that stays, its stand-in, and the consumed length of
/// `rest`.
fn split_user<'a>(rest: &'a str, before: &str) -> Option<(&'a str, &'static str, usize)> {
    let begins_word = !before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let homes = HOME_PREFIXES.iter().map(|it| (*it, true));
    let variables = USER_VARIABLES.iter().map(|it| (*it, begins_word));
    for (prefix, may) in homes.chain(variables) {
        let Some(name) = rest.strip_prefix(prefix).filter(|_| may) else { continue };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let length = name.find(|c: char| !is_name(c)).unwrap_or(name.len());
        if 0 < length {
            return Some((&rest[..prefix.len()], "user", prefix.len() + length));
        }
    }
    None
}

/// Whether a token is an IPv4, IPv6 or Ethernet address that identifies a machine.
fn is_address(word: &str) -> bool {
    let fours: Vec<&str> = word.split('.').collect();
    let is_byte = |part: &&str| {
        !part.is_empty() && part.len() <= 3 && part.parse::<u16>().is_ok_and(|it| it < 256)
    };
    if fours.len() == 4 && fours.iter().all(is_byte) {
        return !matches!(fours[0], "0" | "127");
    }
    let groups: Vec<&str> = word.split(':').collect();
    let is_hex = |part: &&str| part.bytes().all(|b| b.is_ascii_hexdigit()) && part.len() <= 4;
    if !groups.iter().all(is_hex) {
        return false;
    }
    let is_mac = groups.len() == 6 && groups.iter().all(|it| it.len() == 2);
    let has_gap = word.contains("::") && word != "::" && word != "::1";
    let has_digit = word.bytes().any(|b| b.is_ascii_digit());
    is_mac || (has_digit && has_gap && 3 <= groups.len()) || (groups.len() == 8 && has_digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use model::source_report::NodeReport;

    fn test_redactor() -> Redactor {
        let names = [("node0002", "partner-1"), ("10.7.0.12", "partner-2")];
        Redactor {
            names: names.map(|(a, b)| (a.to_owned(), b.to_owned())).into(),
            node: "node0001".to_owned(),
            stems: ["node".to_owned()].into(),
            own: ["GPU-11111111-1111-1111-1111-111111111111".to_owned()].into(),
            replaced: RefCell::default(),
            kept_words: Vec::new(),
        }
    }

    #[test]
    fn nodes_that_are_called_as_parts_of_documents_break_none() {
        let mut run = fixture::rack();
        let names = ["gpu", "locus", "pass", "machine"].map(NodeName::from);
        run.claims.domains[0].nodes.extend(names);
        run.claims.nodes.insert("machine".into(), NodeReport::default());
        run.verdicts.findings[0].summary = "slow with gpu, locus and machine".to_owned();
        let before = run.verdicts.findings[0].locus.clone();
        let mut case = super::super::fixture::build_case(run, "node0007");
        let veil = Redactor::new(&case);
        assert_eq!(veil.kept_words, ["gpu", "pass"], "kinds and outcomes");
        veil.redact_case(&mut case);
        let finding = &case.run.verdicts.findings[0];
        assert_eq!(finding.locus, before);
        assert!(finding.summary.starts_with("slow with gpu, partner-"), "{}", finding.summary);
        assert!(!finding.summary.contains("machine"), "{}", finding.summary);
        let keys: Vec<&str> = case.run.claims.nodes.keys().map(NodeName::as_str).collect();
        assert!(keys.iter().any(|it| it.starts_with("partner-")) && !keys.contains(&"machine"));
        assert!(case.missing.iter().any(|it| it.contains("the node gpu is not replaced")));
    }

    #[test]
    fn names_addresses_users_and_homes_are_replaced_and_the_rest_stays() {
        let veil = test_redactor();
        for (text, want) in [
            ("node0002:3 and node0002.", "partner-1:3 and partner-1."),
            ("raw/pairs/node0001/node0002/x.1-0.txt", "raw/pairs/node0001/partner-1/x.1-0.txt"),
            ("node0002.bad.example.com!", "partner-1!"),
            ("node0001.bad.example.com", "node0001"),
            ("node00020 xnode0002", "node00020 xnode0002"),
            ("srun -w node[0001-0018] x", "srun -w nodes[...] x"),
            ("at 10.7.0.12 and 10.7.0.13, 10.7.0.13", "at partner-2 and address-1, address-1"),
            ("fe80::1 aa:bb:cc:dd:ee:0f", "address-2 address-3"),
            (
                "driver 570.133.20, 12:34:56, 0000:3b:00.0",
                "driver 570.133.20, 12:34:56, 0000:3b:00.0",
            ),
            ("/home/ada/bin/x USER=ada", "/home/user/bin/x USER=user"),
            ("ada@node0002:22", "user@partner-1:22"),
            ("127.0.0.1:4711 std::foo", "127.0.0.1:4711 std::foo"),
            (
                "GPU-11111111-1111-1111-1111-111111111111",
                "GPU-11111111-1111-1111-1111-111111111111",
            ),
            ("GPU-22222222-1111-1111-1111-111111111111", "GPU-of-a-partner-1"),
            ("grün …", "grün …"),
        ] {
            assert_eq!(veil.redact_text(text), want);
        }
    }
}
