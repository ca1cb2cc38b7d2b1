//! Interception: connections to others are served, spliced and come back, without a rule of netfilter; earlier
//! connections are left alone; and nothing is left behind.

mod http;
mod lab;
mod left_behind;
mod others;
mod real;
mod reloaded;
mod replaced;
mod served;
