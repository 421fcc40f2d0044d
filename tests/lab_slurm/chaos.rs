//! Faults of a real Slurm: `slurmctld` is killed, hung and restarted in the middle of turns,
//! calls are lost and orphaned, and operators edit nodes meanwhile. The nodes are measured in a
//! simulated fabric; the updates are real.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::storm;
use super::storm::episode::Episode;
use super::storm::fates::Victim;
use super::storm::hand::Edit;
use super::storm::log::Log;
use super::storm::model::{By, Entry, Fields, What};
use super::storm::slurm;
use super::storm::world::{Domains, InjectedFault, World};
use super::*;

/// Episodes of the ordinary test command: each takes most of a minute.
const RUNS: u64 = 1;

/// In front of `scontrol`: records requests and updates, and injects faults. Its first argument
/// is the number of the command that calls it.
const RECORDER: &str = r#"#!/bin/bash
# Only the gate's clock is wrong: the log is put in order by ours.
unset LD_PRELOAD
command=$1; shift
case "$*" in *ping*) exec "$run" scontrol "$@" ;; esac
exec 9>"$here/lock"; flock 9
n=$(($(cat "$here/asked") + 1)); echo $n >"$here/asked"
exec 9>&-
read -r how arg rest <<<"$(sed -n "s/^$n //p" "$here/fault")"
# What befalls changes alone waits for one.
case "$1 $how" in "update "*) ;; *" Late"|*" HandAfter")
    echo "$((n + 1)) $how $arg $rest" >>"$here/fault"; how= ;;
esac
[ -z "$how" ] || echo "$how $arg" >>"$here/met"
asker=$PPID
ctl() { "$run" sh -c "kill -$1 \$(cat /run/slurmctld/slurmctld.pid)"; }
later() { # seconds, command
    setsid bash -c "sleep $1; $2" </dev/null >/dev/null 2>&1 9>&- &
}
answer=$(mktemp "$here/answer.XXXXXX")
evidence() { # whether the run that a drain names has its verdicts by now
    local word run_id
    for word in "$@"; do
        case $word in Reason=fabricgate:*) run_id=${word#*:*:} ;; *) continue ;; esac
        [ -f "$here/site/runs/${run_id%% *}/verdicts.json" ] || { echo no; return; }
    done
    echo yes
}
put() {
    if [ "$1" = update ]; then
        at=$(date +%s%N)
        { stat -c %s "$here/site/gate/journal.jsonl" 2>/dev/null || echo 0
          evidence "$@"
          printf '%s\n' "$@"; } >"$here/update.new.$$"
        mv "$here/update.new.$$" "$here/log/$at.$command.update"
    fi
    "$run" scontrol "$@" >"$answer"; rc=$?
    if [ "$1" != update ]; then
        cp "$answer" "$here/read.new.$$"
        mv "$here/read.new.$$" "$here/log/$(date +%s%N).$command.read"
    fi
}
lost() { echo "slurm_update error: Unable to contact slurm controller (connect failure)" >&2; exit 1; }
refused() { echo "slurm_update error: Requested operation is presently disabled" >&2; exit 1; }
case "$how" in
KillBefore) kill -KILL $asker; exit 1 ;;
KillAfter) put "$@"; kill -KILL $asker; exit 1 ;;
Orphan) kill -KILL $asker; sleep 0.2; put "$@"; exit 1 ;;
Late) touch "$here/late.$$"; kill -KILL $asker; sleep "$arg"; put "$@"; rm -f "$here/late.$$"; exit 1 ;;
HandAfter) put "$@"; cat "$answer"
    for word in "$@"; do case $word in NodeName=*) list=${word#NodeName=} ;; esac; done
    later "$arg" "exec env -i PATH='$PATH' '$here/hand' \$('$run' scontrol show hostnames '$list' | head -1) '$rest'"
    exit $rc ;;
Lost) lost ;;
LostAnswer) put "$@"; lost ;;
Refused) refused ;;
RefusedAfter) put "$@"; refused ;;
Torn) put "$@"; head -c $(($(stat -c %s "$answer") / 2)) "$answer"; exit $rc ;;
Slow) sleep "$arg" ;;
Hand) "$here/hand" "$arg" "$rest" ;;
# What is started here is the lab's, and not left behind by who asked: it must not have
# the site in its environment, as it would by PWD and PATH too.
Crash) put "$@"; ctl KILL; later "$arg" "cd /; env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin '$run' slurmctld"; lost ;;
Hang) ctl STOP; later "$arg" "'$run' sh -c 'kill -CONT \$(cat /run/slurmctld/slurmctld.pid)'" ;;
esac
put "$@"
cat "$answer"
exit $rc
"#;

/// A person's edit of a node: the node, and the kind of edit.
const HAND: &str = r#"#!/bin/bash
node=$1; what=$2
change() { "$run" scontrol update NodeName="$node" "$@" >/dev/null 2>&1; }
now() { "$run" scontrol show node "$node" -o; }
case "$what" in
drain:*) change State=DRAIN Reason="${what#drain:}" ;;
down:*) change State=DOWN Reason="${what#down:}" ;;
append) was=$(now | sed -n 's/.* Reason=\(.*\) \[.*\].*/\1/p')
    [ -z "$was" ] || change State=DRAIN Reason="$was : mine, jo" ;;
resume) change State=RESUME ;;
comment) change Comment="bay 7" ;;
text) change Extra="ask jo" ;;
feature) change AvailableFeatures=gb200,gpu ActiveFeatures=gb200,gpu ;;
esac
"$run" scontrol show node "$node" --json >"$here/hand.new.$$"
mv "$here/hand.new.$$" "$here/log/$(date +%s%N).0.hand"
"#;

/// An edit as the arguments of `hand`.
fn words(edit: &Edit) -> String {
    match edit {
        Edit::Drain(reason) => format!("drain:{reason}"),
        Edit::Down(reason) => format!("down:{reason}"),
        Edit::Append => "append".to_owned(),
        Edit::Resume => "resume".to_owned(),
        // Together with fabricgate's edit it needs a program that reads JSON.
        Edit::Comment | Edit::Entry => "comment".to_owned(),
        Edit::Text => "text".to_owned(),
        Edit::Feature => "feature".to_owned(),
    }
}

/// A line of the fault plan, as the recorder reads it.
fn line(number: usize, fault: &InjectedFault) -> String {
    let how = match fault {
        InjectedFault::Slow(time) => format!("Slow {}", time.as_secs_f64()),
        InjectedFault::Hang(time) => format!("Hang {}", time.as_secs_f64()),
        InjectedFault::Late(time) => format!("Late {}", time.as_secs_f64()),
        InjectedFault::HandAfter(time, edit) => {
            format!("HandAfter {} {}", time.as_secs_f64(), words(edit))
        }
        InjectedFault::Crash(away, _) => format!("Crash {}", away.as_secs_f64()),
        InjectedFault::Hand(node, edit) => format!("Hand {node} {}", words(edit)),
        plain => format!("{plain:?}"),
    };
    format!("{number} {how}\n")
}

/// A real Slurm with the recorder in front.
struct Recorded {
    here: PathBuf,
    run: String,
    begin: BTreeMap<String, Fields>,
}

fn executable(file: &Path, script: &str) {
    fs::write(file, script).expect("written");
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("a program");
}

fn listed(text: &[u8]) -> BTreeMap<String, Fields> {
    let answer: Value = serde_json::from_slice(text).unwrap_or_default();
    let nodes = answer["nodes"].as_array().into_iter().flatten();
    nodes.map(slurm::fields).collect()
}

impl Recorded {
    fn start(lab: &Lab, folder: &Path, domains: &Domains) -> Self {
        let here = folder.to_owned();
        fs::create_dir(here.join("log")).expect("a folder");
        for (name, script) in [("scontrol", RECORDER), ("hand", HAND)] {
            let (first, rest) = script.split_once('\n').expect("a shebang");
            let names = format!("here='{}'\nrun='{}'", here.display(), lab.run);
            let script = format!("{first}\n{names}\n{rest}");
            executable(&here.join(name), &script);
        }
        let mut recorded = Self { here, run: lab.run.clone(), begin: BTreeMap::new() };
        let names: Vec<&str> = domains.iter().flat_map(|(_, it)| it).map(String::as_str).collect();
        let text = lab.run(&["scontrol", "show", "node", &names.join(","), "--json"]);
        recorded.begin = listed(text.as_bytes());
        assert_eq!(recorded.begin.len(), names.len(), "{text}");
        recorded.expect(BTreeMap::new());
        recorded
    }

    fn succeeds(&self, words: &[&str]) -> bool {
        let argv = words.iter().map(|word| (*word).to_owned()).collect();
        let limit = Duration::from_secs(60);
        let (_sender, stop) = tokio::sync::watch::channel(false);
        let request = ProcessRequest { argv, limit, capture: exec::CAPTURE };
        now(exec::run(&request, stop)).expect("a program").ending.is_success()
    }

    /// The state of all nodes, as the test that runs the storm sees it.
    fn look(&self) {
        let script = r#""$1" scontrol show node "$2" --json >"$0/look" && mv "$0/look" "$0/log/$(date +%s%N).0.look""#;
        let nodes: Vec<&str> = self.begin.keys().map(String::as_str).collect();
        let here = self.here.display().to_string();
        self.succeeds(&["bash", "-c", script, &here, &self.run, &nodes.join(",")]);
    }
}

impl World for Recorded {
    fn begin(&self) -> BTreeMap<String, Fields> {
        self.begin.clone()
    }

    fn gate(&self, _site: &Path, command: u32) -> String {
        let recorder = self.here.join("scontrol");
        format!(
            "[gate]\nscontrol = [{:?}, \"{command}\"]\nlimit_s = 5\nsettle_s = 3\n\
             in_flight_s = {}\n",
            recorder.display().to_string(),
            self.in_flight().as_secs()
        )
    }

    fn expect(&self, fault: BTreeMap<usize, InjectedFault>) {
        let text: String = fault.iter().map(|(at, it)| line(*at, it)).collect();
        fs::write(self.here.join("fault"), text).expect("written");
        fs::write(self.here.join("asked"), "0\n").expect("written");
        fs::write(self.here.join("met"), "").expect("written");
    }

    fn met(&self) -> Vec<String> {
        let text = fs::read_to_string(self.here.join("met")).expect("written");
        text.lines().map(str::to_owned).collect()
    }

    fn questions(&self) -> usize {
        8
    }

    // Its calls know their parent.
    fn begins(&self, _command: u32, _victim: Victim) {}

    fn over(&self, _command: u32) {}

    fn edit(&self, node: &str, edit: &Edit) {
        let hand = self.here.join("hand").display().to_string();
        self.succeeds(&[&hand, node, &words(edit)]);
    }

    fn mend(&self) {
        let script = "kill -CONT $(cat /run/slurmctld/slurmctld.pid) 2>/dev/null; \
                      for i in $(seq 200); do scontrol ping | grep -q 'is UP' && break; \
                      [ $i != 40 ] || slurmctld; sleep 0.2; done; \
                      for i in $(seq 200); do sinfo -h -N -o %T | grep -q unk || break; sleep 0.2; done";
        self.succeeds(&[&self.run, "sh", "-c", script]);
        self.look();
    }

    fn forgets(&self) -> bool {
        let script = "kill -KILL $(cat /run/slurmctld/slurmctld.pid); sleep 0.2; slurmctld -c; \
                      for i in $(seq 200); do scontrol ping | grep -q 'is UP' && break; sleep 0.2; done; \
                      for i in $(seq 200); do sinfo -h -N -o %T | grep -q unk || break; sleep 0.2; done";
        self.succeeds(&[&self.run, "sh", "-c", script]);
        self.look();
        true
    }

    fn quiet(&self) {
        let is_late = |entry: fs::DirEntry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with("late."))
        };
        let left = || fs::read_dir(&self.here).expect("a folder").flatten().any(is_late);
        while left() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn restored(&self) -> bool {
        let script = r#": >"$0/log/$(date +%s%N).0.restored""#;
        self.succeeds(&["bash", "-c", script, &self.here.display().to_string()])
    }

    fn is_late(&self) -> bool {
        true
    }

    fn latest(&self) -> Duration {
        Duration::from_secs(storm::number("FABRICGATE_CHAOS_LATE_S", 20))
    }

    fn log(&self) -> Vec<Entry> {
        self.look();
        let mut files: Vec<PathBuf> = fs::read_dir(self.here.join("log"))
            .expect("the log")
            .map(|entry| entry.expect("a file").path())
            .collect();
        // Their names begin with times of equal length.
        files.sort();
        let mut log = Log::of(self.begin.clone());
        for file in files {
            let name = file.file_name().and_then(|it| it.to_str()).expect("a name");
            let mut parts = name.split('.').skip(1);
            let command: u32 = parts.next().and_then(|it| it.parse().ok()).expect("a number");
            let bytes = fs::read(&file).expect("a file");
            match parts.next() {
                Some("update") => log_update(&mut log, command, &bytes),
                Some("restored") => {
                    log.entries.push(Entry { by: By::Hand, what: What::Restored });
                }
                Some("read") => log.read(command, listed(&bytes)),
                Some("hand") => log.seen(Some(By::Hand), &listed(&bytes)),
                _ => log.seen(None, &listed(&bytes)),
            }
        }
        log.entries
    }
}

/// Logs a recorded update.
fn log_update(log: &mut Log, command: u32, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let journal = lines.next().and_then(|it| it.parse().ok()).unwrap_or_default();
    let evidence = lines.next() == Some("yes");
    let mut body = json!({});
    let list = |value: &str| value.split(',').map(str::to_owned).collect::<Vec<_>>();
    for (key, value) in lines.filter_map(|line| line.split_once('=')) {
        match key {
            "NodeName" => body["name"] = json!([value]),
            "State" => body["state"] = json!([value]),
            "Reason" => body["reason"] = json!(value),
            "AvailableFeatures" => body["features"] = json!(list(value)),
            "ActiveFeatures" => body["features_act"] = json!(list(value)),
            "Extra" => body["extra"] = json!(value),
            other => body[other] = json!(value),
        }
    }
    let nodes = hostlist::expand(body["name"][0].as_str().expect("nodes")).expect("a list");
    let order = slurm::order(&body);
    log.record_sent(command, nodes, order, journal, evidence);
}

#[test]
fn under_every_fault_of_slurm_the_gate_keeps_its_invariants() {
    let Some(lab) = lab() else { return };
    let names = |numbers| nodes(numbers).iter().map(ToString::to_string).collect();
    let domains: Domains =
        vec![("block01".to_owned(), names(1..=4)), ("block02".to_owned(), names(19..=22))];
    let calm = || {
        // The reason of an earlier drain stays on an idle node (24.11): one of fabricgate's would
        // belong to another gate in the next episode.
        for node in domains.iter().flat_map(|(_, nodes)| nodes) {
            let node = format!("NodeName={node}");
            lab.finished(&["scontrol", "update", &node, "State=DRAIN", "Reason=between episodes"]);
            lab.finished(&["scontrol", "update", &node, "State=RESUME"]);
        }
        lab.settle();
        lab.run(&["scontrol", "update", "NodeName=ALL", "Extra=", "Comment="]);
        lab.forget();
    };
    storm::play("ci/lab-slurm test", RUNS, 1, |seed| {
        calm();
        Episode::new(seed, domains.clone(), |folder, _| {
            Box::new(Recorded::start(&lab, folder, &domains)) as Box<dyn World>
        })
    });
    calm();
}
