//! Evidence: samples of a run, their comparison with targets, and the page that is generated from committed runs.
//!
//! | module | what it does |
//! |---|---|
//! | `series` | samples of one contender |
//! | `target` | bounds, and verdicts on them |
//! | `finding` | claims about series, as experiments make them |
//! | `judge` | computes values, rounds and verdicts from the samples |
//! | `number`, `line` | numbers and findings as text |
//! | `run` | one run as a file |
//! | `amend` | corrects what committed runs say of their samples |
//! | `archive` | all committed runs; the newest one for each row |
//! | `tables`, `template` | parts of the page, and their places in it |
//! | `command` | `bench report` |

mod amend;
mod archive;
mod command;
mod finding;
mod judge;
mod line;
mod number;
mod run;
mod series;
mod tables;
mod target;
mod template;

pub(crate) use amend::{PASSED_RATE, WIRE_SIZE};
pub(crate) use command::report;
pub(crate) use finding::{Comparison, Finding, Results};
#[cfg(test)]
pub(crate) use line::line;
pub(crate) use run::Book;
pub(crate) use series::{Series, Statistic};
pub(crate) use target::Target;
pub(crate) use template::{Part, Report};
