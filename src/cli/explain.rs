//! `fabricgate explain`: from a verdict to its evidence, in words.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::Globals;
use super::exit;
use super::failure::Failure;
use super::stdout;
use super::stored;
use crate::model::run::Run;
use crate::model::verdict::Finding;

/// Show the chain from a verdict to its evidence.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// A node, NODE:GPU, a domain, or the id of a finding.
    #[arg(value_name = "LOCUS")]
    locus: String,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let stored = stored::open(&args.run)?;
    let run = stored::run(&stored)?;
    let findings: Vec<&Finding> =
        run.verdicts.findings.iter().filter(|f| concerns(f, &args.locus)).collect();
    let known = !findings.is_empty()
        || run
            .verdicts
            .nodes
            .iter()
            .any(|n| n.node.as_str() == args.locus || is_gpu_of(&args.locus, n.node.as_str()))
        || run.claims.domains.iter().any(|d| d.name.as_str() == args.locus);
    if !known {
        let text = format!(
            "LOCUS {:?}: this run has no such node, domain or finding; expected NODE, NODE:GPU, \
             DOMAIN or the id of a finding",
            args.locus
        );
        return Err(Failure::Usage(text).into());
    }
    if globals.json {
        stdout::json(&findings)?;
    } else {
        stdout::text(&told(&run, &findings, &args.locus))?;
    }
    Ok(exit::PASS)
}

fn is_gpu_of(locus: &str, node: &str) -> bool {
    locus
        .strip_prefix(node)
        .and_then(|rest| rest.strip_prefix(':'))
        .is_some_and(|gpu| !gpu.is_empty() && gpu.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a finding is about this part, or has it as its other end.
fn concerns(finding: &Finding, locus: &str) -> bool {
    let part = &finding.locus;
    let node = part.node.as_ref().map(|n| n.as_str());
    let gpu = match (node, part.gpu) {
        (Some(node), Some(gpu)) => Some(format!("{node}:{gpu}")),
        _ => None,
    };
    let peer = part.peer.as_deref();
    let of_peer = peer.is_some_and(|p| p == locus || p.split(':').next() == Some(locus));
    let domain = node.is_none() && part.domain.as_ref().is_some_and(|d| d.as_str() == locus);
    finding.id == locus || node == Some(locus) || gpu.as_deref() == Some(locus) || of_peer || domain
}

fn told(run: &Run, findings: &[&Finding], locus: &str) -> String {
    let mut text = String::new();
    for node in &run.verdicts.nodes {
        if node.node.as_str() == locus || is_gpu_of(locus, node.node.as_str()) {
            let _ = writeln!(text, "node {} is {}: {}", node.node, node.outcome, node.reason);
        }
    }
    for finding in findings {
        let _ = writeln!(text, "\n{} {}: {}", finding.locus, finding.outcome, finding.summary);
        if let (Some(measured), Some(expected)) = (finding.measured, finding.expected) {
            let unit = finding.unit.map_or("", |unit| unit.as_str());
            let share = finding.ratio.map_or(String::new(), |r| format!(" ({:.1} %)", r * 100.0));
            let _ = writeln!(text, "  measured {measured} {unit}, expected {expected}{share}");
        }
        let _ =
            writeln!(text, "  class {}, rule {}, id {}", finding.class, finding.rule, finding.id);
        let sure = if finding.confirmed { "yes" } else { "no, one sweep only" };
        let _ = writeln!(text, "  confirmed: {sure}");
        if let Some(detectable) = finding.detectable {
            let percent = detectable * 100.0;
            let _ = writeln!(text, "  this sweep could have seen a loss of {percent:.1} %");
        }
        for evidence in &finding.evidence {
            let test = evidence.testcase.as_ref().map_or(String::new(), |t| format!(", {t}"));
            let _ = writeln!(text, "  evidence: {}{test}: {}", evidence.file, evidence.detail);
        }
    }
    if findings.is_empty() {
        let _ = writeln!(text, "no finding is about {locus}");
    }
    let node = locus.split(':').next().unwrap_or(locus);
    let concerns = |what: &str| {
        what.split(|c: char| c.is_whitespace() || matches!(c, '/' | ',' | ':')).any(|w| w == node)
    };
    for unknown in run.verdicts.unknown.iter().filter(|u| concerns(&u.what)) {
        let _ = writeln!(text, "not known: {}: {}", unknown.what, unknown.why);
    }
    text
}
