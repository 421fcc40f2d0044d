//! Neighbours that lldpd of one node discovered: `lldpctl` and `lldpcli show neighbors` as text,
//! keyvalue, json and json0.
//!
//! The formats are those of lldpd's writers (its `src/client`). In json, lists of one are
//! unwrapped and an object's name becomes its key, so the structure depends on the number of
//! neighbours; json0 does neither.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::claims::reader_util::{first_line, push_note, push_problem, quote_text, sanitize_text};
use model::id::NodeName;
use model::source_report::{ClaimBasis, NicReport, SourceProblemKind, SourceReport};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LldpNeighbour {
    interface: String,
    /// The system name of the neighbour.
    name: Option<String>,
    /// The neighbour's chassis id, usually a MAC address.
    chassis: Option<String>,
    /// The type of the port id (`ifname`, `mac`, ...) and the id.
    port: Option<(String, String)>,
    description: Option<String>,
    /// Advertised capabilities, and whether they are enabled.
    capabilities: Vec<(String, bool)>,
}

/// Whether a text is output of lldpd.
pub(super) fn recognises(text: &str) -> bool {
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    if text.starts_with('{') {
        let head = text.trim_start_matches(['{', ' ', '\t', '\r', '\n']);
        return head.starts_with("\"lldp\"");
    }
    is_keyvalue(text) || is_text(text)
}

fn is_keyvalue(text: &str) -> bool {
    text.lines().any(|line| parse_keyvalue(line).is_some())
}

fn is_text(text: &str) -> bool {
    let is_interface = |line: &str| line.starts_with("Interface:") && line.contains(", via:");
    text.lines().any(|line| line.starts_with("LLDP neighbors:") || is_interface(line))
}

/// Parses the neighbours of this node.
pub(super) fn read(report: &mut SourceReport, node: &NodeName, text: &str) {
    let text = text.trim_start_matches('\u{feff}');
    let neighbours = if text.trim_start().starts_with('{') {
        match parse_document(text) {
            Ok(value) => from_json(&value),
            Err(error) => {
                let at = format!("{}:{}:{}", report.source.place, error.line(), error.column());
                push_problem(report, SourceProblemKind::Malformed, at, first_line(&error));
                return;
            }
        }
    } else if is_keyvalue(text) {
        from_keyvalue(text)
    } else {
        from_text(text)
    };
    if neighbours.is_empty() {
        report.notes.push("no neighbour found".to_owned());
    }
    add_nics(report, node, neighbours);
}

/// lldpd writes a control character after a backslash literally, which is invalid JSON; such
/// texts are repaired.
fn parse_document(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).or_else(|error| {
        let mut mended = text.to_owned();
        for (control, escape) in
            [('\n', 'n'), ('\r', 'r'), ('\t', 't'), ('\u{8}', 'b'), ('\u{c}', 'f')]
        {
            mended = mended.replace(&format!("\\{control}"), &format!("\\{escape}"));
        }
        serde_json::from_str(&mended).map_err(|_| error)
    })
}

/// The objects of a list, or the one object in place of a list of one.
fn as_objects(value: Option<&Value>) -> Vec<&Map<String, Value>> {
    match value {
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_object).collect(),
        Some(Value::Object(object)) => vec![object],
        _ => Vec::new(),
    }
}

/// A text: bare, as the value of an object, or the first element of a list of these.
fn first_text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(sanitize_text(text)).filter(|text| !text.is_empty()),
        Value::Array(items) => match items.first()? {
            Value::Array(_) => None,
            first => first_text(Some(first)),
        },
        Value::Object(object) => match object.get("value")? {
            Value::String(text) => Some(sanitize_text(text)).filter(|text| !text.is_empty()),
            _ => None,
        },
        _ => None,
    }
}

fn from_json(value: &Value) -> Vec<LldpNeighbour> {
    let mut neighbours = Vec::new();
    for lldp in as_objects(value.get("lldp")) {
        for item in as_objects(lldp.get("interface")) {
            if item.contains_key("chassis") || item.contains_key("port") {
                neighbours.extend(parse_interface(
                    &first_text(item.get("name")).unwrap_or_default(),
                    item,
                ));
                continue;
            }
            for (name, body) in item {
                for body in as_objects(Some(body)) {
                    neighbours.extend(parse_interface(&sanitize_text(name), body));
                }
            }
        }
    }
    neighbours
}

fn parse_interface(name: &str, body: &Map<String, Value>) -> Option<LldpNeighbour> {
    let mut neighbour = LldpNeighbour { interface: name.to_owned(), ..LldpNeighbour::default() };
    if name.is_empty() {
        return None;
    }
    if let Some(chassis) = as_objects(body.get("chassis")).first() {
        let is_id = |object: &Map<String, Value>| {
            as_objects(object.get("id")).first().is_some_and(|id| id.contains_key("type"))
        };
        let mut own = *chassis;
        if is_id(chassis) {
            neighbour.name = first_text(chassis.get("name"));
        } else if let Some((name, inner)) = chassis.iter().next() {
            neighbour.name = Some(sanitize_text(name)).filter(|name| !name.is_empty());
            own = inner.as_object().unwrap_or(chassis);
        }
        neighbour.chassis = first_text(own.get("id"));
        for capability in as_objects(own.get("capability")) {
            if let Some(kind) = first_text(capability.get("type")) {
                let on = capability.get("enabled").and_then(Value::as_bool).unwrap_or_default();
                neighbour.capabilities.push((kind, on));
            }
        }
    }
    if let Some(port) = as_objects(body.get("port")).first() {
        let kind = as_objects(port.get("id")).first().and_then(|id| first_text(id.get("type")));
        neighbour.port = kind.zip(first_text(port.get("id")));
        neighbour.description = first_text(port.get("descr"));
    }
    Some(neighbour)
}

/// `lldp.IFACE.KEY=VALUE`. Interface names may contain dots themselves.
fn parse_keyvalue(line: &str) -> Option<(&str, &str, &str)> {
    let (path, value) = line.trim_end_matches('\r').strip_prefix("lldp.")?.split_once('=')?;
    if let Some(interface) = ["via", "rid", "age"]
        .iter()
        .find_map(|key| path.strip_suffix(key)?.strip_suffix('.'))
        .filter(|interface| !interface.is_empty())
    {
        return Some((interface, &path[interface.len() + 1..], value));
    }
    let at = [".chassis.", ".port."].iter().filter_map(|part| path.find(part)).min()?;
    Some((&path[..at], &path[at + 1..], value)).filter(|_| 0 < at)
}

fn from_keyvalue(text: &str) -> Vec<LldpNeighbour> {
    let mut neighbours: Vec<LldpNeighbour> = Vec::new();
    for (interface, key, value) in text.lines().filter_map(parse_keyvalue) {
        let interface = sanitize_text(interface);
        if interface.is_empty() {
            continue;
        }
        // Every neighbour begins with `via`; two on one interface have different values or are
        // consecutive.
        let is_new =
            key == "via" || neighbours.last().is_none_or(|last| last.interface != interface);
        if is_new {
            neighbours.push(LldpNeighbour { interface, ..LldpNeighbour::default() });
        }
        let Some(last) = neighbours.last_mut() else { continue };
        let value = sanitize_text(value);
        if value.is_empty() {
            continue;
        }
        match key.split('.').collect::<Vec<_>>()[..] {
            ["chassis", "name"] => last.name = Some(value),
            ["chassis", "mac" | "local" | "ip" | "ifname" | "ifalias"] => {
                last.chassis = Some(value);
            }
            ["chassis", capability, "enabled"] => {
                last.capabilities.push((capability.to_owned(), value == "on"));
            }
            ["port", "descr"] => last.description = Some(value),
            ["port", kind @ ("mac" | "local" | "ip" | "ifname" | "ifalias")] => {
                last.port = Some((kind.to_owned(), value));
            }
            _ => {}
        }
    }
    neighbours
}

fn from_text(text: &str) -> Vec<LldpNeighbour> {
    let mut neighbours: Vec<LldpNeighbour> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.trim().split_once(':') else { continue };
        let value = sanitize_text(value);
        if key == "Interface"
            && let Some((interface, _)) = value.split_once(", via:")
            && !interface.is_empty()
        {
            neighbours.push(LldpNeighbour {
                interface: interface.to_owned(),
                ..LldpNeighbour::default()
            });
            continue;
        }
        let Some(last) = neighbours.last_mut() else { continue };
        let two = || value.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
        match key {
            "ChassisID" => last.chassis = two().map(|(_, id)| id),
            "SysName" => last.name = Some(value).filter(|name| !name.is_empty()),
            "PortID" => last.port = two(),
            "PortDescr" => last.description = Some(value).filter(|text| !text.is_empty()),
            "Capability" => {
                if let Some((kind, on)) = value.split_once(", ") {
                    last.capabilities.push((kind.to_owned(), on == "on"));
                }
            }
            _ => {}
        }
    }
    neighbours
}

impl LldpNeighbour {
    /// Whether it advertises capabilities, none of which forwards traffic.
    fn is_not_switch(&self) -> bool {
        let forwards = |kind: &str| matches!(kind, "Bridge" | "Router");
        !self.capabilities.is_empty()
            && !self.capabilities.iter().any(|(kind, on)| *on && forwards(kind))
    }

    /// The usual name of the port: the description, where the id is only an address.
    fn port_name(&self) -> Option<String> {
        match &self.port {
            Some((kind, id)) if kind == "mac" || kind == "ip" => {
                Some(self.description.clone().unwrap_or_else(|| id.clone()))
            }
            Some((_, id)) => Some(id.clone()),
            None => self.description.clone(),
        }
    }
}

fn add_nics(report: &mut SourceReport, node: &NodeName, neighbours: Vec<LldpNeighbour>) {
    let mut kept: BTreeMap<String, (Option<String>, Option<String>)> = BTreeMap::new();
    for neighbour in neighbours {
        let leaf = neighbour.name.clone().or_else(|| neighbour.chassis.clone());
        let at = format!("{}: {}", report.source.place, neighbour.interface);
        if leaf.is_none() {
            let message = "a neighbour without a name or chassis id";
            push_problem(report, SourceProblemKind::Incomplete, at, message);
            continue;
        }
        if neighbour.is_not_switch() {
            let switch = quote_text(leaf.as_deref().unwrap_or_default());
            push_note(
                report,
                format!(
                    "{}: {switch} does not advertise itself as a \
                switch",
                    neighbour.interface
                ),
            );
            continue;
        }
        let port = neighbour.port_name();
        let here = (leaf.clone(), port.clone());
        if let Some(before) = kept.get(&neighbour.interface) {
            // A switch may use two protocols on one port.
            if before.0 != here.0 {
                let name = |leaf: &Option<String>| quote_text(leaf.as_deref().unwrap_or_default());
                let message = format!(
                    "{} receives LLDP from {} and {}: a device between them forwards LLDP frames",
                    neighbour.interface,
                    name(&before.0),
                    name(&here.0)
                );
                push_problem(report, SourceProblemKind::Contradictory, at, message);
            }
            continue;
        }
        kept.insert(neighbour.interface.clone(), here);
        report.node_mut(node).nics.push(NicReport {
            device: Some(neighbour.interface),
            leaf,
            port,
            basis: Some(ClaimBasis::Reported),
            at: Some(at),
            ..NicReport::default()
        });
    }
    report.node_mut(node);
}
