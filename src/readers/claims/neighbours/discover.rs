//! `ibnetdiscover`: every switch and adapter of an InfiniBand fabric with the
//! links of its ports.
//!
//! The format is that of rdma-core's infiniband-diags: a record opens with
//! `Switch`, `Ca` or `Rt`, and each line below it is one link of one port.

use super::description;
use super::web::End;
use super::web::Web;
use crate::claims::reading::complain;
use crate::claims::reading::guid;
use crate::claims::reading::quoted;
use crate::claims::reading::remark;
use model::said::ProblemKind;
use model::said::Said;

/// Whether a text looks like one.
pub(super) fn recognises(text: &str) -> bool {
    text.lines().any(|line| record(line).is_some())
}

/// The heading of a record.
struct Record<'t> {
    kind: Kind,
    guid: String,
    description: &'t str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    Adapter,
    Router,
}

/// `Switch<tab>65 "S-<guid>"  # "<description>" ...`
fn record(line: &str) -> Option<Record<'_>> {
    let (word, rest) = line.split_once(|c: char| c.is_ascii_whitespace())?;
    let kind = match word {
        "Switch" => Kind::Switch,
        "Ca" => Kind::Adapter,
        "Rt" => Kind::Router,
        _ => return None,
    };
    let rest = rest.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    let (_, guid, rest) = name(rest)?;
    Some(Record { kind, guid, description: description_of(rest)?.0 })
}

/// `"H-<guid>"`: the letter, the GUID, and what follows.
fn name(text: &str) -> Option<(char, String, &str)> {
    let (inside, rest) = text.strip_prefix('"')?.split_once('"')?;
    let (letter, digits) = inside.split_once('-')?;
    let mut letters = letter.chars();
    let letter = letters.next().filter(|_| letters.next().is_none())?;
    Some((letter, guid(digits)?, rest))
}

/// The description in the comment, and what follows it. It may hold quotes.
fn description_of(text: &str) -> Option<(&str, &str)> {
    let comment = &text[text.find('#')?..];
    let first = comment.find('"')?;
    let last = comment.rfind('"').filter(|last| first < *last)?;
    Some((&comment[first + 1..last], &comment[last + 1..]))
}

/// One link, as the record it stands under tells it.
struct Link<'t> {
    port: u32,
    guid: Option<String>,
    peer: char,
    peer_key: String,
    peer_port: u32,
    peer_guid: Option<String>,
    description: &'t str,
    rate: Option<u64>,
}

/// `[1](<guid>) <tab>"S-<guid>"[65](<guid>)  # "<description>" lid 73 4xNDR`
fn link(line: &str) -> Option<Link<'_>> {
    let (port, rest) = bracket(line)?;
    let (guid, rest) = round(rest);
    let (peer, peer_key, rest) = name(rest)?;
    let (peer_port, rest) = bracket(rest)?;
    let (peer_guid, rest) = round(rest);
    let (description, tail) = description_of(rest)?;
    let rate = tail.split_whitespace().find_map(description::rate);
    Some(Link { port, guid, peer, peer_key, peer_port, peer_guid, description, rate })
}

/// `[17]`, with `[ext 3]` behind it where chassis are grouped.
fn bracket(text: &str) -> Option<(u32, &str)> {
    let (number, rest) = text.strip_prefix('[')?.split_once(']')?;
    let number = number.parse().ok()?;
    let rest = match rest.strip_prefix("[ext") {
        Some(external) => external.split_once(']')?.1,
        None => rest,
    };
    Some((number, rest.trim_start()))
}

/// `(<guid>)`, where there is one.
fn round(text: &str) -> (Option<String>, &str) {
    match text.strip_prefix('(').and_then(|inside| inside.split_once(')')) {
        Some((inside, rest)) => (guid(inside), rest.trim_start()),
        None => (None, text),
    }
}

/// Reads the fabric.
pub(super) fn read(said: &mut Said, text: &str) {
    let mut web = Web::default();
    let mut current: Option<Record<'_>> = None;
    let mut listed = false;
    for (at, line) in text.lines().enumerate() {
        let (at, line) = (at + 1, line.trim());
        if line.starts_with('[') {
            match (&current, link(line)) {
                (Some(record), Some(link)) => follow(said, &mut web, record, link, at),
                (None, Some(_)) => {
                    let message = "a link before any Switch, Ca or Rt";
                    complain(said, ProblemKind::Malformed, place(said, at), message);
                }
                (_, None) => {
                    let message = format!(
                        "{}: expected a link such as [1] \"H-<guid>\"[1] # \"<host> <device>\" ...",
                        quoted(line)
                    );
                    complain(said, ProblemKind::Malformed, place(said, at), message);
                }
            }
            continue;
        }
        if let Some(record) = record(line) {
            match record.kind {
                Kind::Switch => web.switch(&record.guid, record.description, at),
                Kind::Adapter => web.adapter(End {
                    id: record.guid.clone(),
                    description: record.description.to_owned(),
                    guid: Some(record.guid.clone()),
                    line: at,
                    ..End::default()
                }),
                Kind::Router => {}
            }
            current = Some(record);
            continue;
        }
        let is_record = ["Switch", "Ca", "Rt", "Router"]
            .iter()
            .any(|word| line.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', '\t'])));
        if is_record && line.contains(" : ") && !listed {
            listed = true;
            let message = "a list of nodes (ibnetdiscover -l), which tells no links";
            complain(said, ProblemKind::Unsupported, place(said, at), message);
        } else if is_record && !line.contains(" : ") {
            // What follows belongs to a record that cannot be told.
            current = None;
            let message = format!("{}: expected a GUID and a description", quoted(line));
            complain(said, ProblemKind::Malformed, place(said, at), message);
        }
        // Identifiers, comments and headings of chassis say nothing of links.
    }
    web.finish(said);
}

fn place(said: &Said, line: usize) -> String {
    format!("{}:{line}", said.source.place)
}

/// Adds a link of this record.
fn follow(said: &mut Said, web: &mut Web, record: &Record<'_>, link: Link<'_>, line: usize) {
    match (record.kind, link.peer) {
        (Kind::Switch, 'S') => {
            web.switch(&link.peer_key, link.description, line);
            web.trunk(&record.guid, &link.peer_key);
        }
        (Kind::Switch, 'H') => {
            let end = End {
                id: link.peer_key,
                port: link.peer_port,
                description: link.description.to_owned(),
                guid: link.peer_guid,
                rate: link.rate,
                state: None,
                line,
            };
            web.cable(said, &record.guid, link.port, end);
        }
        (Kind::Adapter, 'S') => {
            web.switch(&link.peer_key, link.description, line);
            let end = End {
                id: record.guid.clone(),
                port: link.port,
                description: record.description.to_owned(),
                guid: link.guid,
                rate: link.rate,
                state: None,
                line,
            };
            web.cable(said, &link.peer_key, link.peer_port, end);
        }
        (Kind::Adapter, 'H') => {
            let message = format!(
                "{}:{line}: {} is cabled to an adapter, {}, and to no switch",
                said.source.place,
                quoted(record.description),
                quoted(link.description)
            );
            remark(said, message);
        }
        // Routers join fabrics; they are no leaf of one.
        _ => {}
    }
}
