//! `fabricgate node probe copy` on simulated machines: the numbers are the
//! machine's, wrong data is told, and whatever breaks leaves one clear message,
//! what was measured until then, and no process.

use fabricgate::model::copy::CopyDocument;
use fabricgate::model::parsed::ProblemKind;

use crate::program::Place;
use crate::program::Ran;
use crate::stub::Library;
use crate::stub::Machine;

/// Small copies and few, and no cache to get past.
const SMALL: [&str; 10] = [
    "--json",
    "node",
    "probe",
    "copy",
    "--buffer=1",
    "--copies=2",
    "--warmup=1",
    "--readings=2",
    "--node=n1",
    "--no-around",
];

/// A machine on which tests are quick.
fn machine(gpus: u32) -> Machine {
    Machine::of(gpus).with("gpu cache = 1048576")
}

fn probe(place: &Place, words: &[&str]) -> (Ran, CopyDocument) {
    let ran = place.run(&[&SMALL[..], words].concat());
    let document = ran.document();
    (ran, document)
}

#[test]
fn it_runs() {
    let (ran, document) = probe(&Place::of(&machine(4)), &[]);
    eprintln!("{ran:?}\n{document:#?}");
    panic!();
}
