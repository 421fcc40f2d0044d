//! The first page of a bundle as Markdown and as HTML that prints on one sheet of A4.

use minijinja::{AutoEscape, Environment, UndefinedBehavior, context};

use super::summary::BundlePage;
use crate::report::ReportError;
use crate::report::plain_text::to_plain;

const TEMPLATE: &str = include_str!("../../../../reports/bundle.html");

/// As Markdown (CommonMark with tables).
pub(super) fn markdown(page: &BundlePage) -> String {
    let mut out = format!(
        "# {}: {}\n\n{}\n\nRun {}\n\n",
        escaped(&page.node),
        escaped(&page.outcome),
        escaped(&page.headline),
        escaped(&page.run)
    );
    for row in &page.rows {
        out.push_str(&format!("**{}**\n\n", row.what));
        for says in &row.says {
            out.push_str(&format!("- {}\n", escaped(says)));
        }
        out.push('\n');
    }
    if !page.hardware.is_empty() {
        let line = |cells: &mut dyn Iterator<Item = String>| {
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        out.push_str(&line(&mut page.head.iter().map(|it| (*it).to_owned())));
        out.push_str(&line(&mut page.head.iter().map(|_| "---".to_owned())));
        for row in &page.hardware {
            out.push_str(&line(&mut row.iter().map(|it| escaped(it))));
        }
        out.push('\n');
    }
    out.push_str("**Files**\n\n");
    for (name, what) in &page.files {
        out.push_str(&format!("- {}: {}\n", escaped(name), escaped(what)));
    }
    out.push_str("\nAll files are checked by `sha256sum -c MANIFEST.sha256`.\n");
    if !page.missing.is_empty() {
        out.push_str("\n**Missing**\n\n");
        for it in &page.missing {
            out.push_str(&format!("- {}\n", escaped(it)));
        }
    }
    if let Some(redacted) = page.redacted {
        out.push_str(&format!("\n**Redacted**\n\n{}\n", escaped(redacted)));
    }
    out
}

/// Text that means itself in Markdown.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in to_plain(text).chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' | '&') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// As one page without a second file.
pub(super) fn html(page: &BundlePage) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_template("bundle.html", TEMPLATE)?;
    let chart = page.chart.clone().map(minijinja::Value::from_safe_string);
    let page = minijinja::value::Serde(page);
    Ok(environment.get_template("bundle.html")?.render(context! { page, chart })?)
}
