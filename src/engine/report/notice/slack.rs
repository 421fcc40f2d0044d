//! A message as a Slack webhook takes it: blocks, with the three characters
//! escaped that mean something there, within Slack's limits.

use serde_json::Value;
use serde_json::json;

use super::generic::GROUPS;
use super::generic::Group;
use super::generic::Notice;
use super::generic::groups;

/// Longest text of a header block, in characters
/// (`docs.slack.dev/reference/block-kit/blocks/header-block`).
const HEADER: usize = 150;

/// Longest text of a section block
/// (`docs.slack.dev/reference/block-kit/blocks/section-block`).
const SECTION: usize = 3_000;

/// The message.
pub fn payload(notice: &Notice) -> Value {
    let mut blocks = vec![json!({
        "type": "header",
        // Plain text is shown as it is, and is not escaped.
        "text": { "type": "plain_text", "text": cut(&notice.title, HEADER), "emoji": false },
    })];
    let fresh = groups(&notice.items);
    blocks.extend(fresh.iter().take(GROUPS).map(|group| section(&told(group))));
    if GROUPS < fresh.len() {
        blocks.push(section(&format!("and {} more, see the run", fresh.len() - GROUPS)));
    }
    let over = groups(&notice.over);
    if !over.is_empty() {
        let mut heads: Vec<String> =
            over.iter().take(GROUPS).map(|group| escaped(&group.head)).collect();
        if GROUPS < over.len() {
            heads.push(format!("and {} more", over.len() - GROUPS));
        }
        blocks.push(section(&format!("*over:* {}", heads.join("; "))));
    }
    if notice.withheld != 0 {
        let text = match notice.withheld {
            1 => "1 message before this one was held back".to_owned(),
            more => format!("{more} messages before this one were held back"),
        };
        blocks.push(section(&text));
    }
    let mut context = vec![format!("at {}", escaped(&notice.at))];
    context.extend(notice.folder.as_ref().map(|it| format!("run folder `{}`", code(it))));
    blocks.push(json!({
        "type": "context",
        "elements": [{ "type": "mrkdwn", "text": cut(&context.join(", "), SECTION) }],
    }));
    json!({ "text": escaped(&cut(&notice.title, HEADER)), "blocks": blocks })
}

fn section(text: &str) -> Value {
    json!({ "type": "section", "text": { "type": "mrkdwn", "text": cut(text, SECTION) } })
}

/// A text within a limit, its lines kept.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(most - 1).collect();
    cut.push('…');
    cut
}

fn told(group: &Group<'_>) -> String {
    let mut text = format!("*{}* {}", group.event.as_str(), escaped(&group.head));
    if !group.how.is_empty() {
        text.push('\n');
        text.push_str(&escaped(&group.how));
    }
    for (word, said) in [("Done", group.done), ("Next", group.next)] {
        if let Some(said) = said {
            text.push_str(&format!("\n_{word}:_ {}", escaped(said)));
        }
    }
    text
}

/// `&`, `<` and `>` are all that is escaped, so that no name becomes a mention or
/// a link (`docs.slack.dev/messaging/formatting-message-text`).
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A text between backticks, which none inside may end.
fn code(text: &str) -> String {
    escaped(&text.replace('`', "'"))
}
