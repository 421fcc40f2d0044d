//! The worker: runs probes on its node for a coordinator that talks to it over
//! standard input and output, in the lines of `model::worker`.
//!
//! It lives as long as its input does and leaves nothing running. What the
//! probes mean, and what their output says, it does not know.

mod busy;
mod environment;
mod line;
mod order;
mod port;
mod proc;
mod setup;

use std::collections::BTreeMap;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::exec::guard;
use crate::exec::session::Session;
use model::exchange::Answer;
use model::worker::FromWorker;
use model::worker::Hello;
use model::worker::Order;
use model::worker::PROTOCOL;
use model::worker::ToWorker;
use order::Answering;
pub use setup::Setup;

/// How long the last lines may take to leave when nobody may be reading.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What the reading side tells the worker.
#[derive(Debug)]
enum Heard {
    /// A line.
    Line(Vec<u8>),
    /// A line that is longer than allowed.
    TooLong,
    /// Nobody speaks, or nobody listens, any more.
    Gone,
}

/// Why the worker ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to, or nobody was left to tell it anything.
    Dismissed,
    /// It was told something that it cannot follow, and said why.
    Fault(String),
}

/// Works until told to stop, until the input ends or until a line cannot be
/// followed. Must be called on a thread that lives as long as the process does:
/// what the worker starts dies with it.
pub async fn work(
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    setup: Setup,
) -> Ended {
    let (heard, mut lines) = mpsc::channel(16);
    let (say, words) = mpsc::unbounded_channel();
    let gone = heard.clone();
    std::thread::spawn(move || line::read_all(BufReader::new(input), &heard));
    let writer = tokio::task::spawn_blocking(move || line::write_all(output, words, &gone));
    // Groups that are left when the worker dies are killed from there.
    let groups = Session::start(&guard::watching(&setup.executable), &BTreeMap::new()).ok();
    let (started, told) = mpsc::unbounded_channel();
    let teller = tokio::spawn(tell_groups(groups, told));

    let mut desk = Desk {
        setup: Arc::new(setup),
        say,
        started,
        running: JoinSet::new(),
        stops: BTreeMap::new(),
        answers: BTreeMap::new(),
        greeted: false,
    };
    let ended = loop {
        tokio::select! {
            heard = lines.recv() => match heard {
                Some(Heard::Line(line)) => match desk.follow(&line).await {
                    Ok(Next::Listen) => {}
                    Ok(Next::Leave) => break Ended::Dismissed,
                    Err(why) => break Ended::Fault(why),
                },
                Some(Heard::TooLong) => {
                    let longest = model::worker::LONGEST_LINE;
                    break Ended::Fault(format!("expected lines of at most {longest} bytes"));
                }
                Some(Heard::Gone) | None => break Ended::Dismissed,
            },
            Some(ended) = desk.running.join_next() => {
                if let Ok(id) = ended {
                    desk.stops.remove(&id);
                    desk.answers.remove(&id);
                }
            }
        }
    };
    desk.leave(&ended).await;
    let _ = teller.await;
    // Nobody may be reading; then the last words are lost, and that is all.
    let _ = timeout(LAST_WORDS, writer).await;
    ended
}

/// Whether to go on.
enum Next {
    Listen,
    Leave,
}

/// What the worker has in hand.
struct Desk {
    setup: Arc<Setup>,
    say: mpsc::UnboundedSender<FromWorker>,
    /// Where groups that start and end are told: the negative number ends.
    started: mpsc::UnboundedSender<i32>,
    running: JoinSet<u64>,
    stops: BTreeMap<u64, watch::Sender<bool>>,
    /// How answers reach those who take part in exchanges.
    answers: BTreeMap<u64, Answering>,
    greeted: bool,
}

impl Desk {
    /// Follows one line; an error is why it cannot be followed.
    async fn follow(&mut self, line: &[u8]) -> Result<Next, String> {
        let told: ToWorker = serde_json::from_slice(line).map_err(|error| {
            let begins = String::from_utf8_lossy(&line[..line.len().min(60)]);
            let expected = "expected a line of JSON: hello, run, stop or bye";
            format!("{expected}; this one begins {begins:?}: {error}")
        })?;
        match told {
            ToWorker::Hello { protocol, version, .. } if protocol != PROTOCOL => Err(format!(
                "expected protocol {PROTOCOL}, and the coordinator (fabricgate {version}) speaks \
                 {protocol}: the node has fabricgate {}",
                env!("CARGO_PKG_VERSION")
            )),
            ToWorker::Hello { .. } if self.greeted => {
                Err("expected run, stop or bye, and got a second hello".to_owned())
            }
            ToWorker::Hello { .. } => {
                self.greeted = true;
                let hello = Hello {
                    protocol: PROTOCOL,
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    environment: environment::read(&self.setup).await,
                };
                self.tell(FromWorker::Hello(Box::new(hello)));
                Ok(Next::Listen)
            }
            _ if !self.greeted => Err("expected hello first".to_owned()),
            ToWorker::Run(order) => self.start(order).map(|()| Next::Listen),
            ToWorker::Stop { id } => {
                // One that is not there has ended already.
                if let Some(stop) = self.stops.get(&id) {
                    let _ = stop.send(true);
                }
                Ok(Next::Listen)
            }
            ToWorker::Answer { id, answer } => {
                self.answer(id, &answer);
                Ok(Next::Listen)
            }
            ToWorker::Bye => Ok(Next::Leave),
        }
    }

    fn start(&mut self, order: Order) -> Result<(), String> {
        let id = order.id;
        if self.stops.contains_key(&id) {
            return Err(format!("expected a new order, and {id} is still running"));
        }
        let (stop, stopped) = watch::channel(false);
        self.stops.insert(id, stop);
        let setup = Arc::clone(&self.setup);
        let (say, started) = (self.say.clone(), self.started.clone());
        let answered = order.together.then(|| {
            let (answering, answered) = order::answering();
            self.answers.insert(id, answering);
            answered
        });
        self.running.spawn(async move {
            order::carry_out(order, &setup, stopped, answered, (&say, &started)).await;
            id
        });
        Ok(())
    }

    /// Passes an answer on to the process that asked.
    fn answer(&self, id: u64, answer: &Answer) {
        // Who asked may have ended since.
        let Some(answering) = self.answers.get(&id) else { return };
        let Ok(mut line) = serde_json::to_vec(answer) else { return };
        line.push(b'\n');
        let fewer = |open: usize| open.checked_sub(1);
        // An answer that nobody asked for is not passed on: the process reads
        // one line for each question, and would take it for the next.
        let asked = answering.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        if asked.is_ok() {
            let _ = answering.words.send(line);
        }
    }

    /// Ends everything that runs, and says why where that is not expected.
    async fn leave(mut self, ended: &Ended) {
        for stop in self.stops.values() {
            let _ = stop.send(true);
        }
        if let Ended::Fault(why) = ended {
            self.tell(FromWorker::Fault { why: why.clone() });
        }
        while self.running.join_next().await.is_some() {}
    }

    fn tell(&self, word: FromWorker) {
        let _ = self.say.send(word);
    }
}

/// Tells the guard beside us which groups there are.
async fn tell_groups(guard: Option<Session>, mut told: mpsc::UnboundedReceiver<i32>) {
    let Some(mut guard) = guard else { return };
    while let Some(group) = told.recv().await {
        if guard.send(format!("{group:+}").as_bytes()).await.is_err() {
            break;
        }
    }
    let _ = guard.end(LAST_WORDS).await;
}
