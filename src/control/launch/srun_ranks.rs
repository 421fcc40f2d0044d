//! Converts a command that starts ranks with `mpirun` to `srun`.
//!
//! Pure. It understands only the options that the built-in probes use; every other option is an
//! error, never dropped.

use super::LaunchError;
use super::slurm::SlurmLauncher;
use model::hostlist;

/// Variables with the size of a step. srun reads them as its own options, and the step of a worker
/// has one node: "Only allocated 1 nodes asked for 2" (srun of 26.05 and 24.11).
const STEP_SIZE_VARIABLES: &[&str] = &[
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_NODELIST",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEP_NODELIST",
    "SLURM_TASKS_PER_NODE",
];

/// The options of an mpirun command.
#[derive(Debug, Default)]
struct MpirunOptions {
    ranks: Option<String>,
    hosts: Vec<String>,
    per_node: Option<String>,
    variables: Vec<String>,
}

/// The same command with `srun`; `None` if it does not call mpirun.
pub fn convert_to_srun(
    argv: &[String],
    slurm: &SlurmLauncher,
    job: &str,
) -> Result<Option<Vec<String>>, LaunchError> {
    // `env NAME=VALUE mpirun ...`
    let is_env = argv.first().is_some_and(|word| word == "env");
    let set = argv.iter().skip(1).take_while(|word| is_env && word.contains('=')).count();
    let start = if is_env { set + 1 } else { 0 };
    if argv.get(start).is_none_or(|word| word != "mpirun") {
        return Ok(None);
    }
    let mut options = MpirunOptions::default();
    if is_env {
        options.variables.extend_from_slice(&argv[1..start]);
    }
    let rest = parse_mpirun(&argv[start + 1..], &mut options)?;
    let Some(tool) = rest.first() else {
        return Err(LaunchError::Mpirun { why: "it starts no program".to_owned() });
    };
    let mut words = vec!["env".to_owned()];
    words.extend(STEP_SIZE_VARIABLES.iter().flat_map(|name| ["-u".to_owned(), (*name).to_owned()]));
    words.append(&mut options.variables);
    words.extend(slurm.node_srun.iter().cloned());
    words.extend([
        format!("--jobid={job}"),
        "--overlap".to_owned(),
        "--mem=0".to_owned(),
        "--cpu-bind=none".to_owned(),
        "--kill-on-bad-exit=1".to_owned(),
        format!("--mpi={}", slurm.mpi),
        // A site, or the step of the worker, may limit what srun exports (SLURM_EXPORT_ENV).
        "--export=ALL".to_owned(),
    ]);
    if !options.hosts.is_empty() {
        words.push(format!("--nodes={}", options.hosts.len()));
        let hosts = options.hosts.iter().map(String::as_str);
        words.push(format!("--nodelist={}", hostlist::fold(hosts)));
    }
    words.extend(options.ranks.map(|ranks| format!("--ntasks={ranks}")));
    words.extend(options.per_node.map(|each| format!("--ntasks-per-node={each}")));
    words.push(tool.clone());
    words.extend_from_slice(&rest[1..]);
    Ok(Some(words))
}

/// Parses options; the rest begins with the program.
fn parse_mpirun<'w>(
    mut words: &'w [String],
    options: &mut MpirunOptions,
) -> Result<&'w [String], LaunchError> {
    while let Some((option, rest)) = words.split_first() {
        let Some(name) = option.strip_prefix('-') else { return Ok(words) };
        let name = name.strip_prefix('-').unwrap_or(name);
        let unknown = || LaunchError::Mpirun { why: format!("its {option} has no counterpart") };
        let (value, rest) = rest.split_first().ok_or_else(unknown)?;
        match name {
            "np" | "n" => options.ranks = Some(value.clone()),
            "host" | "H" => {
                let name = |host: &str| host.rsplit_once(':').map_or(host, |it| it.0).to_owned();
                options.hosts =
                    value.split(',').filter(|host| !host.is_empty()).map(name).collect();
            }
            "map-by" => {
                let each = value.strip_prefix("ppr:").and_then(|it| it.strip_suffix(":node"));
                options.per_node = Some(each.ok_or_else(unknown)?.to_owned());
            }
            "bind-to" if value == "none" => {}
            // Without a value it is one of the worker's variables, which srun passes on.
            "x" if !value.contains('=') => {}
            "x" => options.variables.push(value.clone()),
            _ => return Err(unknown()),
        }
        words = rest;
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn srun(line: &str) -> Result<Option<String>, String> {
        let argv = convert_to_srun(&split_words(line), &SlurmLauncher::default(), "7")
            .map_err(|e| e.to_string())?;
        let line = |argv: Vec<String>| {
            let unset =
                STEP_SIZE_VARIABLES.iter().map(|name| format!("-u {name} ")).collect::<String>();
            argv.join(" ").replace(&unset, "")
        };
        Ok(argv.map(line))
    }

    #[test]
    fn ranks_and_nodes_stay_the_same() {
        let mpirun = "mpirun -np 8 --host n1:4,n2:4 --map-by ppr:4:node --bind-to none \
                      -x NCCL_DEBUG=INFO -x NCCL_DEBUG_SUBSYS=INIT,ENV all_reduce_perf -b 8M -n 5";
        assert_eq!(
            srun(mpirun).expect("understood").expect("mpirun"),
            "env NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV srun --jobid=7 --overlap --mem=0 \
             --cpu-bind=none --kill-on-bad-exit=1 --mpi=pmix --export=ALL --nodes=2 \
             --nodelist=n[1-2] --ntasks=8 --ntasks-per-node=4 all_reduce_perf -b 8M -n 5"
        );
        let set = srun("env A=1 mpirun -np 2 tool").expect("understood").expect("mpirun");
        let own = srun("mpirun -np 2 -x NAME tool").expect("understood").expect("mpirun");
        assert!(own.contains(" --export=ALL "), "{own}");
        assert!(set.starts_with("env A=1 srun ") && set.ends_with("--ntasks=2 tool"), "{set}");
    }

    #[test]
    fn other_commands_are_unchanged_and_other_options_refused() {
        assert_eq!(srun("nvbandwidth -t x"), Ok(None));
        assert_eq!(srun("env A=1 nvbandwidth mpirun"), Ok(None));
        let error = srun("mpirun --mca btl self tool").expect_err("not understood");
        assert!(error.contains("--mca"), "{error}");
        assert!(srun("mpirun -np 2").is_err() && srun("mpirun").is_err());
    }
}
