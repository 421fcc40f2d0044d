//! Collectives, computed: the data that a rank sends, and its result from the others' data.

use crate::meeting::{Meeting, Vain};

/// Bytes of a float, the only supported type.
const FLOAT: usize = 4;

#[derive(Clone, Debug)]
pub enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast {
        root: u32,
    },
    /// Messages of a group: receivers and senders.
    Messages {
        to: Vec<Message>,
        from: Vec<Message>,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub peer: u32,
    pub place: usize,
    pub count: usize,
}

#[derive(Debug)]
pub struct Operation {
    pub number: u32,
    pub kind: Kind,
    pub send: usize,
    pub receive: usize,
    pub count: usize,
    /// Data to send, read when the stream reaches the operation; by message in a group.
    pub sent: Vec<Vec<u8>>,
    /// Received data; by message in a group.
    pub came: Vec<Vec<u8>>,
}

impl Operation {
    /// The written places, with their bytes.
    fn targets(&self, ranks: u32) -> Vec<(usize, usize)> {
        let ranks = ranks as usize;
        match &self.kind {
            Kind::AllReduce | Kind::ReduceScatter | Kind::Broadcast { .. } => {
                vec![(self.receive, self.count * FLOAT)]
            }
            Kind::AllGather => vec![(self.receive, self.count * ranks * FLOAT)],
            Kind::Messages { from, .. } => {
                from.iter().map(|it| (it.place, it.count * FLOAT)).collect()
            }
        }
    }

    /// Reads the data to send from memory.
    pub fn snapshot(&mut self, ranks: u32) {
        let sources = match &self.kind {
            Kind::AllReduce | Kind::AllGather | Kind::Broadcast { .. } => {
                vec![(self.send, self.count * FLOAT)]
            }
            Kind::ReduceScatter => vec![(self.send, self.count * ranks as usize * FLOAT)],
            Kind::Messages { to, .. } => to.iter().map(|it| (it.place, it.count * FLOAT)).collect(),
        };
        // The caller guarantees its memory, as with NCCL itself.
        let taken = sources.into_iter().map(|(place, bytes)| unsafe {
            std::slice::from_raw_parts(place as *const u8, bytes).to_vec()
        });
        self.sent = taken.collect();
    }

    /// Writes the received data to memory.
    pub fn deliver(&self, ranks: u32) {
        for ((place, bytes), came) in self.targets(ranks).into_iter().zip(&self.came) {
            let bytes = bytes.min(came.len());
            // As above.
            unsafe { std::ptr::copy_nonoverlapping(came.as_ptr(), place as *mut u8, bytes) };
        }
    }

    /// Sends this rank's data, receives the others', and computes.
    pub fn run(&mut self, meeting: &Meeting) -> Result<(), Vain> {
        let (number, me) = (self.number, meeting.rank);
        let all = |rank: u32| meeting.take(&format!("{number}-{rank}"), Some(rank));
        let come = |sent: &[Vec<u8>]| meeting.leave(&format!("{number}-{me}"), &sent[0]);
        let everybody = || (0..meeting.ranks).map(all).collect::<Result<Vec<_>, _>>();
        self.came = match &self.kind {
            Kind::AllReduce => {
                come(&self.sent);
                vec![sum(&everybody()?)]
            }
            Kind::AllGather => {
                come(&self.sent);
                vec![everybody()?.concat()]
            }
            Kind::ReduceScatter => {
                come(&self.sent);
                let bytes = self.count * FLOAT;
                let from = me as usize * bytes;
                let parts: Vec<Vec<u8>> =
                    everybody()?.into_iter().map(|of| of[from..from + bytes].to_vec()).collect();
                vec![sum(&parts)]
            }
            Kind::Broadcast { root } => {
                come(&self.sent);
                // All ranks wait for each other, so that no file is deleted too early.
                vec![everybody()?.swap_remove(*root as usize)]
            }
            Kind::Messages { to, from } => {
                // The n-th message to a peer is the n-th that the peer receives from this rank.
                let name = |a: u32, b: u32, nth: usize| format!("{number}-{a}-{b}-{nth}");
                let nth = |list: &[Message], at: usize| {
                    list[..at].iter().filter(|it| it.peer == list[at].peer).count()
                };
                for (at, (message, bytes)) in to.iter().zip(&self.sent).enumerate() {
                    meeting.leave(&name(me, message.peer, nth(to, at)), bytes);
                }
                let took = from.iter().enumerate().map(|(at, message)| {
                    let name = name(message.peer, me, nth(from, at));
                    let took = meeting.take(&name, Some(message.peer))?;
                    meeting.forget(&name);
                    Ok(took)
                });
                took.collect::<Result<_, _>>()?
            }
        };
        Ok(())
    }
}

fn sum(parts: &[Vec<u8>]) -> Vec<u8> {
    let floats = |part: &[u8]| -> Vec<f32> {
        let four = |four: &[u8]| f32::from_ne_bytes(four.try_into().expect("four bytes"));
        part.chunks_exact(FLOAT).map(four).collect()
    };
    let mut total = floats(&parts[0]);
    for part in &parts[1..] {
        for (sum, value) in total.iter_mut().zip(floats(part)) {
            *sum += value;
        }
    }
    total.into_iter().flat_map(f32::to_ne_bytes).collect()
}
