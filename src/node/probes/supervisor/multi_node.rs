//! Combines the exchanges of several children on several nodes: a node sends one value, the list of
//! its children's values, and every child receives the list of all children of all nodes.
//!
//! Pure. The list is ordered by node, then by child within a node, and is the same for all
//! children.

use serde_json::Value;

use model::exchange::{ExchangeReply, ExchangeShare};

/// Combines the children's values to the node's value.
pub fn merge_shares(shares: &[ExchangeShare]) -> Value {
    serde_json::to_value(shares).expect("values are plain data")
}

/// Concatenates the nodes' lists.
#[derive(Clone, Debug, Default)]
pub struct MultiNodeShares {
    /// Number of children of each node, once known.
    child_counts: Vec<Option<usize>>,
}

impl MultiNodeShares {
    /// Builds the answer for the child with this index from the answer to this node.
    pub fn flatten(&mut self, answer: &ExchangeReply, child: usize) -> ExchangeReply {
        self.child_counts.resize(answer.shares.len().max(self.child_counts.len()), None);
        let mut shares = Vec::new();
        let mut me = child;
        for (at, (share, size)) in answer.shares.iter().zip(&mut self.child_counts).enumerate() {
            if at == answer.me {
                me = shares.len() + child;
            }
            let mut list = expand_share(share, *size);
            *size = Some(size.unwrap_or(list.len()));
            shares.append(&mut list);
        }
        ExchangeReply { number: answer.number, me, shares, waited_s: answer.waited_s }
    }
}

/// The children's values of one node. A node whose children were counted before keeps its slots, so
/// that no index changes.
fn expand_share(share: &ExchangeShare, size: Option<usize>) -> Vec<ExchangeShare> {
    let gone = |why: &str| {
        let share = ExchangeShare {
            member: share.member.clone(),
            value: None,
            gone: Some(share.gone.clone().unwrap_or_else(|| why.to_owned())),
        };
        vec![share; size.unwrap_or(1)]
    };
    let Some(value) = &share.value else { return gone("it sent no value") };
    match serde_json::from_value::<Vec<ExchangeShare>>(value.clone()) {
        Ok(list) if size.is_none_or(|size| size == list.len()) => list
            .into_iter()
            .map(|child| {
                // An explicit null deserializes like a missing value.
                let null = || child.gone.is_none().then_some(Value::Null);
                ExchangeShare {
                    member: share.member.clone(),
                    value: child.value.clone().or_else(null),
                    gone: child.gone,
                }
            })
            .collect(),
        Ok(_) => gone("its number of processes changed"),
        Err(_) => gone("its value is unreadable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(member: &str, value: u64) -> ExchangeShare {
        ExchangeShare { member: member.to_owned(), value: Some(Value::from(value)), gone: None }
    }

    fn lost(member: &str, why: &str) -> ExchangeShare {
        ExchangeShare { member: member.to_owned(), value: None, gone: Some(why.to_owned()) }
    }

    fn node(name: &str, shares: &[ExchangeShare]) -> ExchangeShare {
        ExchangeShare { member: name.to_owned(), value: Some(merge_shares(shares)), gone: None }
    }

    fn answer(me: usize, shares: Vec<ExchangeShare>) -> ExchangeReply {
        ExchangeReply { number: 3, me, shares, waited_s: 0.5 }
    }

    #[test]
    fn every_child_gets_the_children_of_all_nodes_in_the_same_order() {
        let a = [share("a", 0), share("a", 1)];
        let b = [share("b", 10), share("b", 11)];
        let of_b = answer(1, vec![node("a", &a), node("b", &b)]);
        let got = MultiNodeShares::default().flatten(&of_b, 1);
        assert_eq!((got.number, got.me), (3, 3));
        assert_eq!(got.shares, [share("a", 0), share("a", 1), share("b", 10), share("b", 11)]);
        let of_a = answer(0, of_b.shares);
        assert_eq!(MultiNodeShares::default().flatten(&of_a, 1).me, 1);
    }

    #[test]
    fn a_lost_node_keeps_the_slots_of_its_children() {
        let a = [share("a", 0), share("a", 1)];
        let b = [share("b", 10), lost("b", "it died")];
        let mut lists = MultiNodeShares::default();
        let first = answer(1, vec![node("a", &a), node("b", &b)]);
        let got = lists.flatten(&first, 0);
        assert_eq!(got.shares[3], lost("b", "it died"));
        let then = answer(1, vec![lost("a", "did not come"), node("b", &b)]);
        let got = lists.flatten(&then, 0);
        assert_eq!(got.me, 2);
        assert_eq!(got.shares[1], lost("a", "did not come"));
        assert_eq!(got.shares[2], share("b", 10));
    }

    #[test]
    fn a_node_that_never_joined_has_one_slot_and_its_reason() {
        let b = [share("b", 10)];
        let first = answer(1, vec![lost("a", "unreachable"), node("b", &b)]);
        let got = MultiNodeShares::default().flatten(&first, 0);
        assert_eq!((got.me, got.shares.len()), (1, 2));
        assert_eq!(got.shares[0].gone.as_deref(), Some("unreachable"));
    }

    #[test]
    fn a_value_that_is_not_a_list_counts_as_a_lost_member() {
        let invalid =
            ExchangeShare { member: "a".to_owned(), value: Some(Value::from("hello")), gone: None };
        let first = answer(1, vec![invalid, node("b", &[share("b", 1)])]);
        let got = MultiNodeShares::default().flatten(&first, 0);
        assert!(got.shares[0].gone.is_some());
    }
}
