//! Asks the sources that are wanted, and weighs what they say into claims.
//!
//! What they say is read by `inventory` and weighed by `claims::reconcile`;
//! here is only who waits for whom. A source that does not answer is a problem
//! of its own and ends nothing.

use std::path::Path;
use std::path::PathBuf;

use super::config::Config;
use super::config::Source;
use super::config::read_text;
use super::expectations;
use super::failure::Failure;
use super::gating::Told;
use super::sources::Rest;
use super::sources::Wanted;
use super::stdout::note;
use super::stored;
use control::launch::Launcher;
use control::sources;
use control::sources::nodes::Nodes;
use control::sources::ray::Ray;
use control::sources::slurm::Slurm;
use control::sources::slurmrestd::Slurmrestd;
use control::store::file;
use control::sweep;
use engine::report::plain::plain;
use engine::thresholds::Catalogue;
use model::claims::Claims;
use model::id::NodeName;
use model::said::ProblemKind;
use model::said::Said;
use model::said::SourceKind;
use readers::claims;
use readers::claims::claims_file;
use readers::claims::reconcile;
use readers::claims::reconcile::Rules;

/// Asks everybody that is wanted and weighs what they say. Nodes are reached as
/// `config` says; `catalogue` tells platforms from products.
pub fn claims(
    wanted: &Wanted,
    config: Option<&Config>,
    catalogue: &Catalogue,
) -> Result<Claims, Failure> {
    let runtime = super::runtime()?;
    let mut said = runtime.block_on(ask(wanted))?;
    let platform_of = |product: &str, gpus: Option<u32>| {
        catalogue.for_product(product, gpus).map(|platform| platform.name.clone())
    };
    let platform = config.and_then(|config| config.platform.as_deref());
    let rules = Rules {
        order: wanted.order.clone(),
        gpus_per_node: wanted.gpus_per_node,
        nics_per_node: wanted.nics_per_node,
        platform_of: &platform_of,
        ends_at_node: &|claimed| expectations::ends_at_node(catalogue, platform.or(claimed)),
    };
    if wanted.nodes {
        let known = reconcile::reconcile(said.clone(), &rules);
        said.push(runtime.block_on(themselves(&known, wanted, config))?);
    }
    let now = sweep::shown(sweep::now());
    for one in &mut said {
        one.source.read_at = Some(now.clone());
    }
    Ok(reconcile::reconcile(said, &rules))
}

/// Asks everybody but the nodes, at the same time.
async fn ask(wanted: &Wanted) -> Result<Vec<Said>, Failure> {
    let rest = wanted.rest.as_ref().map(|rest| (rest, token(rest)));
    let ray = wanted.ray.clone().map(|address| Ray { address, limit: wanted.limit });
    let slurm = async {
        match &wanted.slurm {
            Some(slurm) => sources::slurm::ask(slurm).await,
            None => Vec::new(),
        }
    };
    let rest = async {
        match rest {
            Some((rest, Ok(token))) => {
                let asked = Slurmrestd {
                    address: rest.address.clone(),
                    token,
                    user: rest.user.clone(),
                    limit: wanted.limit,
                };
                sources::slurmrestd::ask(&asked).await
            }
            Some((rest, Err(failure))) => vec![without_token(rest, &failure)],
            None => Vec::new(),
        }
    };
    let kubernetes = async {
        match &wanted.kubernetes {
            Some(kubernetes) => sources::kubernetes::ask(kubernetes).await,
            None => Vec::new(),
        }
    };
    let ray = async {
        match &ray {
            Some(ray) => sources::ray::ask(ray).await,
            None => Vec::new(),
        }
    };
    let answers = tokio::join!(slurm, rest, kubernetes, ray);
    let (runs, files): (Vec<PathBuf>, Vec<PathBuf>) =
        wanted.files.iter().cloned().partition(|path| path.join(file::RUN).is_file());
    let mut said = sources::files::read(&files);
    for run in &runs {
        said.push(measured(run)?);
    }
    said.extend(answers.0);
    said.extend(answers.1);
    said.extend(answers.2);
    said.extend(answers.3);
    Ok(said)
}

/// What a stored run measured, whatever was claimed then.
fn measured(path: &Path) -> Result<Said, Failure> {
    let stored = stored::open_quietly(path)?;
    let run = stored::run(&stored)?;
    let place = path.display().to_string();
    Ok(claims::measured::read(&place, &run.info.created, &run.claims, &run.cells))
}

/// The token for slurmrestd: from its file, else from `SLURM_JWT` as Slurm's own
/// programs take it.
fn token(rest: &Rest) -> Result<Option<String>, Failure> {
    let text = match &rest.token_file {
        Some(file) => read_text(file)?,
        None => std::env::var("SLURM_JWT").unwrap_or_default(),
    };
    // `scontrol token` prints SLURM_JWT=TOKEN.
    let text = text.trim();
    let token = text.strip_prefix("SLURM_JWT=").unwrap_or(text);
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

/// slurmrestd where its token cannot be read: nobody is asked there, and the
/// others are.
fn without_token(rest: &Rest, failure: &Failure) -> Said {
    let mut said = Said::nothing(SourceKind::SlurmNodes, rest.address.to_string());
    let message = format!("not asked, its token cannot be read (token_file): {failure}");
    said.trouble(ProblemKind::Missing, None, message);
    said
}

/// Asks the nodes that the other sources name.
async fn themselves(
    known: &Claims,
    wanted: &Wanted,
    config: Option<&Config>,
) -> Result<Said, Failure> {
    let Some(config) = config else {
        let text = "asking nodes needs a configuration that says how they are reached ([launcher])";
        return Err(Failure::Usage(text.to_owned()));
    };
    let mut names: Vec<NodeName> = known.domains.iter().flat_map(|d| d.nodes.clone()).collect();
    names.sort();
    if names.is_empty() {
        let mut said = Said::nothing(SourceKind::NodeFacts, "fabricgate node facts");
        let message = "no other source names a node that could be asked";
        said.trouble(ProblemKind::Missing, None, message);
        return Ok(said);
    }
    let nodes = Nodes {
        launcher: &config.launcher,
        worker: &config.worker,
        parallel: config.parallel,
        limit: wanted.limit.max(config.connect),
        held: None,
    };
    Ok(sources::nodes::ask(&nodes, &names).await)
}

/// Slurm's controller, where a source, the launcher or the gate asks it through `scontrol`.
pub fn slurm(config: &Config) -> Option<Slurm> {
    let by_source = match &config.claims {
        Source::Sources(wanted) => wanted.slurm.clone(),
        Source::Scenario(_) | Source::Run(_) => None,
    };
    let by = |scontrol: &Vec<String>, remote_shell| Slurm {
        scontrol: scontrol.clone(),
        remote_shell,
        ..Slurm::default()
    };
    by_source.or_else(|| match (&config.launcher, config.gate.as_ref().map(|gate| &gate.told)) {
        (Launcher::Slurm(it), _) => Some(by(&it.programs.scontrol, it.programs.remote_shell)),
        (_, Some(Told::Scontrol(it))) => Some(by(&it.argv, it.remote_shell)),
        _ => None,
    })
}

/// Tells on stderr what of the sources could not be used, before a sweep goes
/// on without it.
pub fn tell_problems(claims: &Claims) {
    for read in &claims.sources {
        for problem in &read.problems {
            note(&plain(&format!("{}: {problem}", read.source)));
        }
    }
}

/// A claims file that a person wrote is taken as it is or not at all: a typo in
/// it must not silently leave nodes out of a sweep.
pub fn check_own_files(files: &[PathBuf]) -> Result<(), Failure> {
    for file in files.iter().filter(|file| file.is_file()) {
        let text = read_text(file)?;
        if claims_file::recognises(&text) {
            claims_file::parse(&file.display().to_string(), &text).map_err(Failure::usage)?;
        }
    }
    Ok(())
}
