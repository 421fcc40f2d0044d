//! `ibnetdiscover`: every switch and adapter of an InfiniBand fabric with the links of its ports.
//!
//! The format is that of rdma-core's infiniband-diags: a record opens with `Switch`, `Ca` or
//! `Rt`, and each line below it is one link of one port.

use super::ib_fabric::{IbAdapterPort, IbFabric};
use super::node_description;
use crate::claims::reader_util::{normalise_guid, push_note, push_problem, quote_text};
use model::source_report::{SourceProblemKind, SourceReport};

/// Whether a text is the output of `ibnetdiscover`.
pub(super) fn recognises(text: &str) -> bool {
    text.lines().any(|line| parse_record(line).is_some())
}

struct IbnetRecord<'t> {
    kind: IbnetRecordKind,
    guid: String,
    description: &'t str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IbnetRecordKind {
    Switch,
    Adapter,
    Router,
}

/// `Switch<tab>65 "S-<guid>"  # "<description>" ...`
fn parse_record(line: &str) -> Option<IbnetRecord<'_>> {
    let (word, rest) = line.split_once(|c: char| c.is_ascii_whitespace())?;
    let kind = match word {
        "Switch" => IbnetRecordKind::Switch,
        "Ca" => IbnetRecordKind::Adapter,
        "Rt" => IbnetRecordKind::Router,
        _ => return None,
    };
    let rest = rest.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    let (_, guid, rest) = parse_name(rest)?;
    Some(IbnetRecord { kind, guid, description: parse_description(rest)?.0 })
}

/// `"H-<guid>"`: the letter, the GUID, and what follows.
fn parse_name(text: &str) -> Option<(char, String, &str)> {
    let (inside, rest) = text.strip_prefix('"')?.split_once('"')?;
    let (letter, digits) = inside.split_once('-')?;
    let mut letters = letter.chars();
    let letter = letters.next().filter(|_| letters.next().is_none())?;
    Some((letter, normalise_guid(digits)?, rest))
}

/// The description in the comment, and the rest. It may contain quotes.
fn parse_description(text: &str) -> Option<(&str, &str)> {
    let comment = &text[text.find('#')?..];
    let first = comment.find('"')?;
    let last = comment.rfind('"').filter(|last| first < *last)?;
    Some((&comment[first + 1..last], &comment[last + 1..]))
}

/// One link, as listed in a record.
struct IbnetLink<'t> {
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
fn parse_link(line: &str) -> Option<IbnetLink<'_>> {
    let (port, rest) = parse_port(line)?;
    let (guid, rest) = parse_guid(rest);
    let (peer, peer_key, rest) = parse_name(rest)?;
    let (peer_port, rest) = parse_port(rest)?;
    let (peer_guid, rest) = parse_guid(rest);
    let (description, tail) = parse_description(rest)?;
    let rate = tail.split_whitespace().find_map(node_description::parse_rate);
    Some(IbnetLink { port, guid, peer, peer_key, peer_port, peer_guid, description, rate })
}

/// `[17]`, followed by `[ext 3]` where chassis are grouped.
fn parse_port(text: &str) -> Option<(u32, &str)> {
    let (number, rest) = text.strip_prefix('[')?.split_once(']')?;
    let number = number.parse().ok()?;
    let rest = match rest.strip_prefix("[ext") {
        Some(external) => external.split_once(']')?.1,
        None => rest,
    };
    Some((number, rest.trim_start()))
}

/// `(<guid>)`, if present.
fn parse_guid(text: &str) -> (Option<String>, &str) {
    match text.strip_prefix('(').and_then(|inside| inside.split_once(')')) {
        Some((inside, rest)) => (normalise_guid(inside), rest.trim_start()),
        None => (None, text),
    }
}

pub(super) fn read(report: &mut SourceReport, text: &str) {
    let mut web = IbFabric::default();
    let mut current: Option<IbnetRecord<'_>> = None;
    let mut listed = false;
    for (at, line) in text.lines().enumerate() {
        let (at, line) = (at + 1, line.trim());
        if line.starts_with('[') {
            match (&current, parse_link(line)) {
                (Some(record), Some(link)) => add_link(report, &mut web, record, link, at),
                (None, Some(_)) => {
                    let message = "a link before any Switch, Ca or Rt";
                    push_problem(
                        report,
                        SourceProblemKind::Malformed,
                        location(report, at),
                        message,
                    );
                }
                (_, None) => {
                    let message = format!(
                        "{}: expected a link such as [1] \"H-<guid>\"[1] # \"<host> <device>\" ...",
                        quote_text(line)
                    );
                    push_problem(
                        report,
                        SourceProblemKind::Malformed,
                        location(report, at),
                        message,
                    );
                }
            }
            continue;
        }
        if let Some(record) = parse_record(line) {
            match record.kind {
                IbnetRecordKind::Switch => web.add_switch(&record.guid, record.description, at),
                IbnetRecordKind::Adapter => web.add_adapter(IbAdapterPort {
                    id: record.guid.clone(),
                    description: record.description.to_owned(),
                    guid: Some(record.guid.clone()),
                    line: at,
                    ..IbAdapterPort::default()
                }),
                IbnetRecordKind::Router => {}
            }
            current = Some(record);
            continue;
        }
        let is_record = ["Switch", "Ca", "Rt", "Router"]
            .iter()
            .any(|word| line.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', '\t'])));
        if is_record && line.contains(" : ") && !listed {
            listed = true;
            let message = "a list of nodes (ibnetdiscover -l), which contains no links";
            push_problem(report, SourceProblemKind::Unsupported, location(report, at), message);
        } else if is_record && !line.contains(" : ") {
            // The following lines belong to an unknown record.
            current = None;
            let message = format!("{}: expected a GUID and a description", quote_text(line));
            push_problem(report, SourceProblemKind::Malformed, location(report, at), message);
        }
        // Identifiers, comments and headings of chassis contain no links.
    }
    web.add_to_report(report);
}

fn location(report: &SourceReport, line: usize) -> String {
    format!("{}:{line}", report.source.place)
}

/// Adds a link of this record.
fn add_link(
    report: &mut SourceReport,
    web: &mut IbFabric,
    record: &IbnetRecord<'_>,
    link: IbnetLink<'_>,
    line: usize,
) {
    match (record.kind, link.peer) {
        (IbnetRecordKind::Switch, 'S') => {
            web.add_switch(&link.peer_key, link.description, line);
            web.add_trunk(&record.guid, &link.peer_key);
        }
        (IbnetRecordKind::Switch, 'H') => {
            let end = IbAdapterPort {
                id: link.peer_key,
                port: link.peer_port,
                description: link.description.to_owned(),
                guid: link.peer_guid,
                rate: link.rate,
                state: None,
                line,
            };
            web.add_cable(report, &record.guid, link.port, end);
        }
        (IbnetRecordKind::Adapter, 'S') => {
            web.add_switch(&link.peer_key, link.description, line);
            let end = IbAdapterPort {
                id: record.guid.clone(),
                port: link.port,
                description: record.description.to_owned(),
                guid: link.guid,
                rate: link.rate,
                state: None,
                line,
            };
            web.add_cable(report, &link.peer_key, link.peer_port, end);
        }
        (IbnetRecordKind::Adapter, 'H') => {
            let message = format!(
                "{}:{line}: {} is cabled to an adapter, {}, and not to a switch",
                report.source.place,
                quote_text(record.description),
                quote_text(link.description)
            );
            push_note(report, message);
        }
        // Routers join fabrics; they are not leaves.
        _ => {}
    }
}
