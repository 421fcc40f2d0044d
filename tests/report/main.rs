//! Reports: the page in a browser, and what every form of a report says.

mod page;
mod reporting;
