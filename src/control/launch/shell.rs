//! Whether the words in front of a program of Slurm end in a shell on another machine,
//! which reads what stands behind it once more.
//!
//! Pure. `Extra`, features and reasons hold what nodes and people wrote. Behind ssh they
//! must be quoted, or that shell runs them; behind `sudo` they must not, or the quotes
//! become part of them. Where neither is known, what a shell would run is refused.

use model::words;

/// Programs that put their words into one line for a shell elsewhere.
const SHELLS: &[&str] =
    &["ssh", "gsissh", "autossh", "sshpass", "dbclient", "plink", "rsh", "remsh", "pdsh", "clush"];

/// Programs that start another one with the words as they are.
const PLAIN: &[&str] = &[
    "sudo",
    "doas",
    "env",
    "timeout",
    "nice",
    "ionice",
    "setsid",
    "stdbuf",
    "chroot",
    "nsenter",
    "unshare",
    "runuser",
    "setpriv",
    "docker",
    "podman",
    "kubectl",
    "singularity",
    "apptainer",
];

/// Programs of Slurm.
const OF_SLURM: &[&str] = &["scontrol", "sinfo", "srun", "salloc", "scancel", "squeue"];

/// What a shell acts on, quotes aside: it could start another program.
const ACTED_ON: &[char] = &['$', '`', ';', '&', '|', '<', '>', '(', ')', '\n', '\r'];

/// What reads the words behind a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A shell elsewhere.
    Shell,
    /// The program itself.
    Program,
    /// It cannot be told from the words.
    Unknown,
}

/// What reads the words behind this program. `said` is what the configuration says.
pub fn reader(program: &[String], said: Option<bool>) -> Reader {
    match said {
        Some(true) => return Reader::Shell,
        Some(false) => return Reader::Program,
        None => {}
    }
    // A word may hold a command line (`env -S`, `sh -c`).
    let is_shell = |word: &String| {
        word.split(|c: char| c.is_whitespace() || "'\"=;|&()".contains(c))
            .any(|part| SHELLS.contains(&name(part)))
    };
    if program.iter().any(is_shell) {
        return Reader::Shell;
    }
    let first = program.first().map_or("", |word| name(word));
    if PLAIN.contains(&first) || (program.len() == 1 && OF_SLURM.contains(&first)) {
        return Reader::Program;
    }
    Reader::Unknown
}

/// The file name of a program.
fn name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// A program and words behind it, quoted where a shell reads them; why not, where that is
/// not known and a shell would run some of them.
pub fn argv(program: &[String], said: Option<bool>, words: &[&str]) -> Result<Vec<String>, String> {
    let reader = reader(program, said);
    if reader == Reader::Unknown
        && let Some(word) = words.iter().find(|word| word.contains(ACTED_ON))
    {
        return Err(format!(
            "not said: {:?} has what a shell would run, and nothing tells whether one reads the words behind {:?}; \
             [sources.slurm] remote_shell = true (as behind ssh) or false says it",
            model::text::clean(word),
            program.join(" ")
        ));
    }
    let word = |word: &&str| match reader {
        Reader::Shell => words::line(&[(*word).to_owned()]),
        Reader::Program | Reader::Unknown => (*word).to_owned(),
    };
    Ok(program.iter().cloned().chain(words.iter().map(word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    const EXTRA: &str = "Extra={\"rack\":\"$(touch PWNED)\"}";

    /// Ways to reach a controller, with what reads the words behind them.
    const WAYS: &[(&[&str], Reader)] = &[
        (&["scontrol"], Reader::Program),
        (&["/opt/slurm/bin/scontrol"], Reader::Program),
        (&["sudo", "-u", "slurm", "scontrol"], Reader::Program),
        (&["/usr/bin/env", "SLURM_CONF=/x", "scontrol"], Reader::Program),
        (&["kubectl", "exec", "slurmctld-0", "--", "scontrol"], Reader::Program),
        (&["ssh", "head", "scontrol"], Reader::Shell),
        (&["/usr/bin/ssh", "-o", "x", "head", "scontrol"], Reader::Shell),
        (&["sudo", "-u", "slurm", "ssh", "head", "scontrol"], Reader::Shell),
        (&["timeout", "20", "ssh", "head", "scontrol"], Reader::Shell),
        (&["env", "K=V", "ssh", "head", "scontrol"], Reader::Shell),
        (&["env", "-S", "ssh head", "scontrol"], Reader::Shell),
        (&["sshpass", "-f", "x", "ssh", "head", "scontrol"], Reader::Shell),
        (&["docker", "exec", "login", "ssh", "head", "scontrol"], Reader::Shell),
        (&["/opt/site/on-head", "scontrol"], Reader::Unknown),
        (&["/opt/site/scontrol-on-head"], Reader::Unknown),
        (&["su", "slurm", "-c", "x", "scontrol"], Reader::Unknown),
    ];

    #[test]
    fn whatever_stands_in_front_of_scontrol_no_shell_runs_what_a_node_wrote() {
        for (words, expected) in WAYS {
            let program = program(words);
            assert_eq!(reader(&program, None), *expected, "{words:?}");
            match (argv(&program, None, &["update", EXTRA]), expected) {
                (Ok(argv), Reader::Program) => assert_eq!(argv.last().expect("one"), EXTRA),
                (Ok(argv), Reader::Shell) => {
                    let quoted = argv.last().expect("one");
                    assert_eq!(quoted, &format!("Extra='{}'", &EXTRA["Extra=".len()..]));
                }
                (Err(why), Reader::Unknown) => assert!(why.contains("remote_shell"), "{why}"),
                (other, _) => panic!("{words:?}: {other:?}"),
            }
            // What no shell acts on is said in any case.
            let plain = argv(&program, None, &["update", "NodeName=n1", "State=DRAIN"]);
            assert!(plain.is_ok_and(|it| it.ends_with(&["State=DRAIN".to_owned()])), "{words:?}");
        }
    }

    #[test]
    fn what_the_configuration_says_holds() {
        let wrapper = program(&["/opt/site/on-head", "scontrol"]);
        let said = |said| argv(&wrapper, Some(said), &[EXTRA]).expect("it is known");
        assert_eq!(said(false).last().expect("one"), EXTRA);
        assert!(said(true).last().expect("one").starts_with("Extra='{"));
    }
}
