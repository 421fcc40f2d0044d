//! The watch loop, with an in-memory scheduler and a script in place of the program.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use super::super::certificates::CertificateSigning;
use super::super::fixture::FakeScheduler;
use super::super::journal::Journal;
use super::super::{certificates, fixture};
use super::*;
use crate::store::document_signature::SignatureTrust;
use model::certificate::Certificate;
use model::claims::ClaimedDomain;
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::journal::JournalEvent;
use model::profile::Profile;
use model::scheduler_snapshot::SchedulerNode;

const WEEK_S: i64 = 7 * 24 * 3_600;

fn settings() -> ScheduleSettings {
    ScheduleSettings {
        concurrent_domains: 1,
        nodes: 72,
        min_nodes: 1,
        unverified: Some(Profile::Admit),
        repaired: Some(Profile::Recertify),
        expired: Some(Profile::Recertify),
        missing: Some(Profile::Admit),
        ahead_s: 0,
        audit_every_s: 0,
        confirmation_ages_s: [4 * 3_600, WEEK_S],
        cool_down_s: 24 * 3_600,
        rest_s: 3_600,
        rest_most_s: 3_600,
        clean_sweeps: 2,
        clean_apart_s: 3_600,
    }
}

/// This many nodes, distributed over this many domains.
fn claims(nodes: usize, domains: usize) -> Claims {
    let domain = |first: usize| ClaimedDomain {
        name: format!("d{first}").as_str().into(),
        nodes: (first..=nodes).step_by(domains).map(|at| format!("n{at}").into()).collect(),
        platform: None,
        gpus_per_node: None,
        nic: None,
    };
    Claims { domains: (1..=domains).map(domain).collect(), ..Claims::default() }
}

/// A watch over these nodes, whose program is this shell script.
struct WatchFixture {
    folder: tempfile::TempDir,
    fake: FakeScheduler,
    script: String,
    apply: bool,
    once: bool,
    /// Domains, which are measured at the same time.
    domains: usize,
}

impl WatchFixture {
    fn with_script(nodes: usize, script: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (fake, script) = (FakeScheduler::with_nodes(nodes), script.to_owned());
        Self { folder, fake, script, apply: true, once: true, domains: 1 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs it; `seen` decides after each event if the watch must end.
    fn run(&self, seen: impl Fn(&WatchEvent) -> bool) -> (Result<u8, WatchError>, Vec<WatchEvent>) {
        let events = RefCell::new(Vec::new());
        let (stopper, stop) = watch::channel(false);
        let (nodes, domains) = (self.fake.nodes.borrow().len(), self.domains);
        let mut tell = |event: WatchEvent| {
            if seen(&event) {
                stopper.send_replace(true);
            }
            events.borrow_mut().push(event);
        };
        let result = fixture::block_on(run_watch(WatchLoop {
            folder: self.folder.path().to_owned(),
            scheduler: &self.fake,
            fetch_claims: Arc::new(move || Ok(claims(nodes, domains))),
            settings: ScheduleSettings { concurrent_domains: domains, ..settings() },
            policy: &Policy::default(),
            trust: &SignatureTrust::default(),
            taints: false,
            writer: None,
            intervals: WatchIntervals {
                interval: Duration::from_millis(200),
                claims_refresh: Duration::from_secs(60),
                job_grace: Duration::from_secs(20),
                max_logs: 2,
            },
            program: ["sh", "-c", &self.script, "sh"].map(str::to_owned).into(),
            arguments: Vec::new(),
            apply: self.apply,
            once: self.once,
            lease: None,
            node_changes: None,
            stop,
            metrics: Arc::default(),
            emit: &mut tell,
        }));
        (result, events.into_inner())
    }

    fn state(&self) -> WatchState {
        WatchState::read(self.folder.path()).expect("a state")
    }

    /// All nodes have a certificate of today that is valid for a week.
    fn with_certificates(self) -> Self {
        let now = clock::now().unix;
        let certificate = |node: &NodeName| Certificate::unsigned(node.clone(), now, now + WEEK_S);
        let made = self.fake.nodes.borrow().keys().map(certificate).collect();
        let trust = SignatureTrust::default();
        let seal = CertificateSigning { key: Ok(None), trust: &trust };
        certificates::export_certificates(self.folder.path(), made, Vec::new(), &seal)
            .expect("written");
        self
    }

    /// A run this many hours ago found the node slow.
    fn with_suspicion(self, node: &str, hours: i64) -> Self {
        self.with_event(JournalEvent::Suspected {
            node: node.into(),
            run: "run1".to_owned(),
            measured: clock::now().unix - hours * 3_600,
            boot_id: None,
            classes: vec![FindingClass::NvlinkLow],
        })
    }

    /// A gate turn wrote this.
    fn with_event(self, event: JournalEvent) -> Self {
        let mut journal = Journal::open(self.folder.path()).expect("opened");
        journal.append(event).expect("written");
        self
    }
}

fn ended_jobs(events: &[WatchEvent]) -> Vec<(Option<u8>, JobOutcome)> {
    let ended = |event: &WatchEvent| match event {
        WatchEvent::Ended { code, outcome, .. } => Some((*code, *outcome)),
        _ => None,
    };
    events.iter().filter_map(ended).collect()
}

fn messages(events: &[WatchEvent]) -> Vec<String> {
    let message = |event: &WatchEvent| match event {
        WatchEvent::LogLine { line, .. } => Some(line.clone()),
        _ => None,
    };
    events.iter().filter_map(message).collect()
}

#[test]
fn one_decision_runs_its_job_and_exits_with_the_jobs_code() {
    let stand = WatchFixture::with_script(2, "echo \"$@\"; exit 3");
    let (result, events) = stand.run(|_| false);
    assert_eq!(result.expect("ended"), 3, "{events:#?}");
    assert_eq!(ended_jobs(&events), [(Some(3), JobOutcome::Closed)]);
    assert_eq!(messages(&events), ["admit -- n1 n2"]);
    let state = stand.state();
    assert!(state.jobs.is_empty());
    assert_eq!(state.attempts.nodes.len(), 2);
    // The second time, the nodes rest.
    let (result, events) = stand.run(|_| false);
    assert_eq!((result.expect("ended"), ended_jobs(&events).len()), (0, 0), "{events:#?}");
}

#[test]
fn all_output_of_a_job_is_reported_including_an_unterminated_last_line() {
    // More than one read reports, all of it right before the end.
    let lines = "head -c 200000 /dev/zero | tr '\\0' a | fold -w 1000";
    let stand = WatchFixture::with_script(1, &format!("{lines}; echo; printf bye"));
    let (result, events) = stand.run(|_| false);
    assert_eq!(result.expect("ended"), 0);
    let lines = messages(&events);
    assert_eq!((lines.len(), lines.last().map(String::as_str)), (201, Some("bye")));
}

#[test]
fn without_apply_nothing_is_started_and_nothing_written() {
    let stand = WatchFixture { apply: false, ..WatchFixture::with_script(1, "touch started") };
    let (result, events) = stand.run(|_| false);
    assert_eq!(result.expect("ended"), 0);
    assert!(events.iter().any(|it| matches!(it, WatchEvent::Due(job) if job.nodes.len() == 1)));
    assert_eq!(fs::read_dir(stand.folder.path()).expect("a folder").count(), 0);
}

#[test]
fn a_stop_lets_a_job_finish_and_does_not_count_against_its_node() {
    let script = "trap 'echo concluded; exit 6' TERM; echo ready; while :; do sleep 0.05; done";
    let stand = WatchFixture { once: false, ..WatchFixture::with_script(1, script) };
    let (result, events) =
        stand.run(|event| matches!(event, WatchEvent::LogLine { line, .. } if line == "ready"));
    assert_eq!(result.expect("ended"), 0, "{events:#?}");
    // The shell may report its own children, which are stopped like it.
    assert_eq!(messages(&events).last().expect("words"), "concluded");
    assert_eq!(ended_jobs(&events), [(Some(6), JobOutcome::Refused)]);
    assert!(stand.state().attempts.nodes.is_empty(), "it is due again immediately");
}

#[test]
fn a_killed_job_counts_as_attempted_and_is_not_restarted_immediately() {
    let stand = WatchFixture { once: false, ..WatchFixture::with_script(1, "kill -9 $$") };
    let looks = RefCell::new(0);
    let (_, events) = stand.run(|event| {
        if matches!(event, WatchEvent::Ended { .. }) {
            *looks.borrow_mut() += 1;
        }
        // The observation after it.
        *looks.borrow() == 1 && matches!(event, WatchEvent::Looked { .. })
    });
    assert_eq!(ended_jobs(&events), [(None, JobOutcome::Killed)]);
    assert_eq!(stand.state().attempts.nodes[&NodeName::from("n1")].count, 1);
}

#[test]
fn jobs_of_a_dead_watch_are_ended_and_not_started_twice() {
    let stand = WatchFixture::with_script(1, "echo again");
    let (name, log) = ("admit-1-2-3", stand.path("left.log"));
    let file = fs::File::create(&log).expect("a log");
    fixture::block_on(async {
        let argv = ["sh", "-c", "echo $$; sleep 1000"].map(str::to_owned);
        let env = [(state::JOB_VARIABLE.to_owned(), name.to_owned())].into();
        let left =
            node::exec::background::BackgroundProcess::start(&argv, &env, &file).expect("started");
        let mut state = stand.state();
        let at = clock::now();
        state.jobs.push(state::StartedJob {
            job: name.to_owned(),
            domain: "d1".into(),
            profile: "admit".to_owned(),
            cause: model::watch::DueReason::Missing,
            why: String::new(),
            nodes: [("n1".into(), "missing boot ".to_owned())].into(),
            partners: Vec::new(),
            command: Vec::new(),
            log: String::new(),
            at,
        });
        state.write(stand.folder.path()).expect("written");
        // A parent process reaps it when it dies.
        let (_sender, end) = watch::channel(false);
        let grace = watch::channel(Duration::ZERO).1;
        let reaped = tokio::spawn(async move { left.wait_or_stop(end, &grace).await });
        let notes = state.take_over(Duration::from_secs(10)).await;
        reaped.await.expect("it has ended");
        assert!(notes[0].contains("were ended"), "{notes:?}");
        assert!(state.jobs.is_empty() && state.attempts.nodes.len() == 1);
        state.write(stand.folder.path()).expect("written");
    });
    let (result, events) = stand.run(|_| false);
    assert_eq!((result.expect("ended"), messages(&events).len()), (0, 0), "{events:#?}");
}

#[test]
fn a_second_instance_of_a_folder_waits_and_one_decision_is_refused() {
    let stand = WatchFixture::with_script(1, "true");
    let lock = state::lock_folder(stand.folder.path()).expect("a folder").expect("the lock");
    let (result, _) = stand.run(|_| false);
    let error = result.expect_err("refused").to_string();
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    let waits = WatchFixture { once: false, ..stand };
    let (result, events) = waits.run(|event| matches!(event, WatchEvent::Waiting { .. }));
    assert_eq!(result.expect("stopped"), 0);
    assert_eq!(ended_jobs(&events), []);
    drop(lock);
}

#[test]
fn a_silent_scheduler_is_reported_and_no_job_is_started() {
    let stand = WatchFixture::with_script(1, "true");
    stand.fake.silent.set(true);
    let (result, events) = stand.run(|_| false);
    assert!(result.expect_err("unknown").to_string().contains("timed out"));
    assert_eq!(ended_jobs(&events), []);
    let stays = WatchFixture { once: false, ..stand };
    let (result, _) = stays.run(|event| matches!(event, WatchEvent::Trouble { .. }));
    assert_eq!(result.expect("stopped"), 0);
}

#[test]
fn an_unreadable_state_is_not_discarded() {
    let stand = WatchFixture::with_script(1, "true");
    fs::write(stand.path(state::STATE_FILE), "{").expect("written");
    let error = stand.run(|_| false).0.expect_err("refused").to_string();
    assert!(error.contains("watch.json") && error.contains("move it away"), "{error}");
    assert_eq!(fs::read_to_string(stand.path(state::STATE_FILE)).expect("there"), "{");
}

#[test]
fn old_logs_are_removed_and_new_ones_stay() {
    let stand = WatchFixture::with_script(1, "echo one");
    let logs = stand.path(jobs::LOG_FOLDER);
    fs::create_dir_all(&logs).expect("a folder");
    for name in ["a.log", "b.log", "c.log", "keep.txt"] {
        fs::write(logs.join(name), "").expect("written");
    }
    stand.run(|_| false).0.expect("ended");
    let mut left: Vec<String> = fs::read_dir(&logs)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(
        left.iter().any(|it| it.starts_with("admit-")) && left.contains(&"keep.txt".to_owned())
    );
}

#[test]
fn a_missing_program_is_reported_and_its_node_rests() {
    let stand = WatchFixture::with_script(1, "");
    let events = RefCell::new(Vec::new());
    let (_stopper, stop) = watch::channel(false);
    let result = fixture::block_on(run_watch(WatchLoop {
        folder: stand.folder.path().to_owned(),
        scheduler: &stand.fake,
        fetch_claims: Arc::new(|| Ok(claims(1, 1))),
        settings: settings(),
        policy: &Policy::default(),
        trust: &SignatureTrust::default(),
        taints: false,
        writer: None,
        intervals: WatchIntervals {
            interval: Duration::from_secs(1),
            claims_refresh: Duration::from_secs(60),
            job_grace: Duration::ZERO,
            max_logs: 1,
        },
        program: vec![Path::new("/nowhere/fabricgate").display().to_string()],
        arguments: Vec::new(),
        apply: true,
        once: true,
        lease: None,
        node_changes: None,
        stop,
        metrics: Arc::default(),
        emit: &mut |event| events.borrow_mut().push(event),
    }));
    assert_eq!(result.expect("ended"), 5);
    assert!(events.borrow().iter().any(
        |it| matches!(it, WatchEvent::Trouble { what } if what.contains("cannot be started"))
    ));
    assert_eq!(stand.state().attempts.nodes.len(), 1);
}

#[test]
fn a_node_that_one_run_found_slow_is_audited_once_another_run_can_confirm_it() {
    // It counts from 4 hours on, for 7 days, without other audits.
    for (hours, is_due) in [(3, false), (5, true), (7 * 24 - 1, true), (7 * 24 + 1, false)] {
        let stand = WatchFixture::with_script(2, "echo \"$@\"")
            .with_certificates()
            .with_suspicion("n1", hours);
        let (result, events) = stand.run(|_| false);
        assert_eq!(result.expect("ended"), 0, "{events:#?}");
        let expected = if is_due { vec!["audit -- n1"] } else { Vec::new() };
        assert_eq!(messages(&events), expected, "after {hours} h: {events:#?}");
        let why = "n1: run run1 found it slow, and another run must confirm it";
        let is_start =
            |event: &WatchEvent| matches!(event, WatchEvent::Started(job) if job.why == why);
        assert_eq!(events.iter().any(is_start), is_due, "{events:#?}");
        // Whatever the result, the node rests before the next attempt.
        assert_eq!(stand.state().attempts.nodes.contains_key(&NodeName::from("n1")), is_due);
        assert_eq!(messages(&stand.run(|_| false).1), Vec::<String>::new());
    }
}

#[test]
fn a_node_that_passed_since_is_not_audited() {
    let measured = clock::now().unix - 3_600;
    let (node, run) = (NodeName::from("n1"), "run2".to_owned());
    let stand =
        WatchFixture::with_script(1, "echo \"$@\"").with_certificates().with_suspicion("n1", 5);
    let stand = stand.with_event(JournalEvent::Cleared { node, run, measured });
    let (result, events) = stand.run(|_| false);
    assert_eq!((result.expect("ended"), messages(&events).len()), (0, 0), "{events:#?}");
}

#[test]
fn a_busy_node_is_measured_once_it_is_free() {
    let stand = WatchFixture { once: false, ..WatchFixture::with_script(1, "echo measured") };
    stand.fake.put(SchedulerNode::new("n1", &["ALLOCATED"]));
    let free = vec![SchedulerNode::new("n1", &["IDLE"])];
    stand.fake.foreign_changes.borrow_mut().extend([vec![], vec![], free]);
    let (_, events) = stand.run(|event| matches!(event, WatchEvent::Ended { .. }));
    assert_eq!(messages(&events), ["measured"]);
}

#[test]
fn a_job_that_cannot_be_recorded_is_stopped() {
    let mut stand = WatchFixture { domains: 2, once: false, ..WatchFixture::with_script(2, "") };
    let (state, ready, concluded) =
        (stand.path("watch.json"), stand.path("ready"), stand.path("concluded"));
    // The first job ends when a folder has replaced the state file; the second runs until
    // the stop request.
    stand.script = format!(
        "case \"$*\" in *n1*) until [ -e {ready} ]; do sleep 0.05; done
         rm {state}; mkdir -p {state}/x;;
         *) trap 'touch {concluded}; exit 6' TERM
         touch {ready}; while :; do sleep 0.05; done;; esac",
        ready = ready.display(),
        state = state.display(),
        concluded = concluded.display(),
    );
    let (result, events) = stand.run(|_| false);
    assert!(matches!(result, Err(WatchError::Folder { .. })), "{result:?} {events:#?}");
    assert!(concluded.exists(), "{events:#?}");
}

#[test]
fn with_a_lease_no_instance_works_without_a_term() {
    let term = LeaseTerm::parse("ns/w/us/3").expect("a term");
    let held = |until_s: f64| LeadershipStatus::Leading { term: term.clone(), until_s };
    assert_eq!(working_term(None), Ok(None));
    assert_eq!(working_term(Some(&held(f64::INFINITY))), Ok(Some(term.clone())));
    assert!(working_term(Some(&held(0.0))).is_err(), "it was paused");
}
