//! Exchanges between the processes of one probe: collects the requests, tracks lost members, and
//! answers all remaining members once all of them have asked.
//!
//! Pure: it reads no clock, and starts and ends nothing. The owner of the processes passes in their
//! messages, forwards the answers, and ends the processes that this group reports as gone. An
//! invalid request only excludes its sender.

use std::time::Duration;

use serde_json::Value;

use model::exchange::{ExchangeReply, ExchangeRequest, ExchangeShare};
use model::worker_protocol::LONGEST_LINE;

/// Bytes of JSON that one member may send to an exchange. A memory handle has 64 bytes, NCCL's
/// unique ID 128; a list of several hundred fits.
pub const LARGEST_SHARE: usize = 256 << 10;

/// Maximum wait. A longer request means "forever", and the owner's time limit ends the process
/// earlier.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// Maximum characters of a reason to pass on in a small group.
const MAX_REASON_CHARS: usize = 300;

/// The exchanges of one group of processes.
#[derive(Clone, Debug)]
pub struct ExchangeGroup {
    members: Vec<ExchangeMember>,
    /// Number of the current exchange, from 0.
    number: u64,
    /// The latest time that a caller passed in.
    last_event: Duration,
}

#[derive(Clone, Debug)]
struct ExchangeMember {
    name: String,
    /// Why the member no longer participates; `None` while it does.
    gone: Option<String>,
    pending: Option<PendingAsk>,
}

/// The pending request of a waiting member.
#[derive(Clone, Debug)]
struct PendingAsk {
    value: Value,
    asked_at: Duration,
    deadline: Duration,
}

/// Result of expired waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExchangeTimeout {
    /// Members that are gone now. The owner must end their processes.
    pub gone: Vec<usize>,
    /// Answers for the other members.
    pub answers: Vec<(usize, ExchangeReply)>,
}

impl ExchangeGroup {
    /// Creates a group for members with these names. Members are identified by their index in this
    /// list.
    pub fn new(members: Vec<String>) -> Self {
        let member = |name| ExchangeMember { name, gone: None, pending: None };
        let members = members.into_iter().map(member).collect();
        Self { members, number: 0, last_event: Duration::ZERO }
    }

    /// Bytes of JSON that a member of this group may send: the values of all members together must
    /// fit into one line.
    pub fn largest_share(&self) -> usize {
        LARGEST_SHARE.min(LONGEST_LINE / 4 * 3 / self.members.len().max(1))
    }

    /// Handles a request; returns the answers that it completes. An invalid request excludes its
    /// sender, see [`Self::gone_reason`]; requests of excluded members are ignored.
    pub fn ask(
        &mut self,
        member: usize,
        ask: ExchangeRequest,
        now: Duration,
    ) -> Vec<(usize, ExchangeReply)> {
        self.last_event = self.last_event.max(now);
        let (number, largest) = (self.number, self.largest_share());
        let Some(sender) = self.members.get_mut(member).filter(|it| it.gone.is_none()) else {
            return Vec::new();
        };
        let bytes = json_bytes(&ask.value);
        let wrong = if sender.pending.is_some() {
            Some(format!("asked for exchange {} while waiting for {number}", ask.number))
        } else if ask.number != number {
            Some(format!("asked for exchange {}, but {number} is the next", ask.number))
        } else if largest < bytes {
            Some(format!("sent {bytes} bytes to exchange {number}, but {largest} are allowed"))
        } else {
            None
        };
        if let Some(why) = wrong {
            return self.remove(member, &why);
        }
        let until = now.saturating_add(wait_limit(ask.within_s));
        sender.pending = Some(PendingAsk { value: ask.value, asked_at: now, deadline: until });
        self.complete_exchange()
    }

    /// Removes a member; returns the answers that this completes. Its pending value is dropped.
    pub fn remove(&mut self, member: usize, why: &str) -> Vec<(usize, ExchangeReply)> {
        // The reasons of all members must fit into the line too.
        let longest = MAX_REASON_CHARS.min(LONGEST_LINE / 8 / self.members.len().max(1));
        let Some(leaver) = self.members.get_mut(member).filter(|it| it.gone.is_none()) else {
            return Vec::new();
        };
        leaver.gone = Some(why.chars().take(longest).collect());
        leaver.pending = None;
        self.complete_exchange()
    }

    /// When the first pending wait expires.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.pending_asks().map(|asked| asked.deadline).min()
    }

    /// Excludes the members that have not asked by the deadline of a waiting member, and answers
    /// the others. Does nothing before [`Self::next_deadline`].
    pub fn expire(&mut self, now: Duration) -> ExchangeTimeout {
        self.last_event = self.last_event.max(now);
        if self.next_deadline().is_none_or(|due| now < due) {
            return ExchangeTimeout::default();
        }
        let first = self.pending_asks().map(|asked| asked.asked_at).min().unwrap_or(now);
        let waited = now.saturating_sub(first).as_secs_f64();
        let why = format!("did not join exchange {} within {waited:.1} s", self.number);
        let missing = |member: &ExchangeMember| member.gone.is_none() && member.pending.is_none();
        let gone: Vec<usize> =
            (0..self.members.len()).filter(|at| missing(&self.members[*at])).collect();
        for at in &gone {
            self.members[*at].gone = Some(why.clone());
        }
        ExchangeTimeout { gone, answers: self.complete_exchange() }
    }

    /// Why this member no longer participates.
    pub fn gone_reason(&self, member: usize) -> Option<&str> {
        self.members.get(member).and_then(|it| it.gone.as_deref())
    }

    /// Number of remaining members.
    pub fn present_count(&self) -> usize {
        self.members.iter().filter(|it| it.gone.is_none()).count()
    }

    fn pending_asks(&self) -> impl Iterator<Item = &PendingAsk> {
        self.members.iter().filter_map(|member| member.pending.as_ref())
    }

    /// Completes the exchange if all remaining members have asked.
    fn complete_exchange(&mut self) -> Vec<(usize, ExchangeReply)> {
        let Some(first) = self.pending_asks().map(|asked| asked.asked_at).min() else {
            return Vec::new();
        };
        if self.members.iter().any(|it| it.gone.is_none() && it.pending.is_none()) {
            return Vec::new();
        }
        let number = self.number;
        self.number += 1;
        let waited_s = self.last_event.saturating_sub(first).as_secs_f64();
        let take = |member: &mut ExchangeMember| ExchangeShare {
            member: member.name.clone(),
            value: member.pending.take().map(|asked| asked.value),
            gone: member.gone.clone(),
        };
        let shares: Vec<ExchangeShare> = self.members.iter_mut().map(take).collect();
        let present = (0..self.members.len()).filter(|at| self.members[*at].gone.is_none());
        present
            .map(|me| (me, ExchangeReply { number, me, shares: shares.clone(), waited_s }))
            .collect()
    }
}

/// Bytes of a value as JSON.
fn json_bytes(value: &Value) -> usize {
    struct ByteCounter(usize);
    impl std::io::Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = ByteCounter(0);
    serde_json::to_writer(&mut count, value).expect("counting never fails");
    count.0
}

/// The wait for this many seconds.
fn wait_limit(seconds: f64) -> Duration {
    let longest = LONGEST_WAIT.as_secs_f64();
    // `max` of a number and NaN is the number.
    Duration::from_secs_f64(seconds.max(0.0).min(longest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn group(members: usize) -> ExchangeGroup {
        ExchangeGroup::new((0..members).map(|at| format!("n{at}")).collect())
    }

    fn ask(number: u64, value: impl Into<Value>, within_s: f64) -> ExchangeRequest {
        ExchangeRequest { number, value: value.into(), within_s }
    }

    #[test]
    fn every_member_is_answered_when_the_last_one_asks() {
        let mut group = group(3);
        assert_eq!(group.ask(2, ask(0, "c", 5.0), SECOND), []);
        assert_eq!(group.next_deadline(), Some(SECOND * 6));
        assert_eq!(group.ask(0, ask(0, "a", 2.0), SECOND * 2), []);
        assert_eq!(group.next_deadline(), Some(SECOND * 4), "the earliest deadline counts");
        let answers = group.ask(1, ask(0, "b", 5.0), SECOND * 3);
        let receivers: Vec<usize> = answers.iter().map(|(member, _)| *member).collect();
        assert_eq!(receivers, [0, 1, 2]);
        for (member, answer) in &answers {
            assert_eq!((answer.me, answer.number), (*member, 0));
            assert!((answer.waited_s - 2.0).abs() < 1e-9, "{}", answer.waited_s);
            let given: Vec<_> = answer.shares.iter().map(|share| share.value.clone()).collect();
            assert_eq!(given, ["a", "b", "c"].map(|it| Some(Value::from(it))));
        }
        assert_eq!(group.next_deadline(), None);
        assert_eq!(group.ask(0, ask(1, Value::Null, 5.0), SECOND * 4), []);
        assert!(group.gone_reason(0).is_none() && group.present_count() == 3);
    }

    #[test]
    fn a_lost_member_is_reported_with_its_reason_and_the_others_continue() {
        let mut group = group(3);
        group.ask(0, ask(0, 1, 5.0), SECOND);
        group.ask(1, ask(0, 2, 5.0), SECOND);
        assert_eq!(group.remove(1, "killed"), [], "the third is waited for");
        let answers = group.ask(2, ask(0, 3, 5.0), SECOND);
        assert_eq!(answers.len(), 2);
        let share = &answers[0].1.shares[1];
        assert_eq!((share.value.clone(), share.gone.as_deref()), (None, Some("killed")));
        assert_eq!(
            group.ask(1, ask(1, 2, 5.0), SECOND),
            [],
            "requests of a lost member are ignored"
        );
        assert_eq!(group.remove(1, "again"), []);
        assert_eq!(group.gone_reason(1), Some("killed"));
        group.ask(0, ask(1, 1, 5.0), SECOND);
        let answers = group.remove(2, "left");
        assert_eq!(answers.len(), 1, "the only remaining member waits for no other");
        assert_eq!(answers[0].1.shares[2].gone.as_deref(), Some("left"));
    }

    #[test]
    fn a_member_that_misses_the_deadline_is_lost_and_the_waiting_ones_continue() {
        let mut group = group(3);
        assert_eq!(group.expire(SECOND * 100), ExchangeTimeout::default(), "no member waits");
        group.ask(0, ask(0, 1, 5.0), SECOND);
        group.ask(2, ask(0, 1, 50.0), SECOND * 2);
        assert_eq!(group.expire(SECOND * 5), ExchangeTimeout::default());
        let late = group.expire(SECOND * 6);
        assert_eq!(late.gone, [1]);
        assert_eq!(late.answers.len(), 2);
        let why = late.answers[0].1.shares[1].gone.as_deref();
        assert_eq!(why, Some("did not join exchange 0 within 5.0 s"));
    }

    #[test]
    fn an_invalid_request_excludes_only_its_sender() {
        let large = "x".repeat(LARGEST_SHARE);
        for (request, reason) in [
            (ask(7, 1, 5.0), "asked for exchange 7, but 0 is the next"),
            (ask(0, large, 5.0), "sent 262146 bytes to exchange 0, but 262144 are allowed"),
        ] {
            let mut group = group(2);
            group.ask(0, ask(0, 1, 5.0), SECOND);
            let answers = group.ask(1, request, SECOND);
            assert_eq!(group.gone_reason(1), Some(reason));
            assert_eq!(answers.len(), 1);
        }
        let mut group = group(2);
        group.ask(0, ask(0, 1, 5.0), SECOND);
        group.ask(0, ask(1, 1, 5.0), SECOND);
        assert_eq!(group.gone_reason(0), Some("asked for exchange 1 while waiting for 0"));
        assert_eq!(group.ask(1, ask(0, 1, f64::NAN), SECOND).len(), 1);
        assert_eq!(group.ask(9, ask(1, 1, 5.0), SECOND), []);
        assert_eq!(ExchangeGroup::new(Vec::new()).expire(SECOND), ExchangeTimeout::default());
    }

    #[test]
    fn the_largest_shares_of_all_members_fit_into_one_line() {
        for members in [1, 2, 18, 144] {
            let mut group = group(members);
            let value = "x".repeat(group.largest_share() - 2);
            let mut answers = Vec::new();
            for at in 0..members {
                answers = group.ask(at, ask(0, value.as_str(), 5.0), SECOND);
            }
            let (_, answer) = answers.pop().expect("the last has asked");
            let line = serde_json::to_vec(&answer).expect("plain data");
            assert!(line.len() + 100 < LONGEST_LINE, "{members} members: {}", line.len());
        }
    }

    #[test]
    fn the_reasons_of_many_lost_members_fit_into_one_line() {
        let members = 1_000;
        let mut group = group(members);
        let why = "\u{1F622}".repeat(400);
        for at in 1..members {
            group.remove(at, &why);
        }
        let answers = group.ask(0, ask(0, 1, 5.0), SECOND);
        let line = serde_json::to_vec(&answers[0].1).expect("plain data");
        assert!(line.len() + 100 < LONGEST_LINE, "{}", line.len());
    }

    #[derive(Clone, Debug)]
    enum ExchangeEvent {
        /// A request for the exchange this far from the next.
        Asks {
            member: usize,
            off: u64,
            value: u64,
            within_s: f64,
        },
        Leaves(usize),
        Passes(u64),
        /// The owner checks the deadlines.
        Looks,
    }

    fn event() -> impl Strategy<Value = ExchangeEvent> {
        let asks = (0..5usize, prop_oneof![9 => Just(0u64), 1 => 1..3u64], 0..9u64, 0.0..9.0f64);
        prop_oneof![
            8 => asks.prop_map(|(member, off, value, within_s)| {
                ExchangeEvent::Asks { member, off, value, within_s }
            }),
            1 => (0..5usize).prop_map(ExchangeEvent::Leaves),
            2 => (0..4000u64).prop_map(ExchangeEvent::Passes),
            2 => Just(ExchangeEvent::Looks),
        ]
    }

    proptest! {
        #[test]
        fn all_remaining_members_get_the_same_answer_and_none_waits_forever(
            members in 1..5usize,
            events in proptest::collection::vec(event(), 0..60),
        ) {
            let mut group = group(members);
            let (mut now, mut next) = (Duration::ZERO, 0);
            for event in events {
                let answers = match event {
                    ExchangeEvent::Asks { member, off, value, within_s } => {
                        group.ask(member, ask(next + off, value, within_s), now)
                    }
                    ExchangeEvent::Leaves(member) => group.remove(member, "left"),
                    ExchangeEvent::Passes(ms) => {
                        now += Duration::from_millis(ms);
                        Vec::new()
                    }
                    ExchangeEvent::Looks => group.expire(now).answers,
                };
                let present: Vec<usize> = (0..members).filter(|it| group.gone_reason(*it).is_none()).collect();
                if let Some((_, first)) = answers.first() {
                    let receivers: Vec<usize> = answers.iter().map(|(member, _)| *member).collect();
                    prop_assert_eq!(&receivers, &present, "all remaining members are answered");
                    prop_assert_eq!(first.number, next);
                    for (member, answer) in &answers {
                        prop_assert_eq!(answer.me, *member);
                        prop_assert_eq!(&answer.shares, &first.shares);
                    }
                    for (at, share) in first.shares.iter().enumerate() {
                        prop_assert_eq!(share.value.is_some(), present.contains(&at));
                        prop_assert_eq!(share.gone.is_none(), present.contains(&at));
                    }
                    next += 1;
                }
            }
            // A waiting member is answered by its deadline.
            if let Some(due) = group.next_deadline() {
                let late = group.expire(due);
                prop_assert!(!late.gone.is_empty() && !late.answers.is_empty());
                prop_assert_eq!(group.next_deadline(), None);
            }
        }
    }
}
