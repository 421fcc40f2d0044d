//! What lldpd of one node heard from its neighbours: `lldpctl` and `lldpcli show
//! neighbors` as text, keyvalue, json and json0.
//!
//! The shapes are those of lldpd's writers (its `src/client`). In json, lists of
//! one are unwrapped and an object's name becomes the key it stands under, so
//! the shape changes with the number of neighbours; json0 does neither.

use std::collections::BTreeMap;

use serde_json::Map;
use serde_json::Value;

use crate::claims::reading::complain;
use crate::claims::reading::first_line;
use crate::claims::reading::plain;
use crate::claims::reading::quoted;
use crate::claims::reading::remark;
use model::id::NodeName;
use model::said::Basis;
use model::said::NicSaid;
use model::said::ProblemKind;
use model::said::Said;

/// What was heard on one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Heard {
    interface: String,
    /// The neighbour's name for itself.
    name: Option<String>,
    /// The neighbour's chassis id, mostly a MAC address.
    chassis: Option<String>,
    /// The kind of the port's id (`ifname`, `mac`, ...) and the id.
    port: Option<(String, String)>,
    /// The port's description.
    description: Option<String>,
    /// Capabilities that it states, and whether they are on.
    capabilities: Vec<(String, bool)>,
}

/// Whether a text looks like one.
pub(super) fn recognises(text: &str) -> bool {
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    if text.starts_with('{') {
        let head = text.trim_start_matches(['{', ' ', '\t', '\r', '\n']);
        return head.starts_with("\"lldp\"");
    }
    is_keyvalue(text) || is_text(text)
}

fn is_keyvalue(text: &str) -> bool {
    text.lines().any(|line| keyvalue(line).is_some())
}

fn is_text(text: &str) -> bool {
    let heard = |line: &str| line.starts_with("Interface:") && line.contains(", via:");
    text.lines().any(|line| line.starts_with("LLDP neighbors:") || heard(line))
}

/// Reads it, as heard by this node.
pub(super) fn read(said: &mut Said, node: &NodeName, text: &str) {
    let text = text.trim_start_matches('\u{feff}');
    let heard = if text.trim_start().starts_with('{') {
        match document(text) {
            Ok(value) => from_json(&value),
            Err(error) => {
                let at = format!("{}:{}:{}", said.source.place, error.line(), error.column());
                complain(said, ProblemKind::Malformed, at, first_line(&error));
                return;
            }
        }
    } else if is_keyvalue(text) {
        from_keyvalue(text)
    } else {
        from_text(text)
    };
    if heard.is_empty() {
        said.notes.push("no neighbour was heard".to_owned());
    }
    keep(said, node, heard);
}

/// lldpd writes a control character behind a backslash as it is, which no JSON
/// reader takes; such texts are mended.
fn document(text: &str) -> Result<Value, serde_json::Error> {
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

/// The objects of a list, or the one object that stands for a list of one.
fn each(value: Option<&Value>) -> Vec<&Map<String, Value>> {
    match value {
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_object).collect(),
        Some(Value::Object(object)) => vec![object],
        _ => Vec::new(),
    }
}

/// A text: bare, or as the value of an object, or the first of a list of these.
fn word(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(plain(text)).filter(|text| !text.is_empty()),
        Value::Array(items) => match items.first()? {
            Value::Array(_) => None,
            first => word(Some(first)),
        },
        Value::Object(object) => match object.get("value")? {
            Value::String(text) => Some(plain(text)).filter(|text| !text.is_empty()),
            _ => None,
        },
        _ => None,
    }
}

fn from_json(value: &Value) -> Vec<Heard> {
    let mut heard = Vec::new();
    for lldp in each(value.get("lldp")) {
        for item in each(lldp.get("interface")) {
            if item.contains_key("chassis") || item.contains_key("port") {
                heard.extend(interface(&word(item.get("name")).unwrap_or_default(), item));
                continue;
            }
            for (name, body) in item {
                for body in each(Some(body)) {
                    heard.extend(interface(&plain(name), body));
                }
            }
        }
    }
    heard
}

fn interface(name: &str, body: &Map<String, Value>) -> Option<Heard> {
    let mut heard = Heard { interface: name.to_owned(), ..Heard::default() };
    if name.is_empty() {
        return None;
    }
    if let Some(chassis) = each(body.get("chassis")).first() {
        let is_id = |object: &Map<String, Value>| {
            each(object.get("id")).first().is_some_and(|id| id.contains_key("type"))
        };
        let mut own = *chassis;
        if is_id(chassis) {
            heard.name = word(chassis.get("name"));
        } else if let Some((name, inner)) = chassis.iter().next() {
            heard.name = Some(plain(name)).filter(|name| !name.is_empty());
            own = inner.as_object().unwrap_or(chassis);
        }
        heard.chassis = word(own.get("id"));
        for capability in each(own.get("capability")) {
            if let Some(kind) = word(capability.get("type")) {
                let on = capability.get("enabled").and_then(Value::as_bool).unwrap_or_default();
                heard.capabilities.push((kind, on));
            }
        }
    }
    if let Some(port) = each(body.get("port")).first() {
        let kind = each(port.get("id")).first().and_then(|id| word(id.get("type")));
        heard.port = kind.zip(word(port.get("id")));
        heard.description = word(port.get("descr"));
    }
    Some(heard)
}

/// `lldp.IFACE.KEY=VALUE`. Names of interfaces may have dots themselves.
fn keyvalue(line: &str) -> Option<(&str, &str, &str)> {
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

fn from_keyvalue(text: &str) -> Vec<Heard> {
    let mut heard: Vec<Heard> = Vec::new();
    for (interface, key, value) in text.lines().filter_map(keyvalue) {
        let interface = plain(interface);
        if interface.is_empty() {
            continue;
        }
        // Every neighbour begins with `via`; two on one interface differ in it
        // or follow each other.
        let is_new = key == "via" || heard.last().is_none_or(|last| last.interface != interface);
        if is_new {
            heard.push(Heard { interface, ..Heard::default() });
        }
        let Some(last) = heard.last_mut() else { continue };
        let value = plain(value);
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
    heard
}

fn from_text(text: &str) -> Vec<Heard> {
    let mut heard: Vec<Heard> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.trim().split_once(':') else { continue };
        let value = plain(value);
        if key == "Interface"
            && let Some((interface, _)) = value.split_once(", via:")
            && !interface.is_empty()
        {
            heard.push(Heard { interface: interface.to_owned(), ..Heard::default() });
            continue;
        }
        let Some(last) = heard.last_mut() else { continue };
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
    heard
}

impl Heard {
    /// Whether it states what it is, and that it forwards nothing.
    fn is_no_switch(&self) -> bool {
        let forwards = |kind: &str| matches!(kind, "Bridge" | "Router");
        !self.capabilities.is_empty()
            && !self.capabilities.iter().any(|(kind, on)| *on && forwards(kind))
    }

    /// The port as people call it: an id that is an address says less than the
    /// description, where there is one.
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

/// Writes down what was heard.
fn keep(said: &mut Said, node: &NodeName, heard: Vec<Heard>) {
    let mut kept: BTreeMap<String, (Option<String>, Option<String>)> = BTreeMap::new();
    for heard in heard {
        let leaf = heard.name.clone().or_else(|| heard.chassis.clone());
        let at = format!("{}: {}", said.source.place, heard.interface);
        if leaf.is_none() {
            let message = "a neighbour without a name or chassis id";
            complain(said, ProblemKind::Incomplete, at, message);
            continue;
        }
        if heard.is_no_switch() {
            let who = quoted(leaf.as_deref().unwrap_or_default());
            remark(said, format!("{}: {who} says that it is no switch", heard.interface));
            continue;
        }
        let port = heard.port_name();
        let here = (leaf.clone(), port.clone());
        if let Some(before) = kept.get(&heard.interface) {
            // A switch may speak two protocols on one port.
            if before.0 != here.0 {
                let name = |leaf: &Option<String>| quoted(leaf.as_deref().unwrap_or_default());
                let message = format!(
                    "{} hears {} and {}: something between them forwards what it should keep",
                    heard.interface,
                    name(&before.0),
                    name(&here.0)
                );
                complain(said, ProblemKind::Contradictory, at, message);
            }
            continue;
        }
        kept.insert(heard.interface.clone(), here);
        said.node(node).nics.push(NicSaid {
            device: Some(heard.interface),
            leaf,
            port,
            basis: Some(Basis::Reported),
            at: Some(at),
            ..NicSaid::default()
        });
    }
    said.node(node);
}
