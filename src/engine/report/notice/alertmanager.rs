//! Changes as alerts for Alertmanager's API (`POST /api/v2/alerts`).
//!
//! The labels of a matter are the same in every message, so that Alertmanager recognises it;
//! severity and variable text are not labels. Active alerts are repeated each time, resolved alerts
//! end now.

use serde_json::{Map, Value, json};

use super::changes::NoticeChanges;
use super::message::MessageContext;
use super::{NoticeEvent, NoticeItem, format_share};
use model::finding_class::FindingClass;
use model::run::simulation_notice;
use model::time_format::format_rfc3339;

/// How long a one-time event is displayed, in seconds.
const ONCE_S: i64 = 900;

/// The alerts. Active ones last until `stands_s` from now, unless they are repeated.
pub fn build_payload(
    news: &NoticeChanges,
    about: &MessageContext<'_>,
    now: i64,
    stands_s: i64,
) -> Value {
    let mut alerts = Vec::new();
    for item in news.fresh.iter().chain(&news.ongoing) {
        let lasts = if item.event.is_ongoing() { stands_s } else { ONCE_S };
        alerts.push(build_alert(item, about, &format_rfc3339(now.saturating_add(lasts))));
    }
    for item in news.resolved.iter().chain(&news.replaced) {
        alerts.push(build_alert(item, about, &format_rfc3339(now)));
    }
    Value::Array(alerts)
}

/// The name of an alert: one for each kind of event, so that its severity never
/// changes.
fn alert_name(event: NoticeEvent) -> &'static str {
    match event {
        NoticeEvent::Degraded => "FabricgateReportsDegraded",
        NoticeEvent::Failed => "FabricgateReportsFailed",
        NoticeEvent::Unknown => "FabricgateReportsUnknown",
        NoticeEvent::PassAgain => "FabricgateReportsPassAgain",
        NoticeEvent::Action => "FabricgateReportsAction",
        NoticeEvent::Breaker => "FabricgateReportsBreaker",
        NoticeEvent::Expired => "FabricgateReportsExpired",
        NoticeEvent::Drift => "FabricgateReportsDrift",
    }
}

fn build_alert(item: &NoticeItem, about: &MessageContext<'_>, ends: &str) -> Value {
    let mut labels = Map::new();
    let mut label = |name: &str, value: &str| {
        // Alertmanager ignores an empty label.
        if !value.is_empty() {
            labels.insert(name.to_owned(), Value::from(value));
        }
    };
    let event = if about.is_test { "FabricgateTest" } else { alert_name(item.event) };
    label("alertname", event);
    label("severity", if about.is_test { "info" } else { item.event.severity() });
    label("source", "fabricgate");
    label("site", about.site.unwrap_or_default());
    label("node", item.node.as_ref().map_or("", |it| it.as_str()));
    label("domain", item.domain.as_ref().map_or("", |it| it.as_str()));
    label("key", &item.key);
    let place = item.node.as_ref().map(|it| format!("{it}: ")).unwrap_or_default();
    let share = format_share(item).map(|it| format!(" [{it}]")).unwrap_or_default();
    let mut annotations = Map::new();
    let mut annotation = |name: &str, value: Option<&str>| {
        if let Some(value) = value.filter(|it| !it.is_empty()) {
            annotations.insert(name.to_owned(), Value::from(value));
        }
    };
    let simulated =
        simulation_notice(about.is_simulated).map(|it| format!(" ({it})")).unwrap_or_default();
    annotation("summary", Some(&format!("{place}{}{simulated}", item.what)));
    annotation("description", Some(&format!("{}{share}", item.how)));
    annotation("class", item.class.as_ref().map(FindingClass::as_str));
    annotation("done", item.done.as_deref());
    annotation("next", item.next.as_deref());
    annotation("run", about.run);
    annotation("folder", about.folder);
    json!({ "labels": labels, "annotations": annotations, "endsAt": ends })
}
