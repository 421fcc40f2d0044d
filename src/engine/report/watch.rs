//! Messages of `fabricgate watch`.

use model::id::NodeName;
use model::watch::{WatchEvent, WatchJob};
use model::{hostlist, shell_quote};

/// Most reasons that are listed one by one.
const REASONS: usize = 20;

const LONGEST: usize = 200;

/// The lines of one event.
pub fn event_lines(event: &WatchEvent) -> Vec<String> {
    match event {
        WatchEvent::Began { version, scheduler, apply } => {
            let how = if *apply { "" } else { "; without --apply no job is started" };
            vec![format!("watch: fabricgate {version} watches {scheduler}{how}")]
        }
        WatchEvent::Waiting { why } => vec![format!("watch: waiting: {why}")],
        WatchEvent::Leading { term: None } => vec!["watch: leading".to_owned()],
        WatchEvent::Leading { term: Some(term) } => vec![format!("watch: leading in term {term}")],
        WatchEvent::Lost { why } => vec![format!("watch: no longer leading: {why}")],
        WatchEvent::Looked { nodes, claimed, certified, drained, breaker, paused, not_due } => {
            let mut lines = vec![format!(
                "watch: {nodes} nodes, {claimed} claimed, {certified} certified, {drained} \
                 drained by fabricgate"
            )];
            if let Some(why) = breaker {
                lines.push(format!(
                    "watch: the breaker tripped at {why}: only releases until `fabricgate gate \
                     reset`"
                ));
            }
            if let Some(why) = paused {
                lines.push(format!(
                    "watch: {why}; no drains and no measurements until then, or until `fabricgate \
                     gate resume`"
                ));
            }
            for it in not_due.iter().take(REASONS) {
                lines.push(format!(
                    "watch: not now ({}): {}: {}",
                    it.count,
                    shorten(&it.nodes),
                    it.why
                ));
            }
            if REASONS < not_due.len() {
                lines.push(format!("watch: and {} more reasons", not_due.len() - REASONS));
            }
            lines
        }
        WatchEvent::Due(job) => vec![
            format!("watch: due: {}", describe_job(job)),
            format!("watch: would run: {}", shell_quote::join_quoted(&job.command)),
        ],
        WatchEvent::Started(job) => {
            vec![format!("watch: {} began: {}; log {}", job.job, describe_job(job), job.log)]
        }
        WatchEvent::LogLine { job, line } => vec![format!("[{job}] {line}")],
        WatchEvent::Ended { job, code, outcome, seconds } => {
            let code = code.map_or_else(|| "ended".to_owned(), |code| format!("exit code {code}"));
            let (name, outcome) = (&job.job, outcome.as_str());
            vec![format!("watch: {name} {outcome} ({code}) after {seconds:.0} s")]
        }
        WatchEvent::Marks { nodes, why, result } => {
            let result = result.as_deref().unwrap_or("would be corrected");
            vec![format!("watch: marks of {}: {why}: {result}", fold_nodes(nodes))]
        }
        WatchEvent::Trouble { what } => vec![format!("watch: {what}")],
        WatchEvent::Stopping { why } => vec![format!("watch: {why}; waiting for running jobs")],
    }
}

fn describe_job(job: &WatchJob) -> String {
    let partners = match job.partners.len() {
        0 => String::new(),
        _ => format!(" with {}", fold_nodes(&job.partners)),
    };
    format!(
        "{} of {} in {}{partners}: {}",
        job.profile,
        fold_nodes(&job.nodes),
        job.domain,
        job.why
    )
}

fn fold_nodes(nodes: &[NodeName]) -> String {
    shorten(&hostlist::fold(nodes.iter().map(NodeName::as_str)))
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(LONGEST).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}
