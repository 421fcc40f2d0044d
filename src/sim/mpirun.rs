//! `mpirun` as in Open MPI 4: hosts, slots, exported variables, and the program after its options.
//!
//! Only determines the placement; `tool_dispatch` answers for the program. Ranks go to the hosts in
//! their order, regardless of `--map-by`, one host after the other.

use std::collections::BTreeMap;

use super::fabric::SimFabric;
use super::render::SimToolOutput;

/// Environment variables.
pub type MpiEnvironment = BTreeMap<String, String>;

/// Placement and variables of a job, without its program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpiJob {
    /// Hosts with their ranks, in order; empty without a launcher.
    pub hosts: Vec<MpiHost>,
    /// The relevant variables of the ranks.
    pub environment: MpiEnvironment,
}

/// One host of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiHost {
    /// Name of the host.
    pub name: String,
    /// Ranks on the host.
    pub ranks: usize,
}

/// A parsed `mpirun` command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiLaunch {
    /// Placement and variables.
    pub job: MpiJob,
    /// The program's name, without its folder.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
}

/// Options with one value; all options in no list have none (`mpirun(1)`).
const ONE_VALUE: &[&str] = &[
    "np",
    "n",
    "c",
    "N",
    "npernode",
    "npersocket",
    "H",
    "host",
    "x",
    "hostfile",
    "default-hostfile",
    "machinefile",
    "map-by",
    "rank-by",
    "bind-to",
    "wdir",
    "wd",
    "path",
    "prefix",
    "timeout",
    "output",
    "output-filename",
    "output-directory",
    "stdin",
    "personality",
    "cpu-set",
    "cpu-list",
    "am",
    "tune",
    "rankfile",
    "rf",
    "launch-agent",
    "max-restarts",
    "dvm",
    "dvm-uri",
    "runtime-options",
    "display",
];

/// Options with two values.
const TWO_VALUES: &[&str] = &["mca", "gmca", "omca", "pmixmca", "prtemca"];

const SEPARATOR: &str =
    "--------------------------------------------------------------------------\n";

impl MpiJob {
    /// True if the ranks see a variable with this value.
    pub fn has_variable(&self, name: &str, value: &str) -> bool {
        self.environment.get(name).is_some_and(|set| set.eq_ignore_ascii_case(value))
    }
}

/// Parses a command line started on `node`.
pub fn parse_command(
    args: &[String],
    own: &MpiEnvironment,
    node: &str,
    fabric: &SimFabric,
) -> Result<MpiLaunch, SimToolOutput> {
    let mut words = args.iter();
    let (mut hosts, mut wanted, mut per_node) = (Vec::new(), None, None);
    let mut environment = MpiEnvironment::new();
    let program = loop {
        let Some(word) = words.next() else {
            return Err(usage_error("mpirun could not find anything to do.\n"));
        };
        let Some(option) = word.strip_prefix('-') else { break word };
        let (name, glued) = match option.trim_start_matches('-').split_once('=') {
            Some((name, value)) if word.starts_with("--") => (name, Some(value.to_owned())),
            _ => (option.trim_start_matches('-'), None),
        };
        if TWO_VALUES.contains(&name) {
            words.nth(1);
            continue;
        }
        if !ONE_VALUE.contains(&name) {
            continue;
        }
        let value = glued.or_else(|| words.next().cloned()).unwrap_or_default();
        match name {
            "np" | "n" | "c" => wanted = value.parse::<usize>().ok(),
            "N" | "npernode" => per_node = value.parse::<usize>().ok(),
            // ppr:4:node
            "map-by" => {
                let each = value.strip_prefix("ppr:").and_then(|rest| rest.split_once(":node"));
                per_node = each.and_then(|(count, _)| count.parse().ok()).or(per_node);
            }
            "H" | "host" => add_hosts(&mut hosts, &value),
            "x" => {
                let pair = match value.split_once('=') {
                    Some((name, value)) => Some((name.to_owned(), value.to_owned())),
                    None => own.get(&value).map(|set| (value.clone(), set.clone())),
                };
                environment.extend(pair);
            }
            _ => {}
        }
    };
    if hosts.is_empty() {
        let ranks = fabric.gpus_of([&node.to_owned()]).len().max(1);
        hosts.push(MpiHost { name: node.to_owned(), ranks });
    }
    for host in &hosts {
        match fabric.node(&host.name) {
            Ok(at) if fabric.nodes[at].reachable => {}
            Ok(_) => return Err(daemon_failure(&host.name, "No route to host")),
            Err(_) => return Err(daemon_failure(&host.name, "Name or service not known")),
        }
    }
    if let Some(each) = per_node {
        hosts.iter_mut().for_each(|host| host.ranks = each);
    }
    let program = program.rsplit('/').next().unwrap_or(program).to_owned();
    place_ranks(&mut hosts, wanted, &program)?;
    let job = MpiJob { hosts, environment };
    Ok(MpiLaunch { job, program, args: words.cloned().collect() })
}

/// Parses `a:4,b:4`; each entry without a number is one slot.
fn add_hosts(hosts: &mut Vec<MpiHost>, list: &str) {
    for one in list.split(',').filter(|one| !one.is_empty()) {
        let (name, slots) = match one.rsplit_once(':') {
            Some((name, slots)) => (name, slots.parse().unwrap_or(1)),
            None => (one, 1),
        };
        match hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => host.ranks += slots,
            None => hosts.push(MpiHost { name: name.to_owned(), ranks: slots }),
        }
    }
}

/// Fills the slots in order with the requested ranks.
fn place_ranks(
    hosts: &mut Vec<MpiHost>,
    wanted: Option<usize>,
    program: &str,
) -> Result<(), SimToolOutput> {
    let Some(wanted) = wanted else { return Ok(()) };
    let slots: usize = hosts.iter().map(|host| host.ranks).sum();
    if slots < wanted {
        return Err(usage_error(&format!(
            "There are not enough slots available in the system to satisfy the {wanted}\n\
             slots that were requested by the application:\n\n  {program}\n"
        )));
    }
    let mut left = wanted;
    for host in hosts.iter_mut() {
        host.ranks = host.ranks.min(left);
        left -= host.ranks;
    }
    hosts.retain(|host| 0 < host.ranks);
    Ok(())
}

fn usage_error(text: &str) -> SimToolOutput {
    SimToolOutput::with_exit_code(String::new(), format!("{SEPARATOR}{text}{SEPARATOR}"), 1)
}

/// The output if mpirun's daemon does not start on a host.
fn daemon_failure(host: &str, why: &str) -> SimToolOutput {
    let mut output = usage_error(
        "ORTE was unable to reliably start one or more daemons.\n\
         A daemon on a node of the job could not be reached or did not report back.\n",
    );
    let message = match why {
        "No route to host" => format!("ssh: connect to host {host} port 22: {why}\n"),
        _ => format!("ssh: Could not resolve hostname {host}: {why}\n"),
    };
    output.stderr.insert_str(0, &message);
    output
}

/// The output if mpirun does not find the program.
pub fn program_not_found(node: &str, program: &str) -> SimToolOutput {
    usage_error(&format!(
        "mpirun was unable to find the specified executable file, so the job was\n\
         not launched. The first one was on node:\n\n  Node:       {node}\n  Executable: {program}\n"
    ))
}

/// Adds mpirun's output for a rank with a nonzero exit code.
pub fn add_epilogue(output: SimToolOutput) -> SimToolOutput {
    if output.code == 0 {
        return output;
    }
    let code = output.code;
    let stderr = format!(
        "{}{SEPARATOR}Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n{SEPARATOR}\
         {SEPARATOR}mpirun detected that one or more processes exited with non-zero status.\n\n\
         \x20 Exit code:    {code}\n{SEPARATOR}",
        output.stderr
    );
    SimToolOutput { stderr, ..output }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn launch(line: &str) -> Result<MpiLaunch, SimToolOutput> {
        let text = "title=\"t\"\n[[domain]]\nname=\"r\"\nnodes=\"n[1-3]\"\nplatform=\"gb200-nvl72\"\n\
             [[fault]]\nkind=\"unreachable\"\nnode=\"n3\"\n";
        let scenario = Scenario::parse(text).expect("good");
        let fabric = SimFabric::build(&scenario).expect("a fabric");
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let own = MpiEnvironment::from([("NCCL_DEBUG".to_owned(), "INFO".to_owned())]);
        parse_command(&args, &own, "n1", &fabric)
    }

    fn ranks(launch: &MpiLaunch) -> Vec<(&str, usize)> {
        launch.job.hosts.iter().map(|host| (host.name.as_str(), host.ranks)).collect()
    }

    #[test]
    fn options_are_skipped_with_their_values_and_the_rest_is_the_programs() {
        let line = "--allow-run-as-root -np 6 --host n1:4,n2:4 -x NCCL_DEBUG -x A=b,c --mca btl ^openib \
             --bind-to none --map-by ppr:4:node --tag-output /opt/bin/all_reduce_perf -b 8 -g 1";
        let got = launch(line).expect("good");
        assert_eq!(ranks(&got), [("n1", 4), ("n2", 2)]);
        assert_eq!(got.program, "all_reduce_perf");
        assert_eq!(got.args, ["-b", "8", "-g", "1"]);
        assert!(got.job.has_variable("NCCL_DEBUG", "info") && got.job.has_variable("A", "b,c"));
    }

    #[test]
    fn without_slots_every_mention_is_one() {
        assert_eq!(
            ranks(&launch("-H n1,n2,n1 nvbandwidth").expect("good")),
            [("n1", 2), ("n2", 1)]
        );
        assert_eq!(ranks(&launch("nvbandwidth").expect("good")), [("n1", 4)]);
    }

    #[test]
    fn launch_failures_have_open_mpi_s_text() {
        let refused = |line: &str, what: &str| {
            let answer = launch(line).expect_err("refused");
            assert!(answer.code == 1 && answer.stderr.contains(what), "{answer:?}");
        };
        refused("-np 9 -H n1:4,n2:4 x", "There are not enough slots available");
        refused("-H n1:4,n3:4 x", "connect to host n3 port 22: No route to host");
        refused("-H n1:4,n9:4 x", "hostname n9: Name or service not known");
        refused("-H n1:4,n3:4 x", "ORTE was unable to reliably start");
        refused("-np 4", "could not find anything to do");
    }
}
