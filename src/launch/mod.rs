//! How nodes are reached: the command that starts something on node X.
//!
//! Pure: words in, words out. `exec` starts what comes out. The launchers of
//! schedulers come in here as further kinds.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use crate::model::id::NodeName;
use crate::model::words;

/// The placeholder for the node's name.
pub const NODE: &str = "{node}";
/// The placeholder for the whole command as one word, quoted for a shell.
pub const COMMAND: &str = "{command}";

/// Environment variable that names the scenario a simulated node is part of.
pub const SIM_VARIABLE: &str = "FABRICGATE_SIM";
/// Environment variable that names the simulated node.
pub const SIM_NODE_VARIABLE: &str = "FABRICGATE_SIM_NODE";

/// How nodes are reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Launcher {
    /// This machine.
    Local,
    /// A command in front of the tool's own, such as `ssh {node}`.
    Command {
        /// Its words; the tool's words follow, or stand where `{command}` is.
        template: Vec<String>,
    },
    /// Nodes of the embedded simulated fabric: processes on this machine that
    /// find simulated tools on their PATH.
    Sim {
        /// The scenario.
        scenario: PathBuf,
    },
    /// Nothing is started: a stored run answers.
    Replay {
        /// Its folder.
        run: PathBuf,
    },
}

/// What workers are started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// fabricgate itself, as this machine calls it.
    pub here: String,
    /// fabricgate as the nodes call it.
    pub there: String,
    /// Folder of the simulated tools' names, for simulated nodes.
    pub links: Option<PathBuf>,
    /// The PATH that is in force, which simulated tools stand in front of.
    pub path: String,
    /// Measure nodes that somebody uses.
    pub even_if_busy: bool,
}

/// A process to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Its words.
    pub argv: Vec<String>,
    /// Its additional environment.
    pub env: BTreeMap<String, String>,
}

/// Why a command cannot be made for a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The name would be read as an option by the launcher's program.
    #[error("node name {node:?} looks like an option")]
    LooksLikeOption {
        /// The node.
        node: String,
    },
    /// The name is none.
    #[error("node name {node:?} has characters that no node name has")]
    NotAName {
        /// The node.
        node: String,
    },
    /// The template is empty.
    #[error("the launcher's template is empty, expected words such as [\"ssh\", \"{NODE}\"]")]
    Empty,
    /// The template does not mention the node.
    #[error(
        "the launcher's template never says {NODE}: every node would be measured on the same machine"
    )]
    NoNode,
    /// One machine cannot stand for many.
    #[error(
        "launcher \"local\" measures this machine only, and {nodes} nodes are to be measured; \
         use kind = \"command\" with a template such as [\"ssh\", \"{NODE}\"]"
    )]
    NotLocal {
        /// How many nodes are to be measured.
        nodes: usize,
    },
}

impl Launcher {
    /// Whether this launcher can serve that many nodes at all.
    pub fn check(&self, nodes: usize) -> Result<(), LaunchError> {
        match self {
            Self::Local if 1 < nodes => Err(LaunchError::NotLocal { nodes }),
            Self::Local | Self::Sim { .. } | Self::Replay { .. } => Ok(()),
            Self::Command { template } if template.first().is_none_or(String::is_empty) => {
                Err(LaunchError::Empty)
            }
            Self::Command { template } if !template.iter().any(|word| word.contains(NODE)) => {
                Err(LaunchError::NoNode)
            }
            Self::Command { .. } => Ok(()),
        }
    }

    /// What to start so that `argv` runs on `node`.
    pub fn argv(&self, node: &NodeName, argv: &[String]) -> Result<Vec<String>, LaunchError> {
        let name = node.as_str();
        if name.starts_with('-') {
            return Err(LaunchError::LooksLikeOption { node: name.to_owned() });
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || !name.chars().all(plain) {
            return Err(LaunchError::NotAName { node: name.to_owned() });
        }
        match self {
            Self::Local | Self::Sim { .. } | Self::Replay { .. } => Ok(argv.to_vec()),
            Self::Command { template } => {
                let whole = template.iter().any(|word| word.contains(COMMAND));
                let line = if whole { words::line(argv) } else { String::new() };
                let fill = |word: &String| word.replace(NODE, name).replace(COMMAND, &line);
                let mut words: Vec<String> = template.iter().map(fill).collect();
                if !whole {
                    words.extend_from_slice(argv);
                }
                Ok(words)
            }
        }
    }

    /// What to start so that a worker runs on `node`.
    pub fn worker(&self, node: &NodeName, program: &Program) -> Result<Launch, LaunchError> {
        let call = match self {
            Self::Command { .. } => &program.there,
            _ => &program.here,
        };
        let mut argv = vec![call.clone(), "node".to_owned(), "worker".to_owned()];
        if program.even_if_busy {
            argv.push("--even-if-busy".to_owned());
        }
        let mut env = BTreeMap::new();
        if let Self::Sim { scenario } = self {
            env.insert(SIM_VARIABLE.to_owned(), scenario.display().to_string());
            env.insert(SIM_NODE_VARIABLE.to_owned(), node.to_string());
            if let Some(links) = &program.links {
                env.insert("PATH".to_owned(), format!("{}:{}", links.display(), program.path));
            }
        }
        Ok(Launch { argv: self.argv(node, &argv)?, env })
    }

    /// Whether addresses are names: simulated nodes have no network of their own.
    pub fn names_are_addresses(&self) -> bool {
        matches!(self, Self::Sim { .. })
    }

    /// Whether this exit code of the launcher's own program says that the node
    /// was not reached. ssh(1): "exits with the exit status of the remote
    /// command or with 255 if an error occurred".
    pub fn is_connect_failure(&self, code: i32) -> bool {
        let Self::Command { template } = self else { return false };
        let program = template.first().map_or("", |p| p.rsplit('/').next().unwrap_or(p));
        program == "ssh" && code == 255
    }

    /// The name used in documents.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Command { .. } => "command",
            Self::Sim { .. } => "sim",
            Self::Replay { .. } => "replay",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(template: &[&str]) -> Launcher {
        Launcher::Command { template: template.iter().map(|w| (*w).to_owned()).collect() }
    }

    fn argv(launcher: &Launcher, node: &str) -> Result<Vec<String>, LaunchError> {
        launcher.argv(&NodeName::from(node), &["tool".to_owned(), "a b".to_owned()])
    }

    #[test]
    fn the_template_comes_first_and_the_words_stay_words() {
        assert_eq!(argv(&Launcher::Local, "n1").expect("good"), ["tool", "a b"]);
        let env = command(&["env", "NODE={node}"]);
        assert_eq!(argv(&env, "n1").expect("good"), ["env", "NODE=n1", "tool", "a b"]);
        let shell = command(&["ssh", "{node}", "{command}"]);
        assert_eq!(argv(&shell, "n1").expect("good"), ["ssh", "n1", "tool \"a b\""]);
    }

    #[test]
    fn names_that_a_program_could_misread_are_refused() {
        let ssh = command(&["ssh", "{node}"]);
        assert!(matches!(argv(&ssh, "-oX"), Err(LaunchError::LooksLikeOption { .. })));
        for name in ["", "a b", "a;b", "a$(b)", "a/b"] {
            assert!(matches!(argv(&ssh, name), Err(LaunchError::NotAName { .. })), "{name}");
        }
    }

    #[test]
    fn one_machine_never_stands_for_many() {
        assert_eq!(Launcher::Local.check(1), Ok(()));
        assert_eq!(Launcher::Local.check(2), Err(LaunchError::NotLocal { nodes: 2 }));
        assert_eq!(command(&["env"]).check(2), Err(LaunchError::NoNode));
        assert_eq!(command(&[]).check(1), Err(LaunchError::Empty));
        assert_eq!(command(&["ssh", "{node}"]).check(18), Ok(()));
    }

    #[test]
    fn a_worker_is_called_as_its_node_calls_it() {
        let program = Program {
            here: "/here/fabricgate".to_owned(),
            there: "/opt/fabricgate".to_owned(),
            links: Some("/tmp/links".into()),
            path: "/bin".to_owned(),
            even_if_busy: false,
        };
        let node = NodeName::from("n1");
        let ssh = command(&["ssh", "{node}"]).worker(&node, &program).expect("good");
        assert_eq!(ssh.argv, ["ssh", "n1", "/opt/fabricgate", "node", "worker"]);
        assert!(ssh.env.is_empty());
        let sim = Launcher::Sim { scenario: "/s.toml".into() };
        let sim = sim.worker(&node, &program).expect("good");
        assert_eq!(sim.argv, ["/here/fabricgate", "node", "worker"]);
        assert_eq!(sim.env["PATH"], "/tmp/links:/bin");
        assert_eq!(
            (sim.env[SIM_VARIABLE].as_str(), sim.env[SIM_NODE_VARIABLE].as_str()),
            ("/s.toml", "n1")
        );
    }

    #[test]
    fn only_ssh_says_with_255_that_the_node_was_not_reached() {
        assert!(command(&["/usr/bin/ssh", "{node}"]).is_connect_failure(255));
        assert!(!command(&["ssh", "{node}"]).is_connect_failure(1));
        assert!(!command(&["srun", "-w", "{node}"]).is_connect_failure(255));
        assert!(!Launcher::Local.is_connect_failure(255));
    }
}
