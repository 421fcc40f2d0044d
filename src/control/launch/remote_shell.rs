//! Detects whether a command in front of a Slurm program passes its arguments to a remote shell,
//! which parses them again.
//!
//! Pure. `Extra`, features and reasons contain text from nodes and users. Behind ssh they must be
//! quoted, or the remote shell runs them; behind `sudo` they must not, or the quotes become part of
//! them. If the command is unknown, arguments with shell metacharacters are refused.

use model::shell_quote;

/// Programs that join their arguments into one line for a remote shell.
const REMOTE_SHELLS: &[&str] =
    &["ssh", "gsissh", "autossh", "sshpass", "dbclient", "plink", "rsh", "remsh", "pdsh", "clush"];

/// Programs that start another program with unchanged arguments.
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

const SLURM_PROGRAMS: &[&str] = &["scontrol", "sinfo", "srun", "salloc", "scancel", "squeue"];

/// Characters with a meaning to a shell, except quotes: they could start another program.
const SHELL_METACHARACTERS: &[char] = &['$', '`', ';', '&', '|', '<', '>', '(', ')', '\n', '\r'];

/// The reader of the arguments after a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgvReader {
    /// A remote shell.
    Shell,
    /// The program itself, without a shell.
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
    // An argument may contain a command line (`env -S`, `sh -c`).
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

fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// A program and its arguments, quoted if a shell reads them; an error if that is unknown and a
/// shell would interpret some of them.
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
            "not sent: {:?} contains shell metacharacters, and a shell may parse those of {:?}; \
             set [sources.slurm] remote_shell = true (as with ssh) or false",
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

    /// Ways to reach a controller, and the reader of the arguments of each.
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
    fn no_wrapper_of_scontrol_lets_a_shell_run_text_of_a_node() {
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
            // Text without shell metacharacters is the same for every reader.
            let plain = quote_argv(&program, None, &["update", "NodeName=n1", "State=DRAIN"]);
            assert!(plain.is_ok_and(|it| it.ends_with(&["State=DRAIN".to_owned()])), "{words:?}");
        }
    }

    #[test]
    fn the_configured_reader_overrides_detection() {
        let wrapper = program(&["/opt/site/on-head", "scontrol"]);
        let quote = |is_shell| quote_argv(&wrapper, Some(is_shell), &[EXTRA]).expect("it is known");
        assert_eq!(quote(false).last().expect("one"), EXTRA);
        assert!(quote(true).last().expect("one").starts_with("Extra='{"));
    }
}
