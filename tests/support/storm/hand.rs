//! Manual edits of nodes, before and while the gate works.

use super::dice::Dice;
use super::model::{DRAIN, Fields, Order};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Edit {
    /// A drain with a reason, which replaces the current one.
    Drain(&'static str),
    /// Text appended to the current reason.
    Append,
    /// Returned to service, regardless of the drain's author.
    Resume,
    /// Down, with a reason.
    Down(&'static str),
    Comment,
    /// An entry of `Extra` next to fabricgate's, or a text in its place.
    Entry,
    Text,
    Feature,
}

const EDITS: [Edit; 10] = [
    Edit::Drain("psu: swap, ticket 4711"),
    // A reason of fabricgate's form, and not fabricgate's.
    Edit::Drain("fabricgate:nvlink-low:20250101-000000-aaaaaa e3"),
    Edit::Append,
    Edit::Resume,
    Edit::Resume,
    Edit::Down("dimm 4"),
    Edit::Comment,
    Edit::Entry,
    Edit::Text,
    Edit::Feature,
];

impl Edit {
    pub(crate) fn any(dice: &mut Dice) -> Self {
        dice.pick(&EDITS).clone()
    }

    /// As the arguments of an update.
    pub(crate) fn order(&self, node: &Fields) -> Order {
        let set = |key: &str, value: &str| Order {
            set: Fields::from([(key.to_owned(), value.to_owned())]),
            ..Order::default()
        };
        match self {
            Self::Drain(reason) => set(DRAIN, reason),
            Self::Append => match node.get(DRAIN) {
                Some(reason) => set(DRAIN, &format!("{reason} : mine, jo")),
                None => Order::default(),
            },
            Self::Resume => {
                Order { unset: vec![DRAIN.to_owned(), "down".to_owned()], ..Order::default() }
            }
            Self::Down(reason) => set("down", reason),
            Self::Comment => set("comment", "bay 7"),
            // A writer of an entry keeps the others, if any.
            Self::Entry if node.contains_key("extra-text") => Order::default(),
            Self::Entry => set("extra/asset", "{\"rack\":12}"),
            Self::Text => Order {
                unset: vec!["extra/".to_owned(), "own/extra/".to_owned()],
                set: Fields::from([("extra-text".to_owned(), "ask jo".to_owned())]),
            },
            Self::Feature => Order {
                set: ["available/gpu", "active/gpu"]
                    .map(|key| (key.to_owned(), String::new()))
                    .into(),
                ..Order::default()
            },
        }
    }
}
