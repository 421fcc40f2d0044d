//! Reports: the page in a browser, and the content of every form of a report.

mod page;
mod reporting;
