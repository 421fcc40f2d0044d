//! Whether the words in front of a program of Slurm end in a shell on another machine,
//! which reads what stands behind it once more.
//!
//! Pure. `Extra`, features and reasons hold what nodes and people wrote. Behind ssh they
//! must be quoted, or that shell runs them; behind `sudo` they must not, or the quotes
//! become part of them. Where neither is known, what a shell would run is refused.

use model::shell_quote;

/// Programs that put their words into one line for a shell elsewhere.
const REMOTE_SHELLS: &[&str] =
    &["ssh", "gsissh", "autossh", "sshpass", "dbclient", "plink", "rsh", "remsh", "pdsh", "clush"];

/// Programs that start another one with the words as they are.
const EXEC_WRAPPERS: &[&str] = &[
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
const SLURM_PROGRAMS: &[&str] = &["scontrol", "sinfo", "srun", "salloc", "scancel", "squeue"];

/// What a shell acts on, quotes aside: it could start another program.
const SHELL_METACHARACTERS: &[char] = &['$', '`', ';', '&', '|', '<', '>', '(', ')', '\n', '\r'];

/// What reads the words behind a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgvReader {
    /// A shell elsewhere.
    Shell,
    /// The program itself.
    Program,
    /// The arguments do not determine it.
    Unknown,
}

/// The reader of the arguments after this program; `configured` is the `remote_shell` key.
pub fn detect_reader(program: &[String], configured: Option<bool>) -> ArgvReader {
    match configured {
        Some(true) => return ArgvReader::Shell,
        Some(false) => return ArgvReader::Program,
        None => {}
    }
    // A word may hold a command line (`env -S`, `sh -c`).
    let is_shell = |word: &String| {
        word.split(|c: char| c.is_whitespace() || "'\"=;|&()".contains(c))
            .any(|part| REMOTE_SHELLS.contains(&file_name(part)))
    };
    if program.iter().any(is_shell) {
        return ArgvReader::Shell;
    }
    let first = program.first().map_or("", |word| file_name(word));
    if EXEC_WRAPPERS.contains(&first) || (program.len() == 1 && SLURM_PROGRAMS.contains(&first)) {
        return ArgvReader::Program;
    }
    ArgvReader::Unknown
}

/// The file name of a program.
fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// A program and words behind it, quoted where a shell reads them; why not, where that is
/// not known and a shell would run some of them.
pub fn quote_argv(
    program: &[String],
    configured: Option<bool>,
    words: &[&str],
) -> Result<Vec<String>, String> {
    let reader = detect_reader(program, configured);
    if reader == ArgvReader::Unknown
        && let Some(word) = words.iter().find(|word| word.contains(SHELL_METACHARACTERS))
    {
        return Err(format!(
            "not said: {:?} has what a shell would run, and nothing tells whether one reads the words behind {:?}; \
             [sources.slurm] remote_shell = true (as behind ssh) or false says it",
            model::text::clean(word),
            program.join(" ")
        ));
    }
    let word = |word: &&str| match reader {
        ArgvReader::Shell => shell_quote::join_quoted(&[(*word).to_owned()]),
        ArgvReader::Program | ArgvReader::Unknown => (*word).to_owned(),
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
    const WAYS: &[(&[&str], ArgvReader)] = &[
        (&["scontrol"], ArgvReader::Program),
        (&["/opt/slurm/bin/scontrol"], ArgvReader::Program),
        (&["sudo", "-u", "slurm", "scontrol"], ArgvReader::Program),
        (&["/usr/bin/env", "SLURM_CONF=/x", "scontrol"], ArgvReader::Program),
        (&["kubectl", "exec", "slurmctld-0", "--", "scontrol"], ArgvReader::Program),
        (&["ssh", "head", "scontrol"], ArgvReader::Shell),
        (&["/usr/bin/ssh", "-o", "x", "head", "scontrol"], ArgvReader::Shell),
        (&["sudo", "-u", "slurm", "ssh", "head", "scontrol"], ArgvReader::Shell),
        (&["timeout", "20", "ssh", "head", "scontrol"], ArgvReader::Shell),
        (&["env", "K=V", "ssh", "head", "scontrol"], ArgvReader::Shell),
        (&["env", "-S", "ssh head", "scontrol"], ArgvReader::Shell),
        (&["sshpass", "-f", "x", "ssh", "head", "scontrol"], ArgvReader::Shell),
        (&["docker", "exec", "login", "ssh", "head", "scontrol"], ArgvReader::Shell),
        (&["/opt/site/on-head", "scontrol"], ArgvReader::Unknown),
        (&["/opt/site/scontrol-on-head"], ArgvReader::Unknown),
        (&["su", "slurm", "-c", "x", "scontrol"], ArgvReader::Unknown),
    ];

    #[test]
    fn whatever_stands_in_front_of_scontrol_no_shell_runs_what_a_node_wrote() {
        for (words, expected) in WAYS {
            let program = program(words);
            assert_eq!(detect_reader(&program, None), *expected, "{words:?}");
            match (quote_argv(&program, None, &["update", EXTRA]), expected) {
                (Ok(argv), ArgvReader::Program) => assert_eq!(argv.last().expect("one"), EXTRA),
                (Ok(argv), ArgvReader::Shell) => {
                    let quoted = argv.last().expect("one");
                    assert_eq!(quoted, &format!("Extra='{}'", &EXTRA["Extra=".len()..]));
                }
                (Err(why), ArgvReader::Unknown) => assert!(why.contains("remote_shell"), "{why}"),
                (other, _) => panic!("{words:?}: {other:?}"),
            }
            // Text without shell characters needs no answer.
            let plain = quote_argv(&program, None, &["update", "NodeName=n1", "State=DRAIN"]);
            assert!(plain.is_ok_and(|it| it.ends_with(&["State=DRAIN".to_owned()])), "{words:?}");
        }
    }

    #[test]
    fn what_the_configuration_says_holds() {
        let wrapper = program(&["/opt/site/on-head", "scontrol"]);
        let quote = |is_shell| quote_argv(&wrapper, Some(is_shell), &[EXTRA]).expect("it is known");
        assert_eq!(quote(false).last().expect("one"), EXTRA);
        assert!(quote(true).last().expect("one").starts_with("Extra='{"));
    }
}
