//! Certificates for a terminal: a table of all, the details of one, and the result of verifying
//! some.
//!
//! Displays the results of `act::certificate` and adds no judgement.

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, Table, presets};

use super::TerminalStyle;
use super::plain_text::{clip, count_noun, format_quantity, to_plain};
use super::terminal_page::TerminalPage;
use model::certificate::{
    Certificate, CertificateEntry, CertificateStatus, CertificatesDocument, DriverVoidRule,
    IdentityDifference, Verification, VerificationDocument, VerificationKind, VerificationOutcome,
};
use model::hostlist;
use model::id::NodeName;
use model::run::SIMULATION_NOTICE;
use model::text::format_percent;
use model::verdict::MeasuredScope;

/// Most characters of a name in the table.
const NAME: usize = 28;

/// Most characters of a list of nodes.
const NODES: usize = 80;

/// Most reasons that are listed one by one: a rack of an acceptance fits.
const REASONS: usize = 24;

/// Characters of a key, in full.
const KEY: usize = 16;

/// Characters of a GPU's UUID, in full.
const UUID: usize = 48;

/// Renders one certificate in full, several as a table.
pub fn render(document: &CertificatesDocument, style: &TerminalStyle) -> String {
    let mut page = TerminalPage::new(style);
    match document.certificates.as_slice() {
        [one] if document.none.is_empty() => write_details(&mut page, one),
        all => write_table(&mut page, all),
    }
    for node in &document.none {
        page.paragraph("- ", &format!("{} has no certificate", to_plain(node.as_str())), 0);
    }
    page.out
}

fn write_table(page: &mut TerminalPage, all: &[CertificateEntry]) {
    let of = |standing| all.iter().filter(|it| it.standing == standing).count();
    page.styled(Style::new().bold(), &count_noun(all.len(), "certificate", "certificates"));
    let standings = [
        CertificateStatus::Valid,
        CertificateStatus::Expired,
        CertificateStatus::Void,
        CertificateStatus::Untrusted,
        CertificateStatus::Unreadable,
    ];
    let counts = standings.into_iter().filter(|standing| 0 < of(*standing));
    let counts: Vec<String> =
        counts.map(|standing| format!("{} {}", of(standing), standing.as_str())).collect();
    if !counts.is_empty() {
        page.styled(Style::new(), &format!(": {}", counts.join(", ")));
    }
    page.end_line();
    if all.is_empty() {
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "node",
        "outcome",
        "profile",
        "issued",
        "expires",
        "age",
        "worst",
        "detectable",
        "run",
        "key",
    ]);
    for it in all {
        let certificate = it.certificate.as_ref();
        let text = |field: fn(&Certificate) -> &str, most| {
            certificate.map_or_else(|| "-".to_owned(), |it| clip(field(it), most))
        };
        let share = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), format_percent);
        let key = certificate.and_then(|it| it.signature.as_ref());
        table.add_row([
            clip(it.node.as_str(), NAME),
            it.standing.as_str().to_owned(),
            text(|it| &it.profile, NAME),
            text(|it| trim_to_minute(&it.issued), 16),
            text(|it| trim_to_minute(&it.expires), 16),
            it.age_s.map_or_else(|| "-".to_owned(), format_age),
            share(it.worst_ratio),
            share(certificate.and_then(|it| it.detectable)),
            text(|it| &it.run, NAME),
            match (certificate, key) {
                (None, _) => "-".to_owned(),
                (_, None) => "unsigned".to_owned(),
                (_, Some(key)) => clip(&key.key, KEY),
            },
        ]);
    }
    for column in [5, 6, 7] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    page.table("", &table);
    let simulated = all.iter().filter(|it| it.certificate.as_ref().is_some_and(|it| it.simulated));
    let simulated: Vec<&str> = simulated.map(|it| it.node.as_str()).collect();
    if !simulated.is_empty() {
        let nodes = clip(&hostlist::fold(simulated), NODES);
        page.paragraph("- ", &format!("{nodes}: {SIMULATION_NOTICE}"), 0);
    }
    for it in all {
        if let Some(why) = &it.why {
            page.paragraph("- ", &format!("{}: {}", to_plain(it.node.as_str()), to_plain(why)), 0);
        }
    }
}

fn write_details(page: &mut TerminalPage, it: &CertificateEntry) {
    page.styled(Style::new().bold(), &to_plain(it.node.as_str()));
    page.styled(Style::new(), ": ");
    page.styled(standing_colour(it.standing), it.standing.as_str());
    page.end_line();
    let mut line = |lead: &str, text: &str| page.paragraph(&format!("{lead:<12}"), text, 2);
    if it.certificate.as_ref().is_some_and(|it| it.simulated) {
        line("of", SIMULATION_NOTICE);
    }
    if let Some(why) = &it.why {
        line("because", &to_plain(why));
    }
    line("file", &to_plain(&it.file));
    let Some(certificate) = &it.certificate else { return };
    line("run", &format!("{} ({})", to_plain(&certificate.run), to_plain(&certificate.profile)));
    let since =
        it.age_s.map(|seconds| format!(", {} ago", format_age(seconds))).unwrap_or_default();
    line("issued", &format!("{}{since}", to_plain(&certificate.issued)));
    line("expires", &to_plain(&certificate.expires));
    if let Some(domain) = &certificate.domain {
        line("domain", &to_plain(domain.as_str()));
    }
    if let Some(platform) = &certificate.platform {
        line("platform", &to_plain(platform));
    }
    line("measured", &scope_text(certificate.scope.as_ref()));
    if let Some(detectable) = certificate.detectable {
        line("detectable", &format!("{} and more", format_percent(detectable)));
    }
    line("thresholds", &to_plain(&certificate.thresholds_digest));
    match &certificate.signature {
        Some(signature) => line("signature", &format!("of key {}", to_plain(&signature.key))),
        None => line("signature", "none"),
    }
    write_identity(page, certificate);
    write_minima(page, certificate);
}

/// The boundaries across which the node was measured, as text.
fn scope_text(scope: Option<&MeasuredScope>) -> String {
    let Some(scope) = scope else { return "not recorded: an older version issued it".to_owned() };
    let mut parts = Vec::new();
    if scope.inside {
        parts.push("inside the node".to_owned());
    }
    if let Some(nodes) = &scope.domain {
        parts.push(format!("over NVLink with {}", clip(nodes, NODES)));
    }
    if let Some(nodes) = &scope.network {
        let rails = hostlist::fold(scope.rails.iter().map(String::as_str));
        let rails = if rails.is_empty() { "the network".to_owned() } else { clip(&rails, NODES) };
        parts.push(format!("over {rails} with {}", clip(nodes, NODES)));
    }
    if parts.is_empty() { "nothing".to_owned() } else { parts.join("; ") }
}

fn write_identity(page: &mut TerminalPage, certificate: &Certificate) {
    let identity = &certificate.identity;
    page.section("Machine");
    let mut line = |lead: &str, text: &str| page.paragraph(&format!("{lead:<12}"), text, 2);
    line("boot", identity.boot_id.as_deref().map_or("not reported", |id| id));
    line("driver", identity.driver.as_deref().map_or("not reported", |version| version));
    if identity.gpus.is_empty() {
        line("GPUs", "not reported");
    }
    for (index, uuid) in identity.gpus.iter().enumerate() {
        line(&format!("GPU {index}"), &clip(uuid, UUID));
    }
    for (part, version) in &identity.firmware {
        line("firmware", &format!("{} {}", to_plain(part), to_plain(version)));
    }
    if !certificate.void_on.is_all() {
        let void_on = &certificate.void_on;
        let mut changes = vec!["other GPUs"];
        changes.extend(void_on.boot.then_some("a reboot"));
        changes.extend(match void_on.driver {
            DriverVoidRule::Any => Some("another driver"),
            DriverVoidRule::Major => Some("another major version of the driver"),
            DriverVoidRule::Never => None,
        });
        changes.extend(void_on.firmware.then_some("other firmware"));
        line("void on", &changes.join(", "));
    }
}

fn write_minima(page: &mut TerminalPage, certificate: &Certificate) {
    page.section("Lowest measured values");
    if certificate.minima.is_empty() {
        page.faint("no bandwidth was measured", 2);
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["  test", "least", "expected", "share"]);
    for minimum in &certificate.minima {
        let unit = Some(minimum.unit);
        let expected = minimum.expected;
        let share = expected.filter(|it| 0.0 < *it).map(|it| format_percent(minimum.value / it));
        table.add_row([
            format!("  {}", clip(&minimum.testcase, 48)),
            format_quantity(minimum.value, unit),
            expected.map_or_else(|| "-".to_owned(), |expected| format_quantity(expected, unit)),
            share.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    page.table("", &table);
}

/// The result of a verification: one line each, followed by the reason.
pub fn render_verification(document: &VerificationDocument, style: &TerminalStyle) -> String {
    let mut page = TerminalPage::new(style);
    for it in &document.certificates {
        write_verification(&mut page, it);
    }
    page.out
}

fn write_verification(page: &mut TerminalPage, it: &Verification) {
    let colour = match it.outcome {
        VerificationOutcome::Valid => AnsiColor::Green,
        VerificationOutcome::Unknown => AnsiColor::Cyan,
        VerificationOutcome::Invalid => AnsiColor::Red,
    };
    let nodes = hostlist::fold(it.nodes.iter().map(NodeName::as_str));
    let of = match (&it.node, it.kind) {
        (_, VerificationKind::Acceptance) if !nodes.is_empty() => {
            format!("acceptance of {}", clip(&nodes, NODES))
        }
        (Some(node), _) => to_plain(node.as_str()).into_owned(),
        (None, _) => to_plain(&it.file).into_owned(),
    };
    page.styled(Style::new().bold().fg_color(Some(colour.into())), it.outcome.as_str());
    page.styled(Style::new(), &format!("  {of}"));
    if let Some(expires) = &it.expires {
        page.styled(Style::new(), &format!(", until {}", to_plain(expires)));
    }
    if let Some(run) = &it.run {
        let what = match it.kind {
            VerificationKind::Certificate => "run",
            VerificationKind::Acceptance => "burn-in",
        };
        page.styled(Style::new(), &format!(", {what} {}", to_plain(run)));
    }
    page.end_line();
    if it.simulated {
        page.paragraph("", SIMULATION_NOTICE, 2);
    }
    for why in it.why.iter().take(REASONS) {
        page.paragraph("- ", &to_plain(why), 2);
    }
    if let Some(more) = it.why.len().checked_sub(REASONS).filter(|more| 0 < *more) {
        page.paragraph("- ", &format!("and {more} more (--json has all)"), 2);
    }
    if let Some(signature) = &it.signature {
        page.paragraph("signature: ", &to_plain(signature), 2);
    }
    if !it.same.is_empty() {
        page.paragraph("same: ", &it.same.join(", "), 2);
    }
    for IdentityDifference { part, why, voids } in &it.differs {
        let so = if *voids { "" } else { " (does not void it)" };
        page.paragraph("differs: ", &format!("{}: {}{so}", to_plain(part), to_plain(why)), 2);
    }
    if !it.untold.is_empty() {
        page.paragraph("not compared: ", &it.untold.join(", "), 2);
    }
}

fn standing_colour(standing: CertificateStatus) -> Style {
    let colour = match standing {
        CertificateStatus::Valid => AnsiColor::Green,
        CertificateStatus::Expired | CertificateStatus::Void => AnsiColor::Yellow,
        CertificateStatus::Untrusted | CertificateStatus::Unreadable => AnsiColor::Red,
    };
    Style::new().bold().fg_color(Some(colour.into()))
}

/// A time without its seconds: `2026-03-04T05:06`.
fn trim_to_minute(moment: &str) -> &str {
    moment.get(..16).unwrap_or(moment)
}

/// An age, in the largest unit of which it has two.
pub(super) fn format_age(seconds: i64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(size, _)| 2 * size <= seconds);
    let (size, name) = unit.unwrap_or((1, "s"));
    format!("{} {name}", seconds / size)
}

#[cfg(test)]
#[path = "certificate_tests.rs"]
mod tests;
