//! Validates the combination of settings in a probe file: each rule points at the setting that
//! breaks it.

use toml::Spanned;

use super::ProbeFile;
use model::probe::{PairCoverage, ProbeGranularity, ProbeScope, ReadySignal, placeholder};

/// Upper limit for a probe's timeout: a day is a mistake.
const LONGEST_S: f64 = 86_400.0;

/// A mistake: its start offset, and the message.
type ProbeFileMistake = (usize, String);

pub(super) fn check_probe_file(read: &ProbeFile) -> Result<(), ProbeFileMistake> {
    let wrong = |offset: usize, message: String| Err((offset, message));
    let name = read.name.get_ref();
    // The name becomes part of a file name in the run folder.
    let plain = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if !plain {
        let message = format!("name {name:?}: expected letters, digits, '-' and '_'");
        return wrong(read.name.span().start, message);
    }
    check_commands(read)?;
    check_grain_and_coverage(read)?;
    let stages = allowed_stages(read.scope);
    if !stages.contains(read.stage.get_ref()) {
        let message = format!(
            "stage {}: a probe of scope {} belongs to stage {}",
            read.stage.get_ref(),
            read.scope.as_str(),
            join_list(stages)
        );
        return wrong(read.stage.span().start, message);
    }
    for (key, seconds) in [("cost_s", &read.cost_s), ("timeout_s", &read.timeout_s)] {
        let value = *seconds.get_ref();
        if !(0.0 < value && value <= LONGEST_S) {
            let message = format!("{key} {value}: expected seconds above 0, at most {LONGEST_S}");
            return wrong(seconds.span().start, message);
        }
    }
    if read.timeout_s.get_ref() < read.cost_s.get_ref() {
        let message = "timeout_s is below cost_s: a healthy node would run into it".to_owned();
        return wrong(read.timeout_s.span().start, message);
    }
    Ok(())
}

/// The stages in which a probe of this scope can start. Stage 3 has no probes of its own: it
/// repeats those with suspicious results.
fn allowed_stages(scope: ProbeScope) -> &'static [u8] {
    match scope {
        ProbeScope::Node => &[0, 1, 5],
        ProbeScope::Pair | ProbeScope::Rail => &[2, 5],
        ProbeScope::Domain => &[2, 4, 5],
    }
}

/// The placeholders that are valid for a probe of this scope.
fn allowed_placeholders(scope: ProbeScope) -> &'static [&'static str] {
    use placeholder as p;
    match scope {
        ProbeScope::Node => &[p::GPUS, p::NODE, p::READINGS, p::LIMIT, p::SELF],
        ProbeScope::Pair => &[
            p::GPUS,
            p::RANKS,
            p::NODES,
            p::HOSTS,
            p::NODE,
            p::PEER,
            p::READINGS,
            p::LANE,
            p::LIMIT,
            p::SELF,
            p::ADDRESS,
            p::PEER_ADDRESS,
            p::DEVICE,
            p::PORT,
        ],
        ProbeScope::Rail => &[
            p::GPUS,
            p::RANKS,
            p::NODES,
            p::HOSTS,
            p::NODE,
            p::PEER,
            p::RAIL,
            p::RDMA,
            p::READINGS,
            p::LIMIT,
            p::SELF,
            p::ADDRESS,
            p::PEER_ADDRESS,
            p::DEVICE,
            p::PORT,
        ],
        ProbeScope::Domain => {
            &[p::GPUS, p::RANKS, p::NODES, p::HOSTS, p::NODE, p::READINGS, p::LIMIT, p::SELF]
        }
    }
}

fn join_list<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Placeholders that are invalid in the fallback for a tool: it takes one reading, and has no
/// serving side.
const NOT_IN_FALLBACK: &[&str] = &[placeholder::READINGS, placeholder::PORT];

/// Placeholders that are invalid where every node runs the command: it has no peer, and no node
/// needs its own address.
const NOT_IN_MULTI_NODE: &[&str] = &[
    placeholder::PEER,
    placeholder::ADDRESS,
    placeholder::PEER_ADDRESS,
    placeholder::DEVICE,
    placeholder::PORT,
];

/// The offset of `on_all_nodes` in the probe or in its fallback, if set.
fn multi_node_offset(multi_node: Option<&Spanned<bool>>) -> Option<usize> {
    multi_node.filter(|it| *it.get_ref()).map(|it| it.span().start)
}

/// Checks multi-node commands and the fallback.
fn check_multi_node_and_fallback(read: &ProbeFile) -> Result<(), ProbeFileMistake> {
    let scope = read.scope;
    let fallback = read.fallback.as_ref();
    let own = multi_node_offset(read.on_all_nodes.as_ref());
    let instead = fallback.and_then(|it| multi_node_offset(it.on_all_nodes.as_ref()));
    if let Some(at) = own.or(instead)
        && !matches!(scope, ProbeScope::Pair | ProbeScope::Domain)
    {
        let scope = scope.as_str();
        let message = format!(
            "on_all_nodes: nodes take part in a probe of scope pair or domain, not {scope}"
        );
        return Err((at, message));
    }
    if let (Some(at), Some(_)) = (own, &read.serve) {
        let message =
            "on_all_nodes: every node runs the command, so no node is left to serve".to_owned();
        return Err((at, message));
    }
    if own.is_some() {
        check_command(read, "argv", &read.argv, NOT_IN_MULTI_NODE)?;
    }
    let Some(fallback) = fallback else { return Ok(()) };
    let at = fallback.argv.span().start;
    if read.reads_itself.as_ref().is_some_and(|itself| *itself.get_ref()) {
        let message = "fallback: it takes one reading, but reads_itself lets the tool take all \
                       readings itself";
        return Err((at, message.to_owned()));
    }
    let lane = |word: &Spanned<String>| word.get_ref().contains(placeholder::LANE);
    let is_lane =
        read.grain.as_ref().is_some_and(|grain| *grain.get_ref() == ProbeGranularity::Gpu);
    if is_lane && !fallback.argv.get_ref().iter().any(lane) {
        let message = format!(
            "grain \"gpu\": fallback.argv does not contain \
            {}",
            placeholder::LANE
        );
        return Err((at, message));
    }
    check_command(read, "fallback.argv", &fallback.argv, NOT_IN_FALLBACK)?;
    match instead {
        Some(_) => check_command(read, "fallback.argv", &fallback.argv, NOT_IN_MULTI_NODE),
        None => Ok(()),
    }
}

/// Checks that the placeholders of both commands can be filled in.
fn check_commands(read: &ProbeFile) -> Result<(), ProbeFileMistake> {
    check_command(read, "argv", &read.argv, &[])?;
    check_multi_node_and_fallback(read)?;
    let reads_itself = read.reads_itself.as_ref().filter(|itself| *itself.get_ref());
    let contains = |argv: &Spanned<Vec<Spanned<String>>>, name: &str| {
        argv.get_ref().iter().any(|word| word.get_ref().contains(name))
    };
    if let Some(itself) = reads_itself
        && !contains(&read.argv, placeholder::READINGS)
    {
        let message = format!("reads_itself: argv does not contain {}", placeholder::READINGS);
        return Err((itself.span().start, message));
    }
    let Some(serve) = &read.serve else { return Ok(()) };
    if !matches!(read.scope, ProbeScope::Pair | ProbeScope::Rail) {
        let message = format!("serve: a probe of scope {} has no second node", read.scope.as_str());
        return Err((serve.argv.span().start, message));
    }
    check_command(read, "serve.argv", &serve.argv, &[])?;
    let port = placeholder::PORT;
    match (serve.ready.get_ref(), contains(&serve.argv, port)) {
        (ReadySignal::Port, false) => {
            let message = format!(
                "serve.argv does not contain {port}, the port at which it \
                listens"
            );
            Err((serve.argv.span().start, message))
        }
        (ReadySignal::Line, true) => {
            let message = format!(
                "serve.argv contains {port}, but with ready = \"line\" the command \
                    chooses the port"
            );
            Err((serve.argv.span().start, message))
        }
        _ => Ok(()),
    }
}

/// Checks that these arguments can be filled in; `without` are placeholders that are invalid in
/// this command.
fn check_command(
    read: &ProbeFile,
    key: &str,
    argv: &Spanned<Vec<Spanned<String>>>,
    without: &[&str],
) -> Result<(), ProbeFileMistake> {
    if argv.get_ref().first().is_none_or(|program| program.get_ref().is_empty()) {
        return Err((argv.span().start, format!("{key}: expected at least a program")));
    }
    let known = allowed_placeholders(read.scope);
    let itself = read.reads_itself.as_ref().is_some_and(|itself| *itself.get_ref());
    let is_lane =
        read.grain.as_ref().is_some_and(|grain| *grain.get_ref() == ProbeGranularity::Gpu);
    for word in argv.get_ref() {
        let text = word.get_ref();
        let wrong = |message: &str| Err((word.span().start, format!("{key} {text:?}: {message}")));
        if let Some(name) = without.iter().find(|name| text.contains(**name)) {
            return wrong(&format!("{name} is not available in this command"));
        }
        let rest = known.iter().fold(text.clone(), |rest, name| rest.replace(name, ""));
        if let Some(name) = placeholder::ALL.iter().find(|name| rest.contains(**name)) {
            let scope = read.scope.as_str();
            return wrong(&format!("{name} is not available to a probe of scope {scope}"));
        }
        if rest.contains(['{', '}']) || rest.contains('\0') {
            return wrong(&format!("the placeholders are {}", join_list(known)));
        }
        if text.contains(placeholder::PORT) && read.serve.is_none() {
            return wrong("{port} needs a [serve] command that listens there");
        }
        if text.contains(placeholder::READINGS) && !itself {
            return wrong("{readings} needs reads_itself = true");
        }
        if text.contains(placeholder::LANE) && !is_lane {
            return wrong("{lane} needs grain = \"gpu\"");
        }
    }
    Ok(())
}

/// Checks that grain and coverage fit the scope.
fn check_grain_and_coverage(read: &ProbeFile) -> Result<(), ProbeFileMistake> {
    let scope = read.scope;
    if let Some(grain) =
        read.grain.as_ref().filter(|grain| *grain.get_ref() == ProbeGranularity::Gpu)
    {
        if scope != ProbeScope::Pair {
            let message =
                format!("grain \"gpu\": a probe of scope {} has no lanes", scope.as_str());
            return Err((grain.span().start, message));
        }
        if !read.argv.get_ref().iter().any(|w| w.get_ref().contains(placeholder::LANE)) {
            let message = format!("grain \"gpu\": argv does not contain {}", placeholder::LANE);
            return Err((grain.span().start, message));
        }
    }
    if let Some(covers) = &read.covers {
        let fits = match (scope, covers.get_ref()) {
            (_, PairCoverage::None) | (ProbeScope::Pair | ProbeScope::Domain, _) => true,
            (ProbeScope::Node, covers) => *covers == PairCoverage::All,
            (ProbeScope::Rail, _) => false,
        };
        if !fits {
            let (covers_name, scope) = (covers.get_ref().as_str(), scope.as_str());
            let message = format!(
                "covers {covers_name:?}: not possible for a probe of scope \
                {scope}"
            );
            return Err((covers.span().start, message));
        }
    }
    Ok(())
}
