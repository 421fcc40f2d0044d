//! `fabricgate notify`: tests the receivers of the notifications that runs send.
//!
//! Opens the configuration and prints results; `report::notice` decides what is sent after runs.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::cli::stdout;
use crate::cli::stdout::{Globals, note};
use crate::exit::CommandError;
use crate::{config, exit};
use control::gate::clock;
use control::notify::secret::SecretSource;
use control::notify::{NotifySettings, NotifyTarget, NotifyTargetKind, build_body, delivery};
use engine::report::notice::changes::NoticeChanges;
use engine::report::notice::message::MessageContext;
use engine::report::notice::{NoticeEvent, NoticeItem};

/// Test the receivers of the configuration's [notify].
#[derive(Debug, clap::Args)]
pub struct NotifyArgs {
    #[command(subcommand)]
    command: NotifyCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NotifyCommand {
    /// Send a test message, and print the reply.
    Test {
        /// The receivers, by name; by default all.
        #[arg(value_name = "TARGET")]
        targets: Vec<String>,
        /// Print the message without sending it. Addresses are not printed.
        #[arg(long)]
        dry_run: bool,
    },
}

/// Runs the command.
pub fn run(args: &NotifyArgs, globals: &Globals) -> anyhow::Result<u8> {
    let config = config::open(globals.config.as_deref())?;
    let Some(notify) = config.notify.as_ref().filter(|it| !it.targets.is_empty()) else {
        let text = format!("{}: expected [[notify.target]]", config.path.display());
        return Err(CommandError::usage(text).into());
    };
    let NotifyCommand::Test { targets, dry_run } = &args.command;
    let known: Vec<&str> = notify.targets.iter().map(|it| it.name.as_str()).collect();
    if let Some(unknown) = targets.iter().find(|it| !known.contains(&it.as_str())) {
        let text = format!("TARGET {unknown:?}, expected one of: {}", known.join(", "));
        return Err(CommandError::usage(text).into());
    }
    let chosen = notify.targets.iter();
    let chosen: Vec<&NotifyTarget> =
        chosen.filter(|it| targets.is_empty() || targets.contains(&it.name)).collect();
    send_test(&chosen, notify, *dry_run, globals.json)
}

/// The format of `notify test --json`.
pub(crate) const NOTIFY_TEST_FORMAT: &str = "fabricgate.notify-test/1";

/// The result of `notify test`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NotifyTestDocument {
    /// `fabricgate.notify-test/1`.
    format: &'static str,
    /// The tested receivers, in order.
    targets: Vec<NotifyTestResult>,
}

/// The result of one receiver. With --dry-run only the message.
#[derive(Debug, Serialize, JsonSchema)]
struct NotifyTestResult {
    /// Name of the receiver.
    target: String,
    /// Kind of the receiver.
    kind: &'static str,
    /// The message that would be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Value>,
    /// Whether the receiver accepted the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    arrived: Option<bool>,
    /// The address of the receiver, without its secret parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    /// The HTTP status of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// Number of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    /// The beginning of the reply.
    #[serde(rename = "said", skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// Why the message did not arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl NotifyTestResult {
    fn new(target: &NotifyTarget) -> Self {
        Self {
            target: target.name.clone(),
            kind: kind_name(target.kind),
            payload: None,
            arrived: None,
            place: None,
            status: None,
            attempts: None,
            message: None,
            why: None,
        }
    }
}

fn send_test(
    targets: &[&NotifyTarget],
    notify: &NotifySettings,
    dry_run: bool,
    json: bool,
) -> anyhow::Result<u8> {
    let now = clock::now();
    let about = MessageContext {
        site: notify.site.as_deref(),
        at: &now.at,
        run: None,
        profile: None,
        folder: None,
        is_test: true,
        is_simulated: false,
    };
    let news = NoticeChanges { fresh: vec![sample_item()], ..NoticeChanges::default() };
    let runtime = crate::cli::runtime::build_runtime()?;
    let mut results = Vec::new();
    let mut all_arrived = true;
    for target in targets {
        if matches!(target.address, SecretSource::Inline(_)) {
            note(&format!(
                "{}: its address is in the configuration, readable by everyone who can read that \
                 file; url_file keeps it separate",
                target.name
            ));
        }
        let payload = build_body(target.kind, &news, &about, &now, notify);
        let name = &target.name;
        if dry_run {
            results
                .push(NotifyTestResult { payload: Some(payload), ..NotifyTestResult::new(target) });
            continue;
        }
        let sent = runtime.block_on(async {
            let deadline = Instant::now() + notify.within;
            delivery::send_message(target, &payload, deadline, crate::cli::runtime::random_number())
                .await
        });
        all_arrived &= sent.is_ok();
        let answer = match &sent {
            Ok(sent) => {
                note(&format!(
                    "{name}: {} accepted it: {} {}",
                    sent.origin, sent.status, sent.answer
                ));
                NotifyTestResult {
                    arrived: Some(true),
                    place: Some(sent.origin.clone()),
                    status: Some(sent.status),
                    attempts: Some(sent.attempts),
                    message: Some(sent.answer.clone()),
                    ..NotifyTestResult::new(target)
                }
            }
            Err(error) => {
                note(&format!("{name}: {error}"));
                let why = Some(error.to_string());
                NotifyTestResult { arrived: Some(false), why, ..NotifyTestResult::new(target) }
            }
        };
        results.push(answer);
    }
    if json || dry_run {
        stdout::write_json(&NotifyTestDocument { format: NOTIFY_TEST_FORMAT, targets: results })?;
    }
    Ok(if all_arrived { exit::PASS } else { exit::ENVIRONMENT })
}

/// The content of a test message.
fn sample_item() -> NoticeItem {
    NoticeItem {
        key: "test".to_owned(),
        event: NoticeEvent::Action,
        node: None,
        domain: None,
        class: None,
        ratio: None,
        ratio_of: None,
        what: "a test of notifications".to_owned(),
        how: "An operator ran `fabricgate notify test`. Nothing has happened.".to_owned(),
        done: None,
        next: Some("nothing".to_owned()),
    }
}

fn kind_name(kind: NotifyTargetKind) -> &'static str {
    match kind {
        NotifyTargetKind::Generic => "generic",
        NotifyTargetKind::Slack => "slack",
        NotifyTargetKind::Alertmanager => "alertmanager",
    }
}
