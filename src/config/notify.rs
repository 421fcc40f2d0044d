//! `[notify]` of the configuration: the receivers of notifications, and their addresses.
//!
//! Checks the text of the section and opens nothing: addresses and tokens are read when a message
//! is sent.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigMistake;
use crate::config::bounded::{BoundedCount, BoundedNumber};
use control::notify::secret::{Secret, SecretSource};
use control::notify::{NotifySettings, NotifyTarget, NotifyTargetKind};
use engine::report::notice::NoticeEvent;
use node::exec;

/// Timeout of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Most attempts per message.
const ATTEMPTS: u32 = 4;

/// Messages per hour: an on-call operator can read one every five minutes.
const PER_HOUR: usize = 12;

/// The receivers of notifications, over webhooks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NotifySection {
    /// The cluster's name in messages. Without it, messages name no cluster.
    site: Option<String>,
    /// Seconds that delivery to all receivers may take after a run, 1 to 600, default 20.
    within_s: BoundedNumber<1_000, 600_000>,
    /// Hours for which Alertmanager displays an alert that is not repeated, 1 to 8784, default 168.
    stands_h: BoundedNumber<1_000, 8_784_000>,
    /// The receivers, each as `[[notify.target]]`. Without one, no message is sent.
    #[schemars(with = "Vec<NotifyTargetSection>")]
    target: Vec<Spanned<NotifyTargetSection>>,
}

impl Default for NotifySection {
    fn default() -> Self {
        Self {
            site: None,
            // A run of an hour may end that much later.
            within_s: 20.0.into(),
            // A certificate's week.
            stands_h: 168.0.into(),
            target: Vec::new(),
        }
    }
}

/// One receiver. Its address is in `url_file`, `url_env` or `url`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NotifyTargetSection {
    /// Its name in messages and for `fabricgate notify test`.
    #[schemars(with = "String")]
    name: Spanned<String>,
    /// The format of its messages: `generic`, `slack` or `alertmanager`.
    kind: NotifySectionKind,
    /// The file that holds its address, on one line; it is read for every message. Without it,
    /// `url_env` or `url` gives the address.
    url_file: Option<PathBuf>,
    /// The environment variable that holds its address. Without it, `url_file` or `url` gives it.
    url_env: Option<String>,
    /// Its address, in clear text: every reader of this file can then write to the receiver.
    /// Without it, `url_file` or `url_env` gives it.
    url: Option<String>,
    /// The file that holds a bearer token for it. Without it, `bearer_env` gives one, or none is
    /// sent.
    bearer_file: Option<PathBuf>,
    /// The environment variable that holds a bearer token for it. Without it, `bearer_file` gives
    /// one, or none is sent.
    bearer_env: Option<String>,
    /// A file with the certificates (PEM) of authorities that may sign its certificate. Without it,
    /// the system's.
    ca_file: Option<PathBuf>,
    /// Its events: degraded, failed, unknown, pass-again, action, breaker, expired, drift; by
    /// default all except unknown.
    on: Option<Vec<NoticeEvent>>,
    /// Seconds that one attempt may take, 0.1 to 60, default 5.
    timeout_s: Option<BoundedNumber<100, 60_000>>,
    /// Most attempts per message, 1 to 20, default 4.
    attempts: Option<BoundedCount<1, 20>>,
    /// Most messages per hour, 1 to 1000, default 12; the next message counts those held back.
    /// Alertmanager has no limit: it groups and silences by itself.
    per_hour: Option<BoundedCount<1, 1_000>>,
}

/// The format of a receiver's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum NotifySectionKind {
    /// One JSON document (`fabricgate.notice/1`).
    Generic,
    /// Blocks of a Slack webhook, which Mattermost and others accept too.
    Slack,
    /// Alertmanager's API, version 2; its address may end before `/api`.
    Alertmanager,
}

/// Reads `[notify]`.
pub fn parse_notify(section: NotifySection, base: &Path) -> Result<NotifySettings, ConfigMistake> {
    let mut targets: Vec<NotifyTarget> = Vec::new();
    for receiver in section.target {
        let at = receiver.span().start;
        let receiver = receiver.into_inner();
        let name_at = receiver.name.span().start;
        let target = parse_target(receiver, at, base)?;
        if targets.iter().any(|it| it.name == target.name) {
            return Err((name_at, format!("duplicate name {:?}", target.name)));
        }
        targets.push(target);
    }
    Ok(NotifySettings {
        site: section.site,
        targets,
        within: section.within_s.duration(),
        resolve_after: Duration::from_secs_f64(section.stands_h.get() * 3_600.0),
    })
}

fn parse_target(
    receiver: NotifyTargetSection,
    at: usize,
    base: &Path,
) -> Result<NotifyTarget, ConfigMistake> {
    let name = receiver.name.into_inner();
    if name.is_empty() || name.contains(char::is_control) {
        return Err((at, format!("name {name:?}, expected a name without blanks")));
    }
    let file = receiver.url_file.map(|file| SecretSource::File(base.join(file)));
    for name in [&receiver.url_env, &receiver.bearer_env].into_iter().flatten() {
        exec::child_environment::withhold_variable(name);
    }
    let variable = receiver.url_env.map(SecretSource::Variable);
    let inline = receiver.url.map(|url| SecretSource::Inline(Secret::from(url)));
    let mut addresses = [file, variable, inline].into_iter().flatten();
    let (Some(address), None) = (addresses.next(), addresses.next()) else {
        let text = format!("{name}: expected one of url_file, url_env and url");
        return Err((at, text));
    };
    if let SecretSource::Inline(secret) = &address {
        secret.parse_url().map_err(|why| (at, format!("{name}: url: {why}")))?;
    }
    let bearer = match (receiver.bearer_file, receiver.bearer_env) {
        (Some(_), Some(_)) => {
            return Err((at, format!("{name}: expected one of bearer_file and bearer_env")));
        }
        (Some(file), None) => Some(SecretSource::File(base.join(file))),
        (None, variable) => variable.map(SecretSource::Variable),
    };
    let kind = match receiver.kind {
        NotifySectionKind::Generic => NotifyTargetKind::Generic,
        NotifySectionKind::Slack => NotifyTargetKind::Slack,
        NotifySectionKind::Alertmanager => NotifyTargetKind::Alertmanager,
    };
    let usual = || NoticeEvent::ALL.into_iter().filter(|it| *it != NoticeEvent::Unknown).collect();
    let mut on: BTreeSet<NoticeEvent> =
        receiver.on.map_or_else(usual, |on| on.into_iter().collect());
    if kind == NotifyTargetKind::Alertmanager {
        // An alert without an end would stay for days after its repair.
        on.insert(NoticeEvent::PassAgain);
    }
    Ok(NotifyTarget {
        name,
        kind,
        address,
        bearer,
        ca_file: receiver.ca_file.map(|file| base.join(file)),
        on,
        timeout: receiver.timeout_s.map_or(ATTEMPT_TIMEOUT, BoundedNumber::duration),
        attempts: receiver.attempts.map_or(ATTEMPTS, BoundedCount::get),
        per_hour: receiver.per_hour.map_or(PER_HOUR, BoundedCount::size),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<NotifySettings, String> {
        let section: NotifySection =
            toml::from_str(text).map_err(|error| error.message().to_owned())?;
        parse_notify(section, Path::new("/etc")).map_err(|(_, message)| message)
    }

    fn target(rest: &str) -> Result<NotifySettings, String> {
        read(&format!("[[target]]\nname = \"ops\"\nkind = \"slack\"\n{rest}\n"))
    }

    #[test]
    fn defaults_are_small_and_files_are_relative_to_the_configuration() {
        let notify = target("url_file = \"slack.url\"\nbearer_file = \"t\"").expect("good");
        let it = &notify.targets[0];
        assert_eq!(it.address, SecretSource::File(PathBuf::from("/etc/slack.url")));
        assert_eq!(it.bearer, Some(SecretSource::File(PathBuf::from("/etc/t"))));
        let variable = target("url_env = \"U\"\nbearer_env = \"B\"").expect("good");
        assert_eq!(variable.targets[0].bearer, Some(SecretSource::Variable("B".to_owned())));
        assert!(!it.on.contains(&NoticeEvent::Unknown) && it.on.contains(&NoticeEvent::Failed));
        assert_eq!((it.timeout, it.attempts, it.per_hour), (ATTEMPT_TIMEOUT, ATTEMPTS, 12));
        assert_eq!((notify.within.as_secs(), notify.resolve_after.as_secs()), (20, 604_800));
    }

    #[test]
    fn mistakes_name_the_expected_value_and_never_an_address() {
        for (rest, expected) in [
            ("", "ops: expected one of url_file, url_env and url"),
            ("url_env = \"A\"\nurl_file = \"b\"", "ops: expected one of"),
            ("url = \"hooks.example/secret\"", "ops: url: not an address"),
            (
                "url_env = \"A\"\nbearer_env = \"B\"\nbearer_file = \"c\"",
                "ops: expected one of bearer_file and bearer_env",
            ),
            ("url_env = \"A\"\nattempts = 0", "0, expected 1 to 20"),
            ("url_env = \"A\"\ntimeout_s = 90.0", "90, expected 0.1 to 60"),
            ("url_env = \"A\"\non = [\"all\"]", "unknown variant `all`"),
            ("url_env = \"A\"\ntoken = \"x\"", "unknown field `token`"),
        ] {
            let message = target(rest).expect_err(rest);
            assert!(message.contains(expected) && !message.contains("secret"), "{rest}: {message}");
        }
        let twice = "[[target]]\nname = \"a\"\nkind = \"generic\"\nurl_env = \"A\"\n".repeat(2);
        assert!(read(&twice).expect_err("twice").contains("duplicate name"));
    }
}
