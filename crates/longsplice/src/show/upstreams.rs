//! Shows servers for `longsplice servers`.

use std::fmt::Write;

use super::{
    age,
    table::{Align, Table},
};
use crate::upstream::{ServerStatus, UpstreamStatus};

/// Returns a table with a line for each server, and then the names without an address and the counts of clients that
/// waited in vain.
pub(crate) fn upstreams(all: &[UpstreamStatus]) -> String {
    if all.is_empty() {
        return "no upstreams: connections go where they were going\n".to_owned();
    }
    use Align::{Left, Right};
    let mut table = Table::new(vec![
        ("UPSTREAM", Left),
        ("SERVER", Left),
        ("ADDRESS", Left),
        ("STATE", Left),
        ("WEIGHT", Right),
        ("OPEN", Right),
        ("IDLE", Right),
        ("QUEUED", Right),
        ("REQUESTS", Right),
        ("FAILURES", Right),
        ("LAST CHECK", Left),
    ]);
    for upstream in all {
        for server in &upstream.servers {
            table.row(row(upstream, server));
        }
    }
    let mut out = table.to_string();
    for upstream in all {
        for name in &upstream.unresolved {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{}: {}: {}", upstream.name, name.server, name.why);
        }
        let in_vain = upstream.queue_timeouts_total + upstream.queue_overflows_total;
        if in_vain > 0 {
            let _ = writeln!(
                out,
                "{}: {} waited for a place in vain, {} found the queue full",
                upstream.name, upstream.queue_timeouts_total, upstream.queue_overflows_total
            );
        }
    }
    out
}

fn row(upstream: &UpstreamStatus, server: &ServerStatus) -> Vec<String> {
    let backup = if server.backup { " (backup)" } else { "" };
    let weight = match server.share < 1.0 {
        true => format!("{} ({:.0} %)", server.weight, server.share * 100.0),
        false => server.weight.to_string(),
    };
    let open = match server.max_connections {
        Some(most) => format!("{}/{most}", server.open),
        None => server.open.to_string(),
    };
    let check = server.last_check.as_ref().map_or_else(
        || "none".to_owned(),
        |check| {
            let what = check.why.as_deref().unwrap_or("good");
            format!("{what}, {} ago", age(check.seconds_ago))
        },
    );
    vec![
        upstream.name.clone(),
        server.server.clone(),
        server.address.clone(),
        format!("{}{backup}", server.state),
        weight,
        open,
        server.idle.to_string(),
        upstream.queued.to_string(),
        server.requests_total.to_string(),
        (server.connect_failures_total + server.failures_total).to_string(),
        check,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::status::{CheckStatus, Unresolved};

    #[test]
    fn servers_are_shown_with_what_they_do() {
        let one = ServerStatus {
            upstream: "web".into(),
            server: "one".into(),
            address: "192.0.2.1:80".into(),
            state: "up".into(),
            weight: 3,
            share: 0.5,
            backup: false,
            open: 2,
            max_connections: Some(10),
            idle: 1,
            aside: 0,
            requests_total: 7,
            reused_total: 3,
            given_up_total: 0,
            connects_total: 4,
            connect_failures_total: 1,
            failures_total: 1,
            replies_total: [0, 6, 0, 0, 1],
            reply_seconds_total: 0.5,
            last_check: None,
        };
        let two = ServerStatus {
            server: "two".into(),
            address: "192.0.2.2:80".into(),
            state: "down".into(),
            share: 1.0,
            backup: true,
            max_connections: None,
            last_check: Some(CheckStatus {
                good: false,
                seconds_ago: 1.5,
                why: Some("cannot connect: Connection refused".into()),
            }),
            ..one.clone()
        };
        let all = [UpstreamStatus {
            name: "web".into(),
            balance: "round_robin".into(),
            queued: 0,
            queue_timeouts_total: 2,
            queue_overflows_total: 0,
            servers: vec![one, two],
            unresolved: vec![Unresolved {
                server: "late.example:80".into(),
                why: "the name `late.example` does not exist".into(),
            }],
        }];
        assert_eq!(
            upstreams(&all),
            "\
UPSTREAM  SERVER  ADDRESS       STATE            WEIGHT  OPEN  IDLE  QUEUED  REQUESTS  FAILURES  LAST CHECK
web       one     192.0.2.1:80  up             3 (50 %)  2/10     1       0         7         2  none
web       two     192.0.2.2:80  down (backup)         3     2     1       0         7         2  cannot connect: Connection refused, 1s ago
web: late.example:80: the name `late.example` does not exist
web: 2 waited for a place in vain, 0 found the queue full
"
        );
    }
}
