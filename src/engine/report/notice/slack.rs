//! A message in the format of a Slack webhook: blocks within Slack's limits, with Slack's three
//! special characters escaped.

use serde_json::{Value, json};

use super::message::{GROUPS, Notice, NoticeGroup, group_items};

/// Longest text of a header block, in characters
/// (`docs.slack.dev/reference/block-kit/blocks/header-block`).
const HEADER: usize = 150;

/// Longest text of a section block
/// (`docs.slack.dev/reference/block-kit/blocks/section-block`).
const SECTION: usize = 3_000;

/// The message.
pub fn build_payload(notice: &Notice) -> Value {
    let mut blocks = vec![json!({
        "type": "header",
        // Plain text is displayed as it is, and is not escaped.
        "text": { "type": "plain_text", "text": cut_text(&notice.title, HEADER), "emoji": false },
    })];
    let fresh = group_items(&notice.items);
    blocks.extend(fresh.iter().take(GROUPS).map(|group| section_block(&describe_group(group))));
    if GROUPS < fresh.len() {
        blocks.push(section_block(&format!("and {} more, see the run", fresh.len() - GROUPS)));
    }
    let over = group_items(&notice.over);
    if !over.is_empty() {
        let mut heads: Vec<String> =
            over.iter().take(GROUPS).map(|group| escape_text(&group.head)).collect();
        if GROUPS < over.len() {
            heads.push(format!("and {} more", over.len() - GROUPS));
        }
        blocks.push(section_block(&format!("*over:* {}", heads.join("; "))));
    }
    if notice.withheld != 0 {
        let text = match notice.withheld {
            1 => "1 message before this one was held back".to_owned(),
            more => format!("{more} messages before this one were held back"),
        };
        blocks.push(section_block(&text));
    }
    let mut context = vec![format!("at {}", escape_text(&notice.at))];
    context.extend(notice.folder.as_ref().map(|it| format!("run folder `{}`", code_span(it))));
    blocks.push(json!({
        "type": "context",
        "elements": [{ "type": "mrkdwn", "text": cut_text(&context.join(", "), SECTION) }],
    }));
    json!({ "text": escape_text(&cut_text(&notice.title, HEADER)), "blocks": blocks })
}

fn section_block(text: &str) -> Value {
    json!({ "type": "section", "text": { "type": "mrkdwn", "text": cut_text(text, SECTION) } })
}

/// A text within a limit, with its lines preserved.
fn cut_text(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(most - 1).collect();
    cut.push('…');
    cut
}

fn describe_group(group: &NoticeGroup<'_>) -> String {
    let mut text = format!("*{}* {}", group.event.as_str(), escape_text(&group.head));
    if !group.how.is_empty() {
        text.push('\n');
        text.push_str(&escape_text(&group.how));
    }
    for (word, text_of) in [("Done", group.done), ("Next", group.next)] {
        if let Some(part) = text_of {
            text.push_str(&format!("\n_{word}:_ {}", escape_text(part)));
        }
    }
    text
}

/// Only `&`, `<` and `>` are escaped, so that no name becomes a mention or a link
/// (`docs.slack.dev/messaging/formatting-message-text`).
fn escape_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A text between backticks, without inner backticks that would end it.
fn code_span(text: &str) -> String {
    escape_text(&text.replace('`', "'"))
}
