//! A controller of Slurm that can be killed, hung and edited: slurmrestd's answers, over a
//! socket, with a log of every request and change.
//!
//! Like the real one it may lose updates that it acknowledged a moment before it is killed, and
//! processes requests that it received while it hung.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use engine::policy::drain_reason;
use model::hostlist;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::storm::fates::Victim;
use super::storm::hand::Edit;
use super::storm::model::{By, DRAIN, Entry, Fields, Order, What};
use super::storm::slurm;
use super::storm::world::{FaultPlan, InjectedFault, World};

/// Processes that may be killed, by the number of a command.
type Victims = BTreeMap<u32, Victim>;

struct State {
    begin: BTreeMap<String, Fields>,
    nodes: BTreeMap<String, Fields>,
    /// Changes with the earlier values, which a crash restores.
    young: Vec<(Instant, String, Fields)>,
    log: Vec<Entry>,
    fault_plan: FaultPlan,
    gone_until: Instant,
    hung_until: Instant,
    victims: Victims,
    journal: PathBuf,
    runs: PathBuf,
    /// Time of each node's reason, in seconds since 1970.
    reasons: BTreeMap<String, u64>,
    /// Changes in flight.
    late: usize,
}

/// The controller.
#[derive(Clone)]
pub(crate) struct Controller {
    state: Arc<Mutex<State>>,
    socket: PathBuf,
}

struct Question {
    is_change: bool,
    path: String,
    command: u32,
    body: Value,
}

impl Controller {
    /// A controller with these nodes, for a gate whose folders are below `site`.
    pub(crate) fn start(folder: &Path, site: &Path, nodes: BTreeMap<String, Fields>) -> Self {
        let socket = folder.join("slurmrestd");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let now = Instant::now();
        let state = State {
            begin: nodes.clone(),
            nodes,
            young: Vec::new(),
            log: Vec::new(),
            fault_plan: FaultPlan::default(),
            gone_until: now,
            hung_until: now,
            victims: BTreeMap::new(),
            journal: site.join("gate/journal.jsonl"),
            runs: site.join("runs"),
            reasons: BTreeMap::new(),
            late: 0,
        };
        let controller = Self { state: Arc::new(Mutex::new(state)), socket };
        let own = controller.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                std::thread::spawn(move || own.serve(stream));
            }
        });
        controller
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn serve(&self, mut stream: UnixStream) -> Option<()> {
        let question = question(&stream)?;
        let fault = {
            let mut state = self.state();
            if Instant::now() < state.gone_until {
                return None;
            }
            state.fault_plan.next()
        };
        self.awake();
        let fault = match fault {
            Some(late @ (InjectedFault::Late(_) | InjectedFault::HandAfter(..)))
                if !question.is_change =>
            {
                self.state().fault_plan.postpone(late);
                None
            }
            fault => fault,
        };
        match fault {
            None => self.answer(&question, &mut stream),
            Some(InjectedFault::KillBefore) => self.kill(&question),
            Some(InjectedFault::KillAfter) => {
                self.done(&question);
                self.kill(&question)
            }
            Some(InjectedFault::Orphan) => {
                self.kill(&question);
                std::thread::sleep(Duration::from_millis(200));
                self.done(&question);
                None
            }
            Some(InjectedFault::Late(time)) => {
                self.state().late += 1;
                self.kill(&question);
                std::thread::sleep(time);
                self.done(&question);
                self.state().late -= 1;
                None
            }
            Some(InjectedFault::HandAfter(time, edit)) => {
                let answered = self.answer(&question, &mut stream);
                drop(stream);
                let names = question.body["name"].as_array().into_iter().flatten();
                let first = names.filter_map(Value::as_str).next().map(str::to_owned);
                let first = first?;
                std::thread::sleep(time);
                let node = hostlist::expand(&first).expect("a host list").remove(0);
                self.state().edit(&node, &edit);
                answered
            }
            Some(InjectedFault::Lost) => None,
            Some(InjectedFault::LostAnswer) => {
                self.done(&question);
                None
            }
            Some(InjectedFault::Refused) => refused(&mut stream),
            Some(InjectedFault::RefusedAfter) => {
                self.done(&question);
                refused(&mut stream)
            }
            Some(InjectedFault::Torn) => {
                let text = self.done(&question).to_string();
                let half = &text[..text.len() / 2];
                respond(&mut stream, 200, half)
            }
            Some(InjectedFault::Slow(time)) => {
                std::thread::sleep(time);
                self.answer(&question, &mut stream)
            }
            Some(InjectedFault::Hand(node, edit)) => {
                self.state().edit(&node, &edit);
                self.answer(&question, &mut stream)
            }
            Some(InjectedFault::Crash(away, forgets)) => {
                self.done(&question);
                self.state().crash(away, forgets);
                None
            }
            Some(InjectedFault::Hang(time)) => {
                {
                    // Received requests are processed first, even if their client is gone.
                    let mut state = self.state();
                    state.hung_until = Instant::now() + time;
                }
                self.awake();
                self.answer(&question, &mut stream)
            }
        }
    }

    /// Waits as long as the controller hangs.
    fn awake(&self) {
        let until = self.state().hung_until;
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    fn answer(&self, question: &Question, stream: &mut UnixStream) -> Option<()> {
        let text = self.done(question).to_string();
        respond(stream, 200, &text)
    }

    fn kill(&self, question: &Question) -> Option<()> {
        self.state().victims.get(&question.command)?.signal(Signal::KILL);
        None
    }

    /// Processes a request, and answers it.
    fn done(&self, question: &Question) -> Value {
        let Question { is_change, path, command, body } = question;
        let mut state = self.state();
        if path.ends_with("/ping/") {
            return json!({ "pings": [{ "hostname": "head", "responding": true }] });
        }
        if path.ends_with("/partitions/") {
            return json!({ "partitions": [] });
        }
        if *is_change {
            state.record_update(*command, body);
            return json!({ "errors": [], "warnings": [] });
        }
        let nodes = state.nodes.clone();
        let listed = |(name, node): (&String, &Fields)| {
            let mut listed = slurm::listed(name, node);
            let at = state.reasons.get(name).copied().unwrap_or_default();
            listed["reason_changed_at"]["number"] = json!(at);
            listed
        };
        let list: Vec<Value> = nodes.iter().map(listed).collect();
        state.log.push(Entry { by: By::Gate(*command), what: What::Read(nodes) });
        json!({ "nodes": list, "errors": [], "warnings": [], "last_update": 1 })
    }
}

impl World for Controller {
    fn begin(&self) -> BTreeMap<String, Fields> {
        self.state().begin.clone()
    }

    /// The number of a command is its token.
    fn gate(&self, site: &Path, command: u32) -> String {
        std::fs::write(site.join(format!("token-{command}")), command.to_string())
            .expect("written");
        format!(
            "[gate]\nthrough = \"slurmrestd\"\nlimit_s = 2\nsettle_s = 1\nkeep_s = 1\n\
             in_flight_s = {}\n\
             [sources.slurmrestd]\naddress = \"unix:{}\"\ntoken_file = \"token-{command}\"\n",
            self.in_flight().as_secs(),
            self.socket.display()
        )
    }

    fn expect(&self, fault: BTreeMap<usize, InjectedFault>) {
        self.state().fault_plan = FaultPlan::of(fault);
    }

    fn met(&self) -> Vec<String> {
        self.state().fault_plan.met.clone()
    }

    fn questions(&self) -> usize {
        16
    }

    fn begins(&self, command: u32, victim: Victim) {
        self.state().victims.insert(command, victim);
    }

    fn over(&self, command: u32) {
        self.state().victims.remove(&command);
    }

    fn edit(&self, node: &str, edit: &Edit) {
        self.state().edit(node, edit);
    }

    fn mend(&self) {
        self.state().gone_until = Instant::now();
        self.awake();
    }

    fn forgets(&self) -> bool {
        self.state().forget();
        true
    }

    fn quiet(&self) {
        while 0 < self.state().late {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn restored(&self) -> bool {
        self.state().log.push(Entry { by: By::Hand, what: What::Restored });
        true
    }

    fn is_late(&self) -> bool {
        true
    }

    fn log(&self) -> Vec<Entry> {
        self.state().log.clone()
    }
}

impl State {
    fn record_update(&mut self, command: u32, body: &Value) {
        let lists = body["name"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let nodes: Vec<String> =
            lists.flat_map(|list| hostlist::expand(list).expect("a host list")).collect();
        let order = slurm::order(body);
        let journal = std::fs::metadata(&self.journal).map_or(0, |it| it.len());
        let run =
            order.set.get(DRAIN).and_then(|it| drain_reason::parse_reason(it)).map(|own| own.run);
        let verdicts = run.map(|run| self.runs.join(run).join("verdicts.json"));
        let evidence = verdicts.is_none_or(|file| file.is_file());
        let by = By::Gate(command);
        let what = What::Sent { nodes: nodes.clone(), order: order.clone(), journal, evidence };
        self.log.push(Entry { by, what });
        for name in &nodes {
            self.change(by, name, &order);
        }
    }

    fn change(&mut self, by: By, name: &str, order: &Order) {
        let Some(node) = self.nodes.get(name) else { return };
        let now = order.on(node);
        if now == *node {
            return;
        }
        self.young.push((Instant::now(), name.to_owned(), node.clone()));
        if node.get(DRAIN) != now.get(DRAIN) || node.get("down") != now.get("down") {
            self.reasons.insert(name.to_owned(), moment());
        }
        self.nodes.insert(name.to_owned(), now.clone());
        let what = What::Became { node: name.to_owned(), now };
        self.log.push(Entry { by, what });
    }

    fn edit(&mut self, name: &str, edit: &Edit) {
        let Some(node) = self.nodes.get(name) else { return };
        let order = edit.order(node);
        self.change(By::Hand, name, &order);
    }

    /// Only the configuration's fields are left.
    fn forget(&mut self) {
        self.young.clear();
        let kept =
            |key: &String| key.starts_with("available/gb200") || key.starts_with("active/gb200");
        for (name, node) in &mut self.nodes {
            let now: Fields = node.clone().into_iter().filter(|(key, _)| kept(key)).collect();
            if now != *node {
                node.clone_from(&now);
                let what = What::Became { node: name.clone(), now };
                self.log.push(Entry { by: By::Fate, what });
            }
        }
    }

    fn crash(&mut self, away: Duration, forgets: Duration) {
        let now = Instant::now();
        self.gone_until = now + away;
        while let Some((at, name, before)) = self.young.pop() {
            if at + forgets < now {
                break;
            }
            self.nodes.insert(name.clone(), before.clone());
            let what = What::Became { node: name, now: before };
            self.log.push(Entry { by: By::Fate, what });
        }
        self.young.clear();
    }
}

/// The current time, in seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn moment() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.map_or(0, |it| it.as_secs())
}

/// One request as received; `None` where it broke off.
fn question(stream: &UnixStream) -> Option<Question> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut command) = (0, 0);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((key, value)) = header.trim().split_once(':') else { break };
        match key.to_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "x-slurm-user-token" => command = value.trim().parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some(Question { is_change: method == "POST", path, command, body })
}

fn respond(stream: &mut UnixStream, status: u16, text: &str) -> Option<()> {
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{text}"
    )
    .ok()
}

fn refused(stream: &mut UnixStream) -> Option<()> {
    // ESLURM_DISABLED: the controller's own error, after which a part may be done.
    let errors = json!([{ "error_number": 2018, "description": "not now" }]);
    respond(stream, 500, &json!({ "errors": errors }).to_string())
}
